package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

func TestTheLimiterBoundsWhatRunsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(3)
		running, most := 0, 0
		mu := make(chan struct{}, 1)
		count := func(d int) {
			mu <- struct{}{}
			running += d
			most = max(most, running)
			<-mu
		}
		require.NoError(t, inParallel(10, func(int) error {
			return l.Do(t.Context(), func() {
				count(1)
				time.Sleep(time.Second) // virtual: all places are taken meanwhile
				count(-1)
			})
		}))
		require.Equal(t, 3, most)
	})
}

func TestTheLimiterLetsGoWhenTheContextEnds(t *testing.T) {
	l := NewLimiter(1)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	require.NoError(t, l.Do(ctx, func() {
		cancel(why)
		require.ErrorIs(t, l.Do(ctx, func() { t.Error("ran") }), why)
	}))
	require.ErrorIs(t, l.Do(ctx, func() { t.Error("ran after the end") }), why)
}

func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		done, err := waitUntil(t.Context(), settleBound, func() bool { return false })
		require.NoError(t, err)
		require.False(t, done)
		require.Equal(t, settleBound, time.Since(begin))

		done, err = waitUntil(t.Context(), settleBound, func() bool { return time.Since(begin) > settleBound+time.Second })
		require.NoError(t, err)
		require.True(t, done)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = waitUntil(ctx, settleBound, func() bool { return false })
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestPullsThatNeverEndFailTheRow(t *testing.T) {
	r := newTestRun(t)
	r.net.tamper.stats = func(s *ports.Stats) { s.PullWaiting = 3 }
	row := newRestoreRow(&r.Layerwise, 1)
	synctest.Test(t, func(t *testing.T) {
		row.cluster, _ = r.net.open(t.Context(), row.spec())
		row.offload = &offload{row: row}
		_, err := row.settledCounts(t.Context())
		require.ErrorIs(t, err, ErrFailed)
		require.ErrorContains(t, err, "3 pulls still wait after 1m0s")
	})
}

func TestComputingTakesItsTime(t *testing.T) {
	const d = 300 * time.Microsecond
	for _, c := range []Compute{ComputeSleep, ComputeSpin} {
		done := make(chan time.Duration)
		go func() { // of its own: its thread is kept for good
			pass := newForwardPass(c)
			begin := time.Now()
			pass(d)
			done <- time.Since(begin)
		}()
		require.GreaterOrEqual(t, <-done, d)
	}
}

func TestPercentilesAreSamples(t *testing.T) {
	s := Samples{5, 1, 4, 2, 3}
	for p, want := range map[float64]time.Duration{0: 1, 1: 1, 20: 1, 50: 3, 60: 3, 61: 4, 95: 5, 100: 5} {
		require.Equal(t, want, s.Percentile(p), p)
	}
	require.Equal(t, Samples{5, 1, 4, 2, 3}, s, "left as it was")
	require.Zero(t, Samples{}.Percentile(50))
	require.Equal(t, time.Duration(7), Samples{7}.Percentile(95))
}

// The names and their order are what readers of the reference's CSV know.
func TestCSVHeaderIsGolden(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteRows(&b, CSV, nil))
	require.Equal(t, "ranks,layers,group,pages,object_kib,restore_ms_p50,restore_ms_p95,ttfl_us_p50,ttfl_us_p95,stall_ms_p50,"+
		"get_gibps,put_gibps,local_hit_pct,remote_calls,remote_keys,repeat_remote,wire_whole_mib,wire_range_mib,local_write_mib,"+
		"wire_background_mib,wire_duplicate_mib,failed_reads,link_gbps,link_delay_us,foreign_cpu_pct,ceiling_gibps,"+
		"get_ceiling_pct,restore_ceiling_pct,ttfl_ceiling_pct\n", b.String())
	b.Reset()
	require.NoError(t, WriteReplayRows(&b, CSV, nil))
	require.Equal(t, "nodes,capacity_blocks,block_bytes,requests,blocks,hit_pct,hit_blocks,remote_hit_blocks,missed_blocks,put_blocks,"+
		"refused_puts,ttfl_us_p50,ttfl_us_p95,wire_get_mib,wire_pull_mib,wire_put_mib,wire_duplicate_mib,installed_mib,put_mib,"+
		"failed_reads,seconds\n", b.String())
}

// testRow has column c at c+0.5.
func testRow() Row {
	r := Row{Verified: true, Pools: []PoolRow{{Name: "kv", RangeBytes: 2048, Ranges: 3, Calls: 2, Bytes: 1 << 20, Share: 0.25, RemoteKeys: 1, WireBytes: 1 << 19}}}
	for c := range NumColumns {
		r.Values[c] = float64(c) + 0.5
	}
	return r
}

func TestRowsArePrintedInEachFormat(t *testing.T) {
	rows := []Row{testRow(), testRow()}
	var b bytes.Buffer
	require.NoError(t, WriteRows(&b, CSV, rows))
	lines, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 3)
	require.Equal(t, "5.500", lines[1][ColRestoreP50])

	b.Reset()
	require.NoError(t, WriteRows(&b, JSON, rows))
	var decoded []map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &decoded))
	require.Len(t, decoded, 2)
	for c := range NumColumns {
		require.Equal(t, float64(c)+0.5, decoded[1][c.String()])
	}
	require.Equal(t, true, decoded[0]["verified"])
	require.Equal(t, []any{map[string]any{"pool": "kv", "range_kib": 2.0, "ranges": 3.0, "calls": 2.0, "mib": 1.0, "share_pct": 25.0,
		"remote_keys": 1.0, "wire_mib": 0.5}}, decoded[0]["pools"])

	b.Reset()
	require.NoError(t, WriteRows(&b, Table, nil))
	require.NoError(t, WriteReplayRows(&b, Table, nil))
	require.Empty(t, b.String(), "no table of nothing")
	require.NoError(t, WriteRows(&b, Table, rows))
	for _, name := range ColumnNames() {
		require.Contains(t, b.String(), name)
	}
	require.Regexp(t, `restore_ms_p50 +5\.500 +5\.500`, b.String())
	require.Regexp(t, `kv +2\.00 +3 +2 +1\.00 +25\.0 % +1 +0\.50`, b.String())
}

func TestMediansOutvoteFiguresAndNotFailures(t *testing.T) {
	rows := []Row{testRow(), testRow(), testRow()}
	for i, v := range []float64{9, 1, 4} {
		rows[i].Values[ColTTFLP50], rows[i].Values[ColFailedReads] = v, v-1
	}
	got := medianRow(rows)
	require.Equal(t, 4.0, got.Values[ColTTFLP50])
	require.Equal(t, 8.0+0+3, got.Values[ColFailedReads])
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
}

func TestProgressIsDrawnNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := NewProgress(&b)
		for i := range uint64(100) {
			p.Step("seeding", i, 100)
		}
		require.Equal(t, 1, strings.Count(b.String(), "\r"), "one draw in no time")
		time.Sleep(progressEvery)
		p.Step("seeding", 50, 100)
		require.Contains(t, b.String(), "seeding: 50 of 100 (50 %)")
		b.Reset()
		p.Clear()
		require.Equal(t, "\r"+strings.Repeat(" ", len("seeding: 50 of 100 (50 %)"))+"\r", b.String())
		var none *Progress
		none.Step("nobody watches", 1, 2)
		none.Clear()
	})
}

func TestOptionsThatComeLaterAreToldFromUnknownOnes(t *testing.T) {
	require.NoError(t, CheckAvailable("--fetch", "ranged", []string{"ranged"}, "whole"))
	require.EqualError(t, CheckAvailable("--fetch", "whole", []string{"ranged"}, "whole"), `--fetch "whole": not available yet; available: ranged`)
	require.EqualError(t, CheckAvailable("--fetch", "half", []string{"ranged"}, "whole"), `--fetch "half": unknown; available: ranged`)
}

// What a destination is poisoned with must be found wherever nothing was written, whichever object was due there.
func TestKeysHaveContentsOfTheirOwn(t *testing.T) {
	s := sets{walk: PlanWalk(mustShape(t, "a:1:8;b:1:8"), Grouping{Size: 1}, 3, 8), ranks: 2, requests: 3}
	seen := map[uint64]string{}
	for i := range s.objects() {
		name, _ := s.object(i)
		require.Empty(t, seen[content.Word(contentKey(name), 0)], name)
		seen[content.Word(contentKey(name), 0)] = name
	}
	require.Len(t, seen, 2*3*2*3)
}

func TestFailuresAreCountedAndLinesAreBounded(t *testing.T) {
	var b bytes.Buffer
	f := newFailures(&b, nil)
	require.NoError(t, f.err())
	_ = inParallel(50, func(i int) error { f.read("line %d", i); f.put("line"); return nil })
	require.ErrorIs(t, f.err(), ErrFailed)
	require.EqualError(t, f.err(), "run failed: 50 failed or wrong reads, 50 failed puts")
	require.Equal(t, maxPrinted+1, strings.Count(b.String(), "\n"))
}
