package inproc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Endpoint is a node's place in a network. It goes through starts. What Transport, Resolver and Writer return belongs to the
// start that is current then: take them, build the node with them, and call Start; after Stop take new ones for the next start.
type Endpoint struct {
	net *Network
	id  ports.PeerID

	mu struct {
		sync.Mutex
		cur  *start
		used map[domain.Incarnation]struct{}
	}
}

// start is one start of a node: not answering, answering (identity is set), over. It is never answering again.
type start struct {
	ep        *Endpoint
	transport *Transport
	identity  atomic.Pointer[identity]
	over      context.Context // ends with Stop
	end       context.CancelCauseFunc
}

type identity struct {
	self   ports.Peer
	server ports.PeerServer
}

func newEndpoint(n *Network, id ports.PeerID) *Endpoint {
	e := &Endpoint{net: n, id: id}
	e.mu.used = make(map[domain.Incarnation]struct{})
	e.mu.cur = newStart(e)
	return e
}

func newStart(e *Endpoint) *start {
	s := &start{ep: e}
	s.over, s.end = context.WithCancelCause(e.net.stop)
	s.transport = newTransport(s)
	return s
}

func (e *Endpoint) current() *start {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.cur
}

// self is zero until the start answers.
func (s *start) self() ports.Peer {
	if id := s.identity.Load(); id != nil {
		return id.self
	}
	return ports.Peer{}
}

// Transport is that of the current start; a new one after each Stop.
func (e *Endpoint) Transport() ports.Transport { return e.current().transport }

// Resolver asks peers in the name of the current start.
func (e *Endpoint) Resolver() ports.PeerResolver { return (*caller)(e.current()) }

// Writer puts to peers in the name of the current start.
func (e *Endpoint) Writer() ports.PeerWriter { return (*caller)(e.current()) }

// Directory names every other endpoint of the network as a holder of every key.
func (e *Endpoint) Directory() ports.Directory { return directory{e} }

// Start makes the current start answer peers by srv, as self. Preconditions: it does not answer yet, self has the endpoint's
// id, and its incarnation is that of no start before.
func (e *Endpoint) Start(self ports.Peer, srv ports.PeerServer) error {
	fail := func(err error) error { return &OpError{Op: "start", Peer: e.id, Err: err} }
	if self.ID != e.id {
		return fail(fmt.Errorf("as %q: %w", self.ID, domain.ErrInvalid))
	}
	if self.Incarnation == 0 || srv == nil {
		return fail(fmt.Errorf("incarnation %d, server %v: want both: %w", self.Incarnation, srv, domain.ErrInvalid))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.net.isClosed() {
		return fail(ports.ErrClosed)
	}
	if e.mu.cur.identity.Load() != nil {
		return fail(fmt.Errorf("it answers already, stop it first: %w", domain.ErrInvalid))
	}
	if _, used := e.mu.used[self.Incarnation]; used {
		return fail(fmt.Errorf("incarnation %d was that of an earlier start: %w", self.Incarnation, domain.ErrInvalid))
	}
	e.mu.used[self.Incarnation] = struct{}{}
	e.mu.cur.identity.Store(&identity{self: self, server: srv})
	return nil
}

// Stop is the death of the current start: calls to it fail with ErrPeer, its links and those into its memory are reset, and its
// memory is quiet when Stop returns. Calls that its server is answering see their context end, and are waited for by
// Network.Close only.
func (e *Endpoint) Stop() {
	e.mu.Lock()
	s := e.mu.cur
	e.mu.cur = newStart(e)
	e.mu.Unlock()
	s.end(errOver)
	_ = s.transport.Close() // nil, always
}
