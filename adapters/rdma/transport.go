//go:build linux && cgo && rdma

package rdma

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Built says whether this build has the transport.
const Built = true

// Transport is one start's transport on one port of one device.
type Transport struct {
	cfg    Config
	start  uint64
	ctx    *verbs.Context
	pd     *verbs.PD
	device string
	port   int
	attr   verbs.PortAttr
	gids   []gid // those that peers are told
	clamps []Clamp
	table  atomic.Pointer[regions]
	inbox  *events        // completions of every inbound link's control pair
	wg     sync.WaitGroup // what calls verbs outside of a link; Add under mu, before closed
	stop   chan struct{}
	warned sync.Once // of a queue pair that stays
	counts counters

	// mu guards the tables. Registering and making queue pairs is done without it.
	mu struct {
		sync.Mutex
		closed   bool
		answered bool // exposed does not change any more
		shut     chan struct{}
		exposed  map[uint32]*region
		local    map[ports.Registration]*region
		grants   map[ports.GrantID]*grant
		lastReg  ports.Registration
		lastGr   ports.GrantID
		lastIn   uint64
		inbound  map[uint64]*inbound
		links    map[*Link]struct{}
		pending  map[*pendingLink]struct{}
	}
}

var _ ports.Transport = (*Transport)(nil)

// Open opens a device. The error wraps errors.ErrUnsupported where there is none, or no support for one; a name that is wrong is
// answered with those that are right.
func Open(cfg Config) (*Transport, error) {
	t, err := open(cfg.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("rdma transport: %w", err)
	}
	return t, nil
}

func open(cfg Config) (*Transport, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &Transport{cfg: cfg, stop: make(chan struct{})}
	t.table.Store(&regions{})
	t.mu.exposed = make(map[uint32]*region)
	t.mu.local = make(map[ports.Registration]*region)
	t.mu.grants = make(map[ports.GrantID]*grant)
	t.mu.inbound = make(map[uint64]*inbound)
	t.mu.links = make(map[*Link]struct{})
	t.mu.pending = make(map[*pendingLink]struct{})
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	t.start = binary.LittleEndian.Uint64(b[:])
	err := t.acquire()
	if err != nil {
		return nil, errors.Join(err, t.release())
	}
	t.wg.Go(t.serve)
	return t, nil
}

// acquire opens the device and asks what it can do.
func (t *Transport) acquire() (err error) {
	if t.ctx, t.device, t.port, err = openDevice(t.cfg.Device); err != nil {
		return err
	}
	d, err := t.ctx.Device()
	if err != nil {
		return err
	}
	if t.attr, err = t.ctx.Port(t.port); err != nil {
		return err
	}
	t.clamps = t.cfg.clamp(capsOf(d, t.attr))
	t.counts.events[EventClamped].Store(uint64(len(t.clamps)))
	if t.cfg.SendDepth < minDepth || t.cfg.MaxSGE < 1 || t.cfg.MaxReads < 1 {
		return fmt.Errorf("device %s: %d requests, %d scatter entries, %d outstanding reads a queue pair are too few: %w", t.device,
			t.cfg.SendDepth, t.cfg.MaxSGE, t.cfg.MaxReads, errors.ErrUnsupported)
	}
	if t.gids = gidsOf(t.ctx, t.port, t.attr, t.cfg.GID); len(t.gids) == 0 {
		return fmt.Errorf("device %s, port %d: no GID that fits %q (%s); an address on its network interface makes one: %w",
			t.device, t.port, t.cfg.GID, t.listGIDs(), domain.ErrInvalid)
	}
	if t.pd, err = t.ctx.AllocPD(); err != nil {
		return err
	}
	t.inbox, err = openEvents(t.ctx, t.cfg.MaxLinks*(controlRecv+controlSend))
	return err
}

func (t *Transport) listGIDs() string {
	text := "there are none"
	for i, g := range allGIDs(t.ctx, t.port, t.attr) {
		if i == 0 {
			text = "there are"
		}
		text += fmt.Sprintf(" %d: %s (%s)", g.index, gidText(g.raw), gidTypeText(g.kind))
	}
	return text
}

func (t *Transport) release() error {
	var errs []error
	if t.inbox != nil {
		errs = append(errs, t.inbox.close())
	}
	if t.pd != nil {
		errs = append(errs, t.pd.Close())
	}
	if t.ctx != nil {
		errs = append(errs, t.ctx.Close())
	}
	return errors.Join(errs...)
}

// Kind is "rdma".
func (t *Transport) Kind() ports.TransportKind { return Kind }

// Caps says that writes are possible and memory has to be registered.
func (t *Transport) Caps() ports.Caps {
	return ports.Caps{Write: true, NeedsRegister: true, Device: t.cfg.DMABuf != nil}
}

// Device is the device and port in use.
func (t *Transport) Device() string { return fmt.Sprintf("%s/%d", t.device, t.port) }

// Clamps are the sizes that were lowered to what the device can do.
func (t *Transport) Clamps() []Clamp { return slices.Clone(t.clamps) }

// Stats counts from the start on.
func (t *Transport) Stats() Stats {
	var s Stats
	for i := range s.Events {
		s.Events[i] = t.counts.events[i].Load()
	}
	for i := range s.Completions {
		s.Completions[i] = t.counts.completions[i].Load()
	}
	s.Registered, s.Regions = uint64(t.counts.registered.Load()), uint64(t.counts.regions.Load())
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Inbound, s.Links = len(t.mu.inbound), len(t.mu.links)
	return s
}

// enter keeps Close from freeing what verbs are called with, until t.wg.Done.
func (t *Transport) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return ports.ErrClosed
	}
	t.wg.Add(1)
	return nil
}

// Expose makes a buffer of the medium reachable by links. A buffer is exposed once, and before the first answer.
func (t *Transport) Expose(id uint32, r ports.Region) error {
	if err := t.enter(); err != nil {
		return fail("expose", "", err)
	}
	defer t.wg.Done()
	if err := t.mayExpose(id); err != nil {
		return fail("expose", "", err)
	}
	reg, err := t.register(r, true)
	if err != nil {
		return fail("expose", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.mayExposeLocked(id); err != nil {
		return fail("expose", "", errors.Join(err, t.deregister(reg)))
	}
	t.mu.exposed[id] = reg
	t.insertLocked(reg)
	return nil
}

func (t *Transport) mayExpose(id uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mayExposeLocked(id)
}

func (t *Transport) mayExposeLocked(id uint32) error {
	switch _, twice := t.mu.exposed[id]; {
	case t.mu.closed:
		return ports.ErrClosed
	case t.mu.answered:
		return fmt.Errorf("buffer %d comes after the first answer: %w", id, domain.ErrInvalid)
	case twice:
		return fmt.Errorf("buffer %d is exposed already: %w", id, domain.ErrInvalid)
	case len(t.mu.exposed) == maxBuffers:
		return &domain.LimitError{What: "exposed buffers", Value: maxBuffers + 1, Limit: maxBuffers}
	}
	return nil
}

// Register makes memory usable in ops. The same memory twice is one registration with the device.
func (t *Transport) Register(r ports.Region) (ports.Registration, error) {
	if err := t.enter(); err != nil {
		return 0, fail("register", "", err)
	}
	defer t.wg.Done()
	if id, ok := t.registered(r); ok {
		return id, nil
	}
	reg, err := t.register(r, false)
	if err != nil {
		return 0, fail("register", "", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return 0, fail("register", "", errors.Join(ports.ErrClosed, t.deregister(reg)))
	}
	t.insertLocked(reg)
	return t.holdLocked(reg), nil
}

func (t *Transport) holdLocked(reg *region) ports.Registration {
	reg.refs++
	t.mu.lastReg++
	t.mu.local[t.mu.lastReg] = reg
	return t.mu.lastReg
}

// registered finds the very same memory among what callers have registered.
func (t *Transport) registered(r ports.Region) (ports.Registration, bool) {
	addr, device := addrOf(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, reg := range t.mu.local {
		if reg.lo == addr && reg.len == r.Len() && reg.device == device && !reg.closing.Load() {
			return t.holdLocked(reg), true
		}
	}
	return 0, false
}

// Deregister returns once no op of ours touches that memory: each has a deadline. After Close it is ErrNotFound.
func (t *Transport) Deregister(id ports.Registration) error {
	if t.enter() != nil {
		<-t.mu.shut // which makes it quiet
		return notRegistered(id)
	}
	defer t.wg.Done()
	t.mu.Lock()
	reg, ok := t.mu.local[id]
	delete(t.mu.local, id)
	links := slices.Collect(maps.Keys(t.mu.links))
	last := false
	if ok {
		reg.refs--
		last = reg.refs == 0
		reg.closing.Store(last)
	}
	t.mu.Unlock()
	if !ok {
		return notRegistered(id)
	}
	for _, l := range links {
		l.awaitQuiet(reg)
	}
	if !last {
		return nil
	}
	t.mu.Lock()
	t.removeLocked(reg)
	t.mu.Unlock()
	if err := t.deregister(reg); err != nil {
		return fail("deregister", "", err)
	}
	return nil
}

func notRegistered(id ports.Registration) error {
	return fail("deregister", "", fmt.Errorf("registration %d: %w", id, ports.ErrNotFound))
}

// Grant lets a start of a peer write to these pages.
func (t *Transport) Grant(writer ports.Peer, pageSize uint64, pages []domain.PageRef) (ports.GrantID, ports.GrantToken, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return 0, ports.GrantToken{}, fail("grant", writer.ID, ports.ErrClosed)
	}
	if err := t.checkPagesLocked(pageSize, pages); err != nil {
		return 0, ports.GrantToken{}, fail("grant", writer.ID, err)
	}
	t.mu.lastGr++
	g := newGrant(t.mu.lastGr, writer, runsOf(pageSize, pages, func(b uint32, off uint64) (uint32, uint64) { return t.mu.exposed[b].keyForWrites(off) }))
	t.mu.grants[g.id] = g
	return g.id, g.token, nil
}

func (t *Transport) checkPagesLocked(pageSize uint64, pages []domain.PageRef) error {
	if pageSize == 0 {
		return fmt.Errorf("page size 0, want at least 1: %w", domain.ErrInvalid)
	}
	for _, p := range pages {
		r, ok := t.mu.exposed[p.Buffer]
		if !ok {
			return fmt.Errorf("page of buffer %d, which is not exposed: %w", p.Buffer, ports.ErrBounds)
		}
		if n := r.len / pageSize; uint64(p.Page) >= n {
			return fmt.Errorf("page %d of buffer %d, which has %d: %w", p.Page, p.Buffer, n, ports.ErrBounds)
		}
	}
	return nil
}

// Revoke destroys the writer's queue pairs for writes of the links over which it opened the grant, unless it has reported quiet. It waits
// for no peer. An id that was never given is ErrNotFound.
func (t *Transport) Revoke(_ context.Context, id ports.GrantID, quiet ports.Quiet) error {
	t.mu.Lock()
	g, last := t.mu.grants[id], t.mu.lastGr
	t.mu.Unlock()
	if id == 0 || id > last {
		return fail("revoke", "", fmt.Errorf("grant %d, the last one is %d: %w", id, last, ports.ErrNotFound))
	}
	if g == nil {
		return nil
	}
	if t.enter() != nil {
		<-t.mu.shut // which ends every grant
		return nil
	}
	defer t.wg.Done()
	if err := t.endGrant(g, quiet); err != nil {
		return fail("revoke", g.writer.ID, err)
	}
	return nil
}

// endGrant lets nobody open the grant, fences who did, and only then forgets it: one that is not in the table any more is quiet.
func (t *Transport) endGrant(g *grant, quiet ports.Quiet) error {
	t.mu.Lock()
	g.revoked = true
	var over []*inbound
	for id := range g.by {
		if in := t.mu.inbound[id]; in != nil { // one that is gone has no queue pair
			over = append(over, in)
		}
	}
	t.mu.Unlock()
	if !quiet {
		for _, in := range over {
			if err := in.fence(); err != nil {
				return err
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.grants, g.id)
	return nil
}

// Drop ends the links of that start of a peer, and its grants.
func (t *Transport) Drop(from ports.Peer) {
	if t.enter() == nil { // Close ends them else
		defer t.wg.Done()
		t.drop(from)
	}
}

func (t *Transport) drop(from ports.Peer) {
	t.mu.Lock()
	var gone []*inbound
	for _, in := range t.mu.inbound {
		if in.from == from {
			gone = append(gone, in)
		}
	}
	var grants []*grant
	for _, g := range t.mu.grants {
		if g.writer == from {
			g.revoked = true
			grants = append(grants, g)
		}
	}
	t.mu.Unlock()
	var err error
	for _, in := range gone {
		err = errors.Join(err, t.forget(in, EventDropped))
	}
	if err != nil {
		return // the grants stay: what writes under them may still be there
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range grants { // only now: Revoke takes one that is not in the table any more for quiet
		delete(t.mu.grants, g.id)
	}
}

// Close ends our links and those into our memory, and returns when exposed and local memory is quiet. Twice is allowed.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.mu.closed {
		shut := t.mu.shut
		t.mu.Unlock()
		<-shut
		return nil
	}
	t.mu.closed, t.mu.shut = true, make(chan struct{})
	defer close(t.mu.shut)
	links := slices.Collect(maps.Keys(t.mu.links))
	in := slices.Collect(maps.Values(t.mu.inbound))
	pending := slices.Collect(maps.Keys(t.mu.pending))
	t.mu.Unlock()
	for _, l := range links {
		l.end(ports.ErrReset)
	}
	for _, i := range in {
		_ = t.forget(i, EventDropped) // what stays keeps the protection domain, of which release tells
	}
	for _, l := range links {
		<-l.done
	}
	for _, p := range pending { // whoever has it in hand finds it closed
		_ = p.Close() // what stays keeps the protection domain, of which release tells
	}
	close(t.stop)
	t.inbox.until(past)
	t.wg.Wait()
	t.mu.Lock()
	all := *t.table.Load()
	t.table.Store(&regions{})
	clear(t.mu.local)
	clear(t.mu.grants)
	t.mu.Unlock()
	var errs []error
	for _, r := range all {
		errs = append(errs, t.deregister(r))
	}
	if err := errors.Join(append(errs, t.release())...); err != nil {
		return fail("close", "", err)
	}
	return nil
}

// Offer makes queue pairs of ours, which the answer connects.
func (t *Transport) Offer(_ context.Context, to ports.PeerID) (ports.PendingLink, error) {
	if err := t.enter(); err != nil {
		return nil, fail("offer", to, err)
	}
	defer t.wg.Done()
	p, err := t.offer(to)
	if err != nil {
		return nil, fail("offer", to, err)
	}
	t.mu.Lock()
	if !t.mu.closed {
		t.mu.pending[p] = struct{}{}
		t.mu.Unlock()
		return p, nil
	}
	t.mu.Unlock()
	return nil, fail("offer", to, errors.Join(ports.ErrClosed, p.Close()))
}

type counters struct {
	events              [NumEvents]atomic.Uint64
	completions         [NumStatuses]atomic.Uint64
	registered, regions atomic.Int64
}

func (c *counters) note(e Event) { c.events[e].Add(1) }

// undestroyed counts a queue pair that could not be destroyed, and warns of the first. Close has not got past t.wg: the caller is in it, or
// is a link's goroutine, for which Close waits before.
func (t *Transport) undestroyed(err error) {
	t.counts.note(EventUndestroyed)
	if t.cfg.Warn != nil {
		t.warned.Do(func() { t.wg.Go(func() { t.cfg.Warn(err) }) })
	}
}
