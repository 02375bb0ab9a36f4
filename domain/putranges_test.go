package domain

import (
	"hash/crc32"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/crc32c"
)

// wholeByBytes is the oracle of ForEachWhole: it looks at every byte.
func wholeByBytes(lens []uint64, runs []Run) (whole []int) {
	var size uint64
	for _, n := range lens {
		size += n
	}
	in := make([]bool, size)
	for _, r := range runs {
		for at := r.Off; at < min(r.End(), size); at++ {
			in[at] = true
		}
	}
	var off uint64
	for i, n := range lens {
		if !slices.Contains(in[off:off+n], false) {
			whole = append(whole, i)
		}
		off += n
	}
	return whole
}

// requireWhole holds ForEachWhole to the oracle, and each run that it gives to its put-range.
func requireWhole(t require.TestingT, lens []uint64, runs []Run) {
	ends := make([]uint64, 0, len(lens))
	var off uint64
	for _, n := range lens {
		off += n
		ends = append(ends, off)
	}
	var got []int
	ForEachWhole(lens, runs, func(i int, r Run) bool {
		require.Equal(t, Run{Off: ends[i] - lens[i], Len: lens[i]}, r, "put-range %d", i)
		got = append(got, i)
		return true
	})
	require.Equal(t, wholeByBytes(lens, runs), got, "put-ranges of %v that lie in %v", lens, runs)
}

func TestWholePutRangesOfRuns(t *testing.T) {
	lens := []uint64{10, 20, 30}
	for name, c := range map[string]struct {
		runs []Run
		want []int
	}{
		"nothing":                        {},
		"one, exactly":                   {[]Run{{10, 20}}, []int{1}},
		"one, and a byte on either side": {[]Run{{9, 22}}, []int{1}},
		"a byte too few before":          {[]Run{{11, 19}}, nil},
		"a byte too few behind":          {[]Run{{10, 19}}, nil},
		"all":                            {[]Run{{0, 60}}, []int{0, 1, 2}},
		"all, in runs that touch":        {[]Run{{0, 5}, {5, 7}, {12, 40}, {52, 8}}, []int{0, 1, 2}},
		"a gap of a byte in the second":  {[]Run{{0, 15}, {16, 44}}, []int{0, 2}},
		"past the object":                {[]Run{{30, 1_000}}, []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, wholeByBytes(lens, c.runs))
			requireWhole(t, lens, c.runs)
		})
	}
}

func drawRuns(t *rapid.T, size uint64) (runs []Run) {
	var at uint64
	for at < size && rapid.IntRange(0, 5).Draw(t, "more") > 0 {
		at += rapid.Uint64Range(0, size/3).Draw(t, "gap")
		n := rapid.Uint64Range(1, size/2+1).Draw(t, "length")
		runs = append(runs, Run{at, n})
		at += n
	}
	return runs
}

func TestWholePutRangesAreTheOnesWhoseBytesAllLieInTheRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lens := rapid.SliceOfN(rapid.Uint64Range(1, 9), 1, 20).Draw(t, "lens")
		requireWhole(t, lens, drawRuns(t, 9*uint64(len(lens))))
	})
}

// FuzzWholePutRanges reads lengths and runs from bytes: a length, or the gap and the length of a run.
func FuzzWholePutRanges(f *testing.F) {
	f.Add([]byte{3, 3, 3}, []byte{0, 9})
	f.Add([]byte{1, 200}, []byte{0, 1, 0, 100, 0, 100})
	f.Add([]byte{5, 5}, []byte{4, 6})
	f.Fuzz(func(t *testing.T, lengths, gaps []byte) {
		if len(lengths) > 64 || len(gaps) > 64 {
			return
		}
		var lens []uint64
		for _, n := range lengths {
			lens = append(lens, uint64(n)+1)
		}
		var runs []Run
		var at uint64
		for i := 0; i+1 < len(gaps); i += 2 {
			at += uint64(gaps[i])
			runs = append(runs, Run{at, uint64(gaps[i+1]) + 1})
			at = runs[len(runs)-1].End()
		}
		requireWhole(t, lens, runs)
	})
}

func TestAWalkOfWholePutRangesEndsWhenItIsTold(t *testing.T) {
	n := 0
	ForEachWhole([]uint64{1, 1, 1}, []Run{{0, 3}}, func(int, Run) bool { n++; return n < 2 })
	require.Equal(t, 2, n)
}

func TestSummerGivesTheSumOfEachPutRangeHoweverItsBytesCome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lens := rapid.SliceOfN(rapid.Uint64Range(1, 50), 1, 8).Draw(t, "lens")
		var want []uint32
		var all []byte
		for _, n := range lens {
			b := rapid.SliceOfN(rapid.Byte(), int(n), int(n)).Draw(t, "bytes")
			all = append(all, b...)
			want = append(want, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
		}
		s := NewSummer(lens)
		for len(all) > 0 {
			require.Nil(t, s.Sums(), "before its last byte")
			n := rapid.IntRange(1, len(all)).Draw(t, "piece")
			s.Add(all[:n])
			all = all[n:]
		}
		require.Equal(t, want, s.Sums())
	})
}

func TestAppendJoinedJoinsRunsThatTouch(t *testing.T) {
	runs := AppendJoined(AppendJoined(AppendJoined(nil, Run{0, 3}), Run{3, 4}), Run{8, 1})
	require.Equal(t, []Run{{0, 7}, {8, 1}}, runs)
}

func TestWholePutRangesAndSumsDoNotAllocate(t *testing.T) {
	lens, runs, b := []uint64{100, 200, 300}, []Run{{0, 300}, {350, 250}}, make([]byte, 600)
	var sum uint32
	require.Zero(t, testing.AllocsPerRun(100, func() {
		ForEachWhole(lens, runs, func(_ int, r Run) bool {
			sum = crc32c.Update(sum, b[r.Off:r.End()])
			return true
		})
	}))
}
