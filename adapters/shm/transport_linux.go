package shm

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Transport is one start's transport. It needs not to be told which start: whom it serves is told by Answer, and its socket's name is
// drawn at random.
type Transport struct {
	cfg      Config
	host     host
	listener *net.UnixListener
	stop     context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup // the acceptor, and a goroutine for each connection of a peer
	greeting chan struct{}  // capacity maxGreeting: a token for each connection in the middle of its hello
	refused  [NumReasons]atomic.Uint64
	copies   copies

	// mu guards the tables.
	mu struct {
		sync.Mutex
		closed    bool
		answered  bool // exposed does not change any more
		exposed   map[uint32]ports.HostRegion
		local     map[ports.Registration]ports.HostRegion
		lastLocal ports.Registration
		lastLink  uint64
		askers    map[ports.PeerID]*asker
		inbound   map[uint64]*inbound
		lent      map[*net.UnixConn]struct{} // of peers that have our buffers mapped, of dropped ones too
		links     map[*Link]struct{}         // ours
	}
}

// asker is what Answer made for one start of a peer.
type asker struct {
	peer  ports.Peer
	links []*inbound // in the order of their answers
}

// inbound is one link of a peer, as its owner sees it: answered, then with the connection that proved its key. Guarded by Transport.mu.
type inbound struct {
	id    uint64
	from  ports.Peer
	offer offer
	ans   answer
	conn  *net.UnixConn // nil: none yet; an answer is good for one link
}

const (
	// maxGreeting bounds the connections that have not proved anything yet.
	maxGreeting = 256
	// maxPending bounds the answers of one peer that were not linked; the oldest give way.
	maxPending = 64
	// quietTimeout bounds how long a peer that is told to let go may take. Its last piece of a copy takes a millisecond; a process
	// that is stopped takes for ever, and what it copies after that is late by its lease.
	quietTimeout = 2 * time.Second
)

var _ ports.Transport = (*Transport)(nil)

// Open opens the transport. It fails where the system has no sealed memory files or no abstract sockets.
func Open(cfg Config) (*Transport, error) {
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = time.Second
	}
	if cfg.Copier == nil {
		cfg.Copier = plain{}
	}
	if cfg.Workers == 0 {
		cfg.Workers = max(1, min(runtime.NumCPU(), runtime.GOMAXPROCS(0)-1))
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("shm transport: %w", err)
	}
	t := &Transport{cfg: cfg, greeting: make(chan struct{}, maxGreeting)}
	t.mu.exposed = make(map[uint32]ports.HostRegion)
	t.mu.local = make(map[ports.Registration]ports.HostRegion)
	t.mu.askers = make(map[ports.PeerID]*asker)
	t.mu.inbound = make(map[uint64]*inbound)
	t.mu.lent = make(map[*net.UnixConn]struct{})
	t.mu.links = make(map[*Link]struct{})
	t.copies.open(t, cfg.Workers)
	var err error
	if t.host, err = thisHost(); err != nil {
		return nil, fmt.Errorf("shm transport: %w", err)
	}
	var name [16]byte
	fill(name[:])
	// An abstract name (Go writes its zero byte as @): it is gone with the process.
	at := &net.UnixAddr{Name: "@spanpool-" + hex.EncodeToString(name[:]), Net: "unixpacket"}
	if t.listener, err = net.ListenUnix("unixpacket", at); err != nil {
		return nil, fmt.Errorf("shm transport: %w", err)
	}
	t.stop, t.cancel = context.WithCancel(context.Background())
	t.wg.Go(t.accept)
	return t, nil
}

// Kind is "shm".
func (t *Transport) Kind() ports.TransportKind { return Kind }

// Caps says that nothing can be written, and device memory not be named.
func (t *Transport) Caps() ports.Caps { return ports.Caps{Sums: true} }

// Stats counts from the start on.
func (t *Transport) Stats() (s Stats) {
	for i := range s.Refused {
		s.Refused[i] = t.refused[i].Load()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Inbound = len(t.mu.lent)
	for l := range t.mu.links {
		s.Outbound++
		s.Mapped += l.mapped.bytes
	}
	return s
}

func (t *Transport) note(r Reason) { t.refused[r].Add(1) }

// hostRegion refuses memory that this process cannot touch.
func hostRegion(r ports.Region) (ports.HostRegion, error) {
	h, ok := r.(ports.HostRegion)
	if !ok {
		return h, fmt.Errorf("region of type %T, want host memory: %w", r, errors.ErrUnsupported)
	}
	return h, nil
}

// Expose lets peers map a buffer of the medium, which must be memory of a file that can be sealed; it is sealed here, after its owner
// mapped it. A buffer is exposed once, and before the first answer.
func (t *Transport) Expose(number uint32, r ports.Region) error {
	h, err := hostRegion(r)
	switch {
	case err != nil:
	case h.File() == nil:
		err = fmt.Errorf("buffer %d is memory of no file, which peers cannot map: %w", number, errors.ErrUnsupported)
	case number >= maxBuffers:
		err = &domain.LimitError{What: "number of a buffer", Value: uint64(number), Limit: maxBuffers - 1}
	default:
		err = seal(h.File())
	}
	if err != nil {
		return fail("expose", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, twice := t.mu.exposed[number]
	switch {
	case t.mu.closed:
		return fail("expose", "", ports.ErrClosed)
	case t.mu.answered:
		return fail("expose", "", fmt.Errorf("buffer %d comes after the first answer: %w", number, domain.ErrInvalid))
	case twice:
		return fail("expose", "", fmt.Errorf("buffer %d is exposed already: %w", number, domain.ErrInvalid))
	}
	t.mu.exposed[number] = h
	return nil
}

// Register notes local memory, so that Deregister can wait for it. Ops may name memory that is not registered.
func (t *Transport) Register(r ports.Region) (ports.Registration, error) {
	h, err := hostRegion(r)
	if err != nil {
		return 0, fail("register", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return 0, fail("register", "", ports.ErrClosed)
	}
	t.mu.lastLocal++
	t.mu.local[t.mu.lastLocal] = h
	return t.mu.lastLocal, nil
}

// Deregister returns once no op touches that memory.
func (t *Transport) Deregister(id ports.Registration) error {
	t.mu.Lock()
	h, ok := t.mu.local[id]
	delete(t.mu.local, id)
	t.mu.Unlock()
	if !ok {
		return fail("deregister", "", fmt.Errorf("registration %d: %w", id, ports.ErrNotFound))
	}
	t.copies.awaitQuiet(h.Bytes())
	return nil
}

// errNoWrites is what everything about writes is refused with.
var errNoWrites = fmt.Errorf("writes: %w: peers map memory to read it", errors.ErrUnsupported)

// Grant refuses: there are no writes.
func (t *Transport) Grant(writer ports.Peer, _ uint64, _ []domain.PageRef) (ports.GrantID, ports.GrantToken, error) {
	return 0, ports.GrantToken{}, fail("grant", writer.ID, errNoWrites)
}

// Revoke knows no grant.
func (t *Transport) Revoke(_ context.Context, id ports.GrantID, _ ports.Quiet) error {
	return fail("revoke", "", fmt.Errorf("grant %d: %w", id, ports.ErrNotFound))
}

// Offer says where this process is. It reaches nobody.
func (t *Transport) Offer(_ context.Context, to ports.PeerID) (ports.PendingLink, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, fail("offer", to, ports.ErrClosed)
	}
	o := offer{host: t.host}
	fill(o.nonce[:])
	return &pendingLink{t: t, to: to, offer: o}, nil
}

// Answer lets one link of that start of a peer in, if it is of this host. Another start of the same peer ends what was made for the
// one before.
func (t *Transport) Answer(_ context.Context, from ports.Peer, offered []byte) ([]byte, error) {
	o, err := decodeOffer(offered)
	switch {
	case err != nil:
	case o.host.boot != t.host.boot:
		err = fmt.Errorf("it is on another host: %w", errors.ErrUnsupported)
	case o.host.net != t.host.net:
		err = fmt.Errorf("it is in another network namespace of this host, where our socket has no name: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return nil, fail("answer", from.ID, err)
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
	in := &inbound{id: t.mu.lastLink, from: a.peer, offer: o, ans: answer{link: t.mu.lastLink, name: t.listener.Addr().String()}}
	fill(in.ans.key[:])
	t.mu.inbound[in.id] = in
	a.links = append(a.links, in)
	pending := 0
	for _, l := range slices.Backward(a.links) {
		if l.conn != nil {
			continue
		}
		if pending++; pending > maxPending {
			t.forgetLocked(l)
			break
		}
	}
	return in.ans
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

// Drop tells the links of that start of a peer to let go, and voids its answers.
func (t *Transport) Drop(from ports.Peer) {
	t.mu.Lock()
	var conns []*net.UnixConn
	if a := t.mu.askers[from.ID]; a != nil && a.peer == from {
		delete(t.mu.askers, from.ID)
		for _, in := range a.links {
			if in.conn != nil {
				conns = append(conns, in.conn)
			}
			delete(t.mu.inbound, in.id)
		}
	}
	t.mu.Unlock()
	hangUp(conns)
}

// hangUp tells peers to let go. The goroutine of each connection waits for their word, for as long as quietTimeout.
func hangUp(conns []*net.UnixConn) {
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(quietTimeout))
		_ = c.CloseWrite() // an error says that it has ended
	}
}

// Close ends our links and those into our memory, and returns when exposed and local memory is quiet. A peer that does not let go
// in time is an error that wraps ports.ErrTimeout: it may still copy out of what was exposed, and what it copies is late by its
// lease. Twice is allowed.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	links := slices.Collect(maps.Keys(t.mu.links))
	conns := slices.Collect(maps.Keys(t.mu.lent))
	clear(t.mu.askers)
	clear(t.mu.inbound)
	clear(t.mu.local)
	t.mu.Unlock()
	t.cancel()
	_ = t.listener.Close() // twice is harmless
	lingered := t.refused[Lingered].Load()
	hangUp(conns)
	for _, l := range links {
		_ = l.Close() // it says nothing
	}
	t.wg.Wait()
	t.copies.wg.Wait()
	if n := t.refused[Lingered].Load() - lingered; n > 0 {
		return fail("close", "", fmt.Errorf("%d peers have not let go within %v: %w", n, quietTimeout, ports.ErrTimeout))
	}
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

func (t *Transport) forgetLocked(in *inbound) {
	delete(t.mu.inbound, in.id)
	if a := t.mu.askers[in.from.ID]; a != nil {
		a.links = slices.DeleteFunc(a.links, func(l *inbound) bool { return l == in })
	}
}
