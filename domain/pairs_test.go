package domain_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
)

func pairsOf(t require.TestingT, a domain.Layout, ar domain.Run, b domain.Layout, br domain.Run) []domain.Pair {
	var got []domain.Pair
	require.NoError(t, domain.ForEachPair(a, ar, b, br, func(p domain.Pair) bool {
		got = append(got, p)
		return true
	}))
	return got
}

// requirePairsAreRight compares byte by byte, and refuses neighbours that should have been one pair.
func requirePairsAreRight(t require.TestingT, a domain.Layout, ar domain.Run, b domain.Layout, br domain.Run) {
	var as, bs []place
	var before domain.Pair
	for _, p := range pairsOf(t, a, ar, b, br) {
		require.NotZero(t, p.Len)
		require.Equal(t, uint64(len(as)), p.Done)
		onA := before.A == p.A && before.AOff+before.Len == p.AOff
		onB := before.B == p.B && before.BOff+before.Len == p.BOff
		require.False(t, before.Len > 0 && onA && onB, "%+v and %+v are one piece", before, p)
		for k := range p.Len {
			as = append(as, place{buffer: p.A, off: p.AOff + k})
			bs = append(bs, place{buffer: p.B, off: p.BOff + k})
		}
		before = p
	}
	require.Equal(t, placesOf(a)[ar.Off:ar.End()], as)
	require.Equal(t, placesOf(b)[br.Off:br.End()], bs)
}

func TestPairsOfNamedCases(t *testing.T) {
	flat := domain.Flat([]domain.PageRef{{Buffer: 8}}, 1000)
	contiguous := domain.Layout{Pages: pagesFrom(2, 3, 4), PageSize: 10, Size: 35}
	otherSize := domain.Layout{Pages: pagesFrom(5, 1, 5), PageSize: 7, Size: 35}
	backwards := domain.Layout{Pages: []domain.PageRef{{Page: 6}, {Page: 5}, {Page: 4}}, PageSize: 10, Size: 30}
	for _, c := range []struct {
		name string
		a    domain.Layout
		ar   domain.Run
		b    domain.Layout
		br   domain.Run
		want []domain.Pair
	}{
		{"both flat", flat, domain.Run{Off: 5, Len: 40}, domain.Flat([]domain.PageRef{{Buffer: 9}}, 40), domain.Run{Off: 0, Len: 40},
			[]domain.Pair{{A: 8, B: 9, AOff: 5, BOff: 0, Len: 40}}},
		{"pages that follow each other in one buffer are joined", contiguous, domain.Run{Off: 1, Len: 34}, flat, domain.Run{Off: 100, Len: 34},
			[]domain.Pair{{A: 2, B: 8, AOff: 31, BOff: 100, Len: 34}}},
		{"joined on both sides whatever the page sizes", contiguous, domain.Run{Off: 0, Len: 35}, otherSize, domain.Run{Off: 0, Len: 35},
			[]domain.Pair{{A: 2, B: 5, AOff: 30, BOff: 7, Len: 35}}},
		{"pages in falling order are not joined", backwards, domain.Run{Off: 5, Len: 20}, flat, domain.Run{Off: 0, Len: 20},
			[]domain.Pair{{B: 8, AOff: 65, BOff: 0, Len: 5}, {B: 8, AOff: 50, BOff: 5, Len: 10, Done: 5}, {B: 8, AOff: 40, BOff: 15, Len: 5, Done: 15}}},
		{"the same page twice is not joined", domain.Layout{Pages: []domain.PageRef{{Page: 1}, {Page: 1}}, PageSize: 10, Size: 20},
			domain.Run{Off: 0, Len: 20}, flat, domain.Run{Off: 0, Len: 20},
			[]domain.Pair{{B: 8, AOff: 10, Len: 10}, {B: 8, AOff: 10, BOff: 10, Len: 10, Done: 10}}},
		{"page numbers that follow in different buffers are not joined", domain.Layout{Pages: []domain.PageRef{{Buffer: 1, Page: 1}, {Buffer: 2, Page: 2}}, PageSize: 10, Size: 20},
			domain.Run{Off: 0, Len: 20}, flat, domain.Run{Off: 0, Len: 20},
			[]domain.Pair{{A: 1, B: 8, AOff: 10, Len: 10}, {A: 2, B: 8, AOff: 20, BOff: 10, Len: 10, Done: 10}}},
		{"cut where either side must", backwards, domain.Run{Off: 0, Len: 20}, domain.Layout{Pages: []domain.PageRef{{Page: 2}, {Page: 9}}, PageSize: 15, Size: 30},
			domain.Run{Off: 10, Len: 20}, []domain.Pair{
				{AOff: 60, BOff: 40, Len: 5}, {AOff: 65, BOff: 135, Len: 5, Done: 5}, {AOff: 50, BOff: 140, Len: 10, Done: 10}}},
		{"page 0 behind the last page number is not joined", domain.Layout{Pages: []domain.PageRef{{Page: math.MaxUint32}, {Page: 0}}, PageSize: 10, Size: 20},
			domain.Run{Off: 0, Len: 20}, flat, domain.Run{Off: 0, Len: 20},
			[]domain.Pair{{B: 8, AOff: math.MaxUint32 * 10, Len: 10}, {B: 8, AOff: 0, BOff: 10, Len: 10, Done: 10}}},
		{"offset 0 behind the end at 2^64 is not joined", domain.Layout{Pages: []domain.PageRef{{Page: 1}, {Page: 0}}, PageSize: 1 << 63, Size: math.MaxUint64},
			domain.Run{Off: 1<<63 - 2, Len: 5}, flat, domain.Run{Off: 0, Len: 5},
			[]domain.Pair{{B: 8, AOff: math.MaxUint64 - 1, Len: 2}, {B: 8, AOff: 0, BOff: 2, Len: 3, Done: 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, pairsOf(t, c.a, c.ar, c.b, c.br))
			mirrored := make([]domain.Pair, len(c.want))
			for i, p := range c.want {
				mirrored[i] = domain.Pair{A: p.B, B: p.A, AOff: p.BOff, BOff: p.AOff, Len: p.Len, Done: p.Done}
			}
			require.Equal(t, mirrored, pairsOf(t, c.b, c.br, c.a, c.ar))
		})
	}
}

func TestPairsEmitNothingWhenEitherSideIsRefused(t *testing.T) {
	flat := domain.Flat(make([]domain.PageRef, 1), 30)
	tooFew := domain.Layout{Pages: pagesFrom(0, 0, 2), PageSize: 10, Size: 25}
	for _, c := range []struct {
		name string
		a    domain.Layout
		ar   domain.Run
		br   domain.Run
		want domain.RangeError
	}{
		{"different lengths", threePages(), domain.Run{Off: 0, Len: 5}, domain.Run{Off: 0, Len: 6},
			domain.RangeError{Reason: "the two sides differ in length", Value: 6, Limit: 5}},
		{"zero length", threePages(), domain.Run{Off: 1}, domain.Run{Off: 1}, domain.RangeError{Reason: "empty run", Value: 0, Limit: 1}},
		{"past the end of the one", threePages(), domain.Run{Off: 20, Len: 6}, domain.Run{Off: 0, Len: 6},
			domain.RangeError{Reason: "run ends past the object: bytes from its offset on", Value: 6, Limit: 5}},
		{"past the end of the other", threePages(), domain.Run{Off: 0, Len: 6}, domain.Run{Off: 25, Len: 6},
			domain.RangeError{Reason: "run ends past the object: bytes from its offset on", Value: 6, Limit: 5}},
		{"too few pages", tooFew, domain.Run{Off: 0, Len: 6}, domain.Run{Off: 0, Len: 6},
			domain.RangeError{Reason: "too few pages for the size", Value: 2, Limit: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := domain.ForEachPair(c.a, c.ar, flat, c.br, func(p domain.Pair) bool {
				t.Errorf("emitted %+v for refused runs", p)
				return true
			})
			var refusal *domain.RangeError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, c.want, *refusal)
			require.ErrorIs(t, domain.ForEachPair(flat, c.br, c.a, c.ar, func(p domain.Pair) bool {
				t.Errorf("emitted %+v for refused runs", p)
				return true
			}), domain.ErrInvalid)
		})
	}
}

func TestPairsEndWhenEmitRefuses(t *testing.T) {
	emitted := 0
	err := domain.ForEachPair(threePages(), domain.Run{Off: 0, Len: 25}, domain.Flat(make([]domain.PageRef, 1), 25), domain.Run{Off: 0, Len: 25},
		func(domain.Pair) bool {
			emitted++
			return emitted < 2
		})
	require.ErrorIs(t, err, domain.ErrEmitRefused)
	require.Equal(t, 2, emitted)
}

func TestPairsAgreeWithTheByteWiseOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawLayout(t, objectSizes.Draw(t, "size a")), drawLayout(t, objectSizes.Draw(t, "size b"))
		length := rapid.Uint64Range(1, min(a.Size, b.Size)).Draw(t, "length")
		requirePairsAreRight(t, a, drawRun(t, a.Size, length), b, drawRun(t, b.Size, length))
	})
}

func FuzzPairs(f *testing.F) {
	f.Add([]byte{0, 3, 0, 4, 0, 9}, uint8(10), uint16(25), uint16(1), []byte{1, 1}, uint8(30), uint16(30), uint16(4), uint16(20))
	f.Add([]byte{0, 0}, uint8(255), uint16(255), uint16(0), []byte{1, 0}, uint8(255), uint16(255), uint16(0), uint16(255))
	f.Add([]byte{0, 5, 0, 4, 0, 3}, uint8(7), uint16(21), uint16(0), []byte{2, 1, 2, 2}, uint8(11), uint16(22), uint16(1), uint16(21))
	f.Add([]byte{0, 5}, uint8(7), uint16(8), uint16(0), []byte{2, 1}, uint8(7), uint16(7), uint16(0), uint16(7))
	f.Add([]byte{}, uint8(0), uint16(0), uint16(0), []byte{}, uint8(0), uint16(0), uint16(0), uint16(0))
	f.Fuzz(func(t *testing.T, rawA []byte, pageA uint8, sizeA, offA uint16, rawB []byte, pageB uint8, sizeB, offB, length uint16) {
		a := domain.Layout{Pages: refsOf(rawA), PageSize: uint64(pageA), Size: uint64(sizeA)}
		b := domain.Layout{Pages: refsOf(rawB), PageSize: uint64(pageB), Size: uint64(sizeB)}
		ar, br := domain.Run{Off: uint64(offA), Len: uint64(length)}, domain.Run{Off: uint64(offB), Len: uint64(length)}
		if layoutFits(a) && layoutFits(b) && length > 0 && ar.End() <= a.Size && br.End() <= b.Size {
			requirePairsAreRight(t, a, ar, b, br)
			return
		}
		require.ErrorIs(t, domain.ForEachPair(a, ar, b, br, func(p domain.Pair) bool {
			t.Errorf("emitted %+v for refused runs", p)
			return true
		}), domain.ErrInvalid)
	})
}

func scatteredPages(n int) []domain.PageRef {
	pages := make([]domain.PageRef, n)
	for i := range pages {
		pages[i] = domain.PageRef{Page: uint32(2 * (n - i))}
	}
	return pages
}

func TestPairsAllocateNothing(t *testing.T) {
	a := domain.Layout{Pages: scatteredPages(69), PageSize: 64 << 10, Size: 69 << 16}
	ref := make([]domain.PageRef, 1)
	var sum uint64
	require.Zero(t, testing.AllocsPerRun(100, func() {
		err := domain.ForEachPair(a, domain.Run{Off: 1000, Len: 1 << 20}, domain.Flat(ref, 1<<20), domain.Run{Off: 0, Len: 1 << 20},
			func(p domain.Pair) bool {
				sum += p.Len
				return true
			})
		if err != nil {
			panic(err)
		}
	}))
	require.NotZero(t, sum)
}

func BenchmarkPairs(b *testing.B) {
	onePage := domain.Layout{Pages: pagesFrom(0, 3, 1), PageSize: 4392 << 10, Size: 4392 << 10}
	contiguous := domain.Layout{Pages: pagesFrom(0, 3, 69), PageSize: 64 << 10, Size: 4392 << 10}
	scattered := domain.Layout{Pages: scatteredPages(69), PageSize: 64 << 10, Size: 4392 << 10}
	for _, c := range []struct {
		a, b string
		l, m domain.Layout
		n    uint64
	}{
		{"4392KiB", "4392KiB", onePage, onePage, 1728},
		{"4392KiB", "4392KiB", onePage, onePage, 576 << 10},
		{"64KiB", "4392KiB", scattered, onePage, 1728},
		{"64KiB", "64KiB", scattered, scattered, 1728},
		{"64KiB", "64KiB", contiguous, contiguous, 576 << 10},
		{"64KiB", "64KiB-scattered", contiguous, scattered, 576 << 10},
		{"64KiB-scattered", "64KiB-scattered", scattered, scattered, 576 << 10},
	} {
		b.Run(fmt.Sprintf("a=%s/b=%s/range=%dB", c.a, c.b, c.n), func(b *testing.B) {
			b.ReportAllocs()
			r := domain.Run{Off: 590_000, Len: c.n}
			var sum uint64
			for b.Loop() {
				_ = domain.ForEachPair(c.l, r, c.m, r, func(p domain.Pair) bool {
					sum += p.AOff ^ p.BOff
					return true
				})
			}
		})
	}
}

// What is contiguous is one fragment against flat memory, and the other way round, whatever the run.
func TestContiguousIsWhatIsOnePairAgainstFlatMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := domain.Layout{PageSize: rapid.Uint64Range(0, 9).Draw(t, "page size")}
		for range rapid.IntRange(0, 5).Draw(t, "pages") {
			p := domain.PageRef{Buffer: uint32(rapid.IntRange(0, 1).Draw(t, "buffer")), Page: uint32(rapid.IntRange(0, 9).Draw(t, "page"))}
			if n := len(l.Pages); n > 0 && rapid.IntRange(0, 5).Draw(t, "follows") > 0 {
				p = domain.PageRef{Buffer: l.Pages[n-1].Buffer, Page: l.Pages[n-1].Page + 1}
			}
			l.Pages = append(l.Pages, p)
		}
		most := uint64(len(l.Pages)) * l.PageSize // and one more, and one too few
		l.Size = rapid.Uint64Range(most-min(most, l.PageSize), most+1).Draw(t, "size")
		var all []domain.Pair
		err := domain.ForEachPair(l, domain.Run{Len: l.Size}, domain.Flat(pagesFrom(3, 0, 1), l.Size), domain.Run{Len: l.Size},
			func(p domain.Pair) bool { all = append(all, p); return true })
		buffer, off, ok := l.Contiguous()
		require.Equal(t, err == nil && len(all) == 1, ok)
		if ok {
			require.Equal(t, []domain.Pair{{A: buffer, B: 3, AOff: off, Len: l.Size}}, all)
		}
	})
	huge := domain.Layout{Pages: pagesFrom(0, 0, 1), PageSize: 1 << 32, Size: 1}
	_, _, ok := huge.Contiguous()
	require.False(t, ok, "left to the walk")
}

// What OnePair answers is all that ForEachPair emits; what it leaves to that is more pages, or refused. All small layouts and runs
// are tried: drawn ones are hardly ever right on both sides.
func TestOnePairIsAllOfForEachPair(t *testing.T) {
	type side struct {
		domain.Layout
		domain.Run
	}
	var sides []side
	for _, pages := range [][]domain.PageRef{nil, pagesFrom(3, 0, 1), pagesFrom(4, 2, 1), pagesFrom(3, 1, 2)} {
		for _, pageSize := range []uint64{0, 1, 3} {
			for size := range uint64(5) {
				for _, off := range []uint64{0, 1, 3, math.MaxUint64} {
					for n := range uint64(4) {
						sides = append(sides, side{domain.Layout{Pages: pages, PageSize: pageSize, Size: size}, domain.Run{Off: off, Len: n}})
					}
				}
			}
		}
	}
	answered := 0
	for _, a := range sides {
		for _, b := range sides {
			if len(a.Pages) != 1 && len(b.Pages) != 1 {
				continue
			}
			p, ok := domain.OnePair(&a.Layout, a.Run, &b.Layout, b.Run)
			var all []domain.Pair
			err := domain.ForEachPair(a.Layout, a.Run, b.Layout, b.Run, func(p domain.Pair) bool { all = append(all, p); return true })
			if due := err == nil && len(a.Pages) == 1 && len(b.Pages) == 1; ok != due || due && (len(all) != 1 || all[0] != p) {
				t.Fatalf("%+v with %+v: %v, %+v, due %v, %+v", a, b, ok, p, due, all)
			}
			if ok {
				answered++
			}
		}
	}
	require.Greater(t, answered, 100)
}
