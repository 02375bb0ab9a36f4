package content

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFillAtAnyOffsetIsASliceOfTheWhole(t *testing.T) {
	const n = 200
	whole := make([]byte, n)
	for i := range n / 8 {
		binary.LittleEndian.PutUint64(whole[8*i:], Word(7, uint64(i)))
	}
	for off := range n {
		for _, l := range []int{0, 1, 3, 8, 9, 31, n - off} {
			if off+l > n {
				continue
			}
			b := make([]byte, l)
			Fill(b, 7, uint64(off))
			require.Equal(t, whole[off:off+l], b, "off %d len %d", off, l)
			require.Equal(t, -1, Check(b, 7, uint64(off)))
		}
	}
}

func TestCheckNamesTheFirstWrongByte(t *testing.T) {
	for off := range uint64(9) {
		b := make([]byte, 61)
		Fill(b, 1, off)
		for i := range b {
			b[i] ^= 0x10
			require.Equal(t, i, Check(b, 1, off), "off %d", off)
			b[i] ^= 0x10
		}
		require.Equal(t, -1, Check(b, 1, off))
	}
}

func TestNoWordOccursTwice(t *testing.T) {
	seen := map[uint64]bool{}
	for key := range uint64(64) {
		for i := range uint64(4096) {
			w := Word(key, i)
			require.False(t, seen[w], "key %d word %d", key, i)
			seen[w] = true
		}
	}
}

func TestKeysAndNumbersHaveContentsOfTheirOwn(t *testing.T) {
	seen := map[uint64]bool{}
	for _, name := range []string{"", "a", "b", "ab", "ba", "a\x00"} {
		for n := range uint64(100) {
			k := KeyOf(name, n)
			require.False(t, seen[k], "%q %d", name, n)
			seen[k] = true
			require.Equal(t, k, KeyOf(name, n))
		}
	}
}

func TestSwappedSlicesShow(t *testing.T) {
	const layer = 73_728 // a multiple of 256: a pattern of that period would not see the swap
	b := make([]byte, 2*layer)
	Fill(b[:layer], 3, layer)
	Fill(b[layer:], 3, 0)
	require.Equal(t, 0, Check(b[:layer], 3, 0))
	require.Equal(t, 0, Check(b[layer:], 3, layer))
}

func TestPoisonIsSeenToBeWritten(t *testing.T) {
	b := make([]byte, 33)
	Poison(b)
	require.Equal(t, -1, CheckPoison(b))
	b[32] = 0
	require.Equal(t, 32, CheckPoison(b))
	Poison(b)
	require.GreaterOrEqual(t, Check(b, 5, 0), 0)
}

func BenchmarkContent(b *testing.B) {
	buf := make([]byte, 576<<10)
	b.Run("fill=576KiB", func(b *testing.B) {
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			Fill(buf, 1, 0)
		}
	})
	b.Run("check=576KiB", func(b *testing.B) {
		Fill(buf, 1, 0)
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			if Check(buf, 1, 0) >= 0 {
				b.Fatal("wrong content")
			}
		}
	})
}
