package domain

import (
	"cmp"
	"fmt"
	"slices"
)

// ArenaAlign is the alignment of arena slices.
const ArenaAlign = 64

// ArenaSlices hands out contiguous slices of one arena, first come first served: a request that could be served waits
// behind an older one that cannot. Lengths are rounded up to ArenaAlign. Requests are named by the caller's ids.
//
// There are as many slices as calls are in the arena, so that the slices in use, in order, are all that is kept: what lies
// between them is free, and neighbouring free pieces are one by themselves.
type ArenaSlices struct {
	capacity uint64
	used     uint64
	slices   []Run // in use, in order
	waiting  []arenaRequest
}

type arenaRequest struct{ id, n uint64 }

// NewArenaSlices makes the allocator of an arena of capacity bytes.
func NewArenaSlices(capacity uint64) *ArenaSlices { return &ArenaSlices{capacity: capacity} }

// Request asks for n bytes. It is granted at once only when nobody waits and there is room; otherwise it joins the queue.
// Preconditions: 0 < n <= capacity; id is not waiting already.
func (a *ArenaSlices) Request(id, n uint64) (off uint64, granted bool) {
	if n == 0 || n > a.capacity {
		panic(fmt.Sprintf("domain: %d bytes of an arena of %d", n, a.capacity))
	}
	if a.position(id) >= 0 {
		panic(fmt.Sprintf("domain: arena request %d waits already", id))
	}
	if len(a.waiting) == 0 {
		if off, ok := a.take(n); ok {
			return off, true
		}
	}
	a.waiting = append(a.waiting, arenaRequest{id, n})
	return 0, false
}

// position is where id waits, or -1.
func (a *ArenaSlices) position(id uint64) int {
	return slices.IndexFunc(a.waiting, func(r arenaRequest) bool { return r.id == id })
}

// take finds the first free piece of n bytes. All pieces begin at multiples of ArenaAlign, and all but the one at the end of
// an arena of odd capacity end there.
func (a *ArenaSlices) take(n uint64) (off uint64, ok bool) {
	for i := 0; i <= len(a.slices); i++ {
		end := a.capacity
		if i < len(a.slices) {
			end = a.slices[i].Off
		}
		if end-off >= n {
			got := Run{off, min((n+ArenaAlign-1)/ArenaAlign*ArenaAlign, end-off)}
			a.slices = slices.Insert(a.slices, i, got)
			a.used += got.Len
			return off, true
		}
		if i < len(a.slices) {
			off = a.slices[i].End()
		}
	}
	return 0, false
}

// Withdraw takes a waiting request out of the queue and reports whether it was there. Others may now be grantable: call
// NextGrant until it says no.
func (a *ArenaSlices) Withdraw(id uint64) bool {
	i := a.position(id)
	if i < 0 {
		return false
	}
	a.waiting = slices.Delete(a.waiting, i, i+1)
	return true
}

// Release returns the slice at off; a slice that is not in use panics. Others may now be grantable: call NextGrant until it
// says no.
func (a *ArenaSlices) Release(off uint64) {
	i, ok := slices.BinarySearchFunc(a.slices, off, func(r Run, off uint64) int { return cmp.Compare(r.Off, off) })
	if !ok {
		panic(fmt.Sprintf("domain: release of the arena slice at %d, which is not in use", off))
	}
	a.used -= a.slices[i].Len
	a.slices = slices.Delete(a.slices, i, i+1)
}

// NextGrant grants the oldest waiting request, if there is room for it now.
func (a *ArenaSlices) NextGrant() (id, off uint64, ok bool) {
	if len(a.waiting) == 0 {
		return 0, 0, false
	}
	first := a.waiting[0]
	if off, ok = a.take(first.n); !ok {
		return 0, 0, false
	}
	a.waiting = slices.Delete(a.waiting, 0, 1)
	return first.id, off, true
}

// Waiting is the number of queued requests; Used the number of bytes handed out.
func (a *ArenaSlices) Waiting() int { return len(a.waiting) }

// Used is the number of bytes that are handed out.
func (a *ArenaSlices) Used() uint64 { return a.used }
