package domain_test

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
)

// place is where one byte lies.
type place struct {
	buffer uint32
	off    uint64
}

// placesOf is the oracle of every walk: the place of each byte of the object, found by counting.
func placesOf(l domain.Layout) []place {
	var places []place
	for _, p := range l.Pages {
		for k := uint64(0); k < l.PageSize && uint64(len(places)) < l.Size; k++ {
			places = append(places, place{buffer: p.Buffer, off: uint64(p.Page)*l.PageSize + k})
		}
	}
	return places
}

func pagesFrom(buffer, first uint32, n int) []domain.PageRef {
	pages := make([]domain.PageRef, n)
	for i := range pages {
		pages[i] = domain.PageRef{Buffer: buffer, Page: first + uint32(i)}
	}
	return pages
}

func fragmentsOf(t require.TestingT, l domain.Layout, r domain.Run) []domain.Fragment {
	var got []domain.Fragment
	require.NoError(t, domain.ForEachRangePageFragment(l, r, func(f domain.Fragment) bool {
		got = append(got, f)
		return true
	}))
	return got
}

var pageSizes = rapid.SampledFrom([]uint64{1, 2, 3, 4, 7, 8, 13, 16, 31, 61, 64})

// drawPages draws pages that follow each other, that lie anywhere in a few buffers, or short pieces of both.
func drawPages(t *rapid.T, n int) []domain.PageRef {
	at := domain.PageRef{Buffer: rapid.Uint32Range(0, 3).Draw(t, "buffer"), Page: rapid.Uint32Range(0, 40).Draw(t, "page")}
	jumpiness := rapid.IntRange(0, 4).Draw(t, "jumpiness")
	pages := make([]domain.PageRef, n)
	for i := range pages {
		pages[i] = at
		at.Page++
		if rapid.IntRange(1, 4).Draw(t, "jump") <= jumpiness {
			at = domain.PageRef{Buffer: rapid.Uint32Range(0, 3).Draw(t, "buffer"), Page: rapid.Uint32Range(0, 40).Draw(t, "page")}
		}
	}
	return pages
}

// drawLayout draws a layout of the given size: flat memory, one page, or many.
func drawLayout(t *rapid.T, size uint64) domain.Layout {
	if rapid.Bool().Draw(t, "flat") {
		return domain.Flat([]domain.PageRef{{Buffer: rapid.Uint32Range(0, 3).Draw(t, "buffer")}}, size)
	}
	page := rapid.OneOf(pageSizes, rapid.Uint64Range(1, size+9)).Draw(t, "page size")
	return domain.Layout{Pages: drawPages(t, int((size+page-1)/page)), PageSize: page, Size: size}
}

// drawRun draws a run of [0, size); a zero length means any.
func drawRun(t *rapid.T, size, length uint64) domain.Run {
	if length == 0 {
		length = rapid.Uint64Range(1, size).Draw(t, "length")
	}
	return domain.Run{Off: rapid.Uint64Range(0, size-length).Draw(t, "offset"), Len: length}
}

var objectSizes = rapid.Uint64Range(1, 300)

// layout of the named cases: three pages of 10 bytes, which do not begin at page 0, and of which the last holds 5.
func threePages() domain.Layout {
	return domain.Layout{Pages: []domain.PageRef{{Buffer: 1, Page: 4}, {Buffer: 0, Page: 9}, {Buffer: 1, Page: 2}}, PageSize: 10, Size: 25}
}

func TestPageWalkYieldsTheFragmentsOfNamedCases(t *testing.T) {
	p4, p9, p2 := domain.PageRef{Buffer: 1, Page: 4}, domain.PageRef{Buffer: 0, Page: 9}, domain.PageRef{Buffer: 1, Page: 2}
	fullLast := threePages()
	fullLast.Size = 30
	for _, c := range []struct {
		name   string
		layout domain.Layout
		run    domain.Run
		want   []domain.Fragment
	}{
		{"inside one page", threePages(), domain.Run{Off: 12, Len: 5}, []domain.Fragment{{Page: p9, Off: 92, Len: 5}}},
		{"starts mid-page and spans two", threePages(), domain.Run{Off: 7, Len: 6}, []domain.Fragment{
			{Page: p4, Off: 47, Len: 3}, {Page: p9, Off: 90, Len: 3, Done: 3}}},
		{"spans every page", threePages(), domain.Run{Off: 1, Len: 23}, []domain.Fragment{
			{Page: p4, Off: 41, Len: 9}, {Page: p9, Off: 90, Len: 10, Done: 9}, {Page: p2, Off: 20, Len: 4, Done: 19}}},
		{"pages that do not start at index 0 of the buffer", domain.Layout{Pages: pagesFrom(3, 5, 2), PageSize: 10, Size: 20},
			domain.Run{Off: 0, Len: 20}, []domain.Fragment{
				{Page: domain.PageRef{Buffer: 3, Page: 5}, Off: 50, Len: 10},
				{Page: domain.PageRef{Buffer: 3, Page: 6}, Off: 60, Len: 10, Done: 10}}},
		{"short last page", threePages(), domain.Run{Off: 20, Len: 4}, []domain.Fragment{{Page: p2, Off: 20, Len: 4}}},
		{"ends on the last byte", threePages(), domain.Run{Off: 24, Len: 1}, []domain.Fragment{{Page: p2, Off: 24, Len: 1}}},
		{"ends on the last byte of a full last page", fullLast, domain.Run{Off: 25, Len: 5}, []domain.Fragment{{Page: p2, Off: 25, Len: 5}}},
		{"whole object with a short last page", threePages(), domain.Run{Off: 0, Len: 25}, []domain.Fragment{
			{Page: p4, Off: 40, Len: 10}, {Page: p9, Off: 90, Len: 10, Done: 10}, {Page: p2, Off: 20, Len: 5, Done: 20}}},
		{"ends on a page boundary", threePages(), domain.Run{Off: 5, Len: 15}, []domain.Fragment{
			{Page: p4, Off: 45, Len: 5}, {Page: p9, Off: 90, Len: 10, Done: 5}}},
		{"starts on a page boundary", threePages(), domain.Run{Off: 10, Len: 2}, []domain.Fragment{{Page: p9, Off: 90, Len: 2}}},
		{"one page larger than the object", domain.Layout{Pages: pagesFrom(2, 7, 1), PageSize: 100, Size: 25},
			domain.Run{Off: 20, Len: 5}, []domain.Fragment{{Page: domain.PageRef{Buffer: 2, Page: 7}, Off: 720, Len: 5}}},
		{"flat memory", domain.Flat([]domain.PageRef{{Buffer: 6}}, 25), domain.Run{Off: 3, Len: 22},
			[]domain.Fragment{{Page: domain.PageRef{Buffer: 6}, Off: 3, Len: 22}}},
		{"offsets past 4 GiB", domain.Layout{Pages: pagesFrom(0, math.MaxUint32-1, 2), PageSize: math.MaxUint32, Size: math.MaxUint32 + 1},
			domain.Run{Off: math.MaxUint32 - 1, Len: 2}, []domain.Fragment{
				{Page: domain.PageRef{Page: math.MaxUint32 - 1}, Off: (math.MaxUint32-1)*math.MaxUint32 + math.MaxUint32 - 1, Len: 1},
				{Page: domain.PageRef{Page: math.MaxUint32}, Off: math.MaxUint32 * math.MaxUint32, Len: 1, Done: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, fragmentsOf(t, c.layout, c.run)) })
	}
}

func TestPageWalkEmitsNothingForARefusedRun(t *testing.T) {
	whole := domain.Run{Off: 0, Len: 25}
	with := func(change func(*domain.Layout)) domain.Layout {
		l := threePages()
		change(&l)
		return l
	}
	for _, c := range []struct {
		name   string
		layout domain.Layout
		run    domain.Run
		want   domain.RangeError
	}{
		{"one byte past the end", threePages(), domain.Run{Off: 20, Len: 6},
			domain.RangeError{Reason: "run ends past the object: bytes from its offset on", Value: 6, Limit: 5}},
		{"one byte past the end, whole", threePages(), domain.Run{Off: 0, Len: 26},
			domain.RangeError{Reason: "run ends past the object: bytes from its offset on", Value: 26, Limit: 25}},
		{"offset at the end", threePages(), domain.Run{Off: 25, Len: 1},
			domain.RangeError{Reason: "run begins past the object's last byte", Value: 25, Limit: 24}},
		{"offset past the end", threePages(), domain.Run{Off: 26, Len: 1},
			domain.RangeError{Reason: "run begins past the object's last byte", Value: 26, Limit: 24}},
		{"end past 2^64", threePages(), domain.Run{Off: 24, Len: math.MaxUint64 - 10},
			domain.RangeError{Reason: "run ends past the object: bytes from its offset on", Value: math.MaxUint64 - 10, Limit: 1}},
		{"zero length", threePages(), domain.Run{Off: 3}, domain.RangeError{Reason: "empty run", Value: 0, Limit: 1}},
		{"one page too few", with(func(l *domain.Layout) { l.Pages = l.Pages[:2] }), domain.Run{Off: 0, Len: 1},
			domain.RangeError{Reason: "too few pages for the size", Value: 2, Limit: 3}},
		{"one page too many", with(func(l *domain.Layout) { l.Size = 20 }), domain.Run{Off: 0, Len: 1},
			domain.RangeError{Reason: "too many pages for the size", Value: 3, Limit: 2}},
		{"no pages", with(func(l *domain.Layout) { l.Pages = nil }), whole,
			domain.RangeError{Reason: "too few pages for the size", Value: 0, Limit: 3}},
		{"zero page size", with(func(l *domain.Layout) { l.PageSize = 0 }), whole, domain.RangeError{Reason: "empty pages", Value: 0, Limit: 1}},
		{"zero size", with(func(l *domain.Layout) { l.Size = 0 }), whole, domain.RangeError{Reason: "empty object", Value: 0, Limit: 1}},
		{"flat memory of no bytes", domain.Flat(make([]domain.PageRef, 1), 0), whole, domain.RangeError{Reason: "empty object", Value: 0, Limit: 1}},
		{"page past 2^64", domain.Layout{Pages: pagesFrom(0, 1<<24, 1), PageSize: 1 << 40, Size: 5}, domain.Run{Off: 0, Len: 1},
			domain.RangeError{Reason: "page number past what offsets can reach", Value: 1 << 24, Limit: 1<<24 - 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := domain.ForEachRangePageFragment(c.layout, c.run, func(f domain.Fragment) bool {
				t.Errorf("emitted %+v for a refused run", f)
				return true
			})
			var refusal *domain.RangeError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, c.want, *refusal)
			require.ErrorIs(t, err, domain.ErrInvalid)
		})
	}
}

func TestPageWalkEndsWhenEmitRefuses(t *testing.T) {
	emitted := 0
	err := domain.ForEachRangePageFragment(threePages(), domain.Run{Off: 0, Len: 25}, func(domain.Fragment) bool {
		emitted++
		return emitted < 2
	})
	require.ErrorIs(t, err, domain.ErrEmitRefused)
	require.NotErrorIs(t, err, domain.ErrInvalid)
	require.Equal(t, 2, emitted)
}

func TestLayoutCheckHoldsNearTheEndOfUint64(t *testing.T) {
	for _, c := range []struct {
		name   string
		layout domain.Layout
		fits   bool
	}{
		{"one page of all", domain.Layout{Pages: pagesFrom(0, 0, 1), PageSize: math.MaxUint64, Size: math.MaxUint64}, true},
		{"two pages of a half", domain.Layout{Pages: pagesFrom(0, 0, 2), PageSize: 1 << 63, Size: math.MaxUint64}, true},
		{"two pages whose product wraps to 0", domain.Layout{Pages: pagesFrom(0, 0, 2), PageSize: 1 << 63, Size: 1}, false},
		{"three pages whose first two wrap to 0", domain.Layout{Pages: []domain.PageRef{{}, {Buffer: 1}, {Buffer: 2}}, PageSize: 1 << 63, Size: 1}, false},
		{"five pages of 2^62", domain.Layout{Pages: pagesFrom(0, 0, 5), PageSize: 1 << 62, Size: math.MaxUint64}, false},
		{"four pages of 2^62", domain.Layout{Pages: []domain.PageRef{{}, {Buffer: 1}, {Buffer: 2}, {Buffer: 3}}, PageSize: 1 << 62, Size: math.MaxUint64}, true},
		{"a size that is one page too long", domain.Layout{Pages: pagesFrom(0, 0, 1), PageSize: math.MaxUint64 - 1, Size: math.MaxUint64}, false},
		{"a page of 2^63 that is not the first half", domain.Layout{Pages: pagesFrom(0, 2, 1), PageSize: 1 << 63, Size: 1}, false},
		{"the last page of 4 GiB", domain.Layout{Pages: pagesFrom(0, math.MaxUint32, 1), PageSize: 1 << 32, Size: 1 << 32}, true},
		{"the last page of 4 GiB and a byte", domain.Layout{Pages: pagesFrom(0, math.MaxUint32, 1), PageSize: 1<<32 + 1, Size: 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.fits, c.layout.Check() == nil, "%v", c.layout.Check())
		})
	}
}

// layoutFits is the rule in numbers that cannot overflow.
func layoutFits(l domain.Layout) bool {
	n, page, size := big.NewInt(int64(len(l.Pages))), new(big.Int).SetUint64(l.PageSize), new(big.Int).SetUint64(l.Size)
	if n.Sign() == 0 || page.Sign() == 0 || size.Sign() == 0 {
		return false
	}
	full := new(big.Int).Mul(n, page)
	if size.Cmp(full) > 0 || size.Cmp(full.Sub(full, page)) <= 0 {
		return false
	}
	for _, p := range l.Pages {
		end := new(big.Int).Mul(new(big.Int).SetUint64(uint64(p.Page)+1), page)
		if end.Sub(end, big.NewInt(1)).BitLen() > 64 {
			return false
		}
	}
	return true
}

func TestLayoutCheckAgreesWithTheRuleInBigNumbers(t *testing.T) {
	near := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 40), rapid.Uint64Range(math.MaxUint64-40, math.MaxUint64),
		rapid.Uint64Range(1<<63-20, 1<<63+20), rapid.Uint64Range(1<<32-20, 1<<32+20))
	rapid.Check(t, func(t *rapid.T) {
		l := domain.Layout{PageSize: near.Draw(t, "page size"), Size: near.Draw(t, "size")}
		n := rapid.IntRange(0, 9).Draw(t, "pages")
		if rapid.Bool().Draw(t, "near the product") {
			l.Size = uint64(n)*l.PageSize + rapid.Uint64Range(0, 4).Draw(t, "more") - 2
		}
		for range n {
			l.Pages = append(l.Pages, domain.PageRef{Page: uint32(near.Draw(t, "page"))})
		}
		require.Equal(t, layoutFits(l), l.Check() == nil, "%v", l.Check())
	})
}

// requireWalkIsRight expands the fragments byte by byte.
func requireWalkIsRight(t require.TestingT, l domain.Layout, r domain.Run) {
	var got []place
	for _, f := range fragmentsOf(t, l, r) {
		require.NotZero(t, f.Len)
		require.Equal(t, uint64(len(got)), f.Done)
		require.Equal(t, uint64(f.Page.Page), f.Off/l.PageSize, "%+v is not on its page", f)
		require.Equal(t, uint64(f.Page.Page), (f.Off+f.Len-1)/l.PageSize, "%+v leaves its page", f)
		for k := range f.Len {
			got = append(got, place{buffer: f.Page.Buffer, off: f.Off + k})
		}
	}
	require.Equal(t, placesOf(l)[r.Off:r.End()], got)
}

func TestPageWalkAgreesWithTheByteWiseOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t, objectSizes.Draw(t, "size"))
		requireWalkIsRight(t, l, drawRun(t, l.Size, 0))
	})
}

func TestPageWalkOfPiecesIsTheWalkOfTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t, objectSizes.Draw(t, "size"))
		r := drawRun(t, l.Size, 0)
		cut := rapid.Uint64Range(0, r.Len).Draw(t, "cut")
		var got []place
		for _, part := range []domain.Run{{Off: r.Off, Len: cut}, {Off: r.Off + cut, Len: r.Len - cut}} {
			if part.Len == 0 {
				continue
			}
			for _, f := range fragmentsOf(t, l, part) {
				for k := range f.Len {
					got = append(got, place{buffer: f.Page.Buffer, off: f.Off + k})
				}
			}
		}
		require.Equal(t, placesOf(l)[r.Off:r.End()], got)
	})
}

// refsOf makes a page of every two bytes.
func refsOf(raw []byte) []domain.PageRef {
	var pages []domain.PageRef
	for ; len(raw) >= 2; raw = raw[2:] {
		pages = append(pages, domain.PageRef{Buffer: uint32(raw[0] % 4), Page: uint32(raw[1])})
	}
	return pages
}

func FuzzPageWalk(f *testing.F) {
	f.Add([]byte{0, 3, 1, 9, 0, 2}, uint64(10), uint64(25), uint64(7), uint64(18))
	f.Add([]byte{0, 0}, uint64(1000), uint64(1000), uint64(0), uint64(1000))
	f.Add([]byte{0, 0, 0, 1}, uint64(1<<63), uint64(math.MaxUint64), uint64(1<<63-1), uint64(2))
	f.Add([]byte{0, 0, 0, 1}, uint64(1<<63), uint64(1), uint64(0), uint64(1))
	f.Add([]byte{2, 7, 2, 8}, uint64(4), uint64(8), uint64(8), uint64(1))
	f.Add([]byte{}, uint64(4), uint64(8), uint64(0), uint64(1))
	f.Add([]byte{1, 1}, uint64(0), uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, raw []byte, pageSize, size, off, length uint64) {
		l, r := domain.Layout{Pages: refsOf(raw), PageSize: pageSize, Size: size}, domain.Run{Off: off, Len: length}
		var done uint64
		err := domain.ForEachRangePageFragment(l, r, func(f domain.Fragment) bool {
			at := off + done
			require.Equal(t, done, f.Done)
			require.Equal(t, l.Pages[at/pageSize], f.Page)
			require.Equal(t, uint64(f.Page.Page)*pageSize+at%pageSize, f.Off)
			require.True(t, 0 < f.Len && f.Len <= pageSize-at%pageSize, "length %d of the fragment at %d", f.Len, at)
			done += f.Len
			return true
		})
		if !layoutFits(l) || length == 0 || off >= size || length > size-off {
			require.ErrorIs(t, err, domain.ErrInvalid)
			require.Zero(t, done, "emitted for a refused run")
			return
		}
		require.NoError(t, err)
		require.Equal(t, length, done)
		if size <= 4096 {
			requireWalkIsRight(t, l, r)
		}
	})
}

func TestPageWalkAllocatesNothing(t *testing.T) {
	l := domain.Layout{Pages: pagesFrom(0, 3, 69), PageSize: 64 << 10, Size: 69 << 16}
	var sum uint64
	require.Zero(t, testing.AllocsPerRun(100, func() {
		err := domain.ForEachRangePageFragment(l, domain.Run{Off: 1000, Len: 68 << 16}, func(f domain.Fragment) bool {
			sum += f.Len
			return true
		})
		if err != nil {
			panic(err)
		}
	}))
	require.NotZero(t, sum)
}

func TestRangeErrorNamesValueAndLimit(t *testing.T) {
	err := threePages().Check()
	require.NoError(t, err)
	err = domain.SpansInBounds([]domain.Span{{Run: domain.Run{Off: 20, Len: 6}}}, 25)
	require.EqualError(t, err, "run ends past the object: bytes from its offset on: 6, limit 5")
	require.False(t, errors.Is(err, domain.ErrEmitRefused))
}

func BenchmarkPageWalk(b *testing.B) {
	for _, c := range []struct {
		name   string
		layout domain.Layout
		run    domain.Run
	}{
		{"page=4392KiB/range=576KiB", domain.Layout{Pages: pagesFrom(0, 3, 1), PageSize: 4392 << 10, Size: 4392 << 10}, domain.Run{Off: 589_824, Len: 589_824}},
		{"page=64KiB/range=1728B", domain.Layout{Pages: pagesFrom(0, 3, 9), PageSize: 64 << 10, Size: 576 << 10}, domain.Run{Off: 70_000, Len: 1728}},
		{"page=64KiB/range=576KiB", domain.Layout{Pages: pagesFrom(0, 3, 69), PageSize: 64 << 10, Size: 69 << 16}, domain.Run{Off: 589_824, Len: 589_824}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var sum uint64
			for b.Loop() {
				_ = domain.ForEachRangePageFragment(c.layout, c.run, func(f domain.Fragment) bool {
					sum += f.Off
					return true
				})
			}
		})
	}
}
