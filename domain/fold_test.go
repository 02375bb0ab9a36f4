package domain

import (
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestFoldSumsIsTheSumOfTheBytesOfAUnionOfPutRangesAndOfNothingElse has as oracles the sum of the bytes, and wholeByBytes.
func TestFoldSumsIsTheSumOfTheBytesOfAUnionOfPutRangesAndOfNothingElse(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	rapid.Check(t, func(t *rapid.T) {
		lens := rapid.SliceOfN(rapid.Uint64Range(1, 9), 1, 12).Draw(t, "lens")
		var size uint64
		for _, n := range lens {
			size += n
		}
		object := rapid.SliceOfN(rapid.Byte(), int(size), int(size)).Draw(t, "object")
		summer := NewSummer(lens)
		summer.Add(object)
		runs := drawUnions(t, lens, size)
		var due uint32
		var bytes, whole uint64
		for _, r := range runs {
			due = crc32.Update(due, table, object[r.Off:r.End()])
			bytes += r.Len
		}
		ForEachWhole(lens, runs, func(_ int, r Run) bool { whole += r.Len; return true })
		union := len(runs) > 0 && whole == bytes
		sum, ok := FoldSums(lens, summer.Sums(), runs)
		require.Equal(t, union, ok)
		if ok {
			require.Equal(t, due, sum, "%v of put-ranges of %v", runs, lens)
		}
	})
}

// drawUnions draws runs in order, which may touch: mostly such as end where put-ranges do.
func drawUnions(t *rapid.T, lens []uint64, size uint64) (runs []Run) {
	ends := []uint64{0}
	for _, n := range lens {
		ends = append(ends, ends[len(ends)-1]+n)
	}
	at := func(name string, least uint64) uint64 {
		if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
			return rapid.Uint64Range(least, size).Draw(t, name)
		}
		return max(least, rapid.SampledFrom(ends).Draw(t, name))
	}
	var off uint64
	for range rapid.IntRange(0, 4).Draw(t, "runs") {
		lo := at("lo", off)
		hi := at("hi", lo)
		if hi > lo {
			runs = append(runs, Run{Off: lo, Len: hi - lo})
			off = hi
		}
	}
	return runs
}

func TestFoldSumsWithoutASumPerPutRangeIsNone(t *testing.T) {
	_, ok := FoldSums([]uint64{4, 4}, []uint32{1}, []Run{{Len: 4}})
	require.False(t, ok)
	_, ok = FoldSums([]uint64{4, 4}, nil, []Run{{Len: 4}})
	require.False(t, ok)
	_, ok = FoldSums(nil, nil, []Run{{Off: 2, Len: 4}})
	require.False(t, ok)
}
