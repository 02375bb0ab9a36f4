package domain_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
)

func rangesOf(offLens ...uint64) []domain.Range {
	var ranges []domain.Range
	for ; len(offLens) > 0; offLens = offLens[2:] {
		ranges = append(ranges, domain.Range{Off: offLens[0], Len: offLens[1], Region: 7, RegionOff: uint64(len(ranges))})
	}
	return ranges
}

func TestSpansOfNamedCases(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranges []domain.Range
		order  []uint32
		spans  []domain.Span
	}{
		{"one range", rangesOf(5, 10), []uint32{0}, []domain.Span{{Run: domain.Run{Off: 5, Len: 10}, Count: 1}}},
		{"adjacent ranges make one span", rangesOf(0, 5, 5, 3, 8, 1), []uint32{0, 1, 2}, []domain.Span{{Run: domain.Run{Len: 9}, Count: 3}}},
		{"a gap of one byte makes two", rangesOf(0, 5, 6, 3), []uint32{0, 1},
			[]domain.Span{{Run: domain.Run{Len: 5}, Count: 1}, {Run: domain.Run{Off: 6, Len: 3}, First: 1, Count: 1}}},
		{"the caller's order is mapped to the object's", rangesOf(20, 5, 0, 5, 25, 5), []uint32{1, 0, 2},
			[]domain.Span{{Run: domain.Run{Len: 5}, Count: 1}, {Run: domain.Run{Off: 20, Len: 10}, First: 1, Count: 2}}},
		// K lies in the first half of the object and V in the second; the caller asks layer by layer for both.
		{"interleaved K and V make one span", rangesOf(0, 4, 12, 4, 4, 4, 16, 4, 8, 4, 20, 4), []uint32{0, 2, 4, 1, 3, 5},
			[]domain.Span{{Run: domain.Run{Len: 24}, Count: 6}}},
		{"interleaved K and V of a layer group make two", rangesOf(4, 4, 16, 4, 8, 4, 20, 4), []uint32{0, 2, 1, 3},
			[]domain.Span{{Run: domain.Run{Off: 4, Len: 8}, Count: 2}, {Run: domain.Run{Off: 16, Len: 8}, First: 2, Count: 2}}},
		{"the last range that has an end", rangesOf(math.MaxUint64-2, 1), []uint32{0}, []domain.Span{{Run: domain.Run{Off: math.MaxUint64 - 2, Len: 1}, Count: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			order, spans, err := domain.AppendSpans(c.ranges, nil, nil)
			require.NoError(t, err)
			require.Equal(t, c.order, order)
			require.Equal(t, c.spans, spans)
		})
	}
}

func TestSpansOfARefusedKeyLeaveTheColumnsAsTheyWere(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranges []domain.Range
		want   domain.RangeError
	}{
		{"no ranges", nil, domain.RangeError{Reason: "no ranges", Value: 0, Limit: 1}},
		{"an empty range", rangesOf(0, 5, 7, 0), domain.RangeError{Reason: "empty range", Value: 0, Limit: 1}},
		{"an overflow", rangesOf(0, 5, math.MaxUint64-3, 9), domain.RangeError{Reason: "range overflows: bytes from its offset on", Value: 9, Limit: 3}},
		{"an end at 2^64", rangesOf(math.MaxUint64, 1), domain.RangeError{Reason: "range overflows: bytes from its offset on", Value: 1, Limit: 0}},
		{"a Whole that was not replaced", rangesOf(0, domain.Whole), domain.RangeError{Reason: "range overflows: bytes from its offset on", Value: domain.Whole, Limit: domain.Whole}},
		{"an overlap in object order", rangesOf(0, 5, 4, 5), domain.RangeError{Reason: "ranges overlap: the later one begins before the other's end", Value: 4, Limit: 5}},
		{"an overlap in another order", rangesOf(10, 5, 0, 11), domain.RangeError{Reason: "ranges overlap: the later one begins before the other's end", Value: 10, Limit: 11}},
		{"the same range twice", rangesOf(3, 2, 9, 1, 3, 2), domain.RangeError{Reason: "ranges overlap: the later one begins before the other's end", Value: 3, Limit: 5}},
		{"a range inside another", rangesOf(0, 100, 50, 1), domain.RangeError{Reason: "ranges overlap: the later one begins before the other's end", Value: 50, Limit: 100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			order, spans, err := domain.AppendSpans(c.ranges, []uint32{9, 8}, []domain.Span{{Count: 3}})
			var refusal *domain.RangeError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, c.want, *refusal)
			require.ErrorIs(t, err, domain.ErrInvalid)
			require.Equal(t, []uint32{9, 8}, order)
			require.Equal(t, []domain.Span{{Count: 3}}, spans)
		})
	}
}

func TestSpansInBounds(t *testing.T) {
	for _, c := range []struct {
		name string
		run  domain.Run
		size uint64
		ok   bool
	}{
		{"ends on the last byte", domain.Run{Off: 20, Len: 5}, 25, true},
		{"one byte past the end", domain.Run{Off: 20, Len: 6}, 25, false},
		{"begins at the end", domain.Run{Off: 25, Len: 1}, 25, false},
		{"begins past the end", domain.Run{Off: 26, Len: 1}, 25, false},
		{"ends past 2^64", domain.Run{Off: 20, Len: math.MaxUint64}, 25, false},
		{"no object is so large", domain.Run{Off: 0, Len: math.MaxUint64 - 1}, math.MaxUint64 - 1, true},
		{"of an empty object", domain.Run{Off: 0, Len: 1}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inside := domain.Span{Run: domain.Run{Off: 0, Len: 1}}
			for _, spans := range [][]domain.Span{{{Run: c.run}}, {inside, {Run: c.run}}, {{Run: c.run}, inside}} {
				err := domain.SpansInBounds(spans, c.size)
				if c.ok {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, domain.ErrInvalid)
				}
			}
		})
	}
}

func TestTilesIsOneSpanOfTheWholeObject(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranges []domain.Range
		size   uint64
		tiles  bool
	}{
		{"one range", rangesOf(0, 25), 25, true},
		{"in order", rangesOf(0, 10, 10, 10, 20, 5), 25, true},
		{"out of order", rangesOf(20, 5, 0, 10, 10, 10), 25, true},
		{"a gap", rangesOf(0, 10, 11, 14), 25, false},
		{"without the first byte", rangesOf(1, 24), 25, false},
		{"without the last byte", rangesOf(0, 24), 25, false},
		{"past the end", rangesOf(0, 26), 25, false},
		{"as long as the object, but not from its first byte on", rangesOf(1, 25), 25, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, spans, err := domain.AppendSpans(c.ranges, nil, nil)
			require.NoError(t, err)
			require.Equal(t, c.tiles, domain.Tiles(spans, c.size))
		})
	}
	require.False(t, domain.Tiles(nil, 0))
	require.False(t, domain.Tiles(nil, 25))
}

// askedBytes marks the bytes of the ranges; ok is false when a byte is asked for twice.
func askedBytes(ranges []domain.Range, size uint64) (asked []bool, ok bool) {
	asked = make([]bool, size)
	for _, r := range ranges {
		for at := r.Off; at < r.Off+r.Len; at++ {
			if asked[at] {
				return nil, false
			}
			asked[at] = true
		}
	}
	return asked, true
}

// requireSpansAreRight checks the spans of one key, of which the order begins at base: the same bytes, maximal, in object
// order, and each range visited once, in object order.
func requireSpansAreRight(t require.TestingT, ranges []domain.Range, asked []bool, order []uint32, base int, spans []domain.Span) {
	got := make([]bool, len(asked))
	visited := make([]bool, len(ranges))
	next := uint32(base)
	for i, s := range spans {
		require.True(t, i == 0 || spans[i-1].End() < s.Off, "%+v and %+v are no two maximal spans in order", spans[max(i, 1)-1], s)
		require.Equal(t, next, s.First)
		require.NotZero(t, s.Count)
		at := s.Off
		for _, j := range order[s.First : s.First+s.Count] {
			require.False(t, visited[j], "range %d is visited twice", j)
			visited[j] = true
			require.Equal(t, at, ranges[j].Off)
			at += ranges[j].Len
		}
		require.Equal(t, at, s.End())
		for b := s.Off; b < s.End(); b++ {
			got[b] = true
		}
		next += s.Count
	}
	require.Equal(t, len(order), int(next))
	require.NotContains(t, visited, false)
	require.Equal(t, asked, got)
}

// drawRanges cuts an object into pieces, drops some, and gives the rest in ascending, falling or any order.
func drawRanges(t *rapid.T) []domain.Range {
	var ranges []domain.Range
	at := rapid.Uint64Range(0, 5).Draw(t, "first")
	for range rapid.IntRange(1, 20).Draw(t, "ranges") {
		n := rapid.Uint64Range(1, 9).Draw(t, "length")
		ranges = append(ranges, domain.Range{Off: at, Len: n})
		at += n + rapid.SampledFrom([]uint64{0, 0, 1, 5}).Draw(t, "gap")
	}
	switch rapid.IntRange(0, 2).Draw(t, "arrangement") {
	case 0:
		slices.Reverse(ranges)
	case 1:
		ranges = rapid.Permutation(ranges).Draw(t, "order")
	}
	return ranges
}

func objectOf(ranges []domain.Range) (size uint64) {
	for _, r := range ranges {
		size = max(size, r.Off+r.Len)
	}
	return size
}

func TestSpansAgreeWithTheByteWiseOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := drawRanges(t)
		asked, _ := askedBytes(ranges, objectOf(ranges))
		order := slices.Repeat([]uint32{77}, rapid.IntRange(0, 3).Draw(t, "order before"))
		before := slices.Repeat([]domain.Span{{First: 9, Count: 9}}, rapid.IntRange(0, 3).Draw(t, "spans before"))
		gotOrder, gotSpans, err := domain.AppendSpans(ranges, order, before)
		require.NoError(t, err)
		require.Equal(t, order, gotOrder[:len(order)])
		require.Equal(t, before, gotSpans[:len(before)])
		requireSpansAreRight(t, ranges, asked, gotOrder, len(order), gotSpans[len(before):])
		require.NoError(t, domain.SpansInBounds(gotSpans[len(before):], objectOf(ranges)))
		require.Error(t, domain.SpansInBounds(gotSpans[len(before):], objectOf(ranges)-1))
		require.Equal(t, !slices.Contains(asked, false), domain.Tiles(gotSpans[len(before):], objectOf(ranges)))
	})
}

func TestSpansRefuseEveryOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := drawRanges(t)
		hit := rapid.SampledFrom(ranges).Draw(t, "range")
		last := hit.Off + hit.Len - 1
		at := rapid.Uint64Range(max(hit.Off, 4)-4, last).Draw(t, "offset")
		extra := domain.Range{Off: at, Len: rapid.Uint64Range(max(hit.Off, at)-at+1, 12).Draw(t, "length")}
		ranges = slices.Insert(ranges, rapid.IntRange(0, len(ranges)).Draw(t, "index"), extra)
		order, spans, err := domain.AppendSpans(ranges, nil, nil)
		require.ErrorIs(t, err, domain.ErrInvalid)
		require.Empty(t, order)
		require.Empty(t, spans)
	})
}

func FuzzSpans(f *testing.F) {
	f.Add([]byte{0, 5, 5, 3, 9, 1}, uint8(0))
	f.Add([]byte{20, 5, 0, 5, 25, 5}, uint8(3))
	f.Add([]byte{0, 4, 12, 4, 4, 4, 16, 4}, uint8(1))
	f.Add([]byte{3, 2, 9, 1, 3, 2}, uint8(0))
	f.Add([]byte{7, 0}, uint8(0))
	f.Add([]byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, raw []byte, base uint8) {
		var ranges []domain.Range
		empty := false
		for ; len(raw) >= 2; raw = raw[2:] {
			ranges = append(ranges, domain.Range{Off: uint64(raw[0]), Len: uint64(raw[1])})
			empty = empty || raw[1] == 0
		}
		asked, disjoint := askedBytes(ranges, objectOf(ranges))
		before := make([]uint32, base)
		order, spans, err := domain.AppendSpans(ranges, before, nil)
		if len(ranges) == 0 || empty || !disjoint {
			require.ErrorIs(t, err, domain.ErrInvalid)
			require.Equal(t, before, order)
			require.Empty(t, spans)
			return
		}
		require.NoError(t, err)
		requireSpansAreRight(t, ranges, asked, order, int(base), spans)
	})
}

// layerRanges is n ranges of a layer each: falling offsets when they are to be sorted.
func layerRanges(n int, gap uint64, ascending bool) []domain.Range {
	ranges := make([]domain.Range, n)
	for i := range ranges {
		ranges[i] = domain.Range{Off: uint64(i) * (1728 + gap), Len: 1728}
	}
	if !ascending {
		for i := range ranges { // a fixed shuffle
			j := (i*37 + 11) % n
			ranges[i], ranges[j] = ranges[j], ranges[i]
		}
	}
	return ranges
}

func TestSpansAllocateNothingBeyondTheColumns(t *testing.T) {
	for _, ascending := range []bool{true, false} {
		ranges := layerRanges(200, 64, ascending)
		order, spans := make([]uint32, 0, 200), make([]domain.Span, 0, 200)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if _, _, err := domain.AppendSpans(ranges, order, spans); err != nil {
				panic(err)
			}
		}), "ascending %v", ascending)
	}
}

func BenchmarkSpans(b *testing.B) {
	for _, c := range []struct {
		name   string
		ranges []domain.Range
	}{
		{"ranges=1", layerRanges(1, 0, true)},
		{"ranges=8/adjacent", layerRanges(8, 0, true)},
		{"ranges=61/adjacent", layerRanges(61, 0, true)},
		{"ranges=61/apart", layerRanges(61, 64, true)},
		{"ranges=61/apart/shuffled", layerRanges(61, 64, false)},
		{"ranges=1024/apart/shuffled", layerRanges(1024, 64, false)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			n := len(c.ranges)
			order, spans := make([]uint32, 0, n), make([]domain.Span, 0, n)
			for b.Loop() {
				if _, _, err := domain.AppendSpans(c.ranges, order, spans); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/range")
		})
	}
}
