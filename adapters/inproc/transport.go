package inproc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/spanpool/spanpool/adapters/internal/grants"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Kind is the name of this transport.
const Kind ports.TransportKind = "inproc"

// Transport is one start's transport: it reads and writes the exposed memory of other starts in the network, and lets their
// links reach its own. It may be used before Endpoint.Start to Expose and Register; offers and answers need the start's name.
type Transport struct {
	start  *start
	grants grants.Book

	// mu guards the tables, and is never held while bytes are copied.
	mu struct {
		sync.Mutex
		closed    bool
		answered  bool                    // exposed does not change any more
		exposed   map[uint32]ports.Region // read without the lock by links, which only exist after an answer
		local     map[ports.Registration]ports.Region
		lastLocal ports.Registration
		askers    map[ports.PeerID]*asker
		links     map[*Link]struct{} // ours
	}
}

// asker is what Answer made for one start of a peer.
type asker struct {
	peer  ports.Peer
	keys  map[uint64]struct{} // answers that are not linked yet
	links map[*Link]struct{}  // of that peer, into our memory
}

var _ ports.Transport = (*Transport)(nil)

func newTransport(s *start) *Transport {
	t := &Transport{start: s}
	t.mu.exposed = make(map[uint32]ports.Region)
	t.mu.local = make(map[ports.Registration]ports.Region)
	t.mu.askers = make(map[ports.PeerID]*asker)
	t.mu.links = make(map[*Link]struct{})
	return t
}

// Kind is "inproc".
func (t *Transport) Kind() ports.TransportKind { return Kind }

// Caps says that writes are possible, and device memory where the network has a copier for it.
func (t *Transport) Caps() ports.Caps {
	return ports.Caps{Write: true, Device: t.reachesDevices(), Sums: true}
}

func (t *Transport) reachesDevices() bool { return t.start.ep.net.copiers[ports.PurposeGet] != nil }

func (t *Transport) fail(op string, peer ports.PeerID, err error) error {
	return &OpError{Op: op, Peer: peer, Err: err}
}

// reaches refuses memory that nothing here can touch.
func (t *Transport) reaches(r ports.Region) error {
	switch r.(type) {
	case ports.HostRegion:
		return nil
	case ports.DeviceRegion:
		if t.reachesDevices() {
			return nil
		}
	}
	return fmt.Errorf("region of type %T, want host memory: %w", r, errors.ErrUnsupported)
}

// Expose makes a buffer of the medium reachable by links. A buffer is exposed once, and before the first answer.
func (t *Transport) Expose(buffer uint32, r ports.Region) error {
	if err := t.reaches(r); err != nil {
		return t.fail("expose", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return t.fail("expose", "", ports.ErrClosed)
	}
	if t.mu.answered {
		return t.fail("expose", "", fmt.Errorf("buffer %d comes after the first answer: %w", buffer, domain.ErrInvalid))
	}
	if _, twice := t.mu.exposed[buffer]; twice {
		return t.fail("expose", "", fmt.Errorf("buffer %d is exposed already: %w", buffer, domain.ErrInvalid))
	}
	t.mu.exposed[buffer] = r
	return nil
}

// Register notes local memory, so that Deregister can wait for it. Ops may name memory that is not registered.
func (t *Transport) Register(r ports.Region) (ports.Registration, error) {
	if err := t.reaches(r); err != nil {
		return 0, t.fail("register", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return 0, t.fail("register", "", ports.ErrClosed)
	}
	t.mu.lastLocal++
	t.mu.local[t.mu.lastLocal] = r
	return t.mu.lastLocal, nil
}

// Deregister returns once no op of ours touches that memory. After Close it is a matter of course.
func (t *Transport) Deregister(id ports.Registration) error {
	t.mu.Lock()
	r, ok := t.mu.local[id]
	delete(t.mu.local, id)
	links := t.linksLocked()
	t.mu.Unlock()
	if !ok {
		return t.fail("deregister", "", fmt.Errorf("registration %d: %w", id, ports.ErrNotFound))
	}
	for _, l := range links {
		l.pair.awaitQuiet(l, r)
	}
	return nil
}

func (t *Transport) linksLocked() []*Link {
	return slices.Collect(maps.Keys(t.mu.links))
}

// Grant lets a start of a peer write to these pages.
func (t *Transport) Grant(writer ports.Peer, pageSize uint64, pages []domain.PageRef) (ports.GrantID, ports.GrantToken, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return 0, ports.GrantToken{}, t.fail("grant", writer.ID, ports.ErrClosed)
	}
	if err := grants.Check(t.mu.exposed, pageSize, pages); err != nil {
		return 0, ports.GrantToken{}, t.fail("grant", writer.ID, err)
	}
	id, token := t.grants.Add(writer, pageSize, pages)
	return id, token, nil
}

// Revoke ends a grant; it waits for the chunk that is being applied, and for nothing else, so it never fails for one of ours.
// An id that was never given is ErrNotFound.
func (t *Transport) Revoke(_ context.Context, id ports.GrantID, _ ports.Quiet) error {
	if err := t.grants.Revoke(id); err != nil {
		return t.fail("revoke", "", err)
	}
	return nil
}

// Offer names this start to the peer.
func (t *Transport) Offer(_ context.Context, to ports.PeerID) (ports.PendingLink, error) {
	self := t.start.self()
	if self.Incarnation == 0 {
		return nil, t.fail("offer", to, errNotStarted)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, t.fail("offer", to, ports.ErrClosed)
	}
	return &pendingLink{transport: t, to: to, offer: descriptor{self.Incarnation, random64()}.encode()}, nil
}

// Answer lets one link of that start of a peer in. Another start of the same peer ends what was made for the one before.
func (t *Transport) Answer(_ context.Context, from ports.Peer, offer []byte) ([]byte, error) {
	d, err := decodeDescriptor(offer)
	if err != nil {
		return nil, t.fail("answer", from.ID, err)
	}
	if d.incarnation != from.Incarnation {
		return nil, t.fail("answer", from.ID, fmt.Errorf("offer of start %d from start %d: %w", d.incarnation, from.Incarnation, ports.ErrRestarted))
	}
	self := t.start.self()
	if self.Incarnation == 0 {
		return nil, t.fail("answer", from.ID, errNotStarted)
	}
	if old, ok := t.otherStart(from); ok {
		t.Drop(old)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, t.fail("answer", from.ID, ports.ErrClosed)
	}
	t.mu.answered = true
	a := t.mu.askers[from.ID]
	if a == nil {
		a = &asker{peer: from, keys: make(map[uint64]struct{}), links: make(map[*Link]struct{})}
		t.mu.askers[from.ID] = a
	}
	if a.peer != from { // another answer of this moment was for yet another start
		return nil, t.fail("answer", from.ID, ports.ErrRestarted)
	}
	answer := descriptor{self.Incarnation, random64()}
	a.keys[answer.key] = struct{}{}
	return answer.encode(), nil
}

func (t *Transport) otherStart(from ports.Peer) (ports.Peer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.mu.askers[from.ID]
	if a == nil || a.peer == from {
		return ports.Peer{}, false
	}
	return a.peer, true
}

// Drop ends the links and answers of that start of a peer, and revokes its grants.
func (t *Transport) Drop(from ports.Peer) {
	t.mu.Lock()
	var links []*Link
	if a := t.mu.askers[from.ID]; a != nil && a.peer == from {
		delete(t.mu.askers, from.ID)
		links = a.all()
	}
	t.mu.Unlock()
	t.grants.RevokeOf(from)
	resetAll(links)
}

func (a *asker) all() []*Link { return slices.Collect(maps.Keys(a.links)) }

func resetAll(links []*Link) {
	for _, l := range links {
		l.pair.end(l, ports.ErrReset)
	}
	for _, l := range links {
		<-l.done
	}
}

// Close ends our links and those into our memory, and returns when exposed and local memory is quiet. Twice is allowed.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	links := t.linksLocked()
	for _, a := range t.mu.askers {
		links = append(links, a.all()...)
	}
	clear(t.mu.askers)
	clear(t.mu.local)
	t.mu.Unlock()
	t.grants.RevokeAll()
	resetAll(links)
	return nil
}

// letIn makes the link that an answer of ours promised.
func (t *Transport) letIn(l *Link, d descriptor) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.mu.askers[l.from.ID]
	if t.mu.closed || a == nil || a.peer != l.from || d.incarnation != t.start.self().Incarnation {
		return ports.ErrRestarted
	}
	if _, ok := a.keys[d.key]; !ok {
		return ports.ErrRestarted
	}
	delete(a.keys, d.key)
	a.links[l] = struct{}{}
	return nil
}

// forget is called for a link that has ended.
func (t *Transport) forget(l *Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.links, l)
	if a := t.mu.askers[l.from.ID]; a != nil {
		delete(a.links, l)
	}
}

// keep notes a link of ours, unless the transport is closed.
func (t *Transport) keep(l *Link) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return false
	}
	t.mu.links[l] = struct{}{}
	return true
}

func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.LittleEndian.Uint64(b[:])
}
