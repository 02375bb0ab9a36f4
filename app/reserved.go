package app

import (
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// reservation is a peer's right to write a pending slot's pages. Guarded by Node.mu until its slot is doomed or committed.
type reservation struct {
	slot    domain.SlotID
	writer  ports.Peer
	version domain.Version
	via     ports.Transport
	grant   ports.GrantID
	token   ports.GrantToken
	quiet   ports.Quiet

	granted    bool // Grant has returned; before that there is nothing to revoke yet
	abandoned  bool // Grant failed: there never will be
	committing bool // Commit is revoking the grant
}

// revoker fences writers whose reservation ended without their word: pages return only after Revoke said that no byte can land
// any more, and it is called again until it does.
type revoker struct {
	n    *Node
	wake chan struct{} // capacity 1: "there may be work"
	mu   struct {
		sync.Mutex
		todo []*reservation
		busy int
	}
}

func newRevoker(n *Node) *revoker { return &revoker{n: n, wake: make(chan struct{}, 1)} }

// add takes over a reservation whose slot is doomed. It may be called with Node.mu held.
func (r *revoker) add(res *reservation) {
	r.mu.Lock()
	r.mu.todo = append(r.mu.todo, res)
	r.mu.Unlock()
	r.kick()
}

func (r *revoker) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *revoker) pending() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uint64(len(r.mu.todo) + r.mu.busy)
}

// run ends with the node. What is pending then stays doomed: the medium must not be closed before the transports are.
func (r *revoker) run() {
	for {
		select {
		case <-r.n.stop.Done():
			return
		case <-r.wake:
		}
		r.mu.Lock()
		todo := r.mu.todo
		r.mu.todo, r.mu.busy = nil, len(todo)
		r.mu.Unlock()
		var again []*reservation
		for _, res := range todo {
			if !r.n.fence(res) {
				again = append(again, res)
			}
		}
		r.mu.Lock()
		r.mu.todo, r.mu.busy = append(again, r.mu.todo...), 0
		r.mu.Unlock()
	}
}

// fence revokes one grant and lets go of its pages. It reports false when it has to be tried again (at the next sweep).
func (n *Node) fence(res *reservation) bool {
	n.mu.Lock()
	granted, abandoned := res.granted, res.abandoned
	n.mu.Unlock()
	if !granted {
		return abandoned // false: Grant is still under way, and its caller will say how it ended
	}
	ctx, cancel := n.control()
	defer cancel()
	n.counters.revokes.Add(1)
	if err := res.via.Revoke(ctx, res.grant, res.quiet); err != nil {
		return false
	}
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.table.SetGranted(res.slot, false, now)
	return true
}

// session keeps one version per key for the reads of one client. Guarded by Node.mu.
type session struct {
	space  domain.Space
	called bool
	keys   map[string]*sessionKey
}

type sessionKey struct {
	version domain.Version
	view    *view // the last one; nil when the key was local
}

// keyOf is what the session keeps of a key, from now on.
func (s *session) keyOf(name string) *sessionKey {
	e := s.keys[name]
	if e == nil {
		e = &sessionKey{}
		s.keys[name] = e
	}
	return e
}

// maxSessionKeys bounds what one session remembers: a long prompt is some thousands of keys.
const maxSessionKeys = 1 << 20
