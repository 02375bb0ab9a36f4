package bench

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// fakeNet is nodes that are maps under one lock. They keep what a workload relies on: bytes by position, exact LRU by pages,
// what is missing is fetched once and counted, and what is complete is local. Tampering makes them lie.
type fakeNet struct {
	mu     sync.Mutex
	nodes  []*fakePool
	closed int
	tamper fakeTamper
}

// fakeTamper is how the nodes lie; nil members do not.
type fakeTamper struct {
	get     func(g *ports.GetBatch, out []ports.Result) // after a ranged get
	skip    func(name string) bool                      // hits of it write nothing
	put     func(name string, b []byte)                 // on what a ranged put stores
	install func(name string, b []byte)                 // on what becomes local by reads
	stats   func(s *ports.Stats)
	getErr  error
}

type fakePool struct {
	ports.Pool // what is not below is not called
	net        *fakeNet
	id         ports.PeerID
	spec       NodeSpec
	mode       domain.LocalityMode
	noPrefetch bool
	used       uint64
	objects    map[string]*list.Element
	lru        *list.List // of *fakeObject, the next victim first
	filling    map[string]*domain.Extents
	stats      ports.Stats
	opened     atomic.Uint64
	sessions   atomic.Int64 // that are open
}

type fakeObject struct {
	name string
	b    []byte
}

var _ ports.Pool = (*fakePool)(nil)

// openFake is an OpenCluster that remembers what it opened last.
func (n *fakeNet) open(_ context.Context, spec ClusterSpec) (*Cluster, error) {
	n.nodes = nil
	c := &Cluster{}
	for i, s := range spec.Nodes {
		p := &fakePool{net: n, id: ports.PeerID(fmt.Sprintf("fake-%d", i)), spec: s, mode: spec.Locality, noPrefetch: spec.NoPrefetch,
			objects: map[string]*list.Element{}, lru: list.New(), filling: map[string]*domain.Extents{}}
		n.nodes = append(n.nodes, p)
		c.Nodes = append(c.Nodes, Node{ID: p.id, Pool: p})
		c.Closers = append(c.Closers, p.Close)
	}
	return c, nil
}

func (p *fakePool) pages(size int) uint64 {
	return (uint64(size) + p.spec.PageBytes - 1) / p.spec.PageBytes * p.spec.PageBytes
}

// storeLocked evicts what it must and reports whether there is room.
func (p *fakePool) storeLocked(name string, b []byte) bool {
	need := p.pages(len(b))
	if need > p.spec.MediumBytes {
		return false
	}
	for p.used+need > p.spec.MediumBytes {
		p.dropLocked(p.lru.Front().Value.(*fakeObject).name)
	}
	p.used += need
	p.objects[name] = p.lru.PushBack(&fakeObject{name, b})
	return true
}

func (p *fakePool) dropLocked(name string) bool {
	e, ok := p.objects[name]
	if ok {
		p.used -= p.pages(len(e.Value.(*fakeObject).b))
		p.lru.Remove(e)
		delete(p.objects, name)
	}
	return ok
}

func (p *fakePool) lookLocked(name string) []byte {
	if e, ok := p.objects[name]; ok {
		return e.Value.(*fakeObject).b
	}
	return nil
}

// remoteLocked is the object at another node.
func (p *fakePool) remoteLocked(name string) []byte {
	for _, o := range p.net.nodes {
		if b := o.lookLocked(name); o != p && b != nil {
			return b
		}
	}
	return nil
}

func (p *fakePool) Put(_ context.Context, ns, name string, b ports.HostRegion) ports.Result {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	return p.putLocked(ns+"/"+name, slices.Clone(b.Bytes()))
}

func (p *fakePool) putLocked(name string, b []byte) ports.Result {
	switch {
	case p.lookLocked(name) != nil:
		p.lru.MoveToBack(p.objects[name])
		return ports.Result{Status: ports.Exists}
	case !p.storeLocked(name, b):
		return ports.Result{Status: ports.NoSpace}
	}
	p.stats.PutBytes += uint64(len(b))
	return ports.Result{Status: ports.Stored}
}

func (p *fakePool) BatchPut(_ context.Context, w *ports.WholeBatch, out []ports.Result) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	for i, name := range w.Keys {
		t := w.Targets[i]
		b := w.Regions[t.Region].Region.(ports.HostRegion).Bytes()[t.Off : t.Off+t.Len]
		out[i] = p.putLocked(w.Namespace+"/"+name, slices.Clone(b))
	}
	return nil
}

func (p *fakePool) BatchPutRanges(ctx context.Context, w *ports.PutBatch, out []ports.Result) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if ctx.Err() != nil {
		for i := range out {
			out[i].Status = ports.Cancelled
		}
		return nil
	}
	to := p
	for _, o := range p.net.nodes {
		if o.id == w.To {
			to = o
		}
	}
	lo := uint32(0)
	for i, name := range w.Keys {
		b := make([]byte, w.Sizes[i])
		for _, r := range w.Ranges[lo:w.End[i]] {
			copy(b[r.Off:r.Off+r.Len], w.Regions[r.Region].Region.(ports.HostRegion).Bytes()[r.RegionOff:])
		}
		lo = w.End[i]
		if p.net.tamper.put != nil {
			p.net.tamper.put(name, b)
		}
		out[i] = to.putLocked(w.Namespace+"/"+name, b)
		if to != p {
			p.stats.Wire[ports.PurposePut] += uint64(len(b))
		}
	}
	return nil
}

func (p *fakePool) Get(_ context.Context, ns, name string, b ports.HostRegion) ports.Result {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	return p.getLocked(ns+"/"+name, []domain.Range{{Len: b.Len()}}, b.Bytes())
}

func (p *fakePool) BatchGet(context.Context, *ports.WholeBatch, []ports.Result) error {
	panic("not used by workloads")
}

func (p *fakePool) BatchGetRanges(_ context.Context, g *ports.GetBatch, out []ports.Result) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.net.tamper.getErr != nil {
		return p.net.tamper.getErr
	}
	lo := uint32(0)
	for i, name := range g.Keys {
		out[i] = p.getLocked(g.Namespace+"/"+name, g.Ranges[lo:g.End[i]], g.Regions[0].Region.(ports.HostRegion).Bytes())
		lo = g.End[i]
	}
	if p.net.tamper.get != nil {
		p.net.tamper.get(g, out)
	}
	return nil
}

func (p *fakePool) getLocked(name string, ranges []domain.Range, dst []byte) ports.Result {
	b := p.lookLocked(name)
	var fetched uint64
	if b != nil {
		p.lru.MoveToBack(p.objects[name])
	} else if b = p.remoteLocked(name); b == nil {
		return ports.Result{Status: ports.NotFound}
	} else {
		fetched = p.fetchLocked(name, b, ranges)
	}
	if p.net.tamper.skip != nil && p.net.tamper.skip(name) {
		ranges = nil
	}
	for _, r := range ranges {
		copy(dst[r.RegionOff:r.RegionOff+r.Len], b[r.Off:r.Off+r.Len])
	}
	return ports.Result{Status: ports.Hit, Size: uint64(len(b)), Fetched: fetched}
}

// fetchLocked counts what is missing, once; what is complete becomes local. In pull mode the rest follows at once, unless the
// pull is off.
func (p *fakePool) fetchLocked(name string, b []byte, ranges []domain.Range) (fetched uint64) {
	var asked uint64
	for _, r := range ranges {
		asked += r.Len
	}
	size := uint64(len(b))
	switch {
	case p.mode == domain.LocalityOff || p.mode == domain.LocalityPullOnly && p.noPrefetch && asked < size:
		p.stats.Wire[ports.PurposeGet] += asked
		return asked
	case p.mode == domain.LocalityPullOnly:
		p.stats.Wire[ports.PurposeGet] += asked
		p.stats.Wire[ports.PurposePull] += size - asked
		p.installLocked(name, b)
		return asked
	}
	held := p.filling[name]
	if held == nil {
		held = &domain.Extents{}
		p.filling[name] = held
	}
	for _, r := range ranges {
		run := domain.Run{Off: r.Off, Len: r.Len}
		fetched += r.Len - held.Overlap(run)
		held.Add(run)
	}
	p.stats.Wire[ports.PurposeGet] += fetched
	if held.Complete(size) {
		p.installLocked(name, b)
	}
	return fetched
}

func (p *fakePool) installLocked(name string, b []byte) {
	delete(p.filling, name)
	b = slices.Clone(b)
	if p.net.tamper.install != nil {
		p.net.tamper.install(name, b)
	}
	if p.storeLocked(name, b) {
		p.stats.InstalledBytes[domain.LocalBySlot] += uint64(len(b))
	}
}

func (p *fakePool) BatchExists(_ context.Context, ns string, names []string, _ time.Duration, found []bool) (int, error) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	leading := len(names)
	for i, name := range names {
		name = ns + "/" + name
		found[i] = p.lookLocked(name) != nil || p.remoteLocked(name) != nil
		if !found[i] {
			leading = min(leading, i)
		}
	}
	return leading, nil
}

func (p *fakePool) Remove(_ context.Context, ns string, names []string, out []ports.Removal) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	for i, name := range names {
		out[i] = ports.Removal{}
		for _, o := range p.net.nodes {
			out[i].Found = o.dropLocked(ns+"/"+name) || out[i].Found
		}
	}
	return nil
}

func (p *fakePool) Stats() ports.Stats {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	s := p.stats
	s.NeededBytes = s.Wire[ports.PurposeGet] + s.Wire[ports.PurposePull] // each byte comes once
	if p.net.tamper.stats != nil {
		p.net.tamper.stats(&s)
	}
	return s
}

func (p *fakePool) Close() error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.net.closed++
	if n := p.sessions.Load(); n != 0 {
		return fmt.Errorf("%d sessions are open", n)
	}
	return nil
}

func (p *fakePool) OpenRead(context.Context, string) (ports.SessionID, error) {
	p.sessions.Add(1)
	return ports.SessionID(p.opened.Add(1)), nil
}

func (p *fakePool) CloseRead(ports.SessionID) error {
	p.sessions.Add(-1)
	return nil
}

func (p *fakePool) Clear(context.Context) error                            { panic("not used") }
func (p *fakePool) DeregisterMemory(context.Context, ports.MemoryID) error { panic("not used") }
func (p *fakePool) Size(context.Context, string, string) (uint64, error)   { panic("not used") }
func (p *fakePool) RegisterMemory(context.Context, ports.Region) (ports.Memory, error) {
	panic("not used")
}

// mustPools parses a spec that is right.
func mustPools(t *testing.T, spec string) []Pool {
	t.Helper()
	pools, err := ParsePools(spec)
	require.NoError(t, err)
	return pools
}

func mustShape(t *testing.T, spec string) Shape {
	t.Helper()
	s, err := NewShape(0, mustPools(t, spec))
	require.NoError(t, err)
	return s
}
