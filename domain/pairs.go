package domain

// Pair is a piece of a run that is contiguous on both sides.
type Pair struct {
	A, B       uint32 // buffers
	AOff, BOff uint64 // offsets in the buffers
	Len        uint64
	Done       uint64 // bytes of the run before this piece
}

// ForEachPair merges the page walks of ar on a and of br on b, which have the same length, into maximal pieces that are
// contiguous on both sides (pages that follow each other in one buffer are joined). It refuses what either walk refuses,
// and different lengths, before it emits.
func ForEachPair(a Layout, ar Run, b Layout, br Run, emit func(Pair) bool) error { panic("todo") }
