package domain

import (
	"errors"
	"math/bits"
)

// ErrEmitRefused ends a walk whose emit returned false; what was emitted before it stays emitted. It is no ErrInvalid: the
// layout and the run were right.
var ErrEmitRefused = errors.New("emit refused")

// Layout is where an object lies: every page is full but the last. Pages are of buffers of one medium.
type Layout struct {
	Pages    []PageRef
	PageSize uint64
	Size     uint64
}

// Run is the half-open interval [Off, Off+Len) of an object or of a flat piece of memory.
type Run struct{ Off, Len uint64 }

// End is the first offset past the run. Precondition: the sum does not overflow.
func (r Run) End() uint64 { return r.Off + r.Len }

// Fragment is the part of a run that lies on one page.
type Fragment struct {
	Page PageRef
	Off  uint64 // offset in the page's buffer: page number x page size + offset within the page
	Len  uint64
	Done uint64 // bytes of the run before this fragment
}

// Flat is a layout of one page: n bytes of memory that are contiguous. ref is the caller's storage for its single page
// (its Buffer names the memory, its Page is 0), so that nothing is allocated.
func Flat(ref []PageRef, n uint64) Layout { return Layout{Pages: ref[:1:1], PageSize: n, Size: n} }

// Check reports whether the page count fits the size: (n-1) x page < size <= n x page, all non-zero, overflow-safe. It also
// refuses a page whose bytes do not all have an offset below 2^64 in their buffer. Whether that buffer is so long is not
// known here.
func (l Layout) Check() error {
	if !l.fits() {
		return l.misfit()
	}
	// Page numbers have 32 bits, so pages below 4 GiB cannot overflow, and these are all that matter for speed.
	if l.PageSize>>32 != 0 {
		return l.checkPageOffsets()
	}
	return nil
}

// fits is the count's part of Check. It multiplies and never divides, since every walk begins here. full < size refuses an
// empty object along with too many pages, and size - full <= page an empty page along with too few.
func (l Layout) fits() bool {
	if len(l.Pages) == 0 {
		return false
	}
	hi, full := bits.Mul64(uint64(len(l.Pages)-1), l.PageSize)
	return hi == 0 && full < l.Size && l.Size-full <= l.PageSize
}

// Contiguous reports whether the object's bytes follow each other in one buffer, and where they begin there. It reports false
// for whatever Check refuses, and for pages of 4 GiB or more, which the walk has to look at.
func (l *Layout) Contiguous() (buffer uint32, off uint64, ok bool) {
	if l.PageSize>>32 != 0 || !l.fits() {
		return 0, 0, false
	}
	first := l.Pages[0]
	for i := 1; i < len(l.Pages); i++ {
		if !follows(l.Pages[i-1], l.Pages[i]) {
			return 0, 0, false
		}
	}
	return first.Buffer, uint64(first.Page) * l.PageSize, true
}

// misfit names what fits refused.
func (l Layout) misfit() error {
	if l.Size == 0 {
		return &RangeError{Reason: "empty object", Value: 0, Limit: 1}
	}
	if l.PageSize == 0 {
		return &RangeError{Reason: "empty pages", Value: 0, Limit: 1}
	}
	n, need := uint64(len(l.Pages)), (l.Size-1)/l.PageSize+1
	if n < need {
		return &RangeError{Reason: "too few pages for the size", Value: n, Limit: need}
	}
	return &RangeError{Reason: "too many pages for the size", Value: n, Limit: need}
}

func (l Layout) checkPageOffsets() error {
	last := (^uint64(0) - (l.PageSize - 1)) / l.PageSize // the last page that has room below 2^64
	for _, p := range l.Pages {
		if uint64(p.Page) > last {
			return &RangeError{Reason: "page number past what offsets can reach", Value: uint64(p.Page), Limit: last}
		}
	}
	return nil
}

// checkRun refuses what no walk may begin with.
func (l Layout) checkRun(r Run) error {
	if err := l.Check(); err != nil {
		return err
	}
	return r.checkWithin(l.Size)
}

// holds reports, for the layouts that matter for speed, that checkRun would refuse nothing. It is small enough to be part of its
// caller; on false checkRun has the last word.
func (l *Layout) holds(r Run) bool {
	return l.PageSize>>32 == 0 && r.Off < l.Size && r.Len-1 < l.Size-r.Off && l.fits()
}

// checkWithin refuses an empty run, and one that ends past size. It takes any offset and length.
func (r Run) checkWithin(size uint64) error {
	switch {
	case r.Len == 0:
		return &RangeError{Reason: "empty run", Value: 0, Limit: 1}
	case r.Off >= size:
		return &RangeError{Reason: "run begins past the object's last byte", Value: r.Off, Limit: size - 1}
	case r.Len > size-r.Off:
		return &RangeError{Reason: "run ends past the object: bytes from its offset on", Value: r.Len, Limit: size - r.Off}
	}
	return nil
}

// walker yields a run page by page. It is the one place where object offsets become page offsets, for local and peer pages
// alike: a wrong answer here returns wrong bytes under a success.
type walker struct {
	pages    []PageRef // the page of the next byte, and those behind it
	pageSize uint64
	within   uint64 // offset of the next byte in pages[0]
	left     uint64 // bytes of the run that next has not yielded
}

// walk begins a walk. Precondition: checkRun passed.
func (l Layout) walk(r Run) walker {
	if len(l.Pages) == 1 { // flat memory and page = object: no division
		return walker{pages: l.Pages, pageSize: l.PageSize, within: r.Off, left: r.Len}
	}
	first := r.Off / l.PageSize
	return walker{pages: l.Pages[first:], pageSize: l.PageSize, within: r.Off - first*l.PageSize, left: r.Len}
}

// next yields the rest of the current page, as far as the run goes; Done is left to the caller. Precondition: left > 0.
func (w *walker) next() Fragment {
	p := w.pages[0]
	f := Fragment{Page: p, Off: uint64(p.Page)*w.pageSize + w.within, Len: min(w.pageSize-w.within, w.left)}
	w.pages, w.within, w.left = w.pages[1:], 0, w.left-f.Len
	return f
}

// nextJoined is next, with the pages behind joined as long as each follows the one before it in the same buffer.
// Precondition: left > 0.
func (w *walker) nextJoined() Fragment {
	f := w.next()
	for last := f.Page; w.left > 0 && follows(last, w.pages[0]); {
		g := w.next()
		f.Len += g.Len
		last = g.Page
	}
	return f
}

// follows compares page numbers, not offsets: those of the last page may end at 2^64, which is 0.
func follows(p, q PageRef) bool { return p.Buffer == q.Buffer && q.Page != 0 && p.Page == q.Page-1 }

// ForEachRangePageFragment yields the fragments of r in order. Nothing is emitted for a refused run: zero length, a layout
// that Check refuses, or an end past the object. An emit that returns false ends the walk with ErrEmitRefused.
func ForEachRangePageFragment(l Layout, r Run, emit func(Fragment) bool) error {
	if err := l.checkRun(r); err != nil {
		return err
	}
	for w := l.walk(r); w.left > 0; {
		done := r.Len - w.left
		f := w.next()
		f.Done = done
		if !emit(f) {
			return ErrEmitRefused
		}
	}
	return nil
}
