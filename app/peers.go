package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// peerTable is every peer that this node has met.
type peerTable struct {
	n  *Node
	mu struct {
		sync.Mutex
		peers  map[ports.PeerID]*peer
		closed bool
	}
}

// peer is another node, over all of its starts. One goroutine at a time dials it; the others wait for that dial under their own
// contexts. A peer that failed is left out until downUntil (the breaker), so that the next calls do not pay for it again.
type peer struct {
	n  *Node
	id ports.PeerID

	mu struct {
		sync.Mutex
		conn      *conn         // nil: none
		dialing   chan struct{} // nil, or closed when the dial under way has ended
		downUntil domain.Instant
		lastDial  domain.Instant
		backoff   time.Duration
		refused   []ports.Refusal
		failure   error                     // why it was left out; nil since the last hello that succeeded
		open      []*conn                   // whose links are not closed yet: conn, and those that are being retired
		past      [ports.NumPurposes]uint64 // bytes of links that were closed
	}
}

// conn is one start of a peer as its hello told it, and the link to it.
type conn struct {
	peer    *peer
	to      ports.Peer
	page    uint64
	buffers []uint64
	kind    ports.TransportKind
	caps    ports.Caps // of the link's transport
	link    ports.Link // nil: no transport was taken, control calls only

	spaces     atomic.Uint32     // namespaces that the peer was told of
	foreground atomic.Uint64     // bytes in flight for calls, for the pull's allowance
	credit     domain.PullCredit // of the pull while foreground has bytes in flight; guarded by Node.mu
	dead       atomic.Bool
}

func newPeerTable(n *Node) *peerTable {
	t := &peerTable{n: n}
	t.mu.peers = make(map[ports.PeerID]*peer)
	return t
}

func (t *peerTable) get(id ports.PeerID) *peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.mu.peers[id]
	if p == nil {
		p = &peer{n: t.n, id: id}
		t.mu.peers[id] = p
	}
	return p
}

func (t *peerTable) known(id ports.PeerID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.peers[id] != nil
}

func (t *peerTable) all() []*peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*peer, 0, len(t.mu.peers))
	for _, p := range t.mu.peers {
		out = append(out, p)
	}
	return out
}

// close ends every link; their ops complete before it returns.
func (t *peerTable) close() {
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	for _, p := range t.all() {
		p.mu.Lock()
		c := p.mu.conn
		p.mu.Unlock()
		if c != nil {
			p.drop(c)
		}
	}
}

// redial says hello to peers whose breaker is open, outside of any call, so that one that returns is used again at once.
func (t *peerTable) redial() {
	now := t.n.now()
	for _, p := range t.all() {
		p.mu.Lock()
		due := p.mu.backoff > 0 && p.mu.conn == nil && p.mu.dialing == nil && p.mu.lastDial.Add(t.n.cfg.BreakerMin) <= now
		p.mu.Unlock()
		if due {
			t.n.wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.n.stop, t.n.cfg.DialTimeout)
				defer cancel()
				_, _ = p.dial(ctx, true) // its outcome is the breaker's state
			})
		}
	}
}

// connect returns the live connection, dialling if there is none. It fails at once while the breaker is open.
func (p *peer) connect(ctx context.Context) (*conn, error) { return p.dial(ctx, false) }

func (p *peer) dial(ctx context.Context, through bool) (*conn, error) {
	for {
		p.mu.Lock()
		if c := p.mu.conn; c != nil && c.alive() {
			p.mu.Unlock()
			return c, nil
		}
		wait := p.mu.dialing
		// Of a peer that failed, a dial under way is the one outside of calls: who waited for it would pay for the failure again.
		if !through && p.mu.backoff > 0 && (wait != nil || p.mu.downUntil > p.n.now()) {
			p.mu.Unlock()
			p.n.counters.downgrade(ports.DowngradeBreakerOpen)
			return nil, fmt.Errorf("peer %s: left out since it failed: %w", p.id, errBreakerOpen)
		}
		if wait != nil {
			p.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		old := p.mu.conn
		p.mu.conn = nil
		done := make(chan struct{})
		p.mu.dialing, p.mu.lastDial = done, p.n.now()
		p.mu.Unlock()
		if old != nil {
			p.retire(old)
		}
		c, refused, err := p.hello(ctx)
		p.settle(c, refused, err, done)
		return c, err
	}
}

// errBreakerOpen is a peer that was not even asked.
var errBreakerOpen = fmt.Errorf("%w: breaker open", ports.ErrPeer)

// settle records how a dial ended, and lets the others go on.
func (p *peer) settle(c *conn, refused []ports.Refusal, err error, done chan struct{}) {
	p.mu.Lock()
	p.mu.dialing = nil
	switch {
	case err == nil:
		p.mu.conn, p.mu.refused, p.mu.failure = c, refused, nil
		p.mu.open = append(p.mu.open, c)
		p.mu.backoff, p.mu.downUntil = 0, 0
	case errors.Is(err, context.Canceled): // who dialled left: that says nothing about the peer
	default:
		p.mu.failure = err
		p.openLocked()
		if len(refused) > 0 {
			p.mu.refused = refused
		}
	}
	p.mu.Unlock()
	close(done)
	if err == nil && p.n.stop.Err() != nil {
		p.drop(c) // Close went over the table before this dial ended
	}
}

// openLocked opens the breaker, or opens it for longer.
func (p *peer) openLocked() {
	p.mu.backoff = min(max(2*p.mu.backoff, p.n.cfg.BreakerMin), p.n.cfg.BreakerMax)
	p.mu.downUntil = p.n.now().Add(p.mu.backoff)
}

// hello makes offers of every transport and links with the first that the peer took.
func (p *peer) hello(ctx context.Context) (*conn, []ports.Refusal, error) {
	n := p.n
	if n.p.Resolver == nil {
		return nil, nil, fmt.Errorf("peer %s: %w: no resolver", p.id, ports.ErrPeer)
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout)
	defer cancel()
	h := ports.Hello{From: n.self, Protocol: ports.ProtocolVersion, Namespaces: n.namespaces()}
	pending := make(map[ports.TransportKind]ports.PendingLink)
	var refused []ports.Refusal
	for _, t := range n.p.Transports {
		pl, err := t.Offer(ctx, p.id)
		if err != nil {
			refused = append(refused, ports.Refusal{Kind: t.Kind(), Reason: err.Error()})
			continue
		}
		pending[t.Kind()] = pl
		h.Offers = append(h.Offers, ports.Offer{Kind: t.Kind(), Bytes: pl.Bytes()})
	}
	defer func() {
		for _, pl := range pending {
			_ = pl.Close()
		}
	}()
	var reply ports.HelloReply
	if err := n.p.Resolver.Hello(ctx, ports.Peer{ID: p.id}, &h, &reply); err != nil {
		return nil, refused, fmt.Errorf("hello to %s: %w", p.id, err)
	}
	if err := checkHello(p.id, &reply); err != nil {
		return nil, refused, err
	}
	c := &conn{peer: p, to: reply.From, page: reply.PageSize, buffers: reply.Buffers}
	c.spaces.Store(uint32(len(h.Namespaces)))
	refused = append(refused, reply.Refused...)
	for _, t := range n.p.Transports { // ours is the order of preference
		pl := pending[t.Kind()]
		answer := answerOf(&reply, t.Kind())
		if pl == nil || answer == nil {
			continue
		}
		delete(pending, t.Kind())
		link, err := pl.Link(ctx, answer)
		if err != nil {
			refused = append(refused, ports.Refusal{Kind: t.Kind(), Reason: err.Error()})
			continue
		}
		c.link, c.kind, c.caps = link, t.Kind(), t.Caps()
		break
	}
	for range refused {
		n.counters.downgrade(ports.DowngradeTransport)
	}
	if c.link == nil {
		return nil, refused, fmt.Errorf("peer %s: %w: no common transport (%d refused)", p.id, ports.ErrPeer, len(refused))
	}
	return c, refused, nil
}

func answerOf(r *ports.HelloReply, kind ports.TransportKind) []byte {
	for _, a := range r.Answers {
		if a.Kind == kind {
			return a.Bytes
		}
	}
	return nil
}

// checkHello refuses a reply that layouts could not be checked against.
func checkHello(id ports.PeerID, r *ports.HelloReply) error {
	switch {
	case r.From.ID != id || r.From.Incarnation == 0:
		return fmt.Errorf("hello to %s: %w: answered by %q, start %d", id, ports.ErrPeer, r.From.ID, r.From.Incarnation)
	case r.PageSize == 0 && len(r.Buffers) > 0:
		return fmt.Errorf("hello to %s: %w: page size 0", id, ports.ErrPeer)
	case r.Protocol == 0 || r.Protocol > ports.ProtocolVersion:
		return fmt.Errorf("hello to %s: %w: protocol %d, this release speaks up to %d", id, ports.ErrPeer, r.Protocol, ports.ProtocolVersion)
	}
	return nil
}

// tell says hello again, without offers, when the node's namespaces grew since.
func (c *conn) tell(ctx context.Context) error {
	n := c.peer.n
	names := n.namespaces()
	if uint32(len(names)) <= c.spaces.Load() {
		return nil
	}
	var reply ports.HelloReply
	h := ports.Hello{From: n.self, Protocol: ports.ProtocolVersion, Namespaces: names}
	if err := n.p.Resolver.Hello(ctx, c.to, &h, &reply); err != nil {
		return err
	}
	if reply.From != c.to {
		return fmt.Errorf("hello to %s: %w", c.peer.id, ports.ErrRestarted)
	}
	for { // parallel calls may have told more
		told := c.spaces.Load()
		if told >= uint32(len(names)) || c.spaces.CompareAndSwap(told, uint32(len(names))) {
			return nil
		}
	}
}

func (c *conn) alive() bool {
	if c.dead.Load() {
		return false
	}
	select {
	case <-c.link.Done():
		return false
	default:
		return true
	}
}

// failed records what a control call's error says about the peer: another start is dialled anew at once, a peer that did not
// answer opens the breaker. Errors of the call itself say nothing.
func (c *conn) failed(err error) {
	switch {
	case errors.Is(err, ports.ErrRestarted):
		c.peer.drop(c)
	case errors.Is(err, ports.ErrPeer), errors.Is(err, ports.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		p := c.peer
		p.mu.Lock()
		if p.mu.conn == c {
			p.mu.failure = err
			p.openLocked()
		}
		p.mu.Unlock()
		p.drop(c)
	}
}

// drop forgets a connection and ends its link. Its ops complete with ErrReset.
func (p *peer) drop(c *conn) {
	p.mu.Lock()
	if p.mu.conn == c {
		p.mu.conn = nil
	}
	p.mu.Unlock()
	p.retire(c)
}

// retire closes a link once and keeps its counts, which stay visible while that takes: a sum of bytes never falls.
func (p *peer) retire(c *conn) {
	if c.dead.Swap(true) {
		return
	}
	_ = c.link.Close()
	counts := c.link.Counts()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.open = slices.DeleteFunc(p.mu.open, func(o *conn) bool { return o == c })
	for i, b := range counts.Bytes {
		p.mu.past[i] += b
	}
}

func (p *peer) stats() ports.PeerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := ports.PeerStats{Peer: ports.Peer{ID: p.id}, Refused: p.mu.refused, Down: p.mu.downUntil > p.n.now(), Failure: p.mu.failure, Wire: p.mu.past}
	if c := p.mu.conn; c != nil && c.alive() {
		s.Peer, s.Transport = c.to, c.kind
	}
	for _, c := range p.mu.open {
		for i, b := range c.link.Counts().Bytes {
			s.Wire[i] += b
		}
	}
	return s
}

func (n *Node) namespaces() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.spaces.snapshot()
}

// ask runs one control call to a peer: it connects, tells what namespaces are new, and asks once more when the peer turns out to
// be another start. call must be idempotent, as every control call is.
func (n *Node) ask(ctx context.Context, p *peer, call func(ctx context.Context, c *conn) error) (*conn, error) {
	for attempt := 0; ; attempt++ {
		c, err := p.connect(ctx)
		if err != nil {
			return nil, err
		}
		if err = c.tell(ctx); err == nil {
			err = call(ctx, c)
		}
		if err == nil {
			return c, nil
		}
		c.failed(err)
		if attempt > 0 || !errors.Is(err, ports.ErrRestarted) {
			return c, err
		}
	}
}
