package app

import (
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// putOrder is what puts have on the links to one start of a peer, from the moment at which a round is copied and summed, and what
// waits for room there. Without a bound as many puts at once as there are ranks took the processors, which copy and sum, and the
// sockets from what is being read. The oldest call comes first, so that puts end one after the other.
type putOrder struct {
	mu struct {
		sync.Mutex
		onLink  uint64 // bytes
		waiting domain.LinkOrder[*putRound]
	}
}

// putsInFlight is how many bytes those are at most: two rounds, so that one is written while the next is copied.
func (n *Node) putsInFlight() uint64 { return 4 * n.linkBytes }

// ask reports whether there is room for a round now; else it waits for it, and a completion with tagRound tells when to look again.
func (c *conn) ask(r *putRound, turn domain.LinkTurn) bool {
	o := &c.puts
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.waiting.Len() > 0 || !domain.LinkRoom(o.mu.onLink, r.len, c.peer.n.putsInFlight()) {
		o.mu.waiting.Add(r, turn)
		return false
	}
	o.mu.onLink += r.len
	r.room = true
	return true
}

func (c *conn) hasRoom(r *putRound) bool {
	c.puts.mu.Lock()
	defer c.puts.mu.Unlock()
	return r.room
}

// leave takes a round off, or out of what waits, and lets in whom there is room for then.
func (c *conn) leave(r *putRound) {
	n, o := c.peer.n, &c.puts
	now := n.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.room {
		o.mu.onLink -= r.len
		r.room = false
	} else {
		o.mu.waiting.Remove(r)
	}
	for {
		next, ok := o.mu.waiting.Next(now)
		if !ok || !domain.LinkRoom(o.mu.onLink, next.len, n.putsInFlight()) {
			return
		}
		o.mu.waiting.Remove(next)
		o.mu.onLink += next.len
		next.room = true
		next.told.Post(ports.Completion{Tag: tagRound})
	}
}
