package domain

import (
	"slices"
	"sort"
)

// Extents is a set of bytes as half-open runs: sorted, disjoint and not adjacent. The zero value is the empty set. Its
// storage is kept by Reset. Runs of zero length change nothing and are covered by every set. Precondition of all that take
// a run: its end does not overflow.
type Extents struct {
	runs []Run // INVARIANT: runs[i].End() < runs[i+1].Off, and no run is empty
}

// endingAfter is the index of the first run that ends past off.
func (e *Extents) endingAfter(off uint64) int {
	return sort.Search(len(e.runs), func(i int) bool { return e.runs[i].End() > off })
}

// Add puts r into the set.
func (e *Extents) Add(r Run) {
	if r.Len == 0 {
		return
	}
	// [lo, hi) are the runs that r overlaps or touches: they and r become one.
	lo := sort.Search(len(e.runs), func(i int) bool { return e.runs[i].End() >= r.Off })
	hi, off, end := lo, r.Off, r.End()
	for ; hi < len(e.runs) && e.runs[hi].Off <= r.End(); hi++ {
		off, end = min(off, e.runs[hi].Off), max(end, e.runs[hi].End())
	}
	e.runs = slices.Replace(e.runs, lo, hi, Run{Off: off, Len: end - off})
}

// Remove takes r out of the set.
func (e *Extents) Remove(r Run) {
	if r.Len == 0 {
		return
	}
	// [lo, hi) are the runs that r overlaps: what is left of them is a head before r and a tail behind it.
	lo := e.endingAfter(r.Off)
	hi := lo
	for hi < len(e.runs) && e.runs[hi].Off < r.End() {
		hi++
	}
	if lo == hi {
		return
	}
	first, last := e.runs[lo], e.runs[hi-1]
	var rest [2]Run
	n := 0
	if first.Off < r.Off {
		rest[n] = Run{Off: first.Off, Len: r.Off - first.Off}
		n++
	}
	if last.End() > r.End() {
		rest[n] = Run{Off: r.End(), Len: last.End() - r.End()}
		n++
	}
	e.runs = slices.Replace(e.runs, lo, hi, rest[:n]...)
}

// Covers reports whether every byte of r is in the set.
func (e *Extents) Covers(r Run) bool {
	if r.Len == 0 {
		return true
	}
	i := e.endingAfter(r.Off)
	return i < len(e.runs) && e.runs[i].Off <= r.Off && r.End() <= e.runs[i].End()
}

// Overlap is the number of bytes of r that are in the set.
func (e *Extents) Overlap(r Run) uint64 {
	var n uint64
	for i := e.endingAfter(r.Off); i < len(e.runs) && e.runs[i].Off < r.End(); i++ {
		n += min(e.runs[i].End(), r.End()) - max(e.runs[i].Off, r.Off)
	}
	return n
}

// AppendMissing appends the maximal runs of r that are not in the set, in order.
func (e *Extents) AppendMissing(dst []Run, r Run) []Run {
	at := r.Off
	for i := e.endingAfter(r.Off); i < len(e.runs) && e.runs[i].Off < r.End(); i++ {
		if e.runs[i].Off > at {
			dst = append(dst, Run{Off: at, Len: e.runs[i].Off - at})
		}
		at = e.runs[i].End()
	}
	if at < r.End() {
		dst = append(dst, Run{Off: at, Len: r.End() - at})
	}
	return dst
}

// FirstMissing is the first maximal run of [0, size) that is in neither e nor other (which may be nil).
func (e *Extents) FirstMissing(size uint64, other *Extents) (Run, bool) {
	a := e.runs
	var b []Run
	if other != nil {
		b = other.runs
	}
	var at uint64
	for {
		switch {
		case len(a) > 0 && a[0].Off <= at:
			at, a = max(at, a[0].End()), a[1:]
		case len(b) > 0 && b[0].Off <= at:
			at, b = max(at, b[0].End()), b[1:]
		case at >= size:
			return Run{}, false
		default: // at is missing, up to the next run of either set
			end := size
			if len(a) > 0 {
				end = min(end, a[0].Off)
			}
			if len(b) > 0 {
				end = min(end, b[0].Off)
			}
			return Run{Off: at, Len: end - at}, true
		}
	}
}

// Complete reports whether the set is [0, size).
func (e *Extents) Complete(size uint64) bool {
	if size == 0 {
		return len(e.runs) == 0
	}
	return len(e.runs) == 1 && e.runs[0] == Run{Len: size}
}

// Bytes is the number of bytes in the set.
func (e *Extents) Bytes() uint64 {
	var n uint64
	for _, r := range e.runs {
		n += r.Len
	}
	return n
}

// Runs is the set in order; the slice is valid until the next change.
func (e *Extents) Runs() []Run { return e.runs[:len(e.runs):len(e.runs)] }

// Reset empties the set.
func (e *Extents) Reset() { e.runs = e.runs[:0] }
