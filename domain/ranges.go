package domain

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
// growth of the columns.
func AppendSpans(ranges []Range, order []uint32, spans []Span) ([]uint32, []Span, error) {
	panic("todo")
}

// SpansInBounds refuses spans that end past size.
func SpansInBounds(spans []Span, size uint64) error { panic("todo") }

// Tiles reports whether spans (of AppendSpans) cover exactly [0, size).
func Tiles(spans []Span, size uint64) bool { panic("todo") }
