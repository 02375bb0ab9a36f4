package domain

// Pair is a piece of a run that is contiguous on both sides.
type Pair struct {
	A, B       uint32 // buffers
	AOff, BOff uint64 // offsets in the buffers
	Len        uint64
	Done       uint64 // bytes of the run before this piece
}

// OnePair is the whole of ForEachPair for two layouts of one page each: flat memory, or an object on one page. It reports false
// for all others, and for whatever ForEachPair might refuse: that has the last word.
func OnePair(a *Layout, ar Run, b *Layout, br Run) (Pair, bool) {
	if len(a.Pages) != 1 || len(b.Pages) != 1 || ar.Len != br.Len || !a.holds(ar) || !b.holds(br) {
		return Pair{}, false
	}
	pa, pb := a.Pages[0], b.Pages[0]
	return Pair{A: pa.Buffer, B: pb.Buffer, AOff: uint64(pa.Page)*a.PageSize + ar.Off, BOff: uint64(pb.Page)*b.PageSize + br.Off, Len: ar.Len}, true
}

// ForEachPair merges the page walks of ar on a and of br on b, which have the same length, into maximal pieces that are
// contiguous on both sides (pages that follow each other in one buffer are joined). It refuses what either walk refuses,
// and different lengths, before it emits. An emit that returns false ends it with ErrEmitRefused.
func ForEachPair(a Layout, ar Run, b Layout, br Run, emit func(Pair) bool) error {
	if ar.Len != br.Len {
		return &RangeError{Reason: "the two sides differ in length", Value: br.Len, Limit: ar.Len}
	}
	if !a.holds(ar) || !b.holds(br) {
		if err := a.checkRun(ar); err != nil {
			return err
		}
		if err := b.checkRun(br); err != nil {
			return err
		}
	}
	// Each side yields pieces that are maximal by themselves, so a pair ends only where one of the sides must.
	aw, bw := a.walk(ar), b.walk(br)
	var fa, fb Fragment
	for done := uint64(0); done < ar.Len; {
		if fa.Len == 0 {
			fa = aw.nextJoined()
		}
		if fb.Len == 0 {
			fb = bw.nextJoined()
		}
		n := min(fa.Len, fb.Len)
		if !emit(Pair{A: fa.Page.Buffer, B: fb.Page.Buffer, AOff: fa.Off, BOff: fb.Off, Len: n, Done: done}) {
			return ErrEmitRefused
		}
		fa.Off, fa.Len = fa.Off+n, fa.Len-n
		fb.Off, fb.Len = fb.Off+n, fb.Len-n
		done += n
	}
	return nil
}
