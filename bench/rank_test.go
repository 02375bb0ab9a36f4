package bench

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

// hits answers every read without touching memory.
func hits(_ context.Context, _ *ports.GetBatch, out []ports.Result) error {
	for i := range out {
		out[i].Status = ports.Hit
	}
	return nil
}

func newTestRank(t *testing.T, fetch Fetch) *rank {
	t.Helper()
	r := newTestRun(t)
	k, err := newRank("rank 0", PlanWalk(r.Shape, r.Grouping, r.Pages, 8), fetch)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.close()) })
	name := func(pool, page int) string { return string(rune('a'+pool)) + string(rune('0'+page)) }
	require.NoError(t, k.prepare(t.Context(), NewLimiter(1), namespace, r.Pages, name))
	return k
}

func readableOf(r *rank) []chan struct{} {
	readable := make([]chan struct{}, len(r.walk.Groups))
	for g := range readable {
		readable[g] = make(chan struct{})
	}
	return readable
}

// A call takes a second: groups of two, two and one call are readable after 2, 4 and 5. Their layers, two, two and one, take
// 1.5 s each, so that the forward thread waits for the first group only and ends at 2 + 5 x 1.5.
func TestTimesAreThoseOfTheWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTestRank(t, func(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
			time.Sleep(time.Second) // virtual
			return hits(ctx, g, out)
		})
		readable := readableOf(k)
		var ttfl, loaded, stall, restore time.Duration
		begin := time.Now()
		require.NoError(t, inParallel(2, func(i int) error {
			if i == 0 {
				ttfl, loaded = k.load(t.Context(), begin, readable)
				return nil
			}
			stall = k.forward(t.Context(), readable, time.Sleep, 1500*time.Millisecond)
			restore = time.Since(begin)
			return nil
		}))
		require.Equal(t, []time.Duration{2 * time.Second, 5 * time.Second, 2 * time.Second, 9500 * time.Millisecond},
			[]time.Duration{ttfl, loaded, stall, restore}, "ttfl, loaded, stall, restore")
	})
}

// TestComputingEndsWithTheRun: layers that take the longest that is allowed, ended in the first pass.
func TestComputingEndsWithTheRun(t *testing.T) {
	k := newTestRank(t, hits)
	readable := readableOf(k)
	k.load(t.Context(), time.Now(), readable)
	ctx, cancel := context.WithCancel(t.Context())
	var passes []time.Duration
	k.forward(ctx, readable, func(d time.Duration) { passes = append(passes, d); cancel() }, maxCompute)
	require.Equal(t, []time.Duration{100 * time.Millisecond}, passes)
	passes = nil
	k.forward(t.Context(), readable, func(d time.Duration) { passes = append(passes, d) }, 75*time.Millisecond)
	require.Equal(t, []time.Duration{100e6, 50e6, 100e6, 50e6, 75e6}, passes, "of groups of two, two and one layer")
}

// Each rank's first call waits until every rank has made one.
func TestRanksRestoreAtTheSameTime(t *testing.T) {
	const ranks = 4
	var all sync.WaitGroup
	all.Add(ranks)
	r := newTestRun(t)
	row := newRestoreRow(&r.Layerwise, ranks)
	var first [ranks]sync.Once
	for id := range ranks {
		row.ranks = append(row.ranks, newTestRank(t, func(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
			first[id].Do(func() { all.Done(); all.Wait() })
			return hits(ctx, g, out)
		}))
	}
	times := row.restoreTogether(t.Context())
	require.Len(t, times, ranks)
	for _, x := range times {
		require.Positive(t, x.ttfl)
		require.GreaterOrEqual(t, x.loaded, x.ttfl)
		require.GreaterOrEqual(t, x.restore, x.loaded)
	}
}

func TestARequestOfFewerPagesReadsTheFirstOnes(t *testing.T) {
	var keys []string
	k := newTestRank(t, func(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
		require.Len(t, out, len(g.Keys))
		require.Len(t, g.End, len(g.Keys))
		require.Len(t, g.Ranges, int(g.End[len(g.End)-1]))
		keys = append(keys, g.Keys...)
		return hits(ctx, g, out)
	})
	name := func(pool, page int) string { return string(rune('a'+pool)) + string(rune('0'+page)) }
	require.NoError(t, k.prepare(t.Context(), NewLimiter(1), "ns", 2, name))
	k.load(t.Context(), time.Now(), readableOf(k))
	require.Equal(t, []string{"a0", "a1", "b0", "b1", "a0", "a1", "b0", "b1", "a0", "a1"}, keys)
}

func TestPutRateIsTheSumOfTheRanks(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	put := func(begin, end, gib float64) timedPut {
		return timedPut{period{at(begin), at(end)}, uint64(gib * gibBytes)}
	}
	windows := []period{{at(10), at(14)}, {at(20), at(22)}}
	for _, c := range []struct {
		name string
		puts []timedPut
		want float64
	}{
		{"within", []timedPut{put(10, 11, 1), put(11.5, 12.5, 2)}, 1.5},
		{"longer than a window, and than two", []timedPut{put(0, 40, 80)}, 2},
		{"over an end", []timedPut{put(9, 11, 1), put(13, 17, 4)}, 0.75},
		{"of a fast one in a window and a slow one outside", []timedPut{put(10, 11, 3), put(15, 19, 1)}, 3},
		{"outside", []timedPut{put(0, 10, 1), put(14, 20, 1), put(22, 30, 1)}, 0},
		{"none", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &offload{ranks: []*offloadRank{{puts: c.puts}, {puts: []timedPut{put(10, 14, 2)}}, {}}}
			require.InDelta(t, c.want+0.5, o.rate(windows), 1e-6)
		})
	}
}
