package app_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// namespace of every key, where a test has no reason for another.
const namespace = "ns"

const kib = uint64(1) << 10

// tb is what a world needs of its test; *testing.T and *rapid.T have it.
type tb interface {
	require.TestingT
	Helper()
	Cleanup(func())
	Context() context.Context
	Logf(format string, args ...any)
}

// bubble runs a claim in virtual time, over contiguous pages and over scattered ones. Whatever the claim did, nothing of it may be
// left behind: the world's checks at its end see to that.
func bubble(t *testing.T, claim func(t *testing.T, w *world)) {
	t.Helper()
	for _, scatter := range []bool{false, true} {
		t.Run(map[bool]string{false: "contiguous", true: "scattered"}[scatter], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim(t, newWorld(t, scatter))
			})
		})
	}
}

// virtual is the time of the bubble as a ports.Clock; outside of one, the time since the world began.
type virtual struct{ origin time.Time }

func (v virtual) Now() domain.Instant {
	return domain.Instant(time.Since(v.origin)) + domain.Instant(time.Hour)
}

// put is one put of a key: what its bytes are.
type put struct {
	content uint64 // of the pattern
	size    uint64
}

// world is some nodes in one network, and the book of all that was put: whatever a read returns must be one put's bytes.
type world struct {
	t       tb
	net     *inproc.Network
	clock   virtual
	scatter bool
	lasting bool // leases that outlive the test: then no page can be asked back

	mu struct {
		sync.Mutex
		nodes []*node
		puts  map[string][]put
	}
}

func newWorld(t tb, scatter bool) *world { return newWorldOver(t, scatter, nil) }

// newWorldOver is a world whose nodes are joined by a modelled link.
func newWorldOver(t tb, scatter bool, link *inproc.LinkModel) *world {
	t.Helper()
	w := &world{t: t, clock: virtual{time.Now()}, scatter: scatter}
	w.net = inproc.NewNetwork(inproc.Options{Clock: w.clock, Link: link})
	w.mu.puts = make(map[string][]put)
	t.Cleanup(w.end)
	return w
}

// place is a node's options. The zero value is a node of 64 pages of 64 KiB with arenas of 256 KiB.
type place struct {
	app.Config
	page, pages uint64 // of the medium
	noMedium    bool
	buffers     int
	offHeap     bool   // where bytes are reused while another node may read them: the race detector is right, and it is the point
	get, put    uint64 // bytes of the arenas; arenaOff: none
	link        uint64 // bytes that calls have on a link at once; 0: domain.LinkInFlight
	bare        bool   // without the fault wrappers, which allocate
	registered  bool   // callers' memory is, for the calls that use it
	patterns    bool   // ranges are asked for by patterns
	ports       func(*app.Ports)
}

const arenaOff = ^uint64(0)

// node is a node under test. Its Stats goes through the register of what was moved.
type node struct {
	*app.Node
	w      *world
	id     ports.PeerID
	place  place
	ep     *inproc.Endpoint
	faults *faults.Injector
	plan   atomic.Pointer[faults.Plan]
	medium ports.Medium
	arenas [2]ports.Medium
	down   bool
}

// node opens a node, and closes it with the world.
func (w *world) node(id ports.PeerID, p place) *node {
	w.t.Helper()
	p.page, p.pages = orElse(p.page, 64*kib), orElse(p.pages, 64)
	p.get, p.put = orElse(p.get, 256*kib), orElse(p.put, 256*kib)
	n := &node{w: w, id: id, place: p}
	n.medium, n.arenas = w.memory(p)
	n.start()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.nodes = append(w.mu.nodes, n)
	return n
}

// pair is a node that owns and a node that reads.
func (w *world) pair(owner, reader place) (a, b *node) {
	w.t.Helper()
	return w.node("a", owner), w.node("b", reader)
}

func orElse(n, otherwise uint64) uint64 {
	if n != 0 {
		return n
	}
	return otherwise
}

func (w *world) memory(p place) (medium ports.Medium, arenas [2]ports.Medium) {
	open := func(c dram.Config) ports.Medium {
		c.Backing = dram.HeapForTesting
		if p.offHeap {
			c.Backing = dram.Anonymous
		}
		m, err := dram.Open(c)
		require.NoError(w.t, err)
		return m
	}
	if !p.noMedium {
		c := dram.Config{Bytes: p.page * p.pages, PageSize: p.page, Buffers: p.buffers}
		if w.scatter && c.Buffers == 0 && p.pages >= 3 {
			c.Buffers = 3
		}
		medium = open(c)
	}
	for i, bytes := range [2]uint64{p.get, p.put} {
		if bytes != arenaOff {
			arenas[i] = open(dram.Config{Bytes: bytes, PageSize: bytes})
		}
	}
	return medium, arenas
}

// poison fills the medium and the arenas of a node that holds nothing yet, so that what is written there shows.
func (n *node) poison() {
	for _, m := range []ports.Medium{n.medium, n.arenas[0], n.arenas[1]} {
		for _, r := range m.Buffers() {
			pattern.Poison(r.(ports.HostRegion).Bytes())
		}
	}
}

// start begins a start of the node over its memory.
func (n *node) start() {
	w := n.w
	w.t.Helper()
	n.ep = w.net.Endpoint(n.id)
	p := app.Ports{Clock: w.clock, Copier: dram.NewCopier(), Transports: []ports.Transport{n.ep.Transport()}, Resolver: n.ep.Resolver(),
		Writer: n.ep.Writer(), Directory: n.ep.Directory(), Medium: n.medium, GetArena: n.arenas[0], PutArena: n.arenas[1]}
	if !n.place.bare {
		n.faults = faults.New(n.decide)
		n.faults.Time = w.clock
		p.Copier, p.Resolver, p.Writer = n.faults.Copier(p.Copier), n.faults.Resolver(p.Resolver), n.faults.Writer(p.Writer)
		p.Directory, p.Transports[0] = n.faults.Directory(p.Directory), n.faults.Transport(p.Transports[0])
	}
	if n.place.ports != nil {
		n.place.ports(&p)
	}
	c := n.place.Config
	c.ID, c.Scatter = n.id, w.scatter
	var err error
	n.Node, err = app.New(c, p)
	require.NoError(w.t, err)
	n.LimitLinksForTesting(orElse(n.place.link, domain.LinkInFlight))
	require.NoError(w.t, n.ep.Start(n.Self(), n.PeerServer()))
	n.down = false
}

// fail sets what goes wrong at the node's ports from now on; nothing, when there are no plans.
func (n *node) fail(plans ...faults.Plan) {
	all := faults.First(plans...)
	n.plan.Store(&all)
}

func (n *node) decide(c faults.Call) faults.Verdict {
	if p := n.plan.Load(); p != nil {
		return (*p)(c)
	}
	return faults.Verdict{}
}

// stop is the end of a start, as its peers see a death; nothing of it is left.
func (n *node) stop() {
	n.w.t.Helper()
	moved.note(n.Node.Stats())
	n.ep.Stop()
	require.NoError(n.w.t, n.Close())
	s := n.Node.Stats()
	n.w.conserved(n.id, s)
	require.Zero(n.w.t, s.Calls, "%s: calls after Close", n.id)
	require.Zero(n.w.t, s.Table.Pins, "%s: pins after Close", n.id)
	n.down = true
}

// conserved is what adds up in the counts of every node at rest, whatever was done to it.
func (w *world) conserved(id ports.PeerID, s ports.Stats) {
	w.t.Helper()
	sum := func(of ...uint64) (all uint64) {
		for _, v := range of {
			all += v
		}
		return all
	}
	outcomes := func(kinds ...ports.BatchKind) (by [ports.NumSources][ports.NumOutcomes]uint64) {
		for _, k := range kinds {
			for route := range by {
				for o := range by[route] {
					by[route][o] += s.Outcomes[k][route][o]
				}
			}
		}
		return by
	}
	gets, puts := outcomes(ports.BatchGetRanges, ports.BatchGetWhole), outcomes(ports.BatchPutRanges, ports.BatchPutWhole)
	var asked, given, done, stored, existed uint64
	for route := range gets {
		asked, given = asked+sum(gets[route][:]...), given+sum(puts[route][:]...)
		require.Equal(w.t, s.GetSources[route], gets[route][ports.OutcomeDone], "%s: hits by route %s", id, ports.Source(route))
		done, stored, existed = done+gets[route][ports.OutcomeDone], stored+puts[route][ports.OutcomeDone], existed+puts[route][ports.OutcomeExists]
	}
	require.Equal(w.t, sum(s.GetKeys[:]...), asked, "%s: asked = hits + each kind of failure", id)
	require.Equal(w.t, sum(s.PutKeys[:]...), given, "%s: given = stored + existed + each kind of failure", id)
	require.Equal(w.t, [3]uint64{s.GetKeys[ports.Hit], s.PutKeys[ports.Stored], s.PutKeys[ports.Exists]}, [3]uint64{done, stored, existed},
		"%s: outcomes and statuses", id)
	require.Equal(w.t, s.PullQueued, s.PullDone+s.PullDropped+s.PullFailed, "%s: queued = done + dropped + failed", id)
	require.Equal(w.t, s.Wire[ports.PurposeGet]+s.Wire[ports.PurposePull], s.NeededBytes+s.DuplicateBytes, "%s: get + pull = needed + duplicate", id)
	var wire [ports.NumPurposes]uint64
	for _, p := range s.Peers {
		for i, n := range p.Wire {
			wire[i] += n
		}
	}
	require.Equal(w.t, s.Wire, wire, "%s: what crossed, crossed to some peer", id)
}

// restart is another start on the same memory, which holds nothing any more.
func (n *node) restart() {
	n.w.t.Helper()
	if !n.down {
		n.stop()
	}
	n.start()
}

// Stats notes in the register what has moved.
func (n *node) Stats() ports.Stats {
	s := n.Node.Stats()
	moved.note(s)
	return s
}

// pass lets time go by, virtual in a bubble.
func (w *world) pass(d time.Duration) { <-time.After(d) }

// settle waits until no call, no pull and no fence is under way.
func (w *world) settle() {
	w.t.Helper()
	for _, n := range w.alive() {
		var s ports.Stats
		w.await(func() bool {
			s = n.Stats()
			return s.Calls == 0 && s.PullWaiting == 0 && s.RevokesPending == 0
		}, func() string {
			return fmt.Sprintf("%s does not come to rest: %d calls, %d pulls, %d revokes", n.id, s.Calls, s.PullWaiting, s.RevokesPending)
		})
	}
}

// await looks at a condition ever less often, for two minutes.
func (w *world) await(met func() bool, what func() string) {
	w.t.Helper()
	until := w.clock.Now().Add(2 * time.Minute)
	for step := time.Millisecond; !met(); step = min(2*step, time.Second) {
		if w.clock.Now() > until {
			require.FailNow(w.t, what())
		}
		w.pass(step)
	}
}

func (w *world) alive() (nodes []*node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.mu.nodes {
		if !n.down {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// end checks that nothing is left: no pin at rest; every page, every slice and every call after a clear and the end of the leases.
func (w *world) end() {
	w.t.Helper()
	defer func() { require.NoError(w.t, w.net.Close()) }()
	for _, n := range w.alive() {
		n.fail()
	}
	w.settle()
	for _, n := range w.alive() {
		var s ports.Stats
		w.await(func() bool { // a peer's complaint may be looked into
			s = n.Stats()
			return s.Table.Pins == 0
		}, func() string { return fmt.Sprintf("%s: %d pins at rest", n.id, s.Table.Pins) })
		require.NoError(w.t, n.Clear(context.Background()))
	}
	for _, n := range w.alive() {
		var s ports.Stats
		w.await(func() bool {
			s = n.Stats()
			return w.lasting || s.Table.PagesFree == s.Table.PagesTotal && s.ArenaUsed == [2]uint64{} && s.RevokesPending == 0
		}, func() string {
			return fmt.Sprintf("%s: %d of %d pages free, %v of the arenas used after a clear", n.id, s.Table.PagesFree, s.Table.PagesTotal, s.ArenaUsed)
		})
	}
	for _, n := range w.alive() {
		n.stop()
	}
	for _, n := range w.mu.nodes {
		for _, m := range []ports.Medium{n.medium, n.arenas[0], n.arenas[1]} {
			if m != nil {
				require.NoError(w.t, m.Close())
			}
		}
	}
}

// arena is the memory of the get arena (0) or the put arena (1).
func (n *node) arena(i int) []byte { return n.arenas[i].Buffers()[0].(ports.HostRegion).Bytes() }

// note books a put before it is made, so that who reads meanwhile may see it.
func (w *world) note(key string, p put) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.mu.puts[key], p) {
		w.mu.puts[key] = append(w.mu.puts[key], p)
	}
}

// putsOf is every put of a key so far.
func (w *world) putsOf(key string) []put {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.puts[key])
}

// bytesOf is the bytes of put number salt of a key.
func bytesOf(key string, salt, size uint64) []byte {
	b := make([]byte, size)
	pattern.Fill(b, pattern.KeyOf(key, salt), 0)
	return b
}

// put stores keys of one size on the node, and requires that it did.
func (n *node) put(size uint64, keys ...string) {
	n.w.t.Helper()
	for _, key := range keys {
		r := n.putAs(key, 0, size)
		require.Equal(n.w.t, ports.Stored, r.Status, "put %q on %s: %v", key, n.id, r.Err)
	}
}

// putAs puts content number salt under a key.
func (n *node) putAs(key string, salt, size uint64) ports.Result {
	n.w.note(key, put{pattern.KeyOf(key, salt), size})
	return n.Put(context.Background(), namespace, key, ports.HostRegionOf(bytesOf(key, salt, size)))
}

// putTo puts keys of one size to a peer, each cut into as many ranges, which lie in memory in reverse order.
func (n *node) putTo(ctx context.Context, to ports.PeerID, salt, size, cuts uint64, keys ...string) []ports.Result {
	n.w.t.Helper()
	p := ports.PutBatch{Namespace: namespace, Keys: keys, To: to}
	for i, key := range keys {
		n.w.note(key, put{pattern.KeyOf(key, salt), size})
		whole := bytesOf(key, salt, size)
		mem := make([]byte, 0, size)
		for c := cuts; c > 0; c-- {
			lo, hi := size*(c-1)/cuts, size*c/cuts
			p.Ranges = append(p.Ranges, domain.Range{Off: lo, Len: hi - lo, Region: uint32(i), RegionOff: uint64(len(mem))})
			mem = append(mem, whole[lo:hi]...)
		}
		p.Regions = append(p.Regions, ports.Memory{Region: ports.HostRegionOf(mem)})
		p.Sizes, p.End = append(p.Sizes, size), append(p.End, uint32(len(p.Ranges)))
	}
	defer n.register(p.Regions)()
	out := make([]ports.Result, len(keys))
	require.NoError(n.w.t, n.BatchPutRanges(ctx, &p, out))
	return out
}

// want is what a read asks of one key.
type want struct {
	key  string
	runs []domain.Run
	room uint64 // whole reads: of the destination
}

// part asks for one run.
func part(key string, off, n uint64) want {
	return want{key: key, runs: []domain.Run{{Off: off, Len: n}}}
}

// parts asks for several, in this order.
func parts(key string, runs ...domain.Run) want { return want{key: key, runs: runs} }

// whole asks for an object of that size by BatchGetRanges.
func whole(key string, room uint64) want {
	return want{key: key, runs: []domain.Run{{Len: domain.Whole}}, room: room}
}

func partsOf(keys []string, off, n uint64) (wants []want) {
	for _, k := range keys {
		wants = append(wants, part(k, off, n))
	}
	return wants
}

func keys(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%d", prefix, i))
	}
	return names
}

// guard is the bytes between destinations.
const guard = 64

// read is one call under way: its batch, its poisoned destination, and how it ended.
type read struct {
	n     *node
	wants []want
	batch ports.GetBatch
	mem   []byte
	out   []ports.Result
	err   error

	forget func() // what was registered
}

// prepare lays the destinations out, with guard bytes around each.
func (n *node) prepare(session ports.SessionID, wants ...want) *read {
	r := &read{n: n, wants: wants, out: make([]ports.Result, len(wants))}
	r.batch = ports.GetBatch{Namespace: namespace, Session: session}
	at := uint64(guard)
	for _, want := range wants {
		r.batch.Keys = append(r.batch.Keys, want.key)
		for _, run := range want.runs {
			r.batch.Ranges = append(r.batch.Ranges, domain.Range{Off: run.Off, Len: run.Len, RegionOff: at})
			at += room(want, run) + guard
		}
		r.batch.End = append(r.batch.End, uint32(len(r.batch.Ranges)))
	}
	r.mem = make([]byte, at)
	pattern.Poison(r.mem)
	r.batch.Regions = []ports.Memory{{Region: ports.HostRegionOf(r.mem)}}
	for i, want := range wants { // a whole range takes all of its region, so it has one of its own
		if want.runs == nil || want.runs[0].Len != domain.Whole {
			continue
		}
		first := 0
		if i > 0 {
			first = int(r.batch.End[i-1])
		}
		g := &r.batch.Ranges[first]
		r.batch.Regions = append(r.batch.Regions, ports.Memory{Region: ports.HostRegionOf(r.mem[g.RegionOff : g.RegionOff+want.room])})
		g.Region, g.RegionOff = uint32(len(r.batch.Regions))-1, 0
	}
	r.forget = n.register(r.batch.Regions)
	if n.place.patterns {
		r.byPatterns()
	}
	return r
}

// byPatterns asks for the same by a pattern for each key, in a row of its own; whole ranges have none.
func (r *read) byPatterns() {
	lo := uint32(0)
	for i, hi := range r.batch.End {
		p := ports.Pattern{Rows: []uint64{uint64(i)}}
		for j, g := range r.batch.Ranges[lo:hi] {
			if g.Len == domain.Whole {
				r.batch.Patterns = nil
				return
			}
			stride := min(uint64(guard+j), g.RegionOff/max(uint64(i), 1))
			p.Ranges = append(p.Ranges, domain.PatternRange{Off: g.Off, Len: g.Len, Region: g.Region, Base: g.RegionOff - uint64(i)*stride, Stride: stride})
		}
		r.batch.Patterns = append(r.batch.Patterns, p)
		lo = hi
	}
	r.batch.End, r.batch.Ranges = nil, nil
}

// register registers a table of memory where the node's callers do so, and returns what ends that at the same start of the node.
func (n *node) register(table []ports.Memory) (forget func()) {
	if !n.place.registered {
		return func() {}
	}
	at := n.Node
	for i := range table {
		m, err := at.RegisterMemory(context.Background(), table[i].Region)
		if errors.Is(err, ports.ErrClosed) {
			break
		}
		require.NoError(n.w.t, err)
		table[i] = m
	}
	return sync.OnceFunc(func() {
		for _, m := range table {
			if m.ID == 0 {
				continue
			}
			if err := at.DeregisterMemory(context.Background(), m.ID); !errors.Is(err, ports.ErrNotFound) { // that start has ended, and its transport with it
				require.NoError(n.w.t, err)
			}
		}
	})
}

func room(w want, r domain.Run) uint64 {
	if r.Len == domain.Whole {
		return w.room
	}
	return r.Len
}

func (r *read) run(ctx context.Context) *read {
	r.err = r.n.BatchGetRanges(ctx, &r.batch, r.out)
	return r
}

// check holds the results against the book: every hit is exactly one put's bytes, and no byte around the destinations was touched.
// It returns the number of the put that each hit showed; -1 for what is no hit.
func (r *read) check() []int {
	t := r.n.w.t
	t.Helper()
	shown := make([]int, len(r.wants))
	r.forget()
	at := uint64(0)
	for i, want := range r.wants {
		shown[i] = -1
		res := r.out[i]
		require.NotEqual(t, ports.StatusNone, res.Status, "%q has no status", want.key)
		require.Equal(t, res.Status == ports.Hit, res.Err == nil && res.Status != ports.NotFound, "%q: %v with %v", want.key, res.Status, res.Err)
		var dsts [][]byte
		for _, run := range want.runs {
			require.Equal(t, -1, pattern.CheckPoison(r.mem[at:at+guard]), "guard before %q [%d, +%d) was overwritten", want.key, run.Off, run.Len)
			at += guard
			dsts = append(dsts, r.mem[at:at+room(want, run)])
			at += room(want, run)
		}
		if res.Status == ports.Hit {
			shown[i] = r.n.w.requirePut(want, res, dsts)
		}
	}
	require.Equal(t, -1, pattern.CheckPoison(r.mem[at:]), "guard behind the last destination was overwritten")
	return shown
}

// requirePut finds the one put whose bytes a hit shows.
func (w *world) requirePut(want want, res ports.Result, dsts [][]byte) int {
	w.t.Helper()
	all := w.putsOf(want.key)
	var why strings.Builder
	for j, p := range all {
		if res.Size != p.size {
			why.WriteString(fmt.Sprintf("; put %d has %d bytes, the hit says %d", j, p.size, res.Size))
			continue
		}
		wrong := ""
		for k, run := range want.runs {
			d := dsts[k]
			if run.Len == domain.Whole {
				d = d[:min(p.size, uint64(len(d)))]
			}
			if at := pattern.Check(d, p.content, run.Off); at >= 0 {
				wrong = fmt.Sprintf("; put %d differs in run %d [%d, +%d) at byte %d", j, k, run.Off, len(d), at)
				break
			}
		}
		if wrong == "" {
			return j
		}
		why.WriteString(wrong)
	}
	require.FailNow(w.t, "a hit with nobody's bytes", "%q, %v from %v: of %d puts none matches%s", want.key, res.Status, res.Source, len(all), why.String())
	return -1
}

// get reads and checks.
func (n *node) get(wants ...want) []ports.Result {
	n.w.t.Helper()
	return n.getIn(context.Background(), 0, wants...)
}

// getIn reads in a session, under a context, and checks.
func (n *node) getIn(ctx context.Context, session ports.SessionID, wants ...want) []ports.Result {
	n.w.t.Helper()
	r := n.prepare(session, wants...).run(ctx)
	require.NoError(n.w.t, r.err)
	r.check()
	return r.out
}

// mustGet reads, checks, and requires that every key is a hit from that source.
func (n *node) mustGet(from ports.Source, wants ...want) []ports.Result {
	n.w.t.Helper()
	out := n.get(wants...)
	for i, r := range out {
		require.Equal(n.w.t, ports.Hit, r.Status, "%q: %v", wants[i].key, r.Err)
		require.Equal(n.w.t, from, r.Source, "source of %q", wants[i].key)
	}
	return out
}

// reading is a read on a goroutine of its own.
type reading struct {
	*read
	done chan struct{}
}

// begin starts a read and lets it go as far as it gets.
func (n *node) begin(ctx context.Context, session ports.SessionID, wants ...want) *reading {
	r := &reading{n.prepare(session, wants...), make(chan struct{})}
	go func() {
		defer close(r.done)
		r.run(ctx)
	}()
	return r
}

// wait ends a reading, and checks it.
func (r *reading) wait() []ports.Result {
	t := r.n.w.t
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		require.FailNow(t, "a read does not return")
	}
	require.NoError(t, r.err)
	r.check()
	return r.out
}

// wholeOf reads whole objects by BatchGet, and checks them.
func (n *node) getWhole(size uint64, names ...string) []ports.Result {
	n.w.t.Helper()
	var wants []want
	for _, key := range names {
		wants = append(wants, whole(key, size))
	}
	r := n.prepare(0, wants...)
	b := ports.WholeBatch{Namespace: namespace, Keys: names, Regions: r.batch.Regions}
	for _, g := range r.batch.Ranges {
		b.Targets = append(b.Targets, ports.Target{Region: g.Region, Off: g.RegionOff, Len: size})
	}
	require.NoError(n.w.t, n.BatchGet(context.Background(), &b, r.out))
	r.check()
	return r.out
}

// requireLocal requires that objects lie here, whole and right.
func (n *node) requireLocal(size uint64, names ...string) {
	n.w.t.Helper()
	before := n.Stats().Wire
	for i, r := range n.getWhole(size, names...) {
		require.Equal(n.w.t, ports.Hit, r.Status, "%q on %s: %v", names[i], n.id, r.Err)
		require.Equal(n.w.t, ports.FromLocal, r.Source, "%q on %s is not local", names[i], n.id)
	}
	require.Equal(n.w.t, before, n.Stats().Wire, "local reads moved bytes")
}

// committed is how many objects lie here.
func (n *node) committed() uint64 { return n.Stats().Table.Slots[domain.SlotCommitted] }

// geometries is page sizes for an object: the object itself, the usual ones, and one by which it has a prime number of pages.
func geometries(size uint64) map[string]uint64 {
	g := map[string]uint64{"page=object": size, "page=64KiB": 64 * kib, "page=4KiB": 4 * kib, "pages=13": (size + 12) / 13}
	return g
}

// overGeometries runs a claim for each page size that an object of that size is to lie on.
func overGeometries(t *testing.T, size uint64, claim func(t *testing.T, w *world, page, pages uint64)) {
	t.Helper()
	g := geometries(size)
	for _, name := range slices.Sorted(maps.Keys(g)) {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				page := g[name]
				claim(t, w, page, (size+page-1)/page)
			})
		})
	}
}
