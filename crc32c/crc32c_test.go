package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// kernels are those that this processor has.
func kernels() map[string]kernel {
	all := map[string]kernel{"plain": plain}
	if canMultiply {
		all["multiplying"] = multiplying
	}
	if canFold {
		all["folding"] = folding
	}
	return all
}

func eachKernel(t *testing.T, f func(t *testing.T, k kernel)) {
	t.Helper()
	for name, k := range kernels() {
		t.Run(name, func(t *testing.T) { f(t, k) })
	}
	if !canFold {
		t.Run("folding", func(t *testing.T) { t.Skip("no AVX-512 with VPCLMULQDQ, or -race") })
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{7}).Read(b) // never fails
	return b
}

func due(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

func TestUpdateIsCRC32C(t *testing.T) {
	require.EqualValues(t, 0xe3069283, Update(0, []byte("123456789")))
	require.EqualValues(t, 0xe3069283, Update(Update(0, []byte("1234")), []byte("56789")))
	require.Zero(t, Update(0, nil))
}

func TestUpdateIsThatOfTheLibraryAtEveryLength(t *testing.T) {
	const most = 5000
	b := noise(most + 64)
	eachKernel(t, func(t *testing.T, k kernel) {
		for n := range most + 1 {
			at := n * 7 % 64
			if p := b[at : at+n]; update(k, uint32(n), p) != due(uint32(n), p) {
				t.Fatalf("%d bytes at %d", n, at)
			}
		}
		for at := range 64 {
			for _, n := range []int{127, 256, 1728, 4096} {
				require.Equal(t, due(1, b[at:at+n]), update(k, 1, b[at:at+n]), "%d bytes at %d", n, at)
			}
		}
		long := noise(2*piece + 100)
		for _, n := range []int{piece - 1, piece, piece + 1, 2*piece + 77} {
			require.Equal(t, due(3, long[3:3+n]), update(k, 3, long[3:3+n]), "%d bytes", n)
		}
	})
}

func TestUpdateMayBeSplitAnywhere(t *testing.T) {
	b := noise(1 << 13)
	eachKernel(t, func(t *testing.T, k kernel) {
		rapid.Check(t, func(t *rapid.T) {
			p := b[rapid.IntRange(0, 100).Draw(t, "off"):]
			sum, rest := uint32(0), p
			for len(rest) > 0 {
				n := rapid.IntRange(0, len(rest)).Draw(t, "n")
				sum, rest = update(k, sum, rest[:n]), rest[n:]
				if n == 0 {
					break
				}
			}
			require.Equal(t, due(0, p), update(k, sum, rest))
		})
	})
}

// copier is Copy or Stream, with a kernel.
type copier struct {
	name string
	f    func(k kernel, dst, src, next []byte, crc uint32) uint32
}

var copiers = []copier{{"Copy", copySum}, {"Stream", func(k kernel, dst, src, next []byte, crc uint32) uint32 {
	defer Fence()
	return streamSum(k, dst, src, next, crc)
}}}

const poison = 0xa5

// copied says what is wrong about a copy of n bytes between these places, guards included.
func (c copier) copied(k kernel, dst, src []byte, dstOff, srcOff, n int, next []byte) error {
	for i := range dst {
		dst[i] = poison
	}
	to, from := dst[dstOff:dstOff+n], src[srcOff:srcOff+n]
	if sum := c.f(k, to, from, next, uint32(n)); sum != due(uint32(n), from) {
		return fmt.Errorf("sum %#x instead of %#x", sum, due(uint32(n), from))
	}
	for i := range dst {
		want := byte(poison)
		if i >= dstOff && i < dstOff+n {
			want = from[i-dstOff]
		}
		if dst[i] != want {
			return fmt.Errorf("byte %d is %#x instead of %#x", i-dstOff, dst[i], want)
		}
	}
	return nil
}

func eachCopier(t *testing.T, f func(t *testing.T, c copier, k kernel)) {
	t.Helper()
	for _, c := range copiers {
		t.Run(c.name, func(t *testing.T) { eachKernel(t, func(t *testing.T, k kernel) { f(t, c, k) }) })
	}
}

func TestCopyWritesAndSumsAllOfItsBytesAndNoOthers(t *testing.T) {
	const most = 5000
	src, dst := noise(most+256), make([]byte, most+512)
	eachCopier(t, func(t *testing.T, c copier, k kernel) {
		for n := range most + 1 {
			require.NoError(t, c.copied(k, dst[:n+200], src, 64+n*5%64, n*7%64, n, nil), "%d bytes", n)
		}
		for _, n := range []int{0, 1, 63, 64, 255, 256, 1728, 4096 + 65} {
			for dstOff := range 130 {
				for _, srcOff := range []int{0, 1, 32, 63} {
					require.NoError(t, c.copied(k, dst[:n+200], src, dstOff, srcOff, n, src[:n/2]), "%d bytes to %d from %d", n, dstOff, srcOff)
				}
			}
		}
	})
}

func TestCopyOfManyPieces(t *testing.T) {
	src, dst := noise(2*piece+1000), make([]byte, 2*piece+1000)
	eachCopier(t, func(t *testing.T, c copier, k kernel) {
		for _, n := range []int{64 << 10, 64<<10 + 1, piece - 1, piece, piece + 1, 2*piece + 300} {
			require.NoError(t, c.copied(k, dst, src, 100, 33, n, src), "%d bytes", n)
		}
	})
}

func TestCopyOfWhatOverlapsIsThatOfTheRuntime(t *testing.T) {
	eachCopier(t, func(t *testing.T, c copier, k kernel) {
		for _, n := range []int{1, 100, 5000, 70_000} {
			for _, by := range []int{0, 1, 64, 100, 4096} {
				for _, up := range []bool{false, true} {
					got, want := noise(n+by), noise(n+by)
					dst, src := by, 0
					if !up {
						dst, src = 0, by
					}
					sum := c.f(k, got[dst:dst+n], got[src:src+n], nil, 5)
					copy(want[dst:dst+n], want[src:src+n])
					require.True(t, string(want) == string(got), "%d bytes by %d, up: %v", n, by, up)
					require.Equal(t, due(5, want[dst:dst+n]), sum, "%d bytes by %d, up: %v", n, by, up)
				}
			}
		}
	})
}

func TestCopyPanicsOfLengthsThatDiffer(t *testing.T) {
	eachCopier(t, func(t *testing.T, c copier, k kernel) {
		require.PanicsWithValue(t, "crc32c: copy of 3 bytes to 4", func() { c.f(k, make([]byte, 4), make([]byte, 3), nil, 0) })
	})
}

func TestCombineIsTheSumOfBoth(t *testing.T) {
	b := noise(1 << 16)
	eachKernel(t, func(t *testing.T, k kernel) {
		for n := range 3000 {
			x, y := b[:n/3], b[n/3:n]
			require.Equal(t, due(0, b[:n]), combine(k, due(0, x), due(0, y), uint64(len(y))), "%d and %d bytes", len(x), len(y))
		}
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(0, len(b)).Draw(t, "n")
			at := rapid.IntRange(0, n).Draw(t, "at")
			require.Equal(t, due(0, b[:n]), combine(k, due(0, b[:at]), due(0, b[at:n]), uint64(n-at)))
		})
	})
}

// TestCombineTakesAnyLength: moving on by n and then by m is moving on by their sum, whatever they are.
func TestCombineTakesAnyLength(t *testing.T) {
	eachKernel(t, func(t *testing.T, k kernel) {
		rapid.Check(t, func(t *rapid.T) {
			sum := rapid.Uint32().Draw(t, "sum")
			n := rapid.Uint64Range(0, 1<<63).Draw(t, "n")
			m := rapid.Uint64Range(0, 1<<63-1).Draw(t, "m")
			require.Equal(t, combine(k, sum, 0, n+m), combine(k, combine(k, sum, 0, n), 0, m))
			require.Equal(t, combine(plain, sum, 0, n), combine(k, sum, 0, n))
		})
	})
}

func TestJoinerIsCombineWhateverItJoinedBefore(t *testing.T) {
	eachKernel(t, func(t *testing.T, k kernel) {
		rapid.Check(t, func(t *rapid.T) {
			var j Joiner
			for range 10 {
				a, b := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b")
				n := rapid.OneOf(rapid.SampledFrom([]uint64{0, 1, 1728}), rapid.Uint64()).Draw(t, "n")
				require.Equal(t, combine(plain, a, b, n), j.join(k, a, b, n), "%d bytes", n)
			}
		})
	})
}

func TestNothingAllocates(t *testing.T) {
	src, dst := noise(10_000), make([]byte, 10_000)
	sum, j := uint32(0), Joiner{}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		sum = Update(sum, src)
		sum = Copy(dst, src, src, sum)
		sum = Stream(dst, src, src, sum)
		sum = Combine(sum, sum, uint64(len(src)))
		sum = j.Join(sum, sum, 1728)
	}))
	require.NotZero(t, sum)
}

func FuzzCopyAndSum(f *testing.F) {
	const room = 1 << 17
	src, dst := noise(room+1<<16), make([]byte, room+1<<16)
	f.Add(uint32(1728), uint16(64), uint16(0), uint32(0))
	f.Add(uint32(66_000), uint16(1), uint16(63), uint32(1000))
	f.Fuzz(func(t *testing.T, n uint32, dstOff, srcOff uint16, next uint32) {
		n, next = n%room, next%room
		for name, k := range kernels() {
			require.Equal(t, due(next, src[srcOff:uint32(srcOff)+n]), update(k, next, src[srcOff:uint32(srcOff)+n]), name)
			for _, c := range copiers {
				require.NoError(t, c.copied(k, dst, src, int(dstOff), int(srcOff), int(n), src[:next]), "%s, %s", c.name, name)
			}
		}
	})
}
