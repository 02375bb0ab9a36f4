package engine

import (
	"fmt"
	"math"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// want is the keys of a call and where their bytes lie, as the pool takes them. Keys whose memory is not registered are left out:
// row[j] is the place in the call of key j. Columns are reused.
type want struct {
	total  int // keys of the call
	row    []uint32
	keys   []string
	sizes  []uint64
	end    []uint32
	ranges []domain.Range
	bytes  uint64 // of all ranges
	listed int    // ranges of the call, those of refused keys included

	// Gets whose parts are all patterns stay patterns, which the pool plans once each.
	stay   bool
	shapes []domain.PatternRange
	rows   []uint64
	cuts   []cut

	refused []refusedKey
}

// cut is where the shapes and rows of a pattern end.
type cut struct{ shapes, rows int }

// patterns is what the pool takes instead of ends and ranges; nil when those are filled.
func (w *want) patterns() []ports.Pattern {
	if !w.stay {
		return nil
	}
	out := make([]ports.Pattern, 0, len(w.cuts))
	var lo cut
	for _, hi := range w.cuts {
		out = append(out, ports.Pattern{Ranges: w.shapes[lo.shapes:hi.shapes], Rows: w.rows[lo.rows:hi.rows]})
		lo = hi
	}
	return out
}

// refusedKey is a key of the call that the pool is not asked for.
type refusedKey struct {
	row    uint32
	reason error
}

func (w *want) reset() {
	clear(w.keys)
	clear(w.refused)
	*w = want{row: w.row[:0], keys: w.keys[:0], sizes: w.sizes[:0], end: w.end[:0], ranges: w.ranges[:0],
		shapes: w.shapes[:0], rows: w.rows[:0], cuts: w.cuts[:0], refused: w.refused[:0]}
}

// lookup is what names in a call stand for.
type lookup interface {
	// named is a handle's keys.
	named(id uint64) (handle, bool)
	// use is a region's place in the call's table, and its length.
	use(id uint32) (place uint32, length uint64, ok bool)
}

// placed is a call's lookup.
type placed struct{ k *call }

func (p placed) named(id uint64) (handle, bool) { return p.k.of.named(id) }

func (p placed) use(id uint32) (uint32, uint64, bool) {
	place, ok := p.k.use(id)
	if !ok {
		return 0, 0, false
	}
	return uint32(place), p.k.regions[place].mapped.region.Len(), true
}

// sizing says what a call's parts say of sizes.
type sizing bool

const (
	sized   sizing = true  // puts: of every object
	unsized sizing = false // none
)

// fill decodes parts. An error is the call's as a whole; a key alone is only ever refused for its memory, since the rest is the pool's to
// check.
func (w *want) fill(parts []*enginev1.Part, by lookup, s sizing) error {
	for _, p := range parts {
		if p.GetPattern() == nil {
			w.stay = false
		}
	}
	for i, p := range parts {
		if err := w.addPart(p, by, s); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	return nil
}

func (w *want) addPart(p *enginev1.Part, by lookup, s sizing) error {
	list, err := listOf(p.GetKeys(), by)
	if err != nil {
		return err
	}
	n := list.len()
	if w.total += n; w.total > domain.MaxCallKeys {
		return limit("keys of a call", w.total, domain.MaxCallKeys)
	}
	sizes := column{p.GetSizes()}
	if s == sized && !sizes.fits(n) || s == unsized && len(p.GetSizes()) > 0 {
		return malformed("sizes", len(p.GetSizes()), n)
	}
	first := len(w.keys)
	switch at := p.GetWhere().(type) {
	case *enginev1.Part_Pattern:
		err = w.addPattern(list, at.Pattern, by)
	case *enginev1.Part_Lists:
		err = w.addLists(list, at.Lists, by)
	default:
		err = fmt.Errorf("neither a pattern nor lists: %w", domain.ErrInvalid)
	}
	if err != nil || s == unsized {
		return err
	}
	for _, row := range w.row[first:] {
		w.sizes = append(w.sizes, sizes.at(int(row)-(w.total-n)))
	}
	return nil
}

func malformed(what string, n, keys int) error {
	return fmt.Errorf("%s: %d entries for %d: %w", what, n, keys, domain.ErrInvalid)
}

func limit(what string, value, limit int) error {
	return fmt.Errorf("%w: %w", ports.ErrRefused, &domain.LimitError{What: what, Value: uint64(value), Limit: uint64(limit)})
}

// saturated is a sum that stays at its greatest value: a call may name the same memory a million times.
func saturated(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// column is values of which one stands for as many as are needed.
type column struct{ v []uint64 }

func (c column) fits(n int) bool { return len(c.v) == 1 || len(c.v) == n }

func (c column) at(i int) uint64 {
	if len(c.v) == 1 {
		return c.v[0]
	}
	return c.v[i]
}

// keyList is the keys of a part: names of its own, or runs of a handle's.
type keyList struct {
	names        [][]byte
	of           handle
	first, count []uint32
	n            int
}

func (l *keyList) len() int { return l.n }

// listOf checks that a list's runs lie within its handle, and counts before anything is copied.
func listOf(k *enginev1.Keys, by lookup) (keyList, error) {
	if k.GetHandle() == 0 {
		if len(k.GetFirst()) > 0 || len(k.GetCount()) > 0 {
			return keyList{}, fmt.Errorf("runs without a handle: %w", domain.ErrInvalid)
		}
		return keyList{names: k.GetNames(), n: len(k.GetNames())}, nil
	}
	if len(k.GetNames()) > 0 {
		return keyList{}, fmt.Errorf("names beside a handle: %w", domain.ErrInvalid)
	}
	h, ok := by.named(k.GetHandle())
	if !ok {
		return keyList{}, fmt.Errorf("handle %d: %w", k.GetHandle(), ports.ErrNotFound)
	}
	l := keyList{of: h, first: k.GetFirst(), count: k.GetCount()}
	if len(l.first) != len(l.count) {
		return keyList{}, malformed("counts of runs", len(l.count), len(l.first))
	}
	if len(l.first) == 0 {
		l.first, l.count = []uint32{0}, []uint32{uint32(len(h.keys))}
	}
	for i := range l.first {
		if uint64(l.first[i])+uint64(l.count[i]) > uint64(len(h.keys)) {
			return keyList{}, fmt.Errorf("run [%d, %d+%d) of %d keys: %w", l.first[i], l.first[i], l.count[i], len(h.keys), domain.ErrInvalid)
		}
		if l.n += int(l.count[i]); l.n > domain.MaxCallKeys {
			return keyList{}, limit("keys of a call", l.n, domain.MaxCallKeys)
		}
	}
	return l, nil
}

// each calls do for every key with its place in the list and, for keys of a handle, its place there.
func (l *keyList) each(do func(i, inHandle int, key string)) {
	if l.of.keys == nil {
		for i, name := range l.names {
			do(i, -1, string(name))
		}
		return
	}
	i := 0
	for r := range l.first {
		for j := l.first[r]; j < l.first[r]+l.count[r]; j++ {
			do(i, int(j), l.of.keys[j])
			i++
		}
	}
}

// laid is one range of a pattern: a destination or source for every row up to last.
type laid struct {
	domain.PatternRange
	last   uint64
	never  bool   // no row fits
	region uint32 // as the client names it
}

func (w *want) addPattern(list keyList, p *enginev1.Pattern, by lookup) error {
	shape, err := w.shapeOf(list.len(), p, by)
	if err != nil {
		return err
	}
	rows := p.GetRow()
	switch {
	case p.GetRowsOfHandle() && (len(rows) > 0 || len(list.of.rows) == 0 && list.len() > 0):
		return fmt.Errorf("rows of a handle that has none, or rows beside them: %w", domain.ErrInvalid)
	case !p.GetRowsOfHandle() && len(rows) != list.len():
		return malformed("rows", len(rows), list.len())
	case p.GetRowsOfHandle():
		rows = nil
	}
	var each uint64
	for i := range shape {
		if !shape[i].never { // else no key counts
			each = saturated(each, shape[i].Len)
		}
	}
	begin := w.total - list.len()
	if w.stay {
		for i := range shape {
			w.shapes = append(w.shapes, shape[i].PatternRange)
		}
	}
	list.each(func(i, inHandle int, key string) {
		var row uint64
		if rows != nil {
			row = rows[i]
		} else {
			row = list.of.rows[inHandle]
		}
		for r := range shape {
			if s := &shape[r]; s.never || row > s.last {
				w.refuse(begin+i, fmt.Errorf("range %d: %d bytes at %d + row %d x %d are not in region %d", r, s.Len, s.Base, row, s.Stride, s.region))
				return
			}
		}
		w.bytes = saturated(w.bytes, each)
		if w.stay {
			w.rows = append(w.rows, row)
		} else {
			for r := range shape {
				w.ranges = append(w.ranges, shape[r].At(row))
			}
		}
		w.accept(begin+i, key)
	})
	if w.stay {
		w.cuts = append(w.cuts, cut{len(w.shapes), len(w.rows)})
	}
	return nil
}

// shapeOf checks a pattern's columns, and finds for each range the rows that fit its region.
func (w *want) shapeOf(keys int, p *enginev1.Pattern, by lookup) ([]laid, error) {
	n := len(p.GetOff())
	if n == 0 {
		return nil, fmt.Errorf("a pattern without ranges: %w", domain.ErrInvalid)
	}
	if w.listed += n * keys; n > domain.MaxCallRanges || w.listed > domain.MaxCallRanges { // keys are bounded: the product cannot overflow
		return nil, limit("ranges of a call", max(n, w.listed), domain.MaxCallRanges)
	}
	lens, strides := column{p.GetLen()}, column{p.GetStride()}
	for _, c := range []struct {
		what string
		have int
		fits bool
	}{
		{"lengths of a pattern", len(p.GetLen()), lens.fits(n)}, {"strides of a pattern", len(p.GetStride()), strides.fits(n)},
		{"regions of a pattern", len(p.GetRegion()), len(p.GetRegion()) == 1 || len(p.GetRegion()) == n},
		{"bases of a pattern", len(p.GetBase()), len(p.GetBase()) == n},
	} {
		if !c.fits {
			return nil, malformed(c.what, c.have, n)
		}
	}
	shape := make([]laid, n)
	for r := range shape {
		s := &shape[r]
		s.region = regionAt(p.GetRegion(), r)
		s.Off, s.Len, s.Base, s.Stride = p.GetOff()[r], lens.at(r), p.GetBase()[r], strides.at(r)
		place, length, ok := by.use(s.region)
		s.Region = place
		if ok {
			s.last, ok = s.LastRow(length)
		}
		s.never = !ok
	}
	return shape, nil
}

func regionAt(regions []uint32, i int) uint32 {
	if len(regions) == 1 {
		return regions[0]
	}
	return regions[i]
}

func (w *want) addLists(list keyList, l *enginev1.RangeLists, by lookup) error {
	n, keys := len(l.GetOff()), list.len()
	switch {
	case w.listed+n > domain.MaxCallRanges:
		return limit("ranges of a call", w.listed+n, domain.MaxCallRanges)
	case len(l.GetEnd()) != keys:
		return malformed("ends", len(l.GetEnd()), keys)
	case len(l.GetLen()) != n:
		return malformed("lengths", len(l.GetLen()), n)
	case len(l.GetRegionOff()) != n:
		return malformed("offsets in regions", len(l.GetRegionOff()), n)
	case len(l.GetRegion()) != 1 && len(l.GetRegion()) != n:
		return malformed("regions", len(l.GetRegion()), n)
	}
	last := uint32(0)
	for i, end := range l.GetEnd() {
		if end < last || uint64(end) > uint64(n) {
			return fmt.Errorf("end %d of key %d lies outside of [%d, %d]: %w", end, i, last, n, domain.ErrInvalid)
		}
		last = end
	}
	if int(last) != n {
		return malformed("ranges up to the last end", int(last), n)
	}
	w.listed += n
	begin := w.total - keys
	lo := uint32(0)
	list.each(func(i, _ int, key string) {
		hi := l.GetEnd()[i]
		if err := w.addRanges(l, lo, hi, by); err != nil {
			w.refuse(begin+i, err)
			w.ranges = w.ranges[:w.lastEnd()]
		} else {
			w.accept(begin+i, key)
		}
		lo = hi
	})
	return nil
}

// addRanges adds the ranges of one key; its bytes count when all of them lie in registered memory.
func (w *want) addRanges(l *enginev1.RangeLists, lo, hi uint32, by lookup) error {
	var bytes uint64
	for r := lo; r < hi; r++ {
		id := regionAt(l.GetRegion(), int(r))
		place, length, ok := by.use(id)
		n, at := l.GetLen()[r], l.GetRegionOff()[r]
		if !ok || n > length || at > length-n {
			return fmt.Errorf("range %d: %d bytes at %d are not in region %d", r, n, at, id)
		}
		bytes = saturated(bytes, n)
		w.ranges = append(w.ranges, domain.Range{Off: l.GetOff()[r], Len: n, Region: place, RegionOff: at})
	}
	w.bytes = saturated(w.bytes, bytes)
	return nil
}

// accept ends the ranges of a key. Its name is the pool's to check.
func (w *want) accept(row int, key string) {
	w.row = append(w.row, uint32(row))
	w.keys = append(w.keys, key)
	if !w.stay {
		w.end = append(w.end, uint32(len(w.ranges)))
	}
}

func (w *want) refuse(row int, reason error) {
	w.refused = append(w.refused, refusedKey{uint32(row), reason})
}

// lastEnd is where the ranges of the last accepted key end.
func (w *want) lastEnd() int {
	if len(w.end) == 0 {
		return 0
	}
	return int(w.end[len(w.end)-1])
}
