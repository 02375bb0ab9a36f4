package domain

// ArenaAlign is the alignment of arena slices.
const ArenaAlign = 64

// ArenaSlices hands out contiguous slices of one arena, first come first served: a request that could be served waits
// behind an older one that cannot. Lengths are rounded up to ArenaAlign. Requests are named by the caller's ids.
type ArenaSlices struct{ capacity uint64 }

// NewArenaSlices makes the allocator of an arena of capacity bytes.
func NewArenaSlices(capacity uint64) *ArenaSlices { panic("todo") }

// Request asks for n bytes. It is granted at once only when nobody waits and there is room; otherwise it joins the queue.
// Preconditions: 0 < n <= capacity; id is not waiting already.
func (a *ArenaSlices) Request(id, n uint64) (off uint64, granted bool) { panic("todo") }

// Withdraw takes a waiting request out of the queue and reports whether it was there. Others may now be grantable: call
// NextGrant until it says no.
func (a *ArenaSlices) Withdraw(id uint64) bool { panic("todo") }

// Release returns the slice at off. Others may now be grantable: call NextGrant until it says no.
func (a *ArenaSlices) Release(off uint64) { panic("todo") }

// NextGrant grants the oldest waiting request, if there is room for it now.
func (a *ArenaSlices) NextGrant() (id, off uint64, ok bool) { panic("todo") }

// Waiting is the number of queued requests; Used the number of bytes handed out.
func (a *ArenaSlices) Waiting() int { panic("todo") }

// Used is the number of bytes that are handed out.
func (a *ArenaSlices) Used() uint64 { panic("todo") }
