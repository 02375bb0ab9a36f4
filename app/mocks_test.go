package app_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang/mock/gomock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/mocks"
	"github.com/spanpool/spanpool/ports"
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// scripted is a node whose peers are mocks that answer as was drawn. Everything that the node asked of them is on record. What was
// drawn is drawn before the node runs: its goroutines must not draw.
type scripted struct {
	t     *rapid.T
	w     *world
	node  *node
	ctrl  *gomock.Controller
	peers map[ports.PeerID]*scriptedPeer

	mu       sync.Mutex
	resolves []resolved
	ops      []submitted
	reserved []ports.Key
	commits  []ports.Key
	aborts   []ports.Key
	flying   int
	answer   func(peer ports.PeerID, req *ports.ResolveRequest, reply *ports.ResolveReply) // edits, under mu; nil: none
	outcome  func(submitted) (later time.Duration, err error)                              // of an op, under mu; nil: at once, well
	commit   func(k ports.Key) ports.CommitStatus
}

// resolved is one row of a resolve.
type resolved struct {
	peer ports.PeerID
	key  string
	held domain.Generation
	want domain.Version
	said ports.KeyStatus
	gen  domain.Generation
}

// submitted is one op.
type submitted struct {
	peer     ports.PeerID
	op       ports.Op
	segments []ports.Segment
}

// scriptedPeer is an owner: one buffer, in which objects lie in their order.
type scriptedPeer struct {
	self   ports.Peer
	page   uint64
	memory []byte
	next   uint32
	held   map[string]scriptedObject
}

type scriptedObject struct {
	version domain.Version
	gen     domain.Generation
	size    uint64
	pages   []domain.PageRef
}

// script opens a node whose peers are mocks.
func script(t *rapid.T, p place, peers ...ports.PeerID) *scripted {
	// The controller is made before the world, so that it is finished when the world has ended: a node may still meet a peer when a call
	// has returned, and makes mocks then.
	s := &scripted{t: t, ctrl: gomock.NewController(t), peers: make(map[ports.PeerID]*scriptedPeer)}
	s.w = newWorld(t, rapid.Bool().Draw(t, "scatter"))
	for i, id := range peers {
		s.peers[id] = &scriptedPeer{self: ports.Peer{ID: id, Incarnation: domain.Incarnation(100 + i)}, page: rapid.Uint64Range(100, 5_000).Draw(t, "page of "+string(id)),
			held: make(map[string]scriptedObject)}
	}
	p.bare, p.page, p.pages = true, orElse(p.page, 4*kib), orElse(p.pages, 64)
	p.get, p.put = orElse(p.get, 64*kib), orElse(p.put, 64*kib)
	p.ports = func(out *app.Ports) {
		out.Copier, out.Resolver, out.Writer, out.Directory = dram.NewCopier(), s.resolver(), s.writer(), s.directory()
		out.Transports = []ports.Transport{s.transport()}
	}
	s.node = s.w.node("b", p)
	return s
}

// put places an object at a peer, before the node knows of that peer.
func (s *scripted) put(id ports.PeerID, key string, size uint64) {
	p := s.peers[id]
	o := scriptedObject{version: domain.Version{Hi: pattern.KeyOf(key, 1), Lo: 1}, gen: domain.Generation{Incarnation: p.self.Incarnation, Counter: uint64(len(p.held)) + 1}, size: size}
	for off := uint64(0); off < size; off += p.page {
		o.pages = append(o.pages, domain.PageRef{Page: p.next})
		p.next++
		page := make([]byte, p.page)
		pattern.Fill(page[:min(p.page, size-off)], pattern.KeyOf(key, 0), off)
		p.memory = append(p.memory, page...)
	}
	p.held[key] = o
	s.w.note(key, put{pattern.KeyOf(key, 0), size})
}

func (s *scripted) directory() ports.Directory {
	m := mocks.NewMockDirectory(s.ctrl)
	ids := make([]ports.PeerID, 0, len(s.peers))
	for id := range s.peers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	m.EXPECT().Holders(gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
		func(_ context.Context, _ string, names []string, out *ports.Holders) error {
			out.Reset()
			for range names {
				out.Peers = append(out.Peers, ids...)
				out.End = append(out.End, uint32(len(out.Peers)))
			}
			out.Versions, out.Complete = append(out.Versions, make([]domain.Version, len(out.Peers))...), true
			return nil
		})
	m.EXPECT().Members(gomock.Any()).AnyTimes().Return(ids, nil)
	m.EXPECT().Announce(gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes()
	m.EXPECT().Withdraw(gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes()
	return m
}

func (s *scripted) resolver() ports.PeerResolver {
	m := mocks.NewMockPeerResolver(s.ctrl)
	m.EXPECT().Hello(gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
		func(_ context.Context, to ports.Peer, h *ports.Hello, out *ports.HelloReply) error {
			p := s.peers[to.ID]
			*out = ports.HelloReply{From: p.self, Protocol: ports.ProtocolVersion, PageSize: p.page, Buffers: []uint64{uint64(len(p.memory))}}
			for _, o := range h.Offers {
				out.Answers = append(out.Answers, ports.Offer{Kind: o.Kind, Bytes: []byte("yes")})
			}
			return nil
		})
	m.EXPECT().Probe(gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
		func(_ context.Context, to ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
			out.Status, out.Versions = out.Status[:0], out.Versions[:0]
			for _, k := range keys {
				o, ok := s.peers[to.ID].held[k.Name]
				out.Status = append(out.Status, map[bool]ports.KeyStatus{true: ports.KeyHere, false: ports.KeyAbsent}[ok])
				out.Versions = append(out.Versions, o.version)
			}
			return nil
		})
	m.EXPECT().Resolve(gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(s.resolve)
	return m
}

// lease that the mocks grant.
const scriptedLease = 500 * time.Millisecond

func (s *scripted) resolve(_ context.Context, to ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Reset()
	for i, k := range req.Keys {
		o, here := s.peers[to.ID].held[k.Name]
		status := ports.KeyAbsent
		switch {
		case !req.Held[i].IsZero() && (!here || req.Held[i] != o.gen):
			status = ports.KeyStale
		case here:
			status = ports.KeyHere
		}
		var lease int64
		if status == ports.KeyHere {
			lease = int64(scriptedLease)
			if req.Held[i].IsZero() {
				out.Pages, out.PutLens = append(out.Pages, o.pages...), append(out.PutLens, o.size)
			}
		} else {
			o = scriptedObject{}
		}
		out.Status, out.Versions, out.Generations = append(out.Status, status), append(out.Versions, o.version), append(out.Generations, o.gen)
		out.Sizes, out.LeaseNanos = append(out.Sizes, o.size), append(out.LeaseNanos, lease)
		out.PageEnd, out.LenEnd, out.SumEnd = append(out.PageEnd, uint32(len(out.Pages))), append(out.LenEnd, uint32(len(out.PutLens))), append(out.SumEnd, 0)
	}
	if s.answer != nil {
		s.answer(to.ID, req, out)
	}
	for i, k := range req.Keys {
		r := resolved{peer: to.ID, key: k.Name, held: req.Held[i], want: req.Versions[i]}
		if i < len(out.Status) && i < len(out.Generations) {
			r.said, r.gen = out.Status[i], out.Generations[i]
		}
		s.resolves = append(s.resolves, r)
	}
	return nil
}

func (s *scripted) transport() ports.Transport {
	m := mocks.NewMockTransport(s.ctrl)
	m.EXPECT().Kind().AnyTimes().Return(ports.TransportKind("mock"))
	m.EXPECT().Caps().AnyTimes().Return(ports.Caps{Write: true})
	m.EXPECT().Expose(gomock.Any(), gomock.Any()).AnyTimes()
	m.EXPECT().Offer(gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(func(_ context.Context, to ports.PeerID) (ports.PendingLink, error) {
		p := mocks.NewMockPendingLink(s.ctrl)
		p.EXPECT().Bytes().AnyTimes().Return([]byte("please"))
		p.EXPECT().Close().AnyTimes()
		p.EXPECT().Link(gomock.Any(), gomock.Any()).MaxTimes(1).DoAndReturn(func(context.Context, []byte) (ports.Link, error) { return s.link(to), nil })
		return p, nil
	})
	return m
}

func (s *scripted) link(to ports.PeerID) ports.Link {
	m := mocks.NewMockLink(s.ctrl)
	done := make(chan struct{})
	m.EXPECT().Done().AnyTimes().Return((<-chan struct{})(done))
	var counts ports.LinkStats
	m.EXPECT().Counts().AnyTimes().DoAndReturn(func() ports.LinkStats {
		s.mu.Lock()
		defer s.mu.Unlock()
		return counts
	})
	m.EXPECT().Cancel(gomock.Any(), gomock.Any()).AnyTimes()
	m.EXPECT().Close().AnyTimes().DoAndReturn(sync.OnceValue(func() error { close(done); return nil }))
	m.EXPECT().Submit(gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(func(b *ports.Batch, q *ports.Completions) error {
		for _, op := range b.Ops {
			s.submit(submitted{to, op, slices.Clone(b.Segments[op.First : op.First+op.Count])}, q, &counts)
		}
		return nil
	})
	return m
}

// submit moves an op's bytes, now or later, or fails it.
func (s *scripted) submit(o submitted, q *ports.Completions, counts *ports.LinkStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops = append(s.ops, o)
	s.flying++
	var err error
	var later time.Duration
	if s.outcome != nil {
		later, err = s.outcome(o)
	}
	end := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil {
			counts.Bytes[o.op.Purpose] += s.move(o)
		}
		s.flying--
		q.Post(ports.Completion{Tag: o.op.Tag, At: s.w.clock.Now(), Err: err})
	}
	if later > 0 {
		time.AfterFunc(later, end)
		return
	}
	go end()
}

func (s *scripted) move(o submitted) (bytes uint64) {
	p := s.peers[o.peer]
	for _, g := range o.segments {
		here := g.Local.(ports.HostRegion).Bytes()[g.LocalOff : g.LocalOff+g.Len]
		there := p.memory[g.RemoteOff : g.RemoteOff+g.Len]
		if o.op.Dir == ports.Write {
			copy(there, here)
		} else {
			copy(here, there)
		}
		bytes += g.Len
	}
	return bytes
}

func (s *scripted) writer() ports.PeerWriter {
	m := mocks.NewMockPeerWriter(s.ctrl)
	m.EXPECT().Reserve(gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
		func(_ context.Context, to ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			out.Reset()
			p := s.peers[to.ID]
			for i, k := range req.Keys {
				s.reserved = append(s.reserved, k)
				for off := uint64(0); off < req.Sizes[i]; off += p.page {
					out.Pages = append(out.Pages, domain.PageRef{Page: p.next})
					p.next++
				}
				out.Status, out.Tokens, out.EndNanos = append(out.Status, ports.Reserved), append(out.Tokens, ports.GrantToken{byte(i + 1)}), append(out.EndNanos, 1e9)
				out.PageEnd = append(out.PageEnd, uint32(len(out.Pages)))
			}
			return nil
		})
	m.EXPECT().Commit(gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
		func(_ context.Context, _ ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			*out = (*out)[:0]
			for _, k := range req.Keys {
				s.commits = append(s.commits, k)
				*out = append(*out, s.commit(k))
			}
			return nil
		})
	m.EXPECT().Abort(gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any(), gomock.Any()).AnyTimes().DoAndReturn(
		func(_ context.Context, _ ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !quiet || s.flying > 0 || len(versions) != len(keys) {
				panic(fmt.Sprintf("abort of %v: quiet %v with %d ops of ours outstanding", keys, quiet, s.flying))
			}
			s.aborts = append(s.aborts, keys...)
			return nil
		})
	return m
}

// record copies what was asked so far.
func (s *scripted) record() (ops []submitted, resolves []resolved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ops), slices.Clone(s.resolves)
}

// overScripts runs a property in bubbles.
func overScripts(t *testing.T, property func(t *rapid.T)) {
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, property) })
}

// drawParts draws disjoint runs of an object, in any order; all of it when it is to tile.
func drawParts(t *rapid.T, key string, size uint64, tile bool) want {
	var runs []domain.Run
	for off := uint64(0); off < size; {
		n := rapid.Uint64Range(1, size-off).Draw(t, "len")
		if tile || rapid.Bool().Draw(t, "take") {
			runs = append(runs, domain.Run{Off: off, Len: n})
		}
		off += n
	}
	if len(runs) == 0 {
		runs = append(runs, domain.Run{Off: size - 1, Len: 1})
	}
	return parts(key, rapid.Permutation(runs).Draw(t, "order")...)
}

func inArena(s *scripted, o submitted) bool {
	for _, g := range o.segments {
		if sameRegion(g.Local, s.node.arenas[0]) {
			return true
		}
	}
	return false
}

func TestResolveIsCalledThoughTheArenaIsExhausted(t *testing.T) {
	overScripts(t, func(t *rapid.T) {
		s := script(t, place{Config: app.Config{Locality: domain.LocalityOff, ArenaWait: time.Minute, CallTimeout: time.Minute}, get: 4 * kib}, "a")
		names := keys("k", rapid.IntRange(1, 6).Draw(t, "readers"))
		s.put("a", "full", 4*kib)
		for _, key := range names {
			s.put("a", key, rapid.Uint64Range(1, 4*kib).Draw(t, "size"))
		}
		s.outcome = func(submitted) (time.Duration, error) { return time.Second, nil }
		all := []*reading{s.node.begin(t.Context(), 0, part("full", 0, 4*kib))}
		synctest.Wait()
		for _, key := range names {
			all = append(all, s.node.begin(t.Context(), 0, part(key, 0, 1)))
		}
		synctest.Wait()
		ops, resolves := s.record()
		require.Len(t, ops, 1)
		require.EqualValues(t, len(names), s.node.Stats().ArenaWaiting[0])
		for _, key := range names {
			require.True(t, slices.ContainsFunc(resolves, func(r resolved) bool { return r.key == key }), "%q was not resolved", key)
		}
		for _, r := range all {
			require.Equal(t, ports.Hit, r.wait()[0].Status)
		}
	})
}

func TestNoSegmentOfATilingReadThatGotASlotNamesTheArena(t *testing.T) {
	overScripts(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]domain.LocalityMode{domain.LocalityFill, domain.LocalityPullOnly}).Draw(t, "mode")
		page := rapid.Uint64Range(50, 9_000).Draw(t, "page here")
		s := script(t, place{page: page, pages: 20_000/page + 8, Config: app.Config{Locality: mode, FillingShare: 1}, get: 64 * kib}, "a")
		var wants []want
		for i, key := range keys("k", rapid.IntRange(1, 4).Draw(t, "keys")) {
			size := rapid.Uint64Range(1, 9_000).Draw(t, "size")
			s.put("a", key, size)
			wants = append(wants, drawParts(t, key, size, i == 0 || rapid.Bool().Draw(t, "tile")))
		}
		out := s.node.get(wants...)
		s.w.settle()
		ops, _ := s.record()
		asked := map[uint64]bool{}
		for i, r := range out {
			require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
			o := s.peers["a"].held[wants[i].key]
			if r.Source != ports.FromSlot {
				continue
			}
			for _, op := range ops {
				first := uint64(o.pages[0].Page) * s.peers["a"].page
				if op.op.Purpose == ports.PurposeGet && len(op.segments) > 0 && op.segments[0].RemoteOff >= first && op.segments[0].RemoteOff < first+o.size {
					require.False(t, inArena(s, op), "%q got a slot", wants[i].key)
					asked[first] = true
				}
			}
		}
		require.True(t, len(asked) > 0 || out[0].Source != ports.FromSlot)
	})
}

func TestThereIsOnePullPerKeyAndEachByteIsAskedForOnce(t *testing.T) {
	overScripts(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]domain.LocalityMode{domain.LocalityFill, domain.LocalityPullOnly}).Draw(t, "mode")
		s := script(t, place{page: 1_000, pages: 100, Config: app.Config{Locality: mode, FillingShare: 1}}, "a", "c")
		names := keys("k", rapid.IntRange(1, 4).Draw(t, "keys"))
		for _, key := range names {
			s.put(rapid.SampledFrom([]ports.PeerID{"a", "c"}).Draw(t, "owner"), key, rapid.Uint64Range(2, 20_000).Draw(t, "size"))
		}
		delay := time.Duration(rapid.IntRange(0, 50).Draw(t, "delay ms")) * time.Millisecond
		s.outcome = func(submitted) (time.Duration, error) { return delay, nil }
		var all []*reading
		for range rapid.IntRange(1, 6).Draw(t, "reads") {
			var wants []want
			for range rapid.IntRange(1, 3).Draw(t, "keys of the read") {
				key := rapid.SampledFrom(names).Draw(t, "key")
				wants = append(wants, drawParts(t, key, s.size(key), false))
			}
			all = append(all, s.node.begin(t.Context(), 0, wants...))
			if rapid.Bool().Draw(t, "wait") {
				synctest.Wait()
			}
		}
		for _, r := range all {
			for _, res := range r.wait() {
				require.Equal(t, ports.Hit, res.Status, "%v", res.Err)
			}
		}
		s.w.settle()
		ops, _ := s.record()
		asked := map[ports.PeerID][]int{"a": make([]int, len(s.peers["a"].memory)), "c": make([]int, len(s.peers["c"].memory))}
		for _, o := range ops {
			if mode == domain.LocalityPullOnly && o.op.Purpose != ports.PurposePull {
				continue // its partial reads share nothing
			}
			for _, g := range o.segments {
				for i, n := range asked[o.peer][g.RemoteOff : g.RemoteOff+g.Len] {
					if n > 0 {
						require.FailNow(t, "a byte is asked for twice", "byte %d of %s, by an op of purpose %d", g.RemoteOff+uint64(i), o.peer, o.op.Purpose)
					}
					asked[o.peer][g.RemoteOff+uint64(i)]++
				}
			}
		}
		require.Zero(t, s.node.Stats().DuplicateBytes)
	})
}

func (s *scripted) size(key string) uint64 {
	for _, p := range s.peers {
		if o, ok := p.held[key]; ok {
			return o.size
		}
	}
	return 0
}

func TestWhatFailedIsAbortedAndNothingElseIs(t *testing.T) {
	overScripts(t, func(t *rapid.T) {
		s := script(t, place{put: 2 * kib}, "a")
		s.peers["a"].memory = make([]byte, 500*s.peers["a"].page)
		names := keys("k", rapid.IntRange(1, 5).Draw(t, "keys"))
		bad := rapid.SliceOfN(rapid.Bool(), len(names), len(names)).Draw(t, "writes that fail")
		delay := time.Duration(rapid.IntRange(0, 20).Draw(t, "delay ms")) * time.Millisecond
		said := rapid.SliceOfN(rapid.SampledFrom([]ports.CommitStatus{ports.CommitDone, ports.CommitExists, ports.CommitRefused}), len(names), len(names)).Draw(t, "commits")
		s.outcome = func(o submitted) (time.Duration, error) {
			if bad[o.op.Grant[0]-1] {
				return delay, errTest
			}
			return delay, nil
		}
		s.commit = func(k ports.Key) ports.CommitStatus { return said[slices.Index(names, k.Name)] }
		out := s.node.putTo(t.Context(), "a", 0, rapid.Uint64Range(1, 9_000).Draw(t, "size"), 1, names...)
		s.w.settle()
		s.mu.Lock()
		defer s.mu.Unlock()
		var aborted, committed []string
		for i, key := range names {
			if bad[i] {
				require.Equal(t, ports.TransferFailed, out[i].Status)
				aborted = append(aborted, key)
				continue
			}
			committed = append(committed, key)
			require.Equal(t, []ports.Status{ports.Stored, ports.Exists, ports.TransferFailed}[said[i]], out[i].Status)
		}
		require.ElementsMatch(t, aborted, namesOf(s.aborts))
		require.ElementsMatch(t, committed, namesOf(s.commits))
	})
}

func namesOf(keys []ports.Key) (names []string) {
	for _, k := range keys {
		names = append(names, k.Name)
	}
	return names
}

func TestMalformedAnswerFailsOnlyKeysOfThatPeer(t *testing.T) {
	lies := faults.ResolveLies()
	overScripts(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]domain.LocalityMode{domain.LocalityFill, domain.LocalityOff}).Draw(t, "mode")
		s := script(t, place{Config: app.Config{Locality: mode, NoRangedLocalityPrefetch: true}}, "a", "c", "d")
		var wants []want
		owner := map[string]ports.PeerID{}
		for _, key := range keys("k", rapid.IntRange(2, 8).Draw(t, "keys")) {
			owner[key] = rapid.SampledFrom([]ports.PeerID{"a", "c", "d"}).Draw(t, "owner")
			size := rapid.Uint64Range(1, 9_000).Draw(t, "size")
			s.put(owner[key], key, size)
			wants = append(wants, part(key, size-1, 1))
		}
		liar := rapid.SampledFrom([]ports.PeerID{"a", "c", "d"}).Draw(t, "liar")
		lie := lies[rapid.IntRange(0, len(lies)-1).Draw(t, "lie")]
		t.Log(lie.Name)
		s.answer = func(p ports.PeerID, _ *ports.ResolveRequest, out *ports.ResolveReply) {
			if p == liar && len(out.Pages) > 0 {
				lie.Edit(out)
			}
		}
		bad, told := 0, 0
		for i, r := range s.node.get(wants...) {
			if owner[wants[i].key] != liar {
				require.Equal(t, ports.Hit, r.Status, "%q of %s: %v", wants[i].key, owner[wants[i].key], r.Err)
				continue
			}
			told++
			require.Contains(t, []ports.Status{ports.Hit, ports.PeerUnavailable}, r.Status)
			if r.Status != ports.Hit {
				bad++
			}
		}
		require.True(t, told == 0 || bad > 0, "%s: no key of the liar failed", lie.Name)
	})
}

func TestRenewalRowsCarryHeld(t *testing.T) {
	overScripts(t, func(t *rapid.T) {
		s := script(t, place{Config: app.Config{NoRangedLocalityPrefetch: true, FillingShare: 1}}, "a")
		names := keys("k", rapid.IntRange(1, 3).Draw(t, "keys"))
		for _, key := range names {
			s.put("a", key, 50_000)
		}
		takes := time.Duration(rapid.IntRange(0, 1_200).Draw(t, "transfer ms")) * time.Millisecond
		s.outcome = func(submitted) (time.Duration, error) { return takes, nil }
		staleAt := rapid.IntRange(0, 12).Draw(t, "stale at resolve")
		s.answer = func(_ ports.PeerID, req *ports.ResolveRequest, out *ports.ResolveReply) {
			if len(s.resolves) == staleAt && !req.Held[0].IsZero() {
				out.Status[0] = ports.KeyStale
			}
		}
		for i := range rapid.IntRange(2, 6).Draw(t, "reads") {
			for _, r := range s.node.get(partsOf(names, uint64(i)*1_000, 1_000)...) {
				require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
			}
			s.w.pass(time.Duration(rapid.IntRange(0, 700).Draw(t, "pause ms")) * time.Millisecond)
		}
		_, resolves := s.record()
		anew, stales := make(map[string]int), make(map[string]int)
		renewals := 0
		for i, r := range resolves {
			gen, version := s.peers["a"].held[r.key].gen, s.peers["a"].held[r.key].version
			require.Contains(t, []domain.Version{{}, version}, r.want)
			switch {
			case r.held.IsZero():
				anew[r.key]++
				require.LessOrEqual(t, anew[r.key], 1+stales[r.key], "resolve %d: %q is held and asked for as if it were new\n%+v", i, r.key, resolves)
			default:
				require.Equal(t, gen, r.held)
				require.NotZero(t, anew[r.key], "nothing is held before the first answer")
				renewals++
			}
			if r.said == ports.KeyStale {
				stales[r.key]++
			}
		}
		require.True(t, takes < scriptedLease/2 || renewals > 0, "what flies for %v is renewed", takes)
	})
}
