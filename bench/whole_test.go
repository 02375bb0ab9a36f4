package bench

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// newRealRun is a small run over real nodes whose objects do not fit the arena together.
func newRealRun(t *testing.T, fetch FetchMode) *testRun {
	t.Helper()
	r := newTestRun(t)
	r.Shape, r.PageBytes, r.Pages, r.Requests, r.Fetch = mustShape(t, "a:3:131072:0/2;b:2:4096:1/2"), 64<<10, 5, 2, fetch
	r.RangesPerCall = 8192
	return r
}

func TestTheComparisonMovesWholeObjectsOnceAndInstallsThem(t *testing.T) {
	for name, change := range map[string]func(*testRun){
		"":             func(*testRun) {},
		"shared arena": func(r *testRun) { r.SharedArena, r.OffloadRanks = true, 1 },
		"offload":      func(r *testRun) { r.OffloadRanks = -1 },
		"offload here": func(r *testRun) { r.OffloadRanks, r.OffloadLocal = 1, true },
		"shared keys":  func(r *testRun) { r.SharedKeys = true },
		"a link":       func(r *testRun) { r.Link = LinkSpec{Gbps: 100, DelayUs: 20} },
		"sockets":      func(r *testRun) { r.Transport, r.OffloadRanks = TransportTCP, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRealRun(t, FetchWhole)
			change(r)
			require.NoError(t, r.runOver(t, openLasting), r.errs.String())
			sets := float64(r.Requests * r.Ranks[0])
			if r.SharedKeys {
				sets = float64(r.Requests)
			}
			v := r.rows[0].Values
			require.InDelta(t, sets*r.setMiB(), v[ColWireRange], 1e-9)
			require.InDelta(t, sets*r.setMiB(), v[ColLocalWrite], 1e-9)
			require.Zero(t, v[ColWireBackground])
			require.Zero(t, v[ColRepeatRemote], "later groups find everything here")
			require.Zero(t, v[ColFailedReads])
			if r.Link.modelled() {
				require.Positive(t, v[ColLinkRate])
				require.Positive(t, v[ColLinkDelay])
			}
		})
	}
}

// countingCopier counts bytes.
type countingCopier struct {
	ports.Copier
	bytes *atomic.Uint64
}

func (c countingCopier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	for _, o := range ops {
		c.bytes.Add(o.Len)
	}
	c.Copier.Copy(ctx, ops, errs)
}

// wholeNodes is the comparison with one MiB of arena, and an owner of objects of 300,000 bytes.
func wholeNodes(t *testing.T, change func(*ClusterSpec)) (*whole, ports.Pool) {
	t.Helper()
	spec := ClusterSpec{Transport: "inproc", Fetch: FetchWhole, Nodes: []NodeSpec{
		{MediumBytes: 16 << 20, PageBytes: 64 << 10, GetArena: 1 << 20, PutArena: 1 << 20},
		{MediumBytes: 16 << 20, PageBytes: 64 << 10},
	}}
	change(&spec)
	c, err := OpenNodes(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	owner := c.Nodes[1].Pool
	for _, name := range []string{"k0", "k1", "k2", "k3"} {
		b := make([]byte, wholeSize)
		content.Fill(b, contentKey(name), 0)
		require.Equal(t, ports.Stored, owner.Put(t.Context(), namespace, name, ports.HostRegionOf(b)).Status)
	}
	return c.Nodes[0].Pool.(*whole), owner
}

const wholeSize = 300_000

// slice asks for 1,000 bytes of each of four objects, from 500 on, and checks what is a hit.
func slice(ctx context.Context, t *testing.T, w *whole) []ports.Result {
	t.Helper()
	b := make([]byte, 4_000)
	g := ports.GetBatch{Namespace: namespace, Regions: []ports.Memory{{Region: ports.HostRegionOf(b)}}}
	for i, name := range []string{"k0", "k1", "k2", "k3"} {
		g.Keys, g.End = append(g.Keys, name), append(g.End, uint32(i+1))
		g.Ranges = append(g.Ranges, domain.Range{Off: 500, Len: 1000, RegionOff: uint64(i) * 1000})
	}
	out := make([]ports.Result, 4)
	require.NoError(t, w.BatchGetRanges(ctx, &g, out))
	for i := range out {
		if out[i].Status == ports.Hit {
			require.Equal(t, -1, content.Check(b[i*1000:][:1000], contentKey(g.Keys[i]), 500))
		}
	}
	return out
}

// What makes the comparison slower than it has to be would flatter us.
func TestTheComparisonCopiesNothingTwice(t *testing.T) {
	var copied atomic.Uint64
	w, _ := wholeNodes(t, func(s *ClusterSpec) {
		s.Copier = func(c ports.Copier) ports.Copier { return countingCopier{c, &copied} }
	})
	copied.Store(0)
	for _, r := range slice(t.Context(), t, w) {
		require.Equal(t, ports.Result{Status: ports.Hit, Source: ports.FromArena, Size: wholeSize, Fetched: wholeSize}, r)
	}
	require.EqualValues(t, 4*wholeSize+4_000, copied.Load(), "each object into the node, each range to the caller")
	for _, r := range slice(t.Context(), t, w) {
		require.Equal(t, ports.FromLocal, r.Source)
	}
	require.EqualValues(t, 4*wholeSize+8_000, copied.Load())
	require.EqualValues(t, 4*wholeSize, w.Stats().Wire[ports.PurposeGet])
}

// soon is a context that ends before anything that waits for a lock can go on.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// within is a context for what has to go on, that ends a test in which it waits.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func put(ctx context.Context, t *testing.T, w *whole, to ports.PeerID, name string) ports.Result {
	t.Helper()
	b := make([]byte, 1000)
	content.Fill(b, contentKey(name), 0)
	p := ports.PutBatch{Namespace: namespace, Keys: []string{name}, Sizes: []uint64{1000}, End: []uint32{2}, To: to,
		Ranges: []domain.Range{{Len: 400}, {Off: 400, Len: 600, RegionOff: 400}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(b)}}}
	var out [1]ports.Result
	require.NoError(t, w.BatchPutRanges(ctx, &p, out[:]))
	return out[0]
}

func TestACallWaitsForTheLockOfItsDirection(t *testing.T) {
	for _, shared := range []bool{false, true} {
		w, owner := wholeNodes(t, func(s *ClusterSpec) { s.SharedArena = shared })
		require.NoError(t, w.gets.lock(t.Context()))
		require.Equal(t, ports.Cancelled, slice(soon(t), t, w)[0].Status, "a get waits while another one is under way")
		ctx := t.Context()
		if shared {
			ctx = soon(t)
		}
		require.Equal(t, map[bool]ports.Status{false: ports.Stored, true: ports.Cancelled}[shared], put(ctx, t, w, "node-1", "p0").Status)
		require.Equal(t, ports.Stored, put(within(t), t, w, "", "p1").Status, "a put into the node needs no arena")
		w.gets.unlock()
		require.Equal(t, ports.Hit, slice(t.Context(), t, w)[3].Status)

		require.NoError(t, w.puts.lock(t.Context()))
		require.Equal(t, ports.Cancelled, put(soon(t), t, w, "node-1", "p2").Status)
		require.Equal(t, ports.FromLocal, slice(within(t), t, w)[0].Source, "what is here needs no lock")
		w.puts.unlock()
		require.Equal(t, ports.Stored, put(t.Context(), t, w, "node-1", "p3").Status)
		got := make([]byte, 1000)
		require.Equal(t, ports.Hit, owner.Get(t.Context(), namespace, "p3", ports.HostRegionOf(got)).Status)
		require.Equal(t, -1, content.Check(got, contentKey("p3"), 0))
	}
}

func TestTheComparisonFailsKeysAlone(t *testing.T) {
	w, owner := wholeNodes(t, func(s *ClusterSpec) { s.Nodes[0].GetArena = 256 << 10 })
	small := make([]byte, 2_000)
	content.Fill(small, contentKey("small"), 0)
	require.Equal(t, ports.Stored, owner.Put(t.Context(), namespace, "small", ports.HostRegionOf(small)).Status)
	g := ports.GetBatch{Namespace: namespace, Keys: []string{"k0", "gone", "small", "small"}, End: []uint32{1, 2, 3, 4},
		Ranges:  []domain.Range{{Len: 10}, {Len: 10}, {Off: 1_991, Len: 10}, {Off: 1_990, Len: 10}},
		Regions: []ports.Memory{{Region: ports.HostRegionOf(make([]byte, 10))}}}
	out := make([]ports.Result, 4)
	require.NoError(t, w.BatchGetRanges(t.Context(), &g, out))
	var got []ports.Status
	for _, r := range out {
		got = append(got, r.Status)
	}
	require.Equal(t, []ports.Status{ports.TooLarge, ports.NotFound, ports.Invalid, ports.Hit}, got)
	require.EqualValues(t, 2_000, w.Stats().Wire[ports.PurposeGet])
}

func TestRemoveReachesTheOwner(t *testing.T) {
	w, owner := wholeNodes(t, func(*ClusterSpec) {})
	var out [1]ports.Removal
	require.NoError(t, w.Remove(t.Context(), namespace, []string{"k0"}, out[:]))
	require.Equal(t, ports.Removal{Found: true}, out[0])
	require.False(t, owner.Get(t.Context(), namespace, "k0", ports.HostRegionOf(make([]byte, wholeSize))).Status.OK())
}

// Nodes copy in places of the limiter: with all of them taken, nothing is stored.
func TestCopiesOfNodesTakePlacesOfTheLimiter(t *testing.T) {
	l := NewLimiter(1)
	for _, fetch := range []FetchMode{FetchRanged, FetchWhole} {
		spec := ClusterSpec{Transport: "inproc", Fetch: fetch, Copier: l.Copier, Nodes: []NodeSpec{
			{MediumBytes: 1 << 20, PageBytes: 64 << 10, GetArena: 1 << 20, PutArena: 1 << 20}, {MediumBytes: 1 << 20, PageBytes: 64 << 10}}}
		c, err := OpenNodes(t.Context(), spec)
		require.NoError(t, err)
		for _, n := range c.Nodes {
			require.NoError(t, l.enter(t.Context()))
			b := ports.HostRegionOf(make([]byte, 100))
			require.NotEqual(t, ports.Stored, n.Pool.Put(soon(t), namespace, "k", b).Status)
			l.leave()
			require.Equal(t, ports.Stored, n.Pool.Put(t.Context(), namespace, "k2", b).Status)
		}
		require.NoError(t, c.Close())
	}
}

func TestCopiesWithoutAPlaceAreLeftWithTheCause(t *testing.T) {
	l := NewLimiter(1)
	require.NoError(t, l.enter(t.Context()))
	defer l.leave()
	errs := make([]error, 2)
	l.Copier(nil).Copy(soon(t), make([]ports.CopyOp, 2), errs)
	require.ErrorIs(t, errs[0], context.DeadlineExceeded)
	require.ErrorIs(t, errs[1], context.DeadlineExceeded)
}

// With --fill the medium is full before the first request and stays full: what comes in makes something else go.
func TestTheMediumIsFullInTheSteadyState(t *testing.T) {
	for _, fetch := range []FetchMode{FetchRanged, FetchWhole} {
		r := newRealRun(t, fetch)
		r.Fill = 2
		var atEnd ports.Stats
		open := func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
			c, err := OpenNodes(ctx, s)
			if err == nil {
				first, pool := c.Closers[0], c.Nodes[0].Pool
				c.Closers[0] = func() error { atEnd = pool.Stats(); return first() }
			}
			return c, err
		}
		require.NoError(t, r.runOver(t, open), r.errs.String())
		require.Positive(t, atEnd.Table.Doomed[domain.DoomEvicted])
		require.Less(t, atEnd.Table.PagesFree*r.PageBytes, roundUp(r.Shape.LargestObject(), r.PageBytes)+r.PageBytes)
		require.GreaterOrEqual(t, r.rows[0].Values[ColWireRange]+r.rows[0].Values[ColWireBackground], 4*r.setMiB())
	}
}

// With locality off the comparison fetches the ranges alone, into one arena, and asks once while a lease is good.
func TestTheComparisonWithoutLocalityMovesRanges(t *testing.T) {
	w, _ := wholeNodes(t, func(s *ClusterSpec) { s.Locality, s.SharedArena = domain.LocalityOff, true })
	b := make([]byte, 3_000)
	g := ports.GetBatch{Namespace: namespace, Keys: []string{"k0", "k1"}, End: []uint32{2, 3},
		Ranges:  []domain.Range{{Off: 70_000, Len: 1000}, {Off: 500, Len: 1000, RegionOff: 1000}, {Off: 9, Len: 1000, RegionOff: 2000}},
		Regions: []ports.Memory{{Region: ports.HostRegionOf(b)}}}
	for range 2 {
		content.Poison(b)
		out := make([]ports.Result, 2)
		require.NoError(t, w.BatchGetRanges(t.Context(), &g, out))
		require.Equal(t, ports.Result{Status: ports.Hit, Source: ports.FromArena, Size: wholeSize, Fetched: 2_000}, out[0])
		require.EqualValues(t, 1_000, out[1].Fetched)
		require.Equal(t, -1, content.Check(b[:1000], contentKey("k0"), 70_000))
		require.Equal(t, -1, content.Check(b[1000:2000], contentKey("k0"), 500))
		require.Equal(t, -1, content.Check(b[2000:], contentKey("k1"), 9))
	}
	require.EqualValues(t, 6_000, w.Stats().Wire[ports.PurposeGet])
	require.Zero(t, w.Stats().PutBytes)
}

// turns records the ops of each turn, and what each did to its context.
type turns struct {
	seen []int
	each func()
}

func (c *turns) Copy(_ context.Context, ops []ports.CopyOp, errs []error) {
	clear(errs)
	c.seen = append(c.seen, len(ops))
	c.each()
}

func TestALongBatchOfCopiesTakesItsPlaceAnewForEachTurn(t *testing.T) {
	l := NewLimiter(1)
	ops := []ports.CopyOp{{Len: 600_000}, {Len: 600_000}, {Len: 5 << 20}, {Len: 10}, {Len: 10}}
	errs := make([]error, len(ops))
	c := &turns{each: func() { require.Len(t, l.free, 1, "a place is held") }}
	l.Copier(c).Copy(t.Context(), ops, errs)
	require.Equal(t, []int{2, 1, 2}, c.seen)
	require.Empty(t, l.free)

	ctx, cancel := context.WithCancel(t.Context())
	c = &turns{each: cancel}
	l.Copier(c).Copy(ctx, ops, errs)
	require.Equal(t, []int{2}, c.seen)
	require.NoError(t, errs[1], "what was begun is done")
	for _, err := range errs[2:] {
		require.ErrorIs(t, err, context.Canceled)
	}
}
