package app_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// The wire counts of this file are those of the same calls with a feature and without it.

func TestSingleFlightIsWorthItsBytes(t *testing.T) {
	for _, off := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.pair(place{}, place{Config: noPull})
			b.TurnOffForTesting(off, false, false)
			a.put(objectSize, "k")
			var g, copies faults.Gate // without the feature bytes land where others are copied out, though the same: those wait
			b.fail(func(c faults.Call) faults.Verdict {
				switch {
				case c.Port == "Link" && c.Method == "Op" && c.Op.Purpose == ports.PurposeGet:
					return hold(&g)
				case c.Port == "Copier" && c.Method == "Copy":
					return hold(&copies)
				}
				return faults.Verdict{}
			})
			var all []*reading
			for range 3 {
				all = append(all, b.begin(t.Context(), 0, part("k", 0, 100_000)))
				synctest.Wait()
			}
			g.Open()
			synctest.Wait()
			copies.Open()
			for _, r := range all {
				require.Equal(t, ports.Hit, r.wait()[0].Status)
			}
			s := b.Stats()
			if off {
				require.EqualValues(t, 300_000, s.Wire[ports.PurposeGet])
				require.EqualValues(t, 200_000, s.DuplicateBytes)
				return
			}
			require.EqualValues(t, 100_000, s.Wire[ports.PurposeGet])
			require.Zero(t, s.DuplicateBytes)
		})
	}
}

// TestEachDedupOfThePullIsWorthItsBytes asks twice for one key, the second time for a job that runs when the first has ended.
func TestEachDedupOfThePullIsWorthItsBytes(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		dedupQueued, dedupRun bool // off
		again                 uint64
	}{
		{"both", false, false, 0},
		{"when queued only", false, true, 0},
		{"when run only", true, false, 0},
		{"none", true, true, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{page: 100, pages: 800}, place{page: 100, pages: 800, Config: pullWhole})
				b.TurnOffForTesting(false, tt.dedupQueued, tt.dedupRun)
				names := keys("k", domain.PullPassKeys)
				a.put(100, names...)
				a.put(100, "stall")
				letGo := stalled(t, b, "stall")
				b.mustGet(ports.FromArena, partsOf(names, 0, 10)...)
				synctest.Wait()
				b.mustGet(ports.FromArena, part(names[0], 20, 10))
				letGo()
				w.settle()
				require.Equal(t, 100*(domain.PullPassKeys+1)+tt.again, b.Stats().Wire[ports.PurposePull])
				b.requireLocal(100, names...)
			})
		})
	}
}

// TestDedupOfThePullWhenItIsRunIsWorthItsBytes: a reader has made the object local before the pull's turn.
func TestDedupOfThePullWhenItIsRunIsWorthItsBytes(t *testing.T) {
	for _, off := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.pair(place{page: 100, pages: 800}, place{page: 100, pages: 800, Config: pullWhole})
			b.TurnOffForTesting(false, false, off)
			names := keys("k", domain.PullPassKeys+1)
			a.put(100, names...)
			a.put(100, "stall")
			letGo := stalled(t, b, "stall")
			b.mustGet(ports.FromArena, partsOf(names[:domain.PullPassKeys], 0, 10)...)
			synctest.Wait()
			last := names[domain.PullPassKeys]
			b.mustGet(ports.FromArena, part(last, 0, 10))
			b.mustGet(ports.FromSlot, part(last, 0, 100))
			letGo()
			w.settle()
			again := uint64(0)
			if off {
				again = 100
			}
			require.Equal(t, 100*(domain.PullPassKeys+1)+again, b.Stats().Wire[ports.PurposePull], "dedup off: %v", off)
		})
	}
}

// TestFillingSlotIsWorthItsBytes walks an object in overlapping windows.
func TestFillingSlotIsWorthItsBytes(t *testing.T) {
	for _, tt := range []struct {
		mode domain.LocalityMode
		wire uint64
	}{{domain.LocalityFill, objectSize}, {domain.LocalityPullOnly, 7 * 50_000}, {domain.LocalityOff, 7 * 50_000}} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.pair(place{}, place{Config: app.Config{Locality: tt.mode, NoRangedLocalityPrefetch: true}})
			a.put(objectSize, "k")
			for i := range uint64(7) {
				require.Equal(t, ports.Hit, b.get(part("k", i*25_000, 50_000))[0].Status)
			}
			require.Equal(t, tt.wire, b.Stats().Wire[ports.PurposeGet])
			require.Equal(t, tt.mode == domain.LocalityFill, b.committed() == 1)
		})
	}
}
