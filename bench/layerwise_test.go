package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRun is a small run over the fake nodes: 2 pools, 5 layers, 3 groups, 4 pages.
type testRun struct {
	Layerwise
	net  fakeNet
	errs bytes.Buffer
	rows []Row
}

func newTestRun(t *testing.T) *testRun {
	t.Helper()
	r := &testRun{}
	r.Layerwise = Layerwise{Ranks: []int{2}, Shape: mustShape(t, "a:3:104:0/2;b:2:56:1/2"), Grouping: Grouping{Size: 2}, Pages: 4,
		Requests: 3, RangesPerCall: 5, PageBytes: 64, Verify: true, Runs: 1, MaxMemory: 1 << 40, ScratchMiB: 1, Places: 2,
		Transport: "inproc", Errors: &r.errs}
	return r
}

func (r *testRun) run(t *testing.T) error {
	t.Helper()
	return r.runOver(t, r.net.open)
}

func (r *testRun) runOver(t *testing.T, open OpenCluster) error {
	t.Helper()
	r.rows = nil
	r.errs.Reset()
	return r.Run(t.Context(), open, func(row Row) { r.rows = append(r.rows, row) })
}

// setMiB is the bytes of one set of a rank.
func (r *testRun) setMiB() float64 { return toMiB(r.Shape.ObjectBytes() * uint64(r.Pages)) }

// openLasting opens nodes whose leases outlast the test. On a machine that is busy enough a read comes after one of the usual length, and
// is made again, of bytes that were counted already.
func openLasting(ctx context.Context, s ClusterSpec) (*Cluster, error) {
	s.Lease = time.Hour
	return OpenNodes(ctx, s)
}

func TestRestoresMoveEachByteOnceAndAllBecomesLocal(t *testing.T) {
	for name, change := range map[string]func(*testRun){
		"":                  func(*testRun) {},
		"group 1":           func(r *testRun) { r.Grouping.Size = 1 },
		"whole in a call":   func(r *testRun) { r.Grouping.Size = 5 },
		"interleaved":       func(r *testRun) { r.Grouping.Interleave = true },
		"offload":           func(r *testRun) { r.OffloadRanks = 2 },
		"offload here":      func(r *testRun) { r.OffloadRanks, r.OffloadLocal = 2, true },
		"offload, as ranks": func(r *testRun) { r.OffloadRanks = -1 },
		"computing":         func(r *testRun) { r.ComputePerLayer = time.Microsecond },
		"spinning":          func(r *testRun) { r.ComputePerLayer, r.Compute = time.Microsecond, ComputeSpin },
		"page is a prime":   func(r *testRun) { r.PageBytes = 13 },
	} {
		for nodes, open := range map[string]OpenCluster{"fake": nil, "real": openLasting} {
			t.Run(name+"/"+nodes, func(t *testing.T) {
				r := newTestRun(t)
				change(r)
				if nodes == "fake" {
					open = r.net.open
				}
				require.NoError(t, r.runOver(t, open), r.errs.String())
				v := r.rows[0].Values
				moved := r.setMiB() * 2 * 3 // ranks, requests: the warm-up is not counted
				require.Equal(t, moved, v[ColWireRange]+v[ColWireBackground])
				require.Equal(t, moved, v[ColLocalWrite])
				require.Equal(t, moved, v[ColWireWhole])
				require.Zero(t, v[ColWireDuplicate])
				require.Zero(t, v[ColFailedReads])
				require.True(t, r.rows[0].Verified)
				require.Positive(t, v[ColTTFLP50])
				require.GreaterOrEqual(t, v[ColRestoreP50]*1000, v[ColTTFLP50])
				require.Positive(t, v[ColGetRate])
			})
		}
	}
}

func TestCountsAreOfTheResults(t *testing.T) {
	r := newTestRun(t)
	r.Ranks = []int{1}
	require.NoError(t, r.run(t), r.errs.String())
	v := r.rows[0].Values
	// Groups are {0,1}, {2,3}, {4}: pool a has one layer in each, pool b in the first two. 5 ranges a call and one a page are one
	// call of 4 pages, so 5 calls and 20 (key, call) a request, all remote; 3 groups of a and 2 of b repeat all but the first.
	for c, want := range map[Column]float64{ColRanks: 1, ColLayers: 5, ColGroup: 2, ColPages: 4, ColObjectKiB: (3*104 + 2*56) / 1024.0,
		ColRemoteCalls: 3 * 5, ColRemoteKeys: 3 * 20, ColRepeatRemote: 3 * (20 - 8), ColLocalHits: 0} {
		require.Equal(t, want, v[c], c)
	}
	a, b := uint64(3*4*3*104), uint64(3*4*2*56)
	require.Equal(t, []PoolRow{
		{Name: "a", RangeBytes: 104, Ranges: 36, Calls: 9, Bytes: a, Share: float64(a) / float64(a+b), RemoteKeys: 36, WireBytes: a},
		{Name: "b", RangeBytes: 56, Ranges: 24, Calls: 6, Bytes: b, Share: float64(b) / float64(a+b), RemoteKeys: 24, WireBytes: b},
	}, r.rows[0].Pools)
}

// lastRequestAfterOffload opens fake nodes over which the reads of the last request wait until every offload rank has put its set n or a
// later one, and since those reads began more than two calls' objects: one call lies within the request then.
func (r *testRun) lastRequestAfterOffload(t *testing.T, n int) OpenCluster {
	patient, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	more := 2*r.Pages + 1
	put, last, all := r.net.tamper.put, &afterOffload{of: fmt.Sprintf("/q%d/", r.Requests), patient: patient}, make(chan struct{})
	last.wait = all
	left := map[string]int{}
	for id := range r.OffloadRanks {
		left[fmt.Sprintf("o%d", id)] = more
	}
	r.net.tamper.put = func(name string, b []byte) { // under the net's lock
		parts := strings.Split(name, "/")
		var set int
		_, err := fmt.Sscanf(parts[1], "n%d", &set)
		if who := parts[0]; err == nil && last.began.Load() && set >= n && left[who] > 0 {
			if left[who]--; left[who] == 0 {
				if delete(left, who); len(left) == 0 {
					close(all)
				}
			}
		}
		if put != nil {
			put(name, b)
		}
	}
	return func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
		c, err := r.net.open(ctx, s)
		if err == nil {
			last.Pool, c.Nodes[0].Pool = c.Nodes[0].Pool, last
		}
		return c, err
	}
}

// afterOffload is a pool whose reads of some keys wait.
type afterOffload struct {
	ports.Pool
	of      string
	patient context.Context
	wait    <-chan struct{}
	began   atomic.Bool
}

func (p *afterOffload) BatchGetRanges(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
	if strings.Contains(g.Keys[0], p.of) {
		p.began.Store(true)
		select {
		case <-p.wait:
		case <-p.patient.Done():
			return errors.New("offload ranks do not put")
		}
	}
	return p.Pool.BatchGetRanges(ctx, g, out)
}

func TestOffloadKeepsItsLastTwoSets(t *testing.T) {
	for _, here := range []bool{false, true} {
		r := newTestRun(t)
		r.OffloadRanks, r.OffloadLocal, r.RangesPerCall = 3, here, 10 // 3 pages of pool a a call
		require.NoError(t, r.runOver(t, r.lastRequestAfterOffload(t, 2)), r.errs.String())
		holder := r.net.nodes[1]
		if here {
			holder = r.net.nodes[0]
		}
		kept := map[string]int{} // by rank and pool
		for name := range holder.objects {
			if part := strings.Split(name, "/"); strings.HasPrefix(part[1], "o") {
				kept[part[1]+part[3]]++
			}
		}
		require.Len(t, kept, 3*2)
		for who, n := range kept {
			require.LessOrEqual(t, n, 2*4, who)
			require.Greater(t, n, 2*4-3, who)
		}
		require.Positive(t, r.rows[0].Values[ColPutRate])
	}
}

// Over a medium that is full, slots give way to others and bytes may move again; what is read is right all the same.
func TestEveryReadIsRightOverAFullMedium(t *testing.T) {
	r := newTestRun(t)
	r.Fill, r.OffloadRanks = 2, 1
	for _, r.OffloadLocal = range []bool{false, true} {
		require.NoError(t, r.runOver(t, OpenNodes), r.errs.String())
		require.GreaterOrEqual(t, r.rows[0].Values[ColWireRange]+r.rows[0].Values[ColWireBackground], 6*r.setMiB())
	}
}

func TestFillPutsTimesTheMediumBeforeTheRun(t *testing.T) {
	r := newTestRun(t)
	r.Fill = 3
	require.NoError(t, r.run(t), r.errs.String())
	reader := r.net.nodes[0]
	require.Greater(t, reader.stats.PutBytes, 2*reader.spec.MediumBytes)
	require.LessOrEqual(t, reader.stats.PutBytes, 3*reader.spec.MediumBytes)
}

func TestSharedKeysMoveOnceForAllRanks(t *testing.T) {
	r := newTestRun(t)
	r.Ranks, r.SharedKeys = []int{4}, true
	require.NoError(t, r.run(t), r.errs.String())
	v := r.rows[0].Values
	require.Equal(t, 3*r.setMiB(), v[ColWireRange])
	require.Equal(t, 3*r.setMiB(), v[ColLocalWrite])
	require.Equal(t, 3*r.setMiB(), v[ColWireWhole])
	require.Positive(t, v[ColLocalHits])
}

func TestLocalOnlyMovesNothing(t *testing.T) {
	r := newTestRun(t)
	r.LocalOnly, r.OffloadRanks = true, 1
	require.NoError(t, r.run(t), r.errs.String())
	require.Len(t, r.net.nodes, 1)
	v := r.rows[0].Values
	require.Zero(t, v[ColWireRange]+v[ColWireBackground]+v[ColLocalWrite]+v[ColRemoteCalls])
	require.Equal(t, 100.0, v[ColLocalHits])
}

func TestModesAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		mode                    domain.LocalityMode
		noPull                  bool
		asked, pulled, becoming float64 // in sets of all ranks and requests
	}{
		"off":           {domain.LocalityOff, false, 1, 0, 0},
		"pull":          {domain.LocalityPullOnly, false, 0, 0, 1},
		"pull, no pull": {domain.LocalityPullOnly, true, 1, 0, 0},
		"fill, no pull": {domain.LocalityFill, true, 1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			r.Locality, r.NoPrefetch = c.mode, c.noPull
			require.NoError(t, r.run(t), r.errs.String())
			v, all := r.rows[0].Values, 6*r.setMiB()
			require.Equal(t, c.becoming*all, v[ColLocalWrite])
			if c.mode == domain.LocalityPullOnly && !c.noPull { // a third of a, half of b, and then all the rest
				require.Equal(t, all, v[ColWireRange]+v[ColWireBackground])
				require.Positive(t, v[ColWireBackground])
				return
			}
			require.Equal(t, c.asked*all, v[ColWireRange])
			require.Equal(t, c.pulled*all, v[ColWireBackground])
		})
	}
}

// Each of these is how a node can be wrong; each must fail the run, be named with key and offset, and give no sample.
func TestWrongReadsFailTheRun(t *testing.T) {
	onRead := func(f func(g *ports.GetBatch, b []byte, r domain.Range)) fakeTamper {
		return fakeTamper{get: func(g *ports.GetBatch, _ []ports.Result) {
			if strings.HasPrefix(g.Keys[0], "r1/q2/a/p0") && g.Ranges[0].Off == 104 {
				f(g, g.Regions[0].Region.(ports.HostRegion).Bytes(), g.Ranges[0])
			}
		}}
	}
	const key = `rank 1: wrong byte of key "bench/r1/q2/a/p0" at offset `
	for name, c := range map[string]struct {
		tamper fakeTamper
		want   string
	}{
		"wrong byte": {onRead(func(_ *ports.GetBatch, b []byte, r domain.Range) { b[r.RegionOff+7] ^= 1 }), key + "111: got"},
		"short copy": {onRead(func(_ *ports.GetBatch, b []byte, r domain.Range) { b[r.RegionOff+r.Len-1] = 0xdb }), key + "207: got 0xdb"},
		"nothing written": {onRead(func(_ *ports.GetBatch, b []byte, r domain.Range) {
			copy(b[r.RegionOff:r.RegionOff+r.Len], bytes.Repeat([]byte{0xdb}, 104))
		}), key + "104: got 0xdb"},
		"another layer": {onRead(func(g *ports.GetBatch, b []byte, r domain.Range) {
			other := g.Ranges[1]
			copy(b[r.RegionOff:r.RegionOff+r.Len], b[other.RegionOff:other.RegionOff+other.Len])
		}), key + "104: got"},
		"one byte behind": {onRead(func(_ *ports.GetBatch, b []byte, r domain.Range) { b[r.RegionOff+r.Len] = 1 }),
			`read of key "bench/r1/q2/a/p0" wrote 1 bytes past the destination of offset 104`},
		"one byte before": {onRead(func(_ *ports.GetBatch, b []byte, r domain.Range) { b[r.RegionOff-1] = 1 }),
			`read of key "bench/r1/q2/a/p0" wrote 1 bytes before the destination of offset 104`},
		"status": {fakeTamper{get: func(g *ports.GetBatch, out []ports.Result) {
			if strings.HasPrefix(g.Keys[0], "r1/q2/a/p0") {
				out[2].Status = ports.Late
			}
		}}, `read of key "bench/r1/q2/a/p2" from offset 0: status late, want hit`},
		"no status": {fakeTamper{get: func(g *ports.GetBatch, out []ports.Result) {
			if strings.HasPrefix(g.Keys[0], "r1/q2/a/p0") {
				out[0] = ports.Result{}
			}
		}}, `read of key "bench/r1/q2/a/p0" from offset 0: status none, want hit`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			r.net.tamper = c.tamper
			err := r.run(t)
			require.ErrorIs(t, err, ErrFailed)
			require.Contains(t, r.errs.String(), c.want)
			require.Len(t, r.rows, 1, "the figures say how it failed")
			require.Positive(t, r.rows[0].Values[ColFailedReads])
		})
	}
}

func TestAFailedReadIsNeverASample(t *testing.T) {
	r := newTestRun(t)
	r.net.tamper.get = func(_ *ports.GetBatch, out []ports.Result) { out[0].Status = ports.PeerUnavailable }
	require.ErrorIs(t, r.run(t), ErrFailed)
	v := r.rows[0].Values
	for _, c := range []Column{ColRestoreP50, ColRestoreP95, ColTTFLP50, ColTTFLP95, ColStallP50, ColGetRate} {
		require.Zero(t, v[c], c)
	}
	require.Equal(t, 2*4*5.0, v[ColFailedReads], "two ranks, four requests, five calls: the warm-up's count too")
}

func TestAFailedCallFailsItsKeys(t *testing.T) {
	r := newTestRun(t)
	r.net.tamper.getErr = errors.New("closed")
	require.ErrorIs(t, r.run(t), ErrFailed)
	require.Contains(t, r.errs.String(), `the call failed: closed`)
	require.Equal(t, 2*4*20.0, r.rows[0].Values[ColFailedReads])
	require.LessOrEqual(t, strings.Count(r.errs.String(), "\n"), maxPrinted+2, "lines are bounded")
}

// TestAWrongWarmUpFailsTheRun: it is checked as the rest is, and is no sample.
func TestAWrongWarmUpFailsTheRun(t *testing.T) {
	r := newTestRun(t)
	r.net.tamper.get = func(g *ports.GetBatch, _ []ports.Result) {
		if strings.Contains(g.Keys[0], "/q0/") {
			g.Regions[0].Region.(ports.HostRegion).Bytes()[g.Ranges[0].RegionOff] ^= 1
		}
	}
	require.ErrorIs(t, r.run(t), ErrFailed)
	require.Contains(t, r.errs.String(), `wrong byte of key "bench/r0/q0/`)
	require.Positive(t, r.rows[0].Values[ColTTFLP50], "the requests that came after it were right")
}

// refusesPuts is a pool that stores nothing that is put to another.
type refusesPuts struct{ ports.Pool }

func (refusesPuts) BatchPutRanges(_ context.Context, _ *ports.PutBatch, out []ports.Result) error {
	for i := range out {
		out[i] = ports.Result{Status: ports.Busy}
	}
	return nil
}

func TestFailedPutsOfOffloadFailTheRun(t *testing.T) {
	r := newTestRun(t)
	r.OffloadRanks = 1
	err := r.runOver(t, func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
		c, err := r.net.open(ctx, s)
		if err == nil {
			c.Nodes[0].Pool = refusesPuts{c.Nodes[0].Pool}
		}
		return c, err
	})
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "0 failed or wrong reads, ")
	require.NotContains(t, err.Error(), ", 0 failed puts")
	require.Contains(t, r.errs.String(), `offload rank 0: put of key "bench/o0/n0/`)
	require.Zero(t, r.rows[0].Values[ColFailedReads])
	require.Zero(t, r.rows[0].Values[ColPutRate])
}

func TestAWrongInstallFailsTheRun(t *testing.T) {
	r := newTestRun(t)
	r.net.tamper.install = func(name string, b []byte) {
		if name == "bench/r0/q3/b/p1" {
			b[60] ^= 1 // it was read from the peer before, so only who reads it again sees this
		}
	}
	require.ErrorIs(t, r.run(t), ErrFailed)
	require.Contains(t, r.errs.String(), `after the run: wrong byte of key "bench/r0/q3/b/p1" at offset 60`)
}

func TestAWrongOffloadPutFailsTheRun(t *testing.T) {
	for _, here := range []bool{false, true} {
		r := newTestRun(t)
		r.OffloadRanks, r.OffloadLocal = 1, here
		r.net.tamper.put = func(name string, b []byte) {
			if strings.HasPrefix(name, "o") { // and not what is seeded
				b[len(b)-1] ^= 1
			}
		}
		require.ErrorIs(t, r.runOver(t, r.lastRequestAfterOffload(t, 0)), ErrFailed)
		require.Contains(t, r.errs.String(), `after the run: wrong byte of key "bench/o0/n`)
	}
}

func TestWithoutVerifyContentsAreNotCheckedAndRowsAreMarked(t *testing.T) {
	r := newTestRun(t)
	r.Verify = false
	r.net.tamper.get = func(g *ports.GetBatch, _ []ports.Result) {
		g.Regions[0].Region.(ports.HostRegion).Bytes()[g.Ranges[0].RegionOff] ^= 1
	}
	require.NoError(t, r.run(t))
	require.Equal(t, "0 unverified", r.rows[0].cell(ColFailedReads))
	r.net.tamper.get = func(_ *ports.GetBatch, out []ports.Result) { out[0].Status = ports.Late }
	require.ErrorIs(t, r.run(t), ErrFailed, "statuses are looked at all the same")
}

func TestSwitchesThatDoNotHoldFailTheRun(t *testing.T) {
	bump := func(f func(s *ports.Stats, n uint64)) func(*ports.Stats) {
		n := uint64(0)
		return func(s *ports.Stats) { n++; f(s, n) }
	}
	pulled := bump(func(s *ports.Stats, n uint64) { s.Wire[ports.PurposePull] += n; s.NeededBytes += n })
	installed := bump(func(s *ports.Stats, n uint64) { s.InstalledBytes[domain.LocalByPull] += n })
	for name, c := range map[string]struct {
		change func(*testRun)
		stats  func(*ports.Stats)
		want   string
	}{
		"no prefetch":               {func(r *testRun) { r.NoPrefetch = true }, pulled, "--no-prefetch: wire_background_mib is 0.00"},
		"locality off":              {func(r *testRun) { r.Locality = domain.LocalityOff }, installed, "local_write_mib is 0.00"},
		"locality pull, no tiling":  {func(r *testRun) { r.Locality, r.NoPrefetch = domain.LocalityPullOnly, true }, installed, "local_write_mib"},
		"locality pull and tiling":  {func(r *testRun) { r.Locality, r.NoPrefetch, r.Grouping.Size = domain.LocalityPullOnly, true, 5 }, installed, ""},
		"nothing is switched off":   {func(*testRun) {}, installed, ""},
		"nothing is switched off 2": {func(*testRun) {}, pulled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			c.change(r)
			r.net.tamper.stats = c.stats
			err := r.run(t)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestWireFiguresThatDoNotAddUpFailTheRun: bytes that a transport forgot to count are missed by what became of them.
func TestWireFiguresThatDoNotAddUpFailTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		stats func(*ports.Stats)
		want  string
	}{
		"gets are not counted":       {func(s *ports.Stats) { s.Wire[ports.PurposeGet] = 0 }, "wire: 0 bytes came for callers"},
		"pulls are not counted":      {func(s *ports.Stats) { s.Wire[ports.PurposePull] = 0 }, "and 0 for the pull, but"},
		"half of it is":              {func(s *ports.Stats) { s.Wire[ports.PurposeGet] /= 2 }, "were needed and 0 were duplicate"},
		"duplicates are not":         {func(s *ports.Stats) { s.Wire[ports.PurposeGet] *= 2 }, "were needed and 0 were duplicate"},
		"neither wire nor its fate":  {func(s *ports.Stats) { s.Wire, s.NeededBytes = [ports.NumPurposes]uint64{}, 0 }, "results tell of"},
		"all is as the fake counted": {func(*ports.Stats) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			r.Locality = domain.LocalityPullOnly
			r.net.tamper.stats = c.stats
			err := r.run(t)
			require.Len(t, r.rows, 1, "what was counted is shown all the same")
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestARowThatDoesNotFitIsRefusedByNameAndTheOthersRun(t *testing.T) {
	r := newTestRun(t)
	r.Ranks = []int{1, 64, 2}
	r.ScratchMiB = 0
	r.MaxMemory = 256 << 10
	err := r.run(t)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "row of 64 ranks: it needs")
	require.ErrorContains(t, err, "reader's medium")
	require.ErrorContains(t, err, "limit 0.2 MiB by --max-memory")
	require.Len(t, r.rows, 2)
	require.Equal(t, []float64{1, 2}, []float64{r.rows[0].Values[ColRanks], r.rows[1].Values[ColRanks]})
	require.Equal(t, 2, r.net.closed-2, "two rows of two nodes, each closed")
}

func TestTheEightRankRowOfTheDefaultsNeedsSome26GiB(t *testing.T) {
	o := newTestRun(t).Layerwise
	o.Shape, o.Grouping.Size, o.Pages, o.PageBytes, o.ScratchMiB, o.OffloadRanks, o.RangesPerCall = mustShape(t, "kv:61:73728"), 8, 64, 0, 256, -1, 8192
	needs := newRestoreRow(&o, 8).needs()
	require.InDelta(t, 26, float64(sumNeeds(needs))/(1<<30), 1, needs)
}

func TestTheMediumHasRoomForEverySetAndFourTimesThoseInFlight(t *testing.T) {
	for _, c := range []struct {
		ranks, requests int
		shared, here    bool
		offloads        int
		reader, owner   uint64 // in sets
	}{
		{2, 3, false, false, 0, 8, 8},
		{2, 1, false, false, 0, 8, 4}, // 4 in all; four times 2 in flight
		{2, 9, false, false, 0, 20, 20},
		{8, 1, true, false, 0, 4, 2},
		{1, 3, false, false, 2, 4, 8},
		{1, 3, false, true, 2, 8, 4},
	} {
		o := newTestRun(t).Layerwise
		o.Requests, o.SharedKeys, o.OffloadLocal, o.OffloadRanks = c.requests, c.shared, c.here, c.offloads
		r := newRestoreRow(&o, c.ranks)
		// Pages of 64 bytes: 312 bytes take 5, 112 take 2; 4 pages of each.
		set := uint64(4 * (5 + 2) * 64)
		require.Equal(t, c.reader*set, r.readerBytes(), c)
		require.Equal(t, c.owner*set, r.ownerBytes(), c)
	}
}

func TestRunsAreMedians(t *testing.T) {
	r := newTestRun(t)
	r.Runs = 3
	require.NoError(t, r.run(t), r.errs.String())
	require.Len(t, r.rows, 1)
	require.Equal(t, 6*r.setMiB(), r.rows[0].Values[ColWireRange])
	require.Equal(t, 6, r.net.closed, "nodes of its own for each run")
}

func TestBadOptionsNameFlagValueAndLimit(t *testing.T) {
	for want, change := range map[string]func(*Layerwise){
		`--ranks "": want 1 or more`:                        func(o *Layerwise) { o.Ranks = nil },
		`--ranks "0": want 1 to 256`:                        func(o *Layerwise) { o.Ranks = []int{1, 0} },
		`--ranks "257": want 1 to 256`:                      func(o *Layerwise) { o.Ranks = []int{257} },
		`--layer-group "0": want 1 to`:                      func(o *Layerwise) { o.Grouping.Size = 0 },
		`--pages "0": want 1 to 1048576`:                    func(o *Layerwise) { o.Pages = 0 },
		`--requests "-1": want 1 to`:                        func(o *Layerwise) { o.Requests = -1 },
		`--compute-us-per-layer "-1": want 0 to 10000000`:   func(o *Layerwise) { o.ComputePerLayer = -time.Microsecond },
		`--offload-ranks "-2": want -1 to 256`:              func(o *Layerwise) { o.OffloadRanks = -2 },
		`--ranges-per-call "0": want 1 to 1048576`:          func(o *Layerwise) { o.RangesPerCall = 0 },
		`--ranges-per-call "1048577"`:                       func(o *Layerwise) { o.RangesPerCall = 1<<20 + 1 },
		`--ranges-per-call "2": a page of a group has 3`:    func(o *Layerwise) { o.RangesPerCall, o.Grouping.Size = 2, 5 },
		`--scratch-mib "-1": want 0 to`:                     func(o *Layerwise) { o.ScratchMiB = -1 },
		`--scratch-mib "0": offload ranks put to the other`: func(o *Layerwise) { o.ScratchMiB, o.OffloadRanks = 0, 1 },
		`--medium-mib "-1": want 0 to`:                      func(o *Layerwise) { o.MediumMiB = -1 },
		`--medium-mib "1": less than one page of 2097152`:   func(o *Layerwise) { o.MediumMiB, o.PageBytes = 1, 2<<20 },
		`--fill "-1": want 0 to`:                            func(o *Layerwise) { o.Fill = -1 },
		`--runs "0": want 1 to`:                             func(o *Layerwise) { o.Runs = 0 },
		`--link-gbps "-1": want 1e-06 to 100000, or 0`:      func(o *Layerwise) { o.Link.Gbps = -1 },
		`--link-gbps "1e-12": want 1e-06 to 100000, or 0`:   func(o *Layerwise) { o.Link.Gbps = 1e-12 },
		`--link-delay-us "-1": want 0 to`:                   func(o *Layerwise) { o.Link.DelayUs = -1 },
		`--page-bytes "1099511627777": want at most`:        func(o *Layerwise) { o.PageBytes = 1<<40 + 1 },
		`--pages "1048576": a restore would have 4294967296 ranges, limit 16777216`: func(o *Layerwise) {
			o.Pages, o.Shape = 1<<20, Shape{Layers: 4096, Pools: []Pool{{"kv", 1, make([]int, 4096)}}}
			o.RangesPerCall = 1 << 20
		},
		`--pages "4096": a restore would have 4503599627370496 bytes`: func(o *Layerwise) {
			o.Pages, o.Shape = 4096, Shape{Layers: 1, Pools: []Pool{{"kv", 1 << 40, []int{0}}}}
		},
	} {
		r := newTestRun(t)
		change(&r.Layerwise)
		err := r.run(t)
		var option *OptionError
		require.ErrorAs(t, err, &option, want)
		require.ErrorContains(t, err, want)
		require.Nil(t, r.net.nodes, "nothing was started")
	}
}

func TestACancelledRunEndsWithoutInventedFailures(t *testing.T) {
	r := newTestRun(t)
	r.OffloadRanks = 1
	ctx, cancel := context.WithCancel(t.Context())
	r.net.tamper.get = func(_ *ports.GetBatch, out []ports.Result) {
		cancel()
		for i := range out {
			out[i].Status = ports.Cancelled
		}
	}
	err := r.Run(ctx, r.net.open, func(Row) { t.Error("a row of a cancelled run") })
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, r.errs.String(), "want hit")
	require.Equal(t, 2, r.net.closed)
}

func TestASeedThatIsNotStoredEndsTheRow(t *testing.T) {
	r := newTestRun(t)
	open := func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
		s.Nodes[1].MediumBytes = 64 // less than an object of pool a
		return r.net.open(ctx, s)
	}
	err := r.Run(t.Context(), open, func(Row) { t.Error("a row without objects") })
	require.ErrorContains(t, err, `of 312 bytes: status no_space, want stored`)
}
