package app

import (
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// arena is registered scratch memory that many calls share, first come first served. Its lock serialises the bookkeeping only;
// nobody holds it while bytes move, so a call's fetch runs beside the others' and beside its own next round.
type arena struct {
	region   ports.Region
	regions  [1]ports.Region // region as a table, for plans
	capacity uint64

	mu struct {
		sync.Mutex
		slices *domain.ArenaSlices
		lastID uint64
		asked  map[uint64]sliceRequest // waiting, or granted and not claimed
		waits  uint64                  // requests that had to wait, since the start
		rounds uint64
		closed bool
	}
}

type sliceRequest struct {
	q       *ports.Completions
	tag     uint64
	granted bool
	off     uint64
}

func newArena(r ports.Region) *arena {
	a := &arena{region: r, regions: [1]ports.Region{r}, capacity: r.Len() / domain.ArenaAlign * domain.ArenaAlign}
	a.mu.slices = domain.NewArenaSlices(a.capacity)
	a.mu.asked = make(map[uint64]sliceRequest)
	return a
}

// capacityOf is 0 for a route that is off.
func capacityOf(a *arena) uint64 {
	if a == nil {
		return 0
	}
	return a.capacity
}

// request asks for n bytes. When they are not to be had at once, the grant is posted to q with the tag, and claim takes it.
// Precondition: 0 < n <= capacity.
func (a *arena) request(n uint64, q *ports.Completions, tag uint64) (id, off uint64, granted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.lastID++
	a.mu.rounds++
	id = a.mu.lastID
	if a.mu.closed {
		a.mu.asked[id] = sliceRequest{q: q, tag: tag}
		q.Post(ports.Completion{Tag: tag, Err: ports.ErrClosed})
		return id, 0, false
	}
	off, granted = a.mu.slices.Request(id, n)
	if !granted {
		a.mu.waits++
		a.mu.asked[id] = sliceRequest{q: q, tag: tag}
	}
	return id, off, granted
}

// claim takes a grant that was posted.
func (a *arena) claim(id uint64) (off uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.mu.asked[id]
	if !ok || !r.granted {
		return 0, false
	}
	delete(a.mu.asked, id)
	return r.off, true
}

// withdraw ends a request, wherever it stands; a grant that was not claimed goes back.
func (a *arena) withdraw(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.mu.asked[id]
	if !ok {
		return
	}
	delete(a.mu.asked, id)
	switch {
	case r.granted:
		a.mu.slices.Release(r.off)
	default:
		a.mu.slices.Withdraw(id)
	}
	a.grantLocked()
}

// release returns a slice.
func (a *arena) release(off uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.slices.Release(off)
	a.grantLocked()
}

func (a *arena) grantLocked() {
	for {
		id, off, ok := a.mu.slices.NextGrant()
		if !ok {
			return
		}
		r := a.mu.asked[id]
		r.granted, r.off = true, off
		a.mu.asked[id] = r
		r.q.Post(ports.Completion{Tag: r.tag})
	}
}

// close wakes who waits, with ErrClosed.
func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.closed = true
	for _, r := range a.mu.asked {
		if !r.granted {
			r.q.Post(ports.Completion{Tag: r.tag, Err: ports.ErrClosed})
		}
	}
}
