package app

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// defaultPageSize is that of a node without a medium, whose table stays empty.
const defaultPageSize = 64 << 10

// Node is one node of the pool: a ports.Pool for its callers and, by PeerServer, the owner of its pages for its peers.
type Node struct {
	cfg     Config
	p       Ports
	self    ports.Peer
	regions []ports.Region // of the medium's buffers
	page    uint64

	hostMedium bool                          // its bytes can be summed here
	pool       reach                         // who brings bytes into the medium's memory, and serves them from there
	blind      map[ports.TransportKind]error // why the others do not
	looking    chan struct{}                 // capacity 1: who looks at a copy that a peer complained about

	sessionKeys int      // maxSessionKeys; fewer in tests
	linkBytes   uint64   // domain.LinkInFlight; fewer in tests
	off         features // none is; tests show by it what each is worth

	arenas   [2]*arena // get, put; nil: the route is off
	peers    *peerTable
	puller   *puller // nil: the pull is switched off
	renewer  *renewer
	revoker  *revoker
	counters counters

	// awaiting is the number of calls that wait for their first bytes; the pull pauses while there are any.
	awaiting atomic.Int32
	// puts numbers the puts to peers.
	puts atomic.Uint64

	stop   context.Context // ends when Close begins
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the node

	mu struct {
		sync.Mutex
		closed   bool
		calls    int           // in progress, drained ones included
		idle     chan struct{} // closed by the last call after closed
		table    *domain.Table
		fills    map[domain.SlotID]*fill
		reserved map[domain.SlotID]*reservation
		views    map[viewID]*view
		used     []*view // views with users, for the renewer
		flights  []*flight
		complete []finishing // slots to be verified and committed
		sessions map[ports.SessionID]*session
		writes   map[ports.WriteID]*writeSession
		lastID   uint64
		memories map[ports.MemoryID]*memory
		spaces   spaceTable
		askers   map[ports.PeerID]*asker
		victims  []domain.SlotID // scratch of makeRoomLocked
		free     []*getCall
	}
}

// features are what a test build can turn off.
type features struct{ singleFlight, dedupQueued, dedupRun bool }

var _ ports.Pool = (*Node)(nil)

// New builds and starts a node over its ports. Close stops it; the ports are the caller's to close, after the node.
func New(cfg Config, p Ports) (*Node, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if p.Clock == nil || p.Copier == nil {
		return nil, errors.New("ports: Clock and Copier are needed")
	}
	n := &Node{cfg: cfg, p: p, page: defaultPageSize, sessionKeys: maxSessionKeys, linkBytes: domain.LinkInFlight, looking: make(chan struct{}, 1)}
	if n.cfg.Random == nil {
		n.cfg.Random = secureRandom
	}
	n.pool, n.blind = anywhere, make(map[ports.TransportKind]error)
	n.self = ports.Peer{ID: cfg.ID, Incarnation: cfg.Incarnation}
	if n.self.Incarnation == 0 {
		n.self.Incarnation = domain.Incarnation(n.cfg.Random() | 1)
	}
	if err := n.openMemory(); err != nil {
		return nil, err
	}
	n.stop, n.cancel = context.WithCancel(context.Background())
	n.mu.idle = make(chan struct{})
	n.mu.fills = make(map[domain.SlotID]*fill)
	n.mu.reserved = make(map[domain.SlotID]*reservation)
	n.mu.views = make(map[viewID]*view)
	n.mu.sessions = make(map[ports.SessionID]*session)
	n.mu.writes = make(map[ports.WriteID]*writeSession)
	n.mu.memories = make(map[ports.MemoryID]*memory)
	n.mu.askers = make(map[ports.PeerID]*asker)
	n.peers = newPeerTable(n)
	n.start()
	return n, nil
}

// openMemory builds the table over the medium, shows its buffers to the transports, and registers the arenas.
func (n *Node) openMemory() error {
	var pages []uint32
	if m := n.p.Medium; m != nil {
		n.page, n.regions = m.PageSize(), m.Buffers()
		if n.page == 0 {
			return errors.New("medium: page size 0, want at least 1")
		}
		for i, r := range n.regions {
			count := r.Len() / n.page
			if count > 1<<32-1 || r.Len()%n.page != 0 {
				return fmt.Errorf("medium buffer %d: %d bytes, want whole pages of %d and fewer than 2^32", i, r.Len(), n.page)
			}
			pages = append(pages, uint32(count))
			if err := n.expose(uint32(i), r); err != nil {
				return err
			}
		}
	}
	n.hostMedium = allHost(n.regions)
	n.mu.table = domain.NewTable(domain.TableConfig{
		Incarnation: n.self.Incarnation, PageSize: n.page, BufferPages: pages, Scatter: n.cfg.Scatter,
		MaxFillingPages: shareOf(pages, n.cfg.FillingShare),
	})
	for i, m := range []ports.Medium{n.p.GetArena, n.p.PutArena} {
		if m == nil || len(m.Buffers()) == 0 {
			continue
		}
		n.arenas[i] = newArena(m.Buffers()[0])
		for _, t := range n.p.Transports {
			if !t.Caps().NeedsRegister {
				continue
			}
			if _, err := t.Register(m.Buffers()[0]); err != nil {
				return fmt.Errorf("register arena with %s: %w", t.Kind(), err)
			}
		}
	}
	return nil
}

// expose shows a buffer to the transports. One that does not reach it serves no peer, and its links bring nothing into the pool.
func (n *Node) expose(i uint32, r ports.Region) error {
	var reasons []error
	for at, t := range n.p.Transports {
		err := t.Expose(i, r)
		if err != nil {
			err = fmt.Errorf("expose buffer %d to %s: %w", i, t.Kind(), err)
		}
		switch {
		case err == nil:
		case errors.Is(err, errors.ErrUnsupported):
			n.blind[t.Kind()] = err
			n.pool &^= reachOf(at)
			reasons = append(reasons, err)
		default:
			return err
		}
	}
	if len(reasons) > 0 && len(n.blind) == len(n.p.Transports) {
		return errors.Join(reasons...)
	}
	return nil
}

// Unreached names the transports that do not reach the pool's memory, and why: what they bring goes by the arena, and peers are not
// served over them.
func (n *Node) Unreached() (all []ports.Refusal) {
	for _, t := range n.p.Transports {
		if err := n.blind[t.Kind()]; err != nil {
			all = append(all, ports.Refusal{Kind: t.Kind(), Reason: err.Error()})
		}
	}
	return all
}

func shareOf(pages []uint32, share float64) uint64 {
	var total uint64
	for _, p := range pages {
		total += uint64(p)
	}
	return max(1, uint64(float64(total)*share))
}

func (n *Node) start() {
	n.renewer = newRenewer(n)
	n.wg.Go(n.renewer.run)
	n.revoker = newRevoker(n)
	n.wg.Go(n.revoker.run)
	n.wg.Go(n.sweep)
	if !n.cfg.NoRangedLocalityPrefetch && n.canInstall() {
		n.puller = newPuller(n)
		n.wg.Go(n.puller.run)
	}
}

// Self names this start of the node.
func (n *Node) Self() ports.Peer { return n.self }

// PeerServer is what the node's peers call.
func (n *Node) PeerServer() ports.PeerServer { return (*server)(n) }

// Close refuses new calls, ends what is under way, and returns when every goroutine of the node has ended and no memory of a
// caller is touched any more.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.mu.closed {
		n.mu.Unlock()
		return ports.ErrClosed
	}
	n.mu.closed = true
	busy := n.mu.calls > 0
	n.mu.Unlock()
	n.cancel()
	n.peers.close()
	for _, a := range n.arenas {
		if a != nil {
			a.close()
		}
	}
	if busy {
		<-n.mu.idle
	}
	n.wg.Wait()
	return nil
}

// enter counts a call in; leave counts it out. After Close began, enter refuses.
func (n *Node) enter() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.enterLocked()
}

func (n *Node) enterLocked() error {
	if n.mu.closed {
		return fmt.Errorf("node %s: %w", n.self.ID, ports.ErrClosed)
	}
	n.mu.calls++
	return nil
}

func (n *Node) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaveLocked()
}

func (n *Node) leaveLocked() {
	n.mu.calls--
	if n.mu.closed && n.mu.calls == 0 {
		close(n.mu.idle)
	}
}

func (n *Node) now() domain.Instant { return n.p.Clock.Now() }

func (n *Node) canInstall() bool {
	return domain.CanInstallLocally(n.p.Medium != nil, n.cfg.Locality)
}

func (n *Node) drawVersion() domain.Version {
	return domain.Version{Hi: n.cfg.Random(), Lo: n.cfg.Random() | 1}
}

func secureRandom() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.LittleEndian.Uint64(b[:])
}

// control bounds a control call of the node.
func (n *Node) control() (context.Context, context.CancelFunc) {
	return context.WithTimeout(n.stop, n.cfg.ControlTimeout)
}

// makeRoomLocked reserves a slot, dooming what may give way for it.
func (n *Node) makeRoomLocked(s domain.NewSlot, now domain.Instant) (domain.SlotID, error) {
	t := n.mu.table
	id, err := t.Reserve(s)
	if err == nil {
		return id, nil
	}
	t.Sweep(now)
	victims, ok := t.PlanEviction(t.PagesFor(s.Size), s.State, now, n.mu.victims[:0])
	n.mu.victims = victims[:0]
	if !ok {
		return 0, err
	}
	for _, v := range victims {
		n.doomLocked(v, domain.DoomEvicted, now)
	}
	return t.Reserve(s)
}

// doomLocked makes a slot invisible, and tells whoever waits on it: the pull looks again, a peer that may write is fenced.
func (n *Node) doomLocked(id domain.SlotID, cause domain.DoomCause, now domain.Instant) {
	info := n.mu.table.Info(id)
	if info.State == domain.SlotDoomed || info.State == domain.SlotFree {
		return
	}
	if info.State == domain.SlotCommitted {
		n.withdrawLocked(id, info)
	}
	if f := n.mu.fills[id]; f != nil {
		f.doomed = true
		delete(n.mu.fills, id)
		n.kickPull()
	}
	if r := n.mu.reserved[id]; r != nil {
		delete(n.mu.reserved, id)
		n.revoker.add(r)
	}
	n.mu.table.Doom(id, cause, now)
}

// expiredLocked ends a reservation whose time is over, if nobody has yet: it is compared on access, and the sweep comes later.
func (n *Node) expiredLocked(pending domain.SlotID, now domain.Instant) bool {
	if pending == 0 {
		return false
	}
	if d := n.mu.table.Info(pending).Deadline; d == 0 || d > now {
		return false
	}
	n.doomLocked(pending, domain.DoomDeadline, now)
	return true
}

// commitLocked publishes a slot whose bytes are all there, and dooms what else was under way for its key. It reports false,
// with the slot doomed, when another was first.
func (n *Node) commitLocked(id domain.SlotID, now domain.Instant) bool {
	t := n.mu.table
	info := t.Info(id)
	if info.State != domain.SlotPending && info.State != domain.SlotFilling {
		return false
	}
	if !t.Commit(id) {
		n.doomLocked(id, domain.DoomLost, now)
		return false
	}
	delete(n.mu.fills, id)
	name := t.Name(id)
	_, filling, pending := t.Lookup(info.Space, name)
	for _, other := range [2]domain.SlotID{filling, pending} {
		if other != 0 {
			n.doomLocked(other, domain.DoomLost, now)
		}
	}
	n.announce(n.mu.spaces.names[info.Space], name, info.Version)
	return true
}

// announce is called with mu held: a Directory's Announce and Withdraw never block, by contract.
func (n *Node) announce(namespace, name string, v domain.Version) {
	if n.p.Directory != nil {
		n.p.Directory.Announce(namespace, name, v)
	}
}

func (n *Node) withdrawLocked(id domain.SlotID, info domain.SlotInfo) {
	if n.p.Directory != nil {
		n.p.Directory.Withdraw(n.mu.spaces.names[info.Space], n.mu.table.Name(id), info.Version)
	}
}

// sweep frees what time has ended: leases of doomed slots, reservations, views. It also evicts between the watermarks.
func (n *Node) sweep() {
	tick := time.NewTicker(n.cfg.SweepEvery)
	defer tick.Stop()
	var ids []domain.SlotID
	for {
		select {
		case <-n.stop.Done():
			return
		case <-tick.C:
		}
		now := n.now()
		n.mu.Lock()
		n.mu.table.Sweep(now)
		ids = n.mu.table.AppendExpired(now, ids[:0])
		for _, id := range ids {
			n.doomLocked(id, domain.DoomDeadline, now)
		}
		for id, v := range n.mu.views {
			if v.users == 0 && v.until <= now {
				delete(n.mu.views, id)
			}
		}
		n.evictToWatermarkLocked(now)
		n.mu.Unlock()
		n.revoker.kick()
		n.peers.redial()
	}
}

func (n *Node) evictToWatermarkLocked(now domain.Instant) {
	if n.cfg.HighWatermark == 0 {
		return
	}
	s := n.mu.table.Stats()
	used := float64(s.PagesTotal - s.PagesFree)
	if used <= n.cfg.HighWatermark*float64(s.PagesTotal) {
		return
	}
	lowFree := s.PagesTotal - uint64(n.cfg.LowWatermark*float64(s.PagesTotal))
	n.mu.victims = n.mu.table.PlanWatermark(lowFree, now, n.mu.victims[:0])
	for _, v := range n.mu.victims {
		n.doomLocked(v, domain.DoomPressure, now)
	}
}
