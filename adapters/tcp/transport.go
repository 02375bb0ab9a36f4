package tcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/spanpool/spanpool/adapters/internal/grants"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Kind is the name of this transport.
const Kind ports.TransportKind = "tcp"

// Transport is one start's transport. It needs not to be told which start: what it hands out is bound to random numbers of its
// own, and whom it serves is told by Answer and Grant.
type Transport struct {
	cfg       Config
	start     uint64 // of this transport, in answers and hellos
	addresses []string
	listeners []net.Listener
	stop      context.Context // ends with Close
	cancel    context.CancelFunc
	wg        sync.WaitGroup // acceptors, the watch, and a goroutine for each connection of a peer
	greeting  chan struct{}  // capacity maxGreeting: a token for each connection in the middle of its hello
	counts    counters

	// exposed does not change after the first answer; connections of peers, which only exist after one, read it without the lock.
	exposed map[uint32]ports.Region
	grants  grants.Book

	// mu guards the tables, and is never held while bytes are moved.
	mu struct {
		sync.Mutex
		closed    bool
		answered  bool // exposed does not change any more
		local     map[ports.Registration]ports.Region
		lastLocal ports.Registration
		lastLink  uint64
		askers    map[ports.PeerID]*asker
		inbound   map[uint64]*inbound
		links     map[*Link]struct{} // ours
	}
}

// asker is what Answer made for one start of a peer.
type asker struct {
	peer  ports.Peer
	links []*inbound // in the order of their answers
}

// inbound is one link of a peer, as its owner sees it: answered, then with the connections that proved its key.
type inbound struct {
	id    uint64
	from  ports.Peer
	key   linkKey
	write bool                 // both ends know of writes
	used  uint32               // bit i: the connection of index i was there; an answer is good for one link
	conns map[*served]struct{} // guarded by Transport.mu, like used
}

const (
	// maxGreeting bounds the connections that have not proved anything yet.
	maxGreeting = 256
	// maxPending bounds the answers of one peer that were not linked; the oldest give way.
	maxPending = 64
)

var _ ports.Transport = (*Transport)(nil)

// Listen opens the transport. It fails where there are no vectors of memory to read into (errors.ErrUnsupported).
func Listen(cfg Config) (*Transport, error) {
	if !supported {
		return nil, fmt.Errorf("tcp transport: %w on this system", errors.ErrUnsupported)
	}
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("tcp transport: %w", err)
	}
	t := &Transport{cfg: cfg, start: random64(), greeting: make(chan struct{}, maxGreeting), exposed: make(map[uint32]ports.Region)}
	t.mu.local = make(map[ports.Registration]ports.Region)
	t.mu.askers = make(map[ports.PeerID]*asker)
	t.mu.inbound = make(map[uint64]*inbound)
	t.mu.links = make(map[*Link]struct{})
	t.stop, t.cancel = context.WithCancel(context.Background())
	if err := t.listen(); err != nil {
		t.cancel()
		return nil, fmt.Errorf("tcp transport: %w", err)
	}
	for _, l := range t.listeners {
		t.wg.Go(func() { t.accept(l) })
	}
	t.wg.Go(t.watch)
	return t, nil
}

func (t *Transport) listen() (err error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	for _, a := range t.cfg.Listen {
		l, lerr := lc.Listen(context.Background(), "tcp", a)
		if lerr != nil {
			err = fmt.Errorf("listen on %s: %w", a, lerr)
			break
		}
		t.listeners = append(t.listeners, l)
	}
	if err == nil {
		t.addresses, err = advertised(t.cfg, t.listeners)
	}
	if err != nil {
		for _, l := range t.listeners {
			_ = l.Close() // it took nothing
		}
	}
	return err
}

// Kind is "tcp".
func (t *Transport) Kind() ports.TransportKind { return Kind }

// Caps says that writes are possible, and device memory where there is a copier for it.
func (t *Transport) Caps() ports.Caps {
	return ports.Caps{Write: true, Device: t.reachesDevices(), Sums: true}
}

// Addresses are those that answers name.
func (t *Transport) Addresses() []string { return slices.Clone(t.addresses) }

// Stats counts from the start on.
func (t *Transport) Stats() Stats {
	s := Stats{ServedBytes: t.counts.served.Load(), AppliedBytes: t.counts.applied.Load()}
	for i := range s.Ended {
		s.Ended[i] = t.counts.ended[i].Load()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, in := range t.mu.inbound {
		s.Inbound += len(in.conns)
	}
	return s
}

func fail(op string, peer ports.PeerID, err error) error {
	return &OpError{Op: op, Peer: peer, Err: err}
}

// Expose makes a buffer of the medium reachable by links. A buffer is exposed once, and before the first answer.
func (t *Transport) Expose(buffer uint32, r ports.Region) error {
	if err := t.reaches(r); err != nil {
		return fail("expose", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return fail("expose", "", ports.ErrClosed)
	}
	if t.mu.answered {
		return fail("expose", "", fmt.Errorf("buffer %d comes after the first answer: %w", buffer, domain.ErrInvalid))
	}
	if _, twice := t.exposed[buffer]; twice {
		return fail("expose", "", fmt.Errorf("buffer %d is exposed already: %w", buffer, domain.ErrInvalid))
	}
	t.exposed[buffer] = r
	return nil
}

// Register notes local memory, so that Deregister can wait for it. Ops may name memory that is not registered.
func (t *Transport) Register(r ports.Region) (ports.Registration, error) {
	if err := t.reaches(r); err != nil {
		return 0, fail("register", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return 0, fail("register", "", ports.ErrClosed)
	}
	t.mu.lastLocal++
	t.mu.local[t.mu.lastLocal] = r
	return t.mu.lastLocal, nil
}

// Deregister returns once no op of ours touches that memory: each has a deadline. After Close it is a matter of course.
func (t *Transport) Deregister(id ports.Registration) error {
	t.mu.Lock()
	r, ok := t.mu.local[id]
	delete(t.mu.local, id)
	links := t.linksLocked()
	t.mu.Unlock()
	if !ok {
		return fail("deregister", "", fmt.Errorf("registration %d: %w", id, ports.ErrNotFound))
	}
	for _, l := range links {
		l.awaitQuiet(r)
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
		return 0, ports.GrantToken{}, fail("grant", writer.ID, ports.ErrClosed)
	}
	if err := grants.Check(t.exposed, pageSize, pages); err != nil {
		return 0, ports.GrantToken{}, fail("grant", writer.ID, err)
	}
	id, token := t.grants.Add(writer, pageSize, pages)
	return id, token, nil
}

// Revoke ends a grant. It waits for the system calls that are applying a write under it, and for no peer, so it never fails for
// a grant of ours, whatever quiet says. An id that was never given is ErrNotFound.
func (t *Transport) Revoke(_ context.Context, id ports.GrantID, _ ports.Quiet) error {
	if err := t.grants.Revoke(id); err != nil {
		return fail("revoke", "", err)
	}
	return nil
}

// Offer makes what a peer needs to answer us. It reaches nobody.
func (t *Transport) Offer(_ context.Context, to ports.PeerID) (ports.PendingLink, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, fail("offer", to, ports.ErrClosed)
	}
	o := offer{features: ourFeatures, nonce: newNonce()}
	return &pendingLink{t: t, to: to, offer: o, bytes: o.encode()}, nil
}

// Answer lets one link of that start of a peer in. Another start of the same peer ends what was made for the one before.
func (t *Transport) Answer(_ context.Context, from ports.Peer, offered []byte) ([]byte, error) {
	o, err := decodeOffer(offered)
	if err != nil {
		return nil, fail("answer", from.ID, err)
	}
	if len(t.addresses) == 0 {
		return nil, fail("answer", from.ID, fmt.Errorf("this transport listens nowhere: %w", errors.ErrUnsupported))
	}
	if old, ok := t.otherStart(from); ok {
		t.Drop(old)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, fail("answer", from.ID, ports.ErrClosed)
	}
	t.mu.answered = true
	a := t.mu.askers[from.ID]
	if a == nil {
		a = &asker{peer: from}
		t.mu.askers[from.ID] = a
	}
	if a.peer != from { // another answer of this moment was for yet another start
		return nil, fail("answer", from.ID, ports.ErrRestarted)
	}
	return t.letInLocked(a, o).encode(), nil
}

// letInLocked makes the inbound half of a link, and what its asker is told about it.
func (t *Transport) letInLocked(a *asker, o offer) answer {
	t.mu.lastLink++
	ans := answer{features: o.features & ourFeatures, start: t.start, link: t.mu.lastLink, conns: maxConns, addresses: t.addresses}
	first, second := newNonce(), newNonce()
	copy(ans.key[:], first[:])
	copy(ans.key[16:], second[:])
	in := &inbound{id: ans.link, from: a.peer, key: newLinkKey(t.cfg.Secret, o, ans), write: ans.features&featureWrite != 0,
		conns: make(map[*served]struct{})}
	t.mu.inbound[in.id] = in
	a.links = append(a.links, in)
	pending := 0
	for _, l := range slices.Backward(a.links) {
		if l.used != 0 {
			continue
		}
		if pending++; pending > maxPending {
			t.forgetInboundLocked(l)
			break
		}
	}
	return ans
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
	var conns []*served
	if a := t.mu.askers[from.ID]; a != nil && a.peer == from {
		delete(t.mu.askers, from.ID)
		for _, in := range a.links {
			conns = slices.AppendSeq(conns, maps.Keys(in.conns))
			delete(t.mu.inbound, in.id)
		}
	}
	t.mu.Unlock()
	t.grants.RevokeOf(from)
	for _, s := range conns {
		s.sock.close()
	}
}

// Close ends our links and those into our memory, and returns when exposed and local memory is quiet. Twice is allowed.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	links := t.linksLocked()
	var conns []*served
	for _, in := range t.mu.inbound {
		conns = slices.AppendSeq(conns, maps.Keys(in.conns))
	}
	clear(t.mu.askers)
	clear(t.mu.inbound)
	clear(t.mu.local)
	t.mu.Unlock()
	t.cancel()
	for _, l := range t.listeners {
		_ = l.Close() // twice is harmless
	}
	t.grants.RevokeAll()
	for _, l := range links {
		l.end(ports.ErrReset)
	}
	for _, s := range conns {
		s.sock.close()
	}
	for _, l := range links {
		<-l.done
	}
	t.wg.Wait()
	return nil
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

// forget is called for a link of ours that has ended.
func (t *Transport) forget(l *Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.links, l)
}

// accept takes connections until the listener is closed. Of an error that is not that (out of descriptors, say) it waits a while.
func (t *Transport) accept(l net.Listener) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		c, err := l.Accept()
		if err == nil {
			t.greet(c.(*net.TCPConn))
			continue
		}
		if t.stop.Err() != nil {
			return
		}
		pause.Reset(10 * time.Millisecond)
		select {
		case <-pause.C:
		case <-t.stop.Done():
			return
		}
	}
}

// greet starts the goroutine of a peer's connection, unless too many are in the middle of their hello.
func (t *Transport) greet(c *net.TCPConn) {
	select {
	case t.greeting <- struct{}{}:
	default:
		t.counts.note(errTooMany)
		_ = c.Close() // it was promised nothing
		return
	}
	t.wg.Go(func() { t.serve(c) })
}

// serve hears a connection's hello, and then serves it until it ends.
func (t *Transport) serve(c *net.TCPConn) {
	s, err := newServed(t, c)
	if err == nil {
		lift := within(t.stop, c, t.cfg.DialTimeout)
		err = receive(c, t.keyOf, func(h laneHello) bool { return t.join(s, h) })
		lift()
	} else {
		_ = c.Close() // it is broken already
	}
	<-t.greeting
	if err == nil {
		err = s.run()
	}
	t.counts.note(err)
	t.leave(s)
}

func (t *Transport) keyOf(h laneHello) (linkKey, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.mu.inbound[h.link]
	if in == nil || h.start != t.start || in.used&(1<<h.index) != 0 {
		return linkKey{}, false
	}
	return in.key, true
}

// join makes a connection that proved the key one of its link's.
func (t *Transport) join(s *served, h laneHello) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.mu.inbound[h.link]
	if in == nil || in.used&(1<<h.index) != 0 {
		return false
	}
	in.used |= 1 << h.index
	in.conns[s] = struct{}{}
	s.in = in
	return true
}

// leave closes a connection and forgets it; with the last one of a link goes the link.
func (t *Transport) leave(s *served) {
	if s == nil {
		return
	}
	s.sock.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.in == nil {
		return
	}
	delete(s.in.conns, s)
	if len(s.in.conns) == 0 {
		t.forgetInboundLocked(s.in)
	}
}

func (t *Transport) forgetInboundLocked(in *inbound) {
	delete(t.mu.inbound, in.id)
	if a := t.mu.askers[in.from.ID]; a != nil {
		a.links = slices.DeleteFunc(a.links, func(l *inbound) bool { return l == in })
	}
}

// watch closes connections of peers that stand still in mid frame.
func (t *Transport) watch() {
	tick := time.NewTicker(t.cfg.StallTimeout / 2)
	defer tick.Stop()
	for {
		select {
		case <-t.stop.Done():
			return
		case <-tick.C:
		}
		t.mu.Lock()
		var stuck []*served
		for _, in := range t.mu.inbound {
			for s := range in.conns {
				if s.standsStill() {
					stuck = append(stuck, s)
				}
			}
		}
		t.mu.Unlock()
		for _, s := range stuck {
			s.stalled.Store(true)
			s.sock.close()
		}
	}
}
