package app_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// TestKeysAreCountedByModeRouteAndOutcome: a key that fails counts with the last way that was tried, and nowhere before any was.
func TestKeysAreCountedByModeRouteAndOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k", "l", "m")
		var due [ports.NumBatchKinds][ports.NumSources][ports.NumOutcomes]uint64
		counts := func(kind ports.BatchKind, route ports.Source, o ports.Outcome) {
			t.Helper()
			due[kind][route][o]++
			require.Equal(t, due, b.Stats().Outcomes, "after %s by %s: %s", kind, route, o)
		}
		fails := func(do func()) {
			b.fail(faults.Every("Copier", "Op", faults.Verdict{Err: errTest}))
			defer b.fail()
			do()
		}
		b.put(objectSize, "own")
		counts(ports.BatchPutWhole, ports.FromLocal, ports.OutcomeDone)
		require.Equal(t, ports.Exists, b.putAs("own", 1, objectSize).Status)
		counts(ports.BatchPutWhole, ports.FromNowhere, ports.OutcomeExists)
		fails(func() { require.Equal(t, ports.CopyFailed, b.putAs("lost", 1, objectSize).Status) })
		counts(ports.BatchPutWhole, ports.FromLocal, ports.OutcomeFailed)
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 1, objectSize, 2, "given")[0].Status)
		counts(ports.BatchPutRanges, ports.FromArena, ports.OutcomeDone)
		fails(func() {
			require.Equal(t, ports.CopyFailed, b.putTo(t.Context(), "a", 1, objectSize, 2, "taken")[0].Status)
		})
		counts(ports.BatchPutRanges, ports.FromArena, ports.OutcomeFailed)

		b.getWhole(objectSize, "own")
		counts(ports.BatchGetWhole, ports.FromLocal, ports.OutcomeDone)
		fails(func() { require.Equal(t, ports.CopyFailed, b.tryWhole("own").Status) })
		counts(ports.BatchGetWhole, ports.FromLocal, ports.OutcomeFailed)
		fails(func() { require.Equal(t, ports.CopyFailed, b.tryWhole("k").Status) })
		counts(ports.BatchGetWhole, ports.FromSlot, ports.OutcomeFailed)
		b.mustGet(ports.FromSlot, part("l", 0, 1_000))
		counts(ports.BatchGetRanges, ports.FromSlot, ports.OutcomeDone)
		require.Equal(t, ports.NotFound, b.get(part("nowhere", 0, 1))[0].Status)
		counts(ports.BatchGetRanges, ports.FromNowhere, ports.OutcomeFailed)
	})
}

// TestWholeObjectsOverPeersAreCountedByRoute: whole calls, by the arena and from and to registered memory, done and failed.
func TestWholeObjectsOverPeersAreCountedByRoute(t *testing.T) {
	for _, route := range []ports.Source{ports.FromArena, ports.FromDirect} {
		t.Run(route.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{registered: route == ports.FromDirect, Config: noPool})
				a.put(objectSize, "k")
				table := []ports.Memory{{Region: ports.HostRegionOf(make([]byte, objectSize))}}
				defer b.register(table)()
				whole := func(name string, call func(context.Context, *ports.WholeBatch, []ports.Result) error) ports.Status {
					var out [1]ports.Result
					require.NoError(t, call(t.Context(), &ports.WholeBatch{Namespace: namespace, Keys: []string{name}, To: "a",
						Targets: []ports.Target{{Len: objectSize}}, Regions: table}, out[:]))
					return out[0].Status
				}
				require.Equal(t, ports.Hit, whole("k", b.BatchGet))
				require.Equal(t, ports.Stored, whole("l", b.BatchPut))
				b.fail(faults.Every("Link", "Op", faults.Verdict{Err: errTest}))
				require.Equal(t, ports.TransferFailed, whole("k", b.BatchGet))
				require.Equal(t, ports.TransferFailed, whole("m", b.BatchPut))
				var due [ports.NumBatchKinds][ports.NumSources][ports.NumOutcomes]uint64
				for _, kind := range []ports.BatchKind{ports.BatchGetWhole, ports.BatchPutWhole} {
					due[kind][route][ports.OutcomeDone], due[kind][route][ports.OutcomeFailed] = 1, 1
				}
				require.Equal(t, due, b.Stats().Outcomes)
			})
		})
	}
}

// tryWhole asks for a whole object of objectSize, which may fail.
func (n *node) tryWhole(name string) ports.Result {
	return n.Get(n.w.t.Context(), namespace, name, ports.HostRegionOf(make([]byte, objectSize)))
}

// TestBytesThatAreThrownAwayAreNoNeededOnes: what crossed for a transfer that fails, what came late, and what was copied to nobody.
func TestBytesThatAreThrownAwayAreNoNeededOnes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool})
		a.put(objectSize, "k")
		b.mustGet(ports.FromArena, part("k", 0, 1_000))
		s := b.Stats()
		require.Equal(t, [2]uint64{1_000, 0}, [2]uint64{s.NeededBytes, s.DuplicateBytes})

		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Err: errTest, Effect: true}))
		require.NotEqual(t, ports.Hit, b.get(part("k", 0, 2_000))[0].Status)
		s = b.Stats()
		require.Equal(t, [2]uint64{1_000, 2_000}, [2]uint64{s.NeededBytes, s.DuplicateBytes}, "its bytes came, and were not used")

		b.fail(next(1, "Copier", "Op", nil, faults.Verdict{Err: errTest}))
		require.Equal(t, ports.CopyFailed, b.get(part("k", 0, 4_000))[0].Status)
		s = b.Stats()
		require.Equal(t, [2]uint64{1_000, 6_000}, [2]uint64{s.NeededBytes, s.DuplicateBytes})
		require.EqualValues(t, 7_000, s.Wire[ports.PurposeGet])
	})
}
