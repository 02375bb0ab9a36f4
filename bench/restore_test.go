package bench

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

func TestTheGateOpensWhenAllThreadsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newStartGate(2)
		begin := time.Now()
		require.NoError(t, inParallel(5, func(i int) error {
			if i == 4 {
				g.start()
				require.Equal(t, 3*time.Second, time.Since(begin), "the last thread is there")
				return nil
			}
			time.Sleep(time.Duration(i) * time.Second)
			g.wait()
			require.Equal(t, begin.Add(3*time.Second), g.at)
			return nil
		}))
	})
}

// twoRanks is a row whose ranks have read a request well.
func twoRanks(t *testing.T) *restoreRow {
	t.Helper()
	r := newTestRun(t)
	row := newRestoreRow(&r.Layerwise, 2)
	for range 2 {
		k := newTestRank(t, hits)
		k.load(t.Context(), time.Now(), readableOf(k))
		row.ranks = append(row.ranks, k)
	}
	return row
}

func TestThroughputIsOfWindowsInWhichAllReadsWereRight(t *testing.T) {
	row := twoRanks(t)
	set := row.o.Shape.ObjectBytes() * uint64(row.o.Pages)
	times := []walkTimes{{ttfl: 1, loaded: 10, restore: 12, stall: 2}, {ttfl: 3, loaded: 20, restore: 21, stall: 4}}
	row.record(times, []int{0, 0})
	require.Equal(t, []any{2 * set, time.Duration(20)}, []any{row.getBytes, row.getTime}, "to the last rank's last group")
	row.record(times, []int{0, 1})
	require.Equal(t, []any{2 * set, time.Duration(20)}, []any{row.getBytes, row.getTime}, "a window with a bad read does not count")
	row.record(times, []int{0, 0})
	require.Equal(t, []any{4 * set, time.Duration(40)}, []any{row.getBytes, row.getTime})
	require.Equal(t, []Samples{{1, 3, 1, 1, 3}, {12, 21, 12, 12, 21}, {2, 4, 2, 2, 4}}, []Samples{row.ttfl, row.restore, row.stall})
}

func TestWholeObjectsAreCountedOnceForAllWhoFetchedOfThem(t *testing.T) {
	for _, shared := range []bool{false, true} {
		row := twoRanks(t)
		row.o.SharedKeys = shared
		for _, k := range row.ranks {
			k.reads[0].out[1].Fetched = 8 // of page 1 of pool a, in two groups
			k.reads[2].out[1].Joined = 8
		}
		row.record(make([]walkTimes, 2), []int{0, 0})
		want := row.o.Shape.Pools[0].ObjectBytes()
		if !shared {
			want *= 2
		}
		require.Equal(t, want, row.tally.wholeBytes, "shared: %v", shared)
		require.Equal(t, []uint64{4, 4, 2}, []uint64{row.tally.remoteCalls, row.tally.remoteKeys, row.tally.repeats})
		require.Equal(t, uint64(16), row.tally.pools[0].WireBytes, "what others fetched is theirs")
	}
}

func TestCountersAreReadWhileNoPutIsUnderWay(t *testing.T) {
	r := newTestRun(t)
	r.OffloadRanks, r.OffloadLocal = 2, true
	row := newRestoreRow(&r.Layerwise, 1)
	synctest.Test(t, func(t *testing.T) {
		var err error
		row.cluster, err = r.net.open(t.Context(), row.spec())
		require.NoError(t, err)
		row.offload = &offload{row: row, ranks: make([]*offloadRank, 2), turns: make(chan struct{}, 2)}
		row.offload.turns <- struct{}{} // a put of 100 bytes, which takes a second
		begin := time.Now()
		require.NoError(t, inParallel(2, func(i int) error {
			if i == 0 {
				time.Sleep(time.Second)
				row.reader().Put(t.Context(), namespace, "o0", ports.HostRegionOf(make([]byte, 100)))
				row.offload.stored.Add(100)
				<-row.offload.turns
				return nil
			}
			c, err := row.settledCounts(t.Context())
			require.Equal(t, time.Second, time.Since(begin))
			require.Zero(t, c.localWrite, "offload's own puts are left out")
			return err
		}))
		require.Empty(t, row.offload.turns, "puts go on")
	})
}

func TestPutsAreTimedWithWhatTheyStored(t *testing.T) {
	r := newTestRun(t)
	r.OffloadRanks = 1
	row := newRestoreRow(&r.Layerwise, 1)
	var err error
	row.cluster, err = r.net.open(t.Context(), row.spec())
	require.NoError(t, err)
	src, err := openStampedSource(t.Context(), row.limiter, "offload/0", offloadSource(row.walk, r.RangesPerCall))
	require.NoError(t, err)
	defer src.close()
	o := &offload{row: row}
	k := &offloadRank{src: src, keys: make([][]storedKey, 2)}
	for n := range uint64(2) {
		before := time.Now()
		o.put(t.Context(), k, o.newPut(k, n, 0, 0, 1))
		require.Len(t, k.puts, int(n+1))
		require.Equal(t, row.o.Shape.Pools[0].ObjectBytes(), k.puts[n].bytes)
		require.False(t, k.puts[n].end.Before(k.puts[n].begin))
		require.False(t, k.puts[n].begin.Before(before))
	}
	require.Equal(t, []string{"o0/n0/a/p0", "o0/n1/a/p0"}, []string{k.keys[0][0].name, k.keys[0][1].name})
	_, puts := row.failures.counts()
	require.Zero(t, puts)
}

func TestThereIsAWindowForEachRequestButTheWarmUp(t *testing.T) {
	r := newTestRun(t)
	row := newRestoreRow(&r.Layerwise, 1)
	begin := time.Now()
	_, err := row.run(t.Context(), r.net.open)
	require.NoError(t, err)
	require.Len(t, row.windows, r.Requests)
	require.LessOrEqual(t, (period{begin, time.Now()}).within(row.windows), time.Since(begin))
	require.Positive(t, (period{begin, time.Now()}).within(row.windows))
}
