package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

// lruHits is an exact LRU of blocks, as dumb as can be: the least recent first.
func lruHits(trace [][]uint64, capacity int) (hits, total int) {
	var cache []uint64
	touch := func(id uint64) bool {
		for i, c := range cache {
			if c == id {
				cache = append(append(cache[:i:i], cache[i+1:]...), id)
				return true
			}
		}
		return false
	}
	for _, ids := range trace {
		leading := true
		for _, id := range ids {
			total++
			had := touch(id)
			if leading = leading && had; leading {
				hits++
			}
			if !had {
				if len(cache) == capacity {
					cache = cache[1:]
				}
				cache = append(cache, id)
			}
		}
	}
	return hits, total
}

// makeTrace draws requests whose prefixes recur, like a conversation's.
func makeTrace(seed uint64, requests int) [][]uint64 {
	r := rand.New(rand.NewPCG(seed, 0))
	next := uint64(0)
	var trace [][]uint64
	for range requests {
		var ids []uint64
		if len(trace) > 0 && r.IntN(3) > 0 {
			old := trace[len(trace)-1-r.IntN(min(len(trace), 20))]
			ids = append(ids, old[:1+r.IntN(len(old))]...)
		}
		for range 1 + r.IntN(6) {
			ids = append(ids, next)
			next++
		}
		trace = append(trace, ids)
	}
	return trace
}

func writeTrace(t *testing.T, trace [][]uint64) string {
	t.Helper()
	var b strings.Builder
	for _, ids := range trace {
		fmt.Fprintf(&b, `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": %s}`+"\n", strings.ReplaceAll(fmt.Sprint(ids), " ", ", "))
	}
	name := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

type testReplay struct {
	Replay
	net  fakeNet
	errs bytes.Buffer
	rows []ReplayRow
}

func newTestReplay(trace string) *testReplay {
	r := &testReplay{}
	r.Replay = Replay{Trace: trace, Nodes: 1, Capacities: []int{50}, BlockBytes: 96, Layers: 4, Grouping: Grouping{Size: 3},
		Assign: RoundRobin, Verify: true, ScratchMiB: 1, MaxMemory: 1 << 40, Transport: "inproc", Places: 2, Errors: &r.errs}
	return r
}

func (r *testReplay) run(t *testing.T, open OpenCluster) error {
	t.Helper()
	r.rows = nil
	return r.Run(t.Context(), open, func(row ReplayRow) { r.rows = append(r.rows, row) })
}

func TestReplayHitsAsAnExactLRUDoes(t *testing.T) {
	trace := makeTrace(1, 400)
	for name, open := range openers() {
		t.Run(name, func(t *testing.T) {
			r := newTestReplay(writeTrace(t, trace))
			r.Capacities = []int{40, 120, 100_000}
			require.NoError(t, r.run(t, open), r.errs.String())
			for i, capacity := range r.Capacities {
				hits, total := lruHits(trace, capacity)
				v := r.rows[i].Values
				require.Equal(t, []float64{400, float64(total), float64(hits)}, []float64{v[ReplayRequests], v[ReplayBlocks], v[ReplayHits]})
				require.InDelta(t, 100*float64(hits)/float64(total), v[ReplayHitPct], 1e-9)
				require.Zero(t, v[ReplayFailedReads]+v[ReplayRefused]+v[ReplayMissed]+v[ReplayWireGet]+v[ReplayWirePull]+v[ReplayRemoteHits])
				require.Positive(t, v[ReplayTTFLP50])
				require.InDelta(t, toMiB(uint64(v[ReplayStored])*96), v[ReplayPut], 1e-9)
			}
		})
	}
}

func TestReplayOverSeveralNodesFindsWhatPeersHave(t *testing.T) {
	trace := makeTrace(2, 300)
	for name, open := range openers() {
		t.Run(name, func(t *testing.T) {
			r := newTestReplay(writeTrace(t, trace))
			r.Nodes, r.Capacities = 3, []int{100_000}
			require.NoError(t, r.run(t, open), r.errs.String())
			hits, _ := lruHits(trace, 100_000)
			v := r.rows[0].Values
			require.Equal(t, float64(hits), v[ReplayHits], "with room for all every prefix is found somewhere")
			require.Positive(t, v[ReplayRemoteHits])
			require.InDelta(t, toMiB(uint64(v[ReplayRemoteHits])*96), v[ReplayWireGet]+v[ReplayWirePull], 1e-9)
			require.InDelta(t, v[ReplayWireGet]+v[ReplayWirePull], v[ReplayInstalled], 1e-9)
			r.Assign = First
			require.NoError(t, r.run(t, open), r.errs.String())
			require.Zero(t, r.rows[0].Values[ReplayRemoteHits])
		})
	}
}

func TestReplayFailsOnBytesThatWereNotCounted(t *testing.T) {
	r := newTestReplay(writeTrace(t, [][]uint64{{1, 2, 3}, {1, 2, 3}}))
	r.Nodes = 2
	require.NoError(t, r.run(t, r.net.open), r.errs.String())
	r.net.tamper.stats = func(s *ports.Stats) { s.Wire[ports.PurposeGet] = 0 }
	err := r.run(t, r.net.open)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "node fake-1: run failed: wire: 0 bytes came for callers")
	require.Len(t, r.rows, 1, "what was counted is shown all the same")
}

func TestReplayFailsOnAWrongByte(t *testing.T) {
	r := newTestReplay(writeTrace(t, [][]uint64{{1, 2, 3}, {1, 2, 3}}))
	r.net.tamper.get = func(g *ports.GetBatch, _ []ports.Result) {
		last := g.Ranges[len(g.Ranges)-1]
		g.Regions[0].Region.(ports.HostRegion).Bytes()[last.RegionOff+last.Len-1] ^= 1
	}
	require.ErrorIs(t, r.run(t, r.net.open), ErrFailed)
	require.Contains(t, r.errs.String(), `wrong byte of key "trace/3" at offset 71`)
	require.Zero(t, r.rows[0].Values[ReplayTTFLP50], "no sample")
	require.Positive(t, r.rows[0].Values[ReplayFailedReads])
}

// The same keys go to the same places again and again: without poison what an earlier request left there would pass.
func TestReplaySeesThatNothingWasWritten(t *testing.T) {
	r := newTestReplay(writeTrace(t, [][]uint64{{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}))
	reads := 0
	r.net.tamper.skip = func(name string) bool {
		if name == "trace/2" {
			reads++
		}
		return name == "trace/2" && reads == 4 // two groups of the second request, then the third's second group
	}
	require.ErrorIs(t, r.run(t, r.net.open), ErrFailed)
	require.Contains(t, r.errs.String(), `wrong byte of key "trace/2" at offset 72: got 0xdb`)
}

func TestReplayTakesAKeyThatIsGoneByThenForAMiss(t *testing.T) {
	r := newTestReplay(writeTrace(t, [][]uint64{{1, 2, 3}, {1, 2, 3}}))
	r.net.tamper.get = func(g *ports.GetBatch, out []ports.Result) {
		if g.Ranges[0].Off > 0 { // the second group
			out[1] = ports.Result{Status: ports.NotFound}
		}
	}
	require.NoError(t, r.run(t, r.net.open), r.errs.String())
	v := r.rows[0].Values
	require.Equal(t, []float64{1, 2, 0}, []float64{v[ReplayHits], v[ReplayMissed], v[ReplayTTFLP50]})
}

func TestReplayFailsOnAStatusThatIsNoMiss(t *testing.T) {
	r := newTestReplay(writeTrace(t, [][]uint64{{1, 2, 3}, {1, 2, 3}}))
	r.net.tamper.get = func(_ *ports.GetBatch, out []ports.Result) { out[0].Status = ports.TransferFailed }
	require.ErrorIs(t, r.run(t, r.net.open), ErrFailed)
	require.Contains(t, r.errs.String(), `read of key "trace/1" from offset 0: status transfer_failed, want hit`)
}

func TestReplayOfABadTraceNamesItAndStops(t *testing.T) {
	r := newTestReplay(writeTrace(t, [][]uint64{{1}}))
	r.Trace += ".not-there"
	r.Capacities = []int{1, 2}
	err := r.run(t, r.net.open)
	require.ErrorContains(t, err, r.Trace)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 1, strings.Count(err.Error(), "not-there: open"), "said once")

	r = newTestReplay(writeTrace(t, [][]uint64{{1}}))
	require.NoError(t, os.WriteFile(r.Trace, []byte(goodLine+"\nnonsense\n"), 0o600))
	require.ErrorContains(t, r.run(t, r.net.open), "line 2")
	require.Empty(t, r.rows)
	require.Equal(t, 1, r.net.closed)
}

func TestReplayRefusesWhatDoesNotFit(t *testing.T) {
	r := newTestReplay(writeTrace(t, makeTrace(3, 20)))
	r.ScratchMiB, r.Capacities, r.MaxMemory = 0, []int{1 << 30, 50}, 1<<20
	err := r.run(t, r.net.open)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "row of 1073741824 blocks: it needs")
	require.Len(t, r.rows, 1, "the other row ran")

	r.Capacities, r.MaxMemory = []int{50}, 96*(50+replayPutBlocks)
	require.ErrorContains(t, r.run(t, r.net.open), "request 0 of")
}

func TestReplayEndsAtItsLimit(t *testing.T) {
	r := newTestReplay(writeTrace(t, makeTrace(4, 20)))
	r.Limit = 7
	require.NoError(t, r.run(t, r.net.open))
	require.Equal(t, 7.0, r.rows[0].Values[ReplayRequests])
}

func TestBadReplayOptionsNameFlagValueAndLimit(t *testing.T) {
	for want, change := range map[string]func(*Replay){
		`--trace "": want a file`:                            func(o *Replay) { o.Trace = "" },
		`--capacity-blocks "": want 1 or more`:               func(o *Replay) { o.Capacities = nil },
		`--capacity-blocks "0": want 1 to 4294967296`:        func(o *Replay) { o.Capacities = []int{0} },
		`--nodes "0": want 1 to 64`:                          func(o *Replay) { o.Nodes = 0 },
		`--block-bytes "0": want 1 to`:                       func(o *Replay) { o.BlockBytes = 0 },
		`--block-bytes "97": want a multiple of --layers, 4`: func(o *Replay) { o.BlockBytes = 97 },
		`--layers "0": want 1 to 4096`:                       func(o *Replay) { o.Layers = 0 },
		`--layer-group "0": want 1 to`:                       func(o *Replay) { o.Grouping.Size = 0 },
		`--scratch-mib "-1": want 0 to`:                      func(o *Replay) { o.ScratchMiB = -1 },
		`--limit "-1": want 0 to`:                            func(o *Replay) { o.Limit = -1 },
	} {
		r := newTestReplay("t")
		change(&r.Replay)
		var option *OptionError
		require.ErrorAs(t, r.run(t, r.net.open), &option, want)
		require.ErrorContains(t, option, want)
	}
	_, err := ParseAssign("hash")
	require.EqualError(t, err, `--assign "hash": unknown; available: round-robin, first`)
}

// openers is the nodes that replays and restores are tested over.
func openers() map[string]OpenCluster {
	return map[string]OpenCluster{"fake": (&fakeNet{}).open, "real": OpenNodes}
}

const publishedTrace = "../testdata/traces/synthetic_trace.jsonl.gz"

// The ratios are those that the trace's README gives.
func TestReplayOfThePublishedTraceHitsAsItsReadmeSays(t *testing.T) {
	for name, open := range openers() {
		t.Run(name, func(t *testing.T) {
			r := newTestReplay(publishedTrace)
			r.Capacities = []int{1000, 5000, 10_000, 50_000}
			require.NoError(t, r.run(t, open), r.errs.String())
			for i, want := range []float64{8.2, 27.9, 42.3, 64.0} {
				v := r.rows[i].Values
				require.Equal(t, []float64{3993, 121_877}, []float64{v[ReplayRequests], v[ReplayBlocks]})
				require.InDelta(t, want, v[ReplayHitPct], 0.5, "capacity %d", r.Capacities[i])
			}
		})
	}
}
