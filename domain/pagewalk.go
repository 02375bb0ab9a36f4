package domain

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

// Check reports whether the page count fits the size: (n-1) x page < size <= n x page, all non-zero, overflow-safe.
func (l Layout) Check() error { panic("todo") }

// ForEachRangePageFragment yields the fragments of r in order. Nothing is emitted for a refused run: zero length, a layout
// that Check refuses, or an end past the object. An emit that returns false ends the walk with ErrEmitRefused.
func ForEachRangePageFragment(l Layout, r Run, emit func(Fragment) bool) error { panic("todo") }
