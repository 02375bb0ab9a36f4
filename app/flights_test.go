package app_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

func TestReadersOfTheSameBytesShareOneFlight(t *testing.T) {
	overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
		a, b := w.pair(place{page: page, pages: 8 * pages}, place{page: page, pages: 8 * pages, Config: noPull})
		a.put(objectSize, "k", "l")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		first := b.begin(t.Context(), 0, part("k", 0, 100_000))
		synctest.Wait()
		same := b.begin(t.Context(), 0, part("k", 0, 100_000))
		more := b.begin(t.Context(), 0, part("k", 50_000, 150_000), part("l", 0, 10))
		synctest.Wait()
		require.Equal(t, 3, g.Held(), "one op for what is not claimed yet, of each key")
		g.Open()
		require.EqualValues(t, 100_000, first.wait()[0].Fetched)
		out := same.wait()
		require.Zero(t, out[0].Fetched)
		require.EqualValues(t, 100_000, out[0].Joined)
		require.True(t, out[0].Remote())
		out = more.wait()
		require.EqualValues(t, 100_000, out[0].Fetched)
		require.EqualValues(t, 50_000, out[0].Joined)
		s := b.Stats()
		require.EqualValues(t, objectSize+10, s.Wire[ports.PurposeGet], "each byte once")
		require.EqualValues(t, 2, s.FlightsJoined)
		require.Zero(t, s.DuplicateBytes)
		b.requireLocal(objectSize, "k")
	})
}

// TestReadersOfDisjointExtentsGetTheirOwn: a single flight that is keyed without the extent gives one reader another's bytes.
func TestReadersOfDisjointExtentsGetTheirOwnBytes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		var readers []*reading
		for i := range uint64(8) {
			readers = append(readers, b.begin(t.Context(), 0, part("k", i*25_000, 25_000)))
		}
		synctest.Wait()
		require.Equal(t, 8, g.Held())
		g.OpenReversed()
		for _, r := range readers {
			require.Equal(t, ports.Hit, r.wait()[0].Status)
		}
		require.Zero(t, b.Stats().FlightsJoined)
	})
}

func TestReaderTakesOverAFlightThatFailed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Before: g.Hold, Err: errTest}))
		first := b.begin(t.Context(), 0, part("k", 0, 1_000))
		synctest.Wait()
		second := b.begin(t.Context(), 0, part("k", 0, 2_000))
		synctest.Wait()
		g.Open()
		out := second.wait()
		require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
		require.Equal(t, ports.TransferFailed, first.wait()[0].Status)
		b.mustGet(ports.FromSlot, part("k", 0, 2_000))
	})
}

func TestFlightGoesOnWhenItsStarterLeaves(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		ctx, cancel := context.WithCancel(t.Context())
		first := b.begin(ctx, 0, part("k", 0, 1_000))
		synctest.Wait()
		second := b.begin(t.Context(), 0, part("k", 0, 1_000))
		synctest.Wait()
		cancel()
		out := first.wait()
		require.Equal(t, ports.Cancelled, out[0].Status)
		require.ErrorIs(t, out[0].Err, context.Canceled)
		require.EqualValues(t, 2, b.Stats().Calls, "the one that left is drained")
		g.Open()
		require.Equal(t, ports.Hit, second.wait()[0].Status)
		require.EqualValues(t, 1_000, b.Stats().Wire[ports.PurposeGet])
		require.Zero(t, b.faults.Count("Link", "Cancel"), "others wait for that flight")
	})
}

// TestWaiterLeavesUnderItsOwnContext: the flight and its starter do not notice.
func TestWaiterLeavesUnderItsOwnContext(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		first := b.begin(t.Context(), 0, part("k", 0, 1_000))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		second := b.begin(ctx, 0, part("k", 0, 1_000))
		synctest.Wait()
		cancel()
		require.Equal(t, ports.Cancelled, second.wait()[0].Status)
		g.Open()
		require.Equal(t, ports.Hit, first.wait()[0].Status)
	})
}

// TestAFlightIsNoWordToWhoHasLeftIt: the next call works with what the one that left worked with, and waits for a flight of its own.
func TestAFlightIsNoWordToWhoHasLeftIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull, pages: 16})
		const large = 2_000 * kib // more than b's medium: it goes by the arena
		a.put(objectSize, "k")
		a.put(large, "l")
		var left, own faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&left)))
		first := b.begin(t.Context(), 0, part("k", 0, 1_000))
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		leaver := b.begin(ctx, 0, part("k", 0, 1_000))
		synctest.Wait()
		cancel()
		require.Equal(t, ports.Cancelled, leaver.wait()[0].Status)
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&own)))
		next := b.begin(t.Context(), 0, part("l", 0, 1_000))
		synctest.Wait()
		left.Open()
		require.Equal(t, ports.Hit, first.wait()[0].Status)
		synctest.Wait()
		select {
		case <-next.done:
			require.Fail(t, "it ended before its own bytes were there")
		default:
		}
		own.Open()
		require.Equal(t, ports.Hit, next.wait()[0].Status)
	})
}

// TestReaderOvertakesThePull: the pull has queued the rest of the object and may not send it while a call waits for first bytes.
func TestReaderTakesOverWhatThePullHasQueuedAndNotSubmitted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(objectSize, "k", "stall")
		var g faults.Gate
		b.fail(next(1, "Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		stall := b.begin(t.Context(), 0, part("stall", 0, objectSize))
		synctest.Wait()
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().PullWaiting)
		require.Zero(t, b.Stats().Wire[ports.PurposePull], "nothing while a call waits for its first bytes")
		b.mustGet(ports.FromSlot, part("k", 0, objectSize))
		b.requireLocal(objectSize, "k")
		g.Open()
		stall.wait()
		w.settle()
		s := b.Stats()
		require.Zero(t, s.Wire[ports.PurposePull])
		require.EqualValues(t, 2*objectSize, s.Wire[ports.PurposeGet])
		require.Zero(t, s.DuplicateBytes)
	})
}

func TestReaderJoinsAPieceThatThePullIsFetching(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePull), hold(&g)))
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		r := b.begin(t.Context(), 0, part("k", 100_000, 1_000))
		synctest.Wait()
		g.Open()
		out := r.wait()
		require.EqualValues(t, 1_000, out[0].Joined)
		require.Zero(t, out[0].Fetched)
		w.settle()
		require.EqualValues(t, objectSize-1_000, b.Stats().Wire[ports.PurposePull])
		b.requireLocal(objectSize, "k")
	})
}

// TestCommitRefusedAfterAFetch: the caller has its bytes, the key is a hit, the slot goes back, and the failure is counted.
func TestCommitRefusedAfterAFetchIsStillAHit(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, b *node)
	}{
		{"cleared", func(t *testing.T, b *node) { require.NoError(t, b.Clear(context.Background())) }},
		{"removed here", func(t *testing.T, b *node) {
			b.fail(faults.Every("PeerWriter", "Remove", faults.Verdict{Err: errTest}))
			require.NoError(t, b.Remove(context.Background(), namespace, []string{"k"}, make([]ports.Removal, 1)))
		}},
		{"another writer was first", func(t *testing.T, b *node) { require.Equal(t, ports.Stored, b.putAs("k", 1, objectSize).Status) }},
	} {
		for _, off := range []uint64{0, 100_000} { // a whole read, and the second half
			t.Run(fmt.Sprint(tt.name, off), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					a, b := w.pair(place{}, place{Config: noPull})
					a.put(objectSize, "k")
					if off > 0 {
						b.mustGet(ports.FromSlot, part("k", 0, off))
					}
					var g faults.Gate
					b.fail(next(1, "Link", "Op", nil, holdAfter(&g)))
					r := b.begin(t.Context(), 0, part("k", off, objectSize-off))
					synctest.Wait()
					require.Equal(t, 1, g.Held())
					tt.do(t, b)
					g.Open()
					out := r.wait()
					require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
					s := b.Stats()
					require.EqualValues(t, 1, s.InstallFailures[ports.InstallCommitRefused])
					require.Zero(t, s.InstalledObjects[domain.LocalBySlot]+s.InstalledObjects[domain.LocalByExtents])
				})
			})
		}
	}
}

func TestArenaInstallThatIsRefusedIsStillAHit(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, b *node)
		want ports.InstallFailure
	}{
		{"copy failed", nil, ports.InstallArenaFailed},
		{"cleared", func(t *testing.T, b *node) { require.NoError(t, b.Clear(context.Background())) }, ports.InstallCommitRefused},
		{"another writer was first", func(t *testing.T, b *node) { require.Equal(t, ports.Stored, b.putAs("k", 1, 100).Status) }, ports.InstallCommitRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b, makeRoom := crowded(t, w, app.Config{NoRangedLocalityPrefetch: true})
				a.put(objectSize, "k")
				var g, copies faults.Gate
				b.fail(next(1, "Link", "Op", nil, holdAfter(&g)))
				r := b.begin(t.Context(), 0, part("k", 0, objectSize))
				synctest.Wait()
				makeRoom()
				plan := next(1, "Copier", "Copy", nil, hold(&copies))
				if tt.do == nil {
					toSlot := func(c faults.Call) bool { return sameRegion(c.Copy.Dst, b.medium) }
					plan = next(1, "Copier", "Op", toSlot, faults.Verdict{Err: errTest})
				}
				b.fail(plan)
				g.Open()
				if tt.do != nil {
					synctest.Wait()
					require.Equal(t, 1, copies.Held())
					b.fail()
					tt.do(t, b)
					copies.Open()
				}
				out := r.wait()
				require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
				s := b.Stats()
				require.EqualValues(t, 1, s.InstallFailures[tt.want])
				require.Zero(t, s.InstalledObjects[domain.LocalFromArena])
			})
		})
	}
}

// sameRegion says that r is a buffer of m.
func sameRegion(r ports.Region, m ports.Medium) bool {
	h, ok := r.(ports.HostRegion)
	if !ok || h.Len() == 0 {
		return false
	}
	for _, b := range m.Buffers() {
		if o := b.(ports.HostRegion); o.Len() == h.Len() && &o.Bytes()[0] == &h.Bytes()[0] {
			return true
		}
	}
	return false
}

func TestCopyOutThatFailsFailsItsKeyAndTheObjectStaysLocal(t *testing.T) {
	overRoutes(t, objectSize, func(t *testing.T, w *world, a, b *node, from ports.Source) {
		a.put(objectSize, "k")
		b.fail(next(1, "Copier", "Op", nil, faults.Verdict{Err: errTest}))
		out := b.get(part("k", 0, objectSize))
		require.Equal(t, ports.CopyFailed, out[0].Status)
		require.ErrorIs(t, out[0].Err, errTest)
		b.fail()
		if from == ports.FromArena {
			b.mustGet(from, part("k", 0, objectSize))
			return
		}
		b.requireLocal(objectSize, "k")
	})
}

// TestPinKeepsPagesDuringCopyOut evicts and refills while a copy is held: without the pin it would read the other object.
func TestPagesOfACopyOutAreNotReused(t *testing.T) {
	for _, from := range []ports.Source{ports.FromLocal, ports.FromSlot} {
		t.Run(from.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{pages: 8, Config: app.Config{FillingShare: 1, NoRangedLocalityPrefetch: true}, offHeap: true})
				if from == ports.FromLocal {
					b.put(objectSize, "k")
				} else {
					a.put(objectSize, "k")
				}
				var g faults.Gate
				b.fail(next(1, "Copier", "Copy", nil, hold(&g)))
				r := b.begin(t.Context(), 0, part("k", 0, 100_000))
				synctest.Wait()
				require.Equal(t, 1, g.Held())
				require.EqualValues(t, 1, b.Stats().Table.Pins)
				b.put(objectSize, "x")
				b.put(objectSize, "y") // takes what can be taken
				require.NoError(t, b.Clear(t.Context()))
				b.put(objectSize, "z")
				require.EqualValues(t, 1, b.Stats().Table.Slots[domain.SlotDoomed])
				require.Equal(t, ports.NoSpace, b.putAs("full", 0, 2*objectSize).Status, "doomed pages are not handed out")
				g.Open()
				require.Equal(t, ports.Hit, r.wait()[0].Status)
			})
		})
	}
}
