package domain

import (
	"cmp"
	"fmt"
	"slices"
)

// RangeError says why a range, a run or a layout was refused: which value was on the wrong side of which limit.
type RangeError struct {
	Reason       string // "too few pages for the size"
	Value, Limit uint64
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s: %d, limit %d", e.Reason, e.Value, e.Limit)
}

// Is makes every RangeError an ErrInvalid.
func (e *RangeError) Is(target error) bool { return target == ErrInvalid }

// Range is what a caller names: Len bytes of the object from Off, and where they go or come from: offset RegionOff of
// entry Region of the call's region table.
type Range struct {
	Off, Len  uint64
	Region    uint32
	RegionOff uint64
}

// Span is a maximal run of ranges that are adjacent in the object. Its ranges are, in object order,
// ranges[order[First]], ..., ranges[order[First+Count-1]]: the scatter map back to the caller's order.
type Span struct {
	Run
	First, Count uint32
}

// AppendSpans checks the ranges of one key as far as that needs no size (at least one, each non-empty, no overflow, pairwise
// disjoint) and appends the scatter map to order and the spans, in object order, to spans. Entries of order index ranges;
// Span.First indexes the whole of order. On an error both columns come back as they were. Nothing is allocated beyond the
// growth of the columns. A length of Whole is refused as an overflow: put the object's size there before.
func AppendSpans(ranges []Range, order []uint32, spans []Span) ([]uint32, []Span, error) {
	ascending, err := checkRanges(ranges)
	if err != nil {
		return order, spans, err
	}
	base := len(order)
	grown := appendIota(order, len(ranges))
	if !ascending {
		sortByOffset(grown[base:], ranges)
		if err := checkDisjoint(grown[base:], ranges); err != nil {
			return order, spans, err
		}
	}
	return grown, joinRanges(grown, base, ranges, spans), nil
}

// checkRanges refuses what a look at each range shows. ascending says that each begins at or behind the end of the one
// before it, and so that they are disjoint and in object order as they stand.
func checkRanges(ranges []Range) (ascending bool, err error) {
	if len(ranges) == 0 {
		return false, &RangeError{Reason: "no ranges", Value: 0, Limit: 1}
	}
	ascending = true
	var end uint64
	for i := range ranges {
		r := &ranges[i]
		if r.Len == 0 {
			return false, &RangeError{Reason: "empty range", Value: 0, Limit: 1}
		}
		// The end must stay below Whole, which refuses a Whole that nobody replaced along with every overflow.
		if r.Len >= Whole-r.Off {
			return false, &RangeError{Reason: "range overflows: bytes from its offset on", Value: r.Len, Limit: Whole - r.Off}
		}
		ascending = ascending && r.Off >= end
		end = r.Off + r.Len
	}
	return ascending, nil
}

// appendIota appends 0, 1, ..., n-1.
func appendIota(order []uint32, n int) []uint32 {
	order = slices.Grow(order, n)
	for i := range n {
		order = append(order, uint32(i))
	}
	return order
}

func sortByOffset(order []uint32, ranges []Range) {
	slices.SortFunc(order, func(i, j uint32) int { return cmp.Compare(ranges[i].Off, ranges[j].Off) })
}

// checkDisjoint needs a sorted order: then it is enough to compare neighbours.
func checkDisjoint(order []uint32, ranges []Range) error {
	var end uint64
	for _, i := range order {
		if ranges[i].Off < end {
			return &RangeError{Reason: "ranges overlap: the later one begins before the other's end", Value: ranges[i].Off, Limit: end}
		}
		end = ranges[i].Off + ranges[i].Len
	}
	return nil
}

// joinRanges appends the maximal runs of the ranges that order[base:] names in object order.
func joinRanges(order []uint32, base int, ranges []Range, spans []Span) []Span {
	var span Span
	for i := base; i < len(order); i++ {
		r := &ranges[order[i]]
		if span.Count > 0 && r.Off == span.End() {
			span.Len += r.Len
			span.Count++
			continue
		}
		if span.Count > 0 {
			spans = append(spans, span)
		}
		span = Span{Run: Run{Off: r.Off, Len: r.Len}, First: uint32(i), Count: 1}
	}
	return append(spans, span)
}

// SpansInBounds refuses spans that end past size.
func SpansInBounds(spans []Span, size uint64) error {
	for i := range spans {
		if err := spans[i].checkWithin(size); err != nil {
			return err
		}
	}
	return nil
}

// Tiles reports whether spans (of AppendSpans) cover exactly [0, size). Spans are maximal, so then there is only one.
func Tiles(spans []Span, size uint64) bool { return len(spans) == 1 && spans[0].Run == Run{Len: size} }
