package domain

// Extents is a set of bytes as half-open runs: sorted, disjoint and not adjacent. The zero value is the empty set. Its
// storage is kept by Reset.
type Extents struct{ runs []Run }

// Add puts r into the set.
func (e *Extents) Add(r Run) { panic("todo") }

// Remove takes r out of the set.
func (e *Extents) Remove(r Run) { panic("todo") }

// Covers reports whether every byte of r is in the set.
func (e *Extents) Covers(r Run) bool { panic("todo") }

// Overlap is the number of bytes of r that are in the set.
func (e *Extents) Overlap(r Run) uint64 { panic("todo") }

// AppendMissing appends the maximal runs of r that are not in the set, in order.
func (e *Extents) AppendMissing(dst []Run, r Run) []Run { panic("todo") }

// FirstMissing is the first maximal run of [0, size) that is in neither e nor other (which may be nil).
func (e *Extents) FirstMissing(size uint64, other *Extents) (Run, bool) { panic("todo") }

// Complete reports whether the set is [0, size).
func (e *Extents) Complete(size uint64) bool { panic("todo") }

// Bytes is the number of bytes in the set.
func (e *Extents) Bytes() uint64 { panic("todo") }

// Runs is the set in order; the slice is valid until the next change.
func (e *Extents) Runs() []Run { panic("todo") }

// Reset empties the set.
func (e *Extents) Reset() { panic("todo") }
