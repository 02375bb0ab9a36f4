package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// model is what a world of nodes is held to: a plain map from keys to the puts that were begun, each published, not published, or
// removed everywhere; and for every call what it may say. Calls run beside each other; one goroutine, the test's, drives them and
// looks at how they ended.
type model struct {
	w        *world
	cfg      app.Config
	nodes    []*node
	layers   map[string][]uint64 // lengths of the runs by which a key is read, in object order
	records  map[string][]*record
	calls    []*modelCall
	ended    []*modelCall
	sessions []*modelSession
	asked    map[*app.Node]uint64 // keys of gets
	step     int

	mu struct {
		sync.Mutex
		armed []armedFault
		cut   map[[2]int]bool
	}
}

// record is one put. The number of a put of a key is its place in the world's book.
type record struct {
	never bool // it said that it published nothing
	gone  int  // the step from which on nobody may find it: it was removed everywhere while nothing was under way
}

// modelSession is a session with the put that its reads of each key were of.
type modelSession struct {
	id   ports.SessionID
	n    *node
	node *app.Node
	only map[string]int
}

// modelCall is a call, or a walk of several gets one after the other.
type modelCall struct {
	what    string
	begun   int // step
	node    *app.Node
	reads   []*read
	whole   bool // by BatchGet
	session *modelSession
	put     *record
	remote  bool
	limit   time.Duration // of each get
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}

	longest time.Duration
	results []ports.Result // of a put
	stamps  [][]byte
}

type armedFault struct {
	node         int
	port, method string
	v            faults.Verdict
}

func newModel(w *world, cfg app.Config, nodes int, p place, modes []domain.LocalityMode) *model {
	m := &model{w: w, cfg: cfg, layers: map[string][]uint64{}, records: map[string][]*record{}, asked: map[*app.Node]uint64{}}
	m.mu.cut = map[[2]int]bool{}
	for i := range nodes {
		p.Config = cfg
		p.Locality = modes[i%len(modes)]
		n := w.node(ports.PeerID(fmt.Sprint("n", i)), p)
		n.fail(func(c faults.Call) faults.Verdict { return m.take(i, c) })
		m.nodes = append(m.nodes, n)
	}
	return m
}

// take gives the oldest armed fault that fits a call, once.
func (m *model) take(node int, c faults.Call) faults.Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.mu.armed, func(f armedFault) bool { return f.node == node && f.port == c.Port && f.method == c.Method })
	if i < 0 {
		return faults.Verdict{}
	}
	v := m.mu.armed[i].v
	m.mu.armed = slices.Delete(m.mu.armed, i, i+1)
	return v
}

func (m *model) arm(f armedFault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.armed = append(m.mu.armed, f)
}

func (m *model) size(key string) (n uint64) {
	for _, l := range m.layers[key] {
		n += l
	}
	return n
}

// pick asks for layers of a key in the given order; none: for the whole object.
func (m *model) pick(key string, layers []int) want {
	if len(layers) == 0 {
		return whole(key, m.size(key)+bigger)
	}
	var runs []domain.Run
	for _, l := range layers {
		var off uint64
		for _, n := range m.layers[key][:l] {
			off += n
		}
		runs = append(runs, domain.Run{Off: off, Len: m.layers[key][l]})
	}
	return parts(key, runs...)
}

// bigger is by how many bytes some puts of a key are longer than others.
const bigger = 9

// get begins a call, or a walk, by a node. A limit that is not zero ends its context.
func (m *model) get(n *node, what string, s *modelSession, limit time.Duration, byBatchGet bool, reads ...[]want) {
	c := &modelCall{what: fmt.Sprintf("step %d: %s by %s", m.step, what, n.id), begun: m.step, node: n.Node, session: s, limit: limit, done: make(chan struct{}), whole: byBatchGet}
	var id ports.SessionID
	if s != nil {
		id, c.node = s.id, s.node
	}
	for _, wants := range reads {
		c.reads = append(c.reads, n.prepare(id, wants...))
	}
	m.begin(c, func() {
		for _, r := range c.reads {
			start := time.Now()
			c.one(r)
			c.longest = max(c.longest, time.Since(start))
		}
	})
}

func (m *model) begin(c *modelCall, run func()) {
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if c.limit > 0 {
		c.ctx, c.cancel = context.WithTimeout(context.Background(), c.limit)
	}
	m.calls = append(m.calls, c)
	go func() {
		defer close(c.done)
		run()
	}()
}

// one runs one get of a call.
func (c *modelCall) one(r *read) {
	if !c.whole {
		r.err = c.node.BatchGetRanges(c.ctx, &r.batch, r.out)
	} else {
		b := ports.WholeBatch{Namespace: namespace, Keys: r.batch.Keys, Regions: r.batch.Regions}
		for i, g := range r.batch.Ranges {
			b.Targets = append(b.Targets, ports.Target{Region: g.Region, Off: g.RegionOff, Len: r.wants[i].room})
		}
		r.err = c.node.BatchGet(c.ctx, &b, r.out)
	}
	c.stamps = append(c.stamps, bytes.Clone(r.mem))
}

// put begins a put by a node to itself or to a peer, cut as the key's layers are, last layer first in memory.
func (m *model) put(n, to *node, key string, big bool, limit time.Duration) {
	size, number := m.size(key), uint64(len(m.records[key]))
	lens := slices.Clone(m.layers[key])
	if big {
		size += bigger
		lens = append(lens, bigger)
	}
	rec := &record{}
	m.records[key] = append(m.records[key], rec)
	m.w.note(key, put{contentOf(key, number), size})
	p := ports.PutBatch{Namespace: namespace, Keys: []string{key}, Sizes: []uint64{size}, End: []uint32{uint32(len(lens))}, To: to.id}
	b, mem := bytesOf(key, number, size), make([]byte, 0, size)
	for end, i := size, len(lens)-1; i >= 0; i-- {
		p.Ranges = append(p.Ranges, domain.Range{Off: end - lens[i], Len: lens[i], RegionOff: uint64(len(mem))})
		mem = append(mem, b[end-lens[i]:end]...)
		end -= lens[i]
	}
	p.Regions = []ports.Memory{{Region: ports.HostRegionOf(mem)}}
	c := &modelCall{what: fmt.Sprintf("step %d: put %d of %s by %s to %s", m.step, number, key, n.id, to.id), begun: m.step, node: n.Node, put: rec, remote: to != n,
		limit: limit, done: make(chan struct{}), results: make([]ports.Result, 1)}
	m.begin(c, func() {
		start := time.Now()
		_ = c.node.BatchPutRanges(c.ctx, &p, c.results)
		c.longest = time.Since(start)
	})
}

// reap looks at the calls that have ended.
func (m *model) reap() {
	m.calls = slices.DeleteFunc(m.calls, func(c *modelCall) bool {
		select {
		case <-c.done:
		default:
			return false
		}
		c.cancel()
		if c.put != nil {
			m.checkPut(c)
		}
		for _, r := range c.reads {
			m.checkGet(c, r)
		}
		m.ended = append(m.ended, c)
		return true
	})
}

// checkPut takes in what a put said. A remote put whose commit was not answered may be one that published.
func (m *model) checkPut(c *modelCall) {
	t, r := m.w.t, c.results[0]
	bound := m.cfg.CallTimeout + 3*m.cfg.ControlTimeout // a commit, repeated, and an abort come after what the call's time bounds
	require.LessOrEqual(t, c.longest, bound, "%s took %v", c.what, c.longest)
	switch r.Status {
	case ports.Stored:
	case ports.Exists, ports.PeerUnavailable, ports.TransferFailed:
		c.put.never = !c.remote
	case ports.Conflict, ports.NoSpace, ports.Busy, ports.Cancelled, ports.CopyFailed, ports.Refused:
		c.put.never = true
	default:
		require.Fail(t, "a status that no put has", "%s: %v (%v)", c.what, r.Status, r.Err)
	}
}

// checkGet holds one get to the model: guards, bytes, versions, statuses, time.
func (m *model) checkGet(c *modelCall, r *read) {
	t := m.w.t
	if errors.Is(r.err, ports.ErrClosed) {
		return
	}
	if r.err != nil {
		require.ErrorIs(t, r.err, ports.ErrNotFound, "%s: only a closed session is malformed", c.what)
		require.NotNil(t, c.session, "%s: %v", c.what, r.err)
		m.asked[c.node] += uint64(len(r.wants)) // they count as invalid
		return
	}
	m.asked[c.node] += uint64(len(r.wants))
	bound := m.cfg.CallTimeout
	if c.limit > 0 {
		bound = min(bound, c.limit)
	}
	if r.n.place.registered { // then it waits for links that are still to let go of its memory
		bound += m.cfg.TransferTimeout
	}
	require.LessOrEqual(t, c.longest, bound, "%s took %v", c.what, c.longest)
	for i, number := range r.check() {
		key, s := r.wants[i].key, r.out[i].Status
		switch s {
		case ports.Hit:
			m.checkHit(c, key, number)
		case ports.NotFound, ports.PeerUnavailable, ports.TransferFailed, ports.Late, ports.NoSpace, ports.TooLarge, ports.Busy, ports.Cancelled, ports.CopyFailed, ports.Corrupt:
		default:
			require.Fail(t, "a status that no get has here", "%s of %s: %v (%v)", c.what, key, s, r.out[i].Err)
		}
		if s == ports.Cancelled && c.limit == 0 {
			require.NotSame(t, c.node, c.nodeNow(m), "%s of %s: cancelled, though nobody did (%v)", c.what, key, r.out[i].Err)
		}
	}
}

// nodeNow is the node of the call if it is still up.
func (c *modelCall) nodeNow(m *model) *app.Node {
	for _, n := range m.nodes {
		if n.Node == c.node && !n.down {
			return n.Node
		}
	}
	return nil
}

func (m *model) checkHit(c *modelCall, key string, number int) {
	rec := m.records[key][number]
	if rec.gone > 0 && c.session == nil {
		require.LessOrEqual(m.w.t, c.begun, rec.gone, "%s: put %d of %s, which was removed everywhere at step %d", c.what, number, key, rec.gone)
	}
	if c.session == nil {
		return
	}
	if before, known := c.session.only[key]; known {
		require.Equal(m.w.t, before, number, "%s: a session read two versions of %s", c.what, key)
	}
	c.session.only[key] = number
}

// quiesce waits for every call, and until nothing is under way on any node.
func (m *model) quiesce() {
	for _, c := range m.calls {
		select {
		case <-c.done:
		case <-time.After(time.Minute):
			require.Fail(m.w.t, "a call does not return", c.what)
		}
	}
	m.reap()
	m.w.settle()
}

// calm ends what disturbs, and lets breakers close and reservations end.
func (m *model) calm() {
	m.mu.Lock()
	m.mu.armed = nil
	cut := m.mu.cut
	m.mu.cut = map[[2]int]bool{}
	m.mu.Unlock()
	for c := range cut {
		m.w.net.Partition(m.nodes[c[0]].id, m.nodes[c[1]].id, false)
	}
	for _, n := range m.nodes {
		if n.down {
			n.start()
		}
	}
	m.quiesce()
	m.w.pass(m.cfg.Reservation + m.cfg.BreakerMax + m.cfg.PeerLease + 2*m.cfg.SweepEvery)
	m.w.settle()
}

// remove dooms a key everywhere. When nothing else was under way and every peer answered, no later read may find what was there;
// unless a session goes on with it under a lease that still runs, and makes it local again.
func (m *model) remove(n *node, key string, final bool) {
	out := make([]ports.Removal, 1)
	err := n.Remove(context.Background(), namespace, []string{key}, out)
	require.True(m.w.t, err == nil || !final, "step %d: remove of %s by %s: %v", m.step, key, n.id, err)
	kept := slices.ContainsFunc(m.sessions, func(s *modelSession) bool { _, known := s.only[key]; return known })
	if !final || kept || len(out[0].Unanswered) > 0 {
		return
	}
	for _, r := range m.records[key] {
		if r.gone == 0 {
			r.gone = m.step
		}
	}
}

// checkNodes holds the tables of all nodes to themselves.
func (m *model) checkNodes() {
	for _, n := range m.w.alive() {
		require.NoError(m.w.t, n.CheckForTesting(), "step %d: %s", m.step, n.id)
	}
}

// checkExists: at rest, what exists can be read, and what does not cannot.
func (m *model) checkExists(n *node, key string) {
	found := make([]bool, 1)
	_, err := n.BatchExists(context.Background(), namespace, []string{key}, 0, found)
	require.NoError(m.w.t, err)
	public := slices.ContainsFunc(m.records[key], func(r *record) bool { return !r.never && r.gone == 0 })
	require.True(m.w.t, public || !found[0], "step %d: %s exists at %s, and was never published or is removed", m.step, key, n.id)
	at := len(m.ended)
	m.get(n, "get of what exists", nil, 0, false, []want{m.pick(key, nil)})
	m.quiesce()
	r := m.ended[at].reads[0].out[0]
	if !found[0] {
		require.Equal(m.w.t, ports.NotFound, r.Status, "step %d: %s does not exist at %s: %v", m.step, key, n.id, r.Err)
		return
	}
	// A lease shorter than the way, or neither a slot nor an arena that holds it: then what exists cannot be had here.
	require.Contains(m.w.t, []ports.Status{ports.Hit, ports.Late, ports.TooLarge, ports.NoSpace}, r.Status, "step %d: %s exists at %s: %v", m.step, key, n.id, r.Err)
}

// finish brings everything to rest and checks that nothing is left, and that every hit stays right in the light of how the puts ended.
func (m *model) finish() {
	m.calm()
	m.checkNodes()
	for _, n := range m.w.alive() {
		s := n.Stats()
		require.NoError(m.w.t, n.CheckIdleForTesting(), "%s", n.id)
		require.Zero(m.w.t, s.Table.Pins, "%s: pins", n.id)
		var keys uint64
		for _, c := range s.GetKeys {
			keys += c
		}
		require.Equal(m.w.t, m.asked[n.Node], keys, "%s: keys that were asked for, and statuses %v", n.id, s.GetKeys)
		require.Equal(m.w.t, s.PullQueued, s.PullDone+s.PullDropped+s.PullFailed+s.PullWaiting, "%s: pulls", n.id)
	}
	for _, c := range m.ended {
		for i, r := range c.reads {
			require.True(m.w.t, bytes.Equal(c.stamps[i], r.mem), "%s: memory was written after the call had returned", c.what)
			if r.err != nil {
				continue
			}
			for j, number := range r.check() {
				if number >= 0 {
					require.False(m.w.t, m.records[r.wants[j].key][number].never, "%s: put %d of %s, which was never published", c.what, number, r.wants[j].key)
				}
			}
		}
	}
}

// tally counts what scripts came to.
func (m *model) tally(reached map[string]uint64) {
	for _, n := range m.w.alive() {
		s := n.Stats()
		for i, c := range s.GetKeys {
			reached[ports.Status(i).String()] += c
		}
		for i, c := range s.GetSources {
			reached[ports.Source(i).String()] += c
		}
		reached["joined"] += s.FlightsJoined
		reached["corrupt ranges"] += s.CorruptRanges
		reached["renewed"] += s.LeasesRenewed
		reached["stale"] += s.LeasesStale
		reached["pulled"] += s.PullDone
		reached["version switch"] += s.Downgrades[ports.DowngradeVersionSwitch]
		reached["late"] += s.Downgrades[ports.DowngradeLate]
		reached["no slot"] += s.Downgrades[ports.DowngradeNoSlot]
	}
}
