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
		lastHeard domain.Instant // a hello that brought a dial forward
		backoff   time.Duration
		mendAt    domain.Instant // not before: a hello for the links that conn lacks
		mendWait  time.Duration
		refused   []ports.Refusal
		failure   error                               // why it was left out; nil since the last hello that succeeded
		open      []*lane                             // links that are not closed yet: those of conn, and those that are being retired
		past      map[ports.TransportKind]*linkCounts // of links that were closed
	}
}

// conn is one start of a peer as its hello told it, and the links to it.
type conn struct {
	peer    *peer
	to      ports.Peer // incarnation 0: no hello has been answered yet
	page    uint64
	buffers []uint64
	lanes   atomic.Pointer[[]*lane] // in the order of preference; replaced under peer.mu, never changed

	spaces     atomic.Uint32     // namespaces that the peer was told of
	order      linkOrder         // of what calls read
	puts       putOrder          // of what calls write
	foreground atomic.Uint64     // bytes on the links, or waiting for them, for calls: for the pull's allowance
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
		p.mu.past = make(map[ports.TransportKind]*linkCounts)
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

// redial says hello to peers whose breaker is open, and to those whose connection lacks a link that is preferred to what it has,
// outside of any call, so that what returns is used again at once.
func (t *peerTable) redial() {
	now := t.n.now()
	for _, p := range t.all() {
		if p.due(now) {
			p.dialOutside()
		}
	}
}

// dialOutside dials on a goroutine of the node's, which must not have ended.
func (p *peer) dialOutside() {
	p.n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.n.stop, p.n.cfg.DialTimeout)
		defer cancel()
		_, _ = p.dial(ctx, outsideOfCalls) // its outcome is the breaker's state
	})
}

// heard is told that a peer says hello: it is there, so one that failed is dialled at once, outside of any call. The breaker stays as it is
// until that dial has ended, since who reaches us may be out of our reach; one hello in BreakerMin counts, for the same reason.
func (t *peerTable) heard(id ports.PeerID) {
	t.mu.Lock()
	p := t.mu.peers[id]
	t.mu.Unlock()
	if p == nil || t.n.enter() != nil {
		return
	}
	defer t.n.leave()
	if p.proven(t.n.now()) {
		p.dialOutside()
	}
}

// proven says that a hello of the peer is news. A dial that is under way may have begun before the peer was there.
func (p *peer) proven(now domain.Instant) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	failed := p.mu.backoff > 0 || p.mu.dialing != nil
	if p.mu.conn.isAlive() || !failed || p.mu.lastHeard.Add(p.n.cfg.BreakerMin) > now {
		return false
	}
	p.mu.lastHeard = now
	return true
}

func (p *peer) due(now domain.Instant) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch c := p.mu.conn; {
	case p.mu.dialing != nil:
		return false
	case c == nil:
		return p.mu.backoff > 0 && p.mu.lastDial.Add(p.n.cfg.BreakerMin) <= now
	default:
		return c.alive() && p.mu.mendAt <= now && c.lacksLink()
	}
}

// need is what a dial is for.
type need uint8

const (
	toRead         need = iota // and for control calls: any link will do
	toWrite                    // a link that can write
	outsideOfCalls             // whatever is lacking, and through an open breaker
)

// meets says that the connection is what is needed.
func (c *conn) meets(what need) bool {
	switch {
	case c == nil || !c.alive():
		return false
	case what == toWrite:
		return c.way(ports.Write, anywhere) != nil
	default:
		return what == toRead || !c.lacksLink()
	}
}

// connect returns the live connection, dialling if there is none. It fails at once while the breaker is open.
func (p *peer) connect(ctx context.Context) (*conn, error) { return p.dial(ctx, toRead) }

func (p *peer) dial(ctx context.Context, what need) (*conn, error) {
	for {
		p.mu.Lock()
		c := p.mu.conn
		if c.meets(what) {
			p.mu.Unlock()
			return c, nil
		}
		wait := p.mu.dialing
		if what != outsideOfCalls && p.leftOutLocked(wait != nil) {
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
		old := c
		if !c.isAlive() {
			c, p.mu.conn = p.newConn(), nil
		}
		done := make(chan struct{})
		p.mu.dialing, p.mu.lastDial = done, p.n.now()
		p.mu.Unlock()
		if old != c && old != nil {
			p.retire(old)
		}
		refused, err := p.hello(ctx, c)
		p.settle(c, refused, err, done)
		if err == nil && what == toWrite && c.way(ports.Write, anywhere) == nil {
			err = fmt.Errorf("peer %s: %w: no common transport that can write (%d refused)", p.id, ports.ErrPeer, len(refused))
		}
		return c, err
	}
}

// leftOutLocked says that a call is not to pay for a dial. Of a peer that failed, a dial under way is the one outside of calls: who
// waited for it would pay for the failure again. A connection that lacks a link had its hello for it a moment ago.
func (p *peer) leftOutLocked(dialing bool) bool {
	now := p.n.now()
	if p.mu.conn.isAlive() {
		return !dialing && p.mu.mendAt > now
	}
	return p.mu.backoff > 0 && (dialing || p.mu.downUntil > now)
}

// errBreakerOpen is a peer that was not even asked.
var errBreakerOpen = fmt.Errorf("%w: breaker open", ports.ErrPeer)

// settle records how a dial ended, and lets the others go on.
func (p *peer) settle(c *conn, refused []ports.Refusal, err error, done chan struct{}) {
	p.mu.Lock()
	p.mu.dialing = nil
	mended := p.mu.conn == c
	switch {
	case err == nil:
		p.mu.conn, p.mu.failure = c, nil
		p.noteRefusedLocked(refused)
		p.mu.backoff, p.mu.downUntil = 0, 0
		p.mendLaterLocked(c.lacksLink())
	case errors.Is(err, context.Canceled), errors.Is(err, ports.ErrReset): // who dialled left, or others dropped it: that says nothing about the peer
	case mended: // it goes on with the links that it has
		p.mendLaterLocked(true)
	default:
		p.mu.failure = err
		p.openLocked()
		if len(refused) > 0 {
			p.noteRefusedLocked(refused)
		}
	}
	p.mu.Unlock()
	close(done)
	if err == nil && p.n.stop.Err() != nil || mended && errors.Is(err, ports.ErrRestarted) {
		p.drop(c) // Close went over the table before this dial ended; or what it is a connection to is no more
	}
}

// noteRefusedLocked counts what was not refused the last time.
func (p *peer) noteRefusedLocked(refused []ports.Refusal) {
	for _, r := range refused {
		if !slices.ContainsFunc(p.mu.refused, func(o ports.Refusal) bool { return o.Kind == r.Kind }) {
			p.n.counters.downgrade(ports.DowngradeTransport)
		}
	}
	p.mu.refused = refused
}

// mendLaterLocked says when the next hello for links that are lacking may be: at once after one that left nothing to wish for.
func (p *peer) mendLaterLocked(lacking bool) {
	if !lacking {
		p.mu.mendWait, p.mu.mendAt = 0, 0
		return
	}
	p.mu.mendWait = min(max(2*p.mu.mendWait, p.n.cfg.BreakerMin), p.n.cfg.BreakerMax)
	p.mu.mendAt = p.n.now().Add(p.mu.mendWait)
}

// openLocked opens the breaker, or opens it for longer.
func (p *peer) openLocked() {
	p.mu.backoff = min(max(2*p.mu.backoff, p.n.cfg.BreakerMin), p.n.cfg.BreakerMax)
	p.mu.downUntil = p.n.now().Add(p.mu.backoff)
}

// hello makes offers of the transports that c lacks, and links with those of them that are needed and that the peer took. c is new,
// or a connection that lost a link.
func (p *peer) hello(ctx context.Context, c *conn) ([]ports.Refusal, error) {
	n := p.n
	if n.p.Resolver == nil {
		return nil, fmt.Errorf("peer %s: %w: no resolver", p.id, ports.ErrPeer)
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout)
	defer cancel()
	h := ports.Hello{From: n.self, Protocol: ports.ProtocolVersion, Namespaces: n.namespaces()}
	pending := make(map[ports.TransportKind]ports.PendingLink)
	var refused []ports.Refusal
	refuse := func(kind ports.TransportKind, err error) {
		refused = append(refused, ports.Refusal{Kind: kind, Reason: err.Error()})
	}
	c.fill(func(t ports.Transport, _ reach) *lane {
		pl, err := t.Offer(ctx, p.id)
		if err != nil {
			refuse(t.Kind(), err)
			return nil
		}
		pending[t.Kind()] = pl
		h.Offers = append(h.Offers, ports.Offer{Kind: t.Kind(), Bytes: pl.Bytes()})
		return nil
	})
	defer func() {
		for _, pl := range pending {
			_ = pl.Close()
		}
	}()
	var reply ports.HelloReply
	if err := n.p.Resolver.Hello(ctx, c.to, &h, &reply); err != nil {
		return refused, fmt.Errorf("hello to %s: %w", p.id, err)
	}
	if err := c.answered(&reply, len(h.Namespaces)); err != nil {
		return refused, err
	}
	refused = append(refused, reply.Refused...)
	lanes := c.fill(func(t ports.Transport, at reach) *lane {
		pl := pending[t.Kind()]
		answer := answerOf(&reply, t.Kind())
		if pl == nil || answer == nil {
			return nil
		}
		delete(pending, t.Kind())
		link, err := pl.Link(ctx, answer)
		if err != nil {
			refuse(t.Kind(), err)
			return nil
		}
		return &lane{kind: t.Kind(), caps: t.Caps(), at: at, link: link}
	})
	if len(lanes) == 0 && errors.Is(ctx.Err(), context.Canceled) { // that may be why: it is no word about the peer
		return nil, fmt.Errorf("hello to %s: %w", p.id, ctx.Err())
	}
	if len(lanes) == 0 {
		return refused, fmt.Errorf("peer %s: %w: no common transport (%d refused)", p.id, ports.ErrPeer, len(refused))
	}
	return refused, c.take(lanes)
}

// answered takes in what a hello told.
func (c *conn) answered(r *ports.HelloReply, spaces int) error {
	if err := checkHello(c.peer.id, r); err != nil {
		return err
	}
	if c.to.Incarnation != 0 && c.to != r.From {
		return fmt.Errorf("hello to %s: %w", c.peer.id, ports.ErrRestarted)
	}
	if c.to.Incarnation == 0 {
		c.to, c.page, c.buffers = r.From, r.PageSize, r.Buffers
	}
	c.told(uint32(spaces))
	return nil
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
	c.told(uint32(len(names)))
	return nil
}

// told notes how many namespaces the peer knows; parallel calls may have told more.
func (c *conn) told(spaces uint32) {
	for {
		told := c.spaces.Load()
		if told >= spaces || c.spaces.CompareAndSwap(told, spaces) {
			return
		}
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

// drop forgets a connection and ends its links. Their ops complete with ErrReset.
func (p *peer) drop(c *conn) {
	p.mu.Lock()
	if p.mu.conn == c {
		p.mu.conn = nil
	}
	p.mu.Unlock()
	p.retire(c)
}

func (p *peer) stats() ports.PeerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := ports.PeerStats{Peer: ports.Peer{ID: p.id}, Refused: p.mu.refused, Down: p.mu.downUntil > p.n.now(), Failure: p.mu.failure}
	if c := p.mu.conn; c.isAlive() {
		s.Peer, s.Transport = c.to, c.kind(ports.Read)
		s.Writes = c.kind(ports.Write)
	}
	for _, t := range p.n.p.Transports {
		all := p.countsLocked(t.Kind())
		s.Transports = append(s.Transports, ports.TransportStats{Kind: t.Kind(), Wire: all.wire, Lost: all.lost})
		for i := range all.wire {
			s.Wire[i] += all.wire[i]
			s.Thrown[i] += all.thrown[i]
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
	return n.askFor(ctx, p, toRead, call)
}

// askFor is ask over a connection that meets a need.
func (n *Node) askFor(ctx context.Context, p *peer, what need, call func(ctx context.Context, c *conn) error) (*conn, error) {
	for attempt := 0; ; attempt++ {
		c, err := p.dial(ctx, what)
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
