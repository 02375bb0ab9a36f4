package app_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// contentOf names the bytes of put number n of a key.
func contentOf(key string, n uint64) uint64 { return pattern.KeyOf(key, n) }

// op is what one step of a script does.
type op uint8

const (
	opPut op = iota
	opGet
	opGetWhole
	opWalk
	opOpen
	opClose
	opRemove
	opRemoveAtRest
	opClear
	opStop
	opCut
	opArm
	opExistsAtRest
	opSpoilAtRest
	opReuse
	opJoin
	opWait
	opQuiesce
)

var opNames = [...]string{"put", "get", "get whole", "walk", "open", "close", "remove", "remove at rest", "clear", "stop or start", "cut or heal", "arm",
	"exists at rest", "spoil at rest", "reuse", "join", "wait", "quiesce"}

// command is one step of a script. What a number names is taken modulo what there is.
type command struct {
	op       op
	node, to int
	keys     []int
	picks    [][]int // layers of each key, in the order asked for
	session  int     // 0: none
	limit    time.Duration
	after    time.Duration
	fault    int
	big      bool
}

func (c command) String() string {
	return fmt.Sprintf("%s node %d to %d keys %v picks %v session %d limit %v after %v fault %d big %v", opNames[c.op], c.node, c.to, c.keys, c.picks,
		c.session, c.limit, c.after, c.fault, c.big)
}

const modelKeys = 5

func modelKey(i int) string { return fmt.Sprint("key", i%modelKeys) }

// commandOf draws a command of the given kinds, each as often as it is listed.
func commandOf(kinds []op) *rapid.Generator[command] {
	return rapid.Custom(func(t *rapid.T) command {
		c := command{op: rapid.SampledFrom(kinds).Draw(t, "op"), node: rapid.IntRange(0, 2).Draw(t, "node")}
		c.after = time.Duration(rapid.SampledFrom([]int{0, 0, 0, 100, 700, 3_000, 12_000}).Draw(t, "after")) * time.Microsecond
		switch c.op {
		case opPut:
			c.to = rapid.IntRange(0, 2).Draw(t, "to")
			c.big = rapid.IntRange(0, 9).Draw(t, "big") == 9
			c.limit = drawLimit(t)
			c.keys = []int{rapid.IntRange(0, modelKeys-1).Draw(t, "key")}
		case opGet, opGetWhole, opWalk, opJoin:
			c.keys = rapid.SliceOfN(rapid.IntRange(0, modelKeys-1), 1, 3).Draw(t, "keys")
			c.session = rapid.IntRange(0, 3).Draw(t, "session")
			c.limit = drawLimit(t)
			for range c.keys {
				c.picks = append(c.picks, drawPick(t))
			}
		case opRemove, opRemoveAtRest, opExistsAtRest:
			c.keys = []int{rapid.IntRange(0, modelKeys-1).Draw(t, "key")}
		case opSpoilAtRest:
			c.to = rapid.IntRange(0, 2).Draw(t, "reader")
			c.keys = []int{rapid.IntRange(0, modelKeys-1).Draw(t, "key")}
		case opReuse:
			c.to = rapid.IntRange(0, 2).Draw(t, "owner")
			c.keys = rapid.SliceOfN(rapid.IntRange(0, modelKeys-1), 1, 3).Draw(t, "keys")
			for range c.keys {
				c.picks = append(c.picks, drawPick(t))
			}
		case opCut:
			c.to = rapid.IntRange(0, 2).Draw(t, "to")
		case opArm:
			c.fault = rapid.IntRange(0, len(modelFaults)-1).Draw(t, "fault")
		}
		return c
	})
}

func drawLimit(t *rapid.T) time.Duration {
	if rapid.IntRange(0, 7).Draw(t, "limited") < 7 {
		return 0
	}
	return time.Duration(rapid.SampledFrom([]int{1, 500, 2_000, 9_000}).Draw(t, "limit")) * time.Microsecond
}

// drawPick draws some layers of four, in any order.
func drawPick(t *rapid.T) []int {
	all := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "layers")
	return all[:rapid.IntRange(1, 4).Draw(t, "count")]
}

// modelFaults is what may be armed: once, at the next such call of a node.
var modelFaults = []struct {
	port, method string
	v            faults.Verdict
}{
	{"PeerResolver", "Resolve", faults.Verdict{Drop: true, Effect: true}},
	{"PeerResolver", "Resolve", faults.Verdict{Err: ports.ErrPeer}},
	{"PeerResolver", "Resolve", faults.Verdict{Short: true}},
	{"PeerResolver", "Resolve", faults.Verdict{After: faults.For(7 * time.Millisecond)}},
	{"PeerResolver", "Resolve", faults.Verdict{Before: faults.For(7 * time.Millisecond)}},
	{"PeerResolver", "Hello", faults.Verdict{Drop: true, Effect: true}},
	{"PeerResolver", "Hello", faults.Verdict{Err: ports.ErrTimeout}},
	{"PeerResolver", "Probe", faults.Verdict{Drop: true}},
	{"PeerResolver", "Probe", faults.Verdict{Err: ports.ErrRestarted, Effect: true}},
	{"Link", "Op", faults.Verdict{Before: faults.For(15 * time.Millisecond)}},
	{"Link", "Op", faults.Verdict{Before: faults.For(33 * time.Millisecond)}},
	{"Link", "Op", faults.Verdict{After: faults.For(15 * time.Millisecond)}},
	{"Link", "Op", faults.Verdict{Err: ports.ErrReset}},
	{"Link", "Op", faults.Verdict{Err: ports.ErrReset, Effect: true}},
	{"Link", "Op", faults.Verdict{Short: true}},
	{"Link", "Op", faults.Verdict{Err: ports.ErrBounds}},
	{"Link", "Op", faults.Verdict{Drop: true}},
	{"Link", "Op", faults.Verdict{Flip: true}},
	{"Link", "Op", faults.Verdict{Missum: true}},
	{"Link", "Submit", faults.Verdict{Err: ports.ErrReset}},
	{"PeerWriter", "Reserve", faults.Verdict{Drop: true, Effect: true}},
	{"PeerWriter", "Reserve", faults.Verdict{Err: ports.ErrPeer}},
	{"PeerWriter", "Commit", faults.Verdict{Drop: true, Effect: true}},
	{"PeerWriter", "Commit", faults.Verdict{Err: ports.ErrPeer, Effect: true}},
	{"PeerWriter", "Abort", faults.Verdict{Drop: true}},
	{"PeerWriter", "Remove", faults.Verdict{Err: ports.ErrPeer, Effect: true}},
	{"Copier", "Op", faults.Verdict{Err: ports.ErrBounds}},
	{"Copier", "Copy", faults.Verdict{Short: true}},
	{"Transport", "Grant", faults.Verdict{Err: ports.ErrNoSpace}},
	{"Transport", "Revoke", faults.Verdict{Err: ports.ErrTimeout}},
	{"Transport", "Answer", faults.Verdict{Err: ports.ErrRefused}},
	{"PendingLink", "Link", faults.Verdict{Err: ports.ErrPeer}},
	{"Directory", "Holders", faults.Verdict{Err: ports.ErrPeer}},
	{"Directory", "Holders", faults.Verdict{Short: true}},
}

// run does one step.
func (m *model) run(c command) {
	m.step++
	n := m.nodes[c.node%len(m.nodes)]
	m.reap()
	if n.down && c.op != opStop && c.op < opArm {
		return
	}
	switch c.op {
	case opPut:
		if len(m.calls) < 12 {
			m.put(n, m.nodes[c.to%len(m.nodes)], modelKey(c.keys[0]), c.big, c.limit)
		}
	case opGet, opGetWhole, opWalk:
		if len(m.calls) < 12 {
			m.read(n, c)
		}
	case opOpen:
		if id, err := n.OpenRead(context.Background(), namespace); err == nil {
			m.sessions = append(m.sessions, &modelSession{id: id, n: n, node: n.Node, only: map[string]int{}})
		}
	case opClose:
		if len(m.sessions) > 0 {
			s := m.sessions[0]
			m.sessions = m.sessions[1:]
			_ = s.node.CloseRead(s.id)
		}
	case opRemove:
		m.remove(n, modelKey(c.keys[0]), false)
	case opRemoveAtRest:
		m.quiesce()
		m.remove(n, modelKey(c.keys[0]), m.allUp())
	case opClear:
		require.NoError(m.w.t, n.Clear(context.Background()))
	case opStop:
		if n.down {
			n.start()
		} else {
			n.stop()
		}
	case opCut:
		m.cut(c.node%len(m.nodes), c.to%len(m.nodes))
	case opArm:
		f := modelFaults[c.fault]
		m.arm(armedFault{c.node % len(m.nodes), f.port, f.method, f.v})
	case opExistsAtRest:
		m.calm()
		m.checkExists(n, modelKey(c.keys[0]))
	case opSpoilAtRest:
		m.calm()
		m.spoil(n, m.nodes[c.to%len(m.nodes)], modelKey(c.keys[0]))
	case opReuse:
		m.reuse(n, m.nodes[c.to%len(m.nodes)], c)
	case opJoin:
		m.join(n, c)
	case opQuiesce:
		m.quiesce()
	}
	if c.after > 0 {
		m.w.pass(c.after)
	}
	m.checkNodes()
}

// spoil turns a bit of a copy over and has another node read the object. Whatever that says, it is right; and the owner, which was told,
// has dropped the copy. One that nobody had to read from is set right again.
func (m *model) spoil(owner, reader *node, key string) {
	bad := owner.GenerationForTesting(namespace, key)
	if owner == reader || bad.IsZero() {
		return
	}
	owner.flip(key, m.size(key)/2)
	before := reader.Stats().CorruptRanges
	m.get(reader, "get of what was spoiled", nil, 0, false, []want{m.pick(key, nil)})
	m.quiesce()
	m.w.pass(m.cfg.ControlTimeout) // the complaint
	if owner.GenerationForTesting(namespace, key) == bad {
		require.Equal(m.w.t, before, reader.Stats().CorruptRanges, "step %d: %s keeps its bad copy of %s, of which %s knows", m.step, owner.id, key, reader.id)
		owner.flip(key, m.size(key)/2)
	}
}

// reuse lets a read's bytes come late, and the owner reuse their pages meanwhile.
func (m *model) reuse(n, owner *node, c command) {
	if n == owner || n.down || owner.down || len(m.calls) > 8 {
		return
	}
	require.NoError(m.w.t, n.Clear(context.Background()))
	m.arm(armedFault{c.node % len(m.nodes), "Link", "Op", faults.Verdict{Before: faults.For(28 * time.Millisecond)}})
	c.op, c.session = opGet, 0
	m.read(n, c)
	m.w.pass(3 * time.Millisecond)
	require.NoError(m.w.t, owner.Clear(context.Background()))
	m.w.pass(m.cfg.PeerLease)
	for i := range modelKeys {
		m.put(owner, owner, modelKey(i), false, 0)
	}
	m.w.pass(time.Millisecond)
	m.reap()
}

// join lets calls wait for the flights of another one, and one of them leave early, while others go on with its scratch.
func (m *model) join(n *node, c command) {
	if n.down || len(m.calls) > 6 {
		return
	}
	c.op, c.limit = opGet, 0
	m.read(n, c)
	m.w.pass(200 * time.Microsecond)
	left := c
	left.limit = 100 * time.Microsecond
	m.read(n, left)
	m.w.pass(101 * time.Microsecond)
	for i := range 3 {
		other := c
		other.keys = []int{c.keys[0] + i + 1}
		m.read(n, other)
	}
}

func (m *model) read(n *node, c command) {
	var s *modelSession
	if mine := slices.DeleteFunc(slices.Clone(m.sessions), func(s *modelSession) bool { return s.node != n.Node }); c.session > 0 && len(mine) > 0 {
		s = mine[c.session%len(mine)]
	}
	switch {
	case c.op == opWalk:
		var walk [][]want
		for layer := range 4 {
			var wants []want
			for _, k := range c.keys {
				wants = append(wants, m.pick(modelKey(k), []int{layer}))
			}
			walk = append(walk, wants)
		}
		m.get(n, "walk", s, c.limit, false, walk...)
	case c.op == opGetWhole:
		var wants []want
		for _, k := range c.keys {
			wants = append(wants, m.pick(modelKey(k), nil))
		}
		m.get(n, "whole get", s, c.limit, s == nil && c.session == 0, wants)
	default:
		var wants []want
		for i, k := range c.keys {
			wants = append(wants, m.pick(modelKey(k), c.picks[i]))
		}
		m.get(n, "get", s, c.limit, false, wants)
	}
}

func (m *model) allUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.armed) == 0 && len(m.mu.cut) == 0 && len(m.w.alive()) == len(m.nodes)
}

func (m *model) cut(a, b int) {
	if a == b {
		return
	}
	m.mu.Lock()
	on := !m.mu.cut[[2]int{min(a, b), max(a, b)}]
	if on {
		m.mu.cut[[2]int{min(a, b), max(a, b)}] = true
	} else {
		delete(m.mu.cut, [2]int{min(a, b), max(a, b)})
	}
	m.mu.Unlock()
	m.w.net.Partition(m.nodes[a].id, m.nodes[b].id, on)
}

// shortTimes is a configuration in which everything that time ends is over within a second.
func shortTimes() app.Config {
	return app.Config{ControlTimeout: 30 * time.Millisecond, DialTimeout: 30 * time.Millisecond, TransferTimeout: 40 * time.Millisecond,
		CallTimeout: 120 * time.Millisecond, ArenaWait: 25 * time.Millisecond, BreakerMin: 15 * time.Millisecond, BreakerMax: 60 * time.Millisecond,
		Reservation: 150 * time.Millisecond, SweepEvery: 5 * time.Millisecond, HoldTime: 50 * time.Millisecond}
}

// drawModel draws a world for scripts: everything is too small and too slow.
func drawModel(t *rapid.T) *model {
	cfg := shortTimes()
	cfg.PeerLease = time.Duration(rapid.SampledFrom([]int{6, 20, 60}).Draw(t, "lease ms")) * time.Millisecond
	cfg.NoRangedLocalityPrefetch = rapid.IntRange(0, 4).Draw(t, "no pull") == 4
	cfg.NoCacheRemoteFetches = rapid.IntRange(0, 4).Draw(t, "no cache") == 4
	cfg.FillingShare = rapid.SampledFrom([]float64{0.25, 0.5, 1}).Draw(t, "filling share")
	link := rapid.SampledFrom([]*inproc.LinkModel{nil, {BytesPerSecond: 1e6, Delay: 200 * time.Microsecond}, {Delay: time.Millisecond}, {BytesPerSecond: 3e5}}).Draw(t, "link")
	layers := map[string][]uint64{}
	var longest uint64
	for i := range modelKeys {
		lens := rapid.SliceOfN(rapid.Uint64Range(8, 300), 4, 4).Draw(t, "layers")
		layers[modelKey(i)] = lens
		longest = max(longest, lens[0]+lens[1]+lens[2]+lens[3]+bigger)
	}
	page := rapid.SampledFrom([]uint64{longest, 256, 97, 64}).Draw(t, "page")
	perObject := (longest + page - 1) / page
	p := place{page: page, pages: perObject * rapid.Uint64Range(2, 6).Draw(t, "objects that fit"), offHeap: true} // off the heap, since owners reuse what others read too late
	if p.get = rapid.SampledFrom([]uint64{arenaOff, 512, 4096}).Draw(t, "arena"); p.get == arenaOff {
		p.put = 512
	} else {
		p.put = p.get
	}
	p.patterns = rapid.IntRange(0, 2).Draw(t, "patterns") == 0
	p.registered = rapid.IntRange(0, 2).Draw(t, "registered") == 0
	p.link = rapid.SampledFrom([]uint64{0, 200, 1_000}).Draw(t, "bytes on a link")
	modes := rapid.SliceOfN(rapid.SampledFrom([]domain.LocalityMode{domain.LocalityFill, domain.LocalityFill, domain.LocalityPullOnly, domain.LocalityOff}), 3, 3).Draw(t, "modes")
	if rapid.IntRange(0, 4).Draw(t, "all by the arena") == 4 {
		p.get, modes = 1024, []domain.LocalityMode{domain.LocalityOff}
	}
	w := newWorldOver(t, rapid.Bool().Draw(t, "scatter"), link)
	m := newModel(w, cfg, rapid.IntRange(2, 3).Draw(t, "nodes"), p, modes)
	m.layers = layers
	return m
}

var modelOps = []op{opPut, opPut, opPut, opPut, opPut, opGet, opGet, opGet, opGet, opGetWhole, opGetWhole, opWalk, opWalk, opWalk, opOpen, opOpen, opClose, opRemove,
	opRemoveAtRest, opClear, opStop, opCut, opArm, opArm, opArm, opExistsAtRest, opSpoilAtRest, opReuse, opReuse, opJoin, opJoin, opWait, opWait, opQuiesce}

// TestNodesAgreeWithAPlainMap runs scripts of readers, writers, sessions, removals, deaths, cuts and faults over media and arenas that
// are too small, links that are too slow, and leases that are too short. Whatever a call says has to be allowed, and whatever it
// brings has to be one put's bytes; at the end nothing is left.
func TestNodesAgreeWithAPlainMap(t *testing.T) {
	reached := map[string]uint64{}
	checkReaching(t, reached, []string{"local", "slot", "arena", "late", "not_found", "joined", "renewed", "stale", "pulled", "version switch", "no slot", "corrupt ranges"}, func(r *rapid.T) {
		rapid.SyncTest(r, func(r *rapid.T) {
			m := drawModel(r)
			for i := range rapid.IntRange(0, modelKeys).Draw(r, "keys put before") {
				m.run(command{op: opPut, node: i, to: i, keys: []int{i}})
			}
			for _, c := range rapid.SliceOfN(commandOf(modelOps), 20, 80).Draw(r, "script") {
				m.run(c)
			}
			m.finish()
			m.tally(reached)
		})
	})
}

// checkReaching checks a property that counts what its runs got to, and checks it again, with other draws, while there is something that none
// got to: one run in thousands of the script's misses the rarest.
func checkReaching(t *testing.T, reached map[string]uint64, all []string, property func(*rapid.T)) {
	t.Helper()
	for range 5 {
		rapid.Check(t, property)
		all = slices.DeleteFunc(all, func(what string) bool { return reached[what] > 0 })
		if len(all) == 0 {
			break
		}
	}
	t.Log(reached)
	require.Empty(t, all, "what no run got to: %v", reached)
}

// GoString is what rapid prints.
func (c command) GoString() string { return "\n\t\t" + c.String() }
