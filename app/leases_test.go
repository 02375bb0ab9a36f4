package app_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// readers are the ways in which bytes come from a peer.
var readers = []struct {
	name    string
	cfg     app.Config
	direct  bool // into registered memory
	from    ports.Source
	purpose ports.Purpose
}{
	{"slot", noPull, false, ports.FromSlot, ports.PurposeGet},
	{"arena", noPool, false, ports.FromArena, ports.PurposeGet},
	{"direct", noPool, true, ports.FromDirect, ports.PurposeGet},
}

// leases is an owner whose medium holds one object only, and a reader. What the owner evicts is refilled at once, with other bytes.
func leases(w *world, cfg app.Config) (a, b *node) {
	cfg.TransferTimeout, cfg.CallTimeout = time.Minute, time.Minute
	return w.pair(place{pages: 4, offHeap: true}, place{Config: cfg, offHeap: true})
}

func TestBytesThatComeAfterTheLeaseAreFetchedAgain(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := leases(w, r.cfg)
				b.place.registered = r.direct
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, hold(&g)), noRenewal(2))
				read := b.begin(t.Context(), 0, part("k", 1_000, 50_000))
				synctest.Wait()
				require.Equal(t, 1, g.Held())
				w.pass(600 * time.Millisecond)
				g.Open()
				out := read.wait()
				require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
				require.Equal(t, r.from, out[0].Source)
				s := b.Stats()
				require.EqualValues(t, 1, s.Downgrades[ports.DowngradeLate])
				require.EqualValues(t, 50_000, s.DuplicateBytes, "what was thrown away")
				require.EqualValues(t, 100_000, s.Wire[ports.PurposeGet])
				require.NotZero(t, s.LeasesStale)
			})
		})
	}
}

// noRenewal makes the answer to a node's n-th resolve say that nothing is renewed. The owner did renew.
func noRenewal(n uint64) faults.Plan {
	return when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N == n }, stale)
}

func TestBytesThatComeAfterTheLeaseTwiceAreLate(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := leases(w, r.cfg)
				b.place.registered = r.direct
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(2, "Link", "Op", nil, hold(&g)), when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N%2 == 0 }, stale))
				read := b.begin(t.Context(), 0, part("k", 1_000, 50_000))
				for range 2 {
					synctest.Wait()
					require.Equal(t, 1, g.Held())
					w.pass(600 * time.Millisecond)
					g.Open()
				}
				out := read.wait()
				require.Equal(t, ports.Late, out[0].Status, "%v", out[0].Err)
				require.EqualValues(t, 100_000, b.Stats().DuplicateBytes)
				b.fail()
				b.mustGet(r.from, part("k", 1_000, 50_000))
			})
		})
	}
}

// TestPagesThatWereReusedAfterTheLeaseAreNeverServed: the bytes that come late are those of another object.
func TestPagesThatWereReusedAfterTheLeaseAreNeverServed(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := leases(w, r.cfg)
				b.place.registered = r.direct
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, hold(&g)), noRenewal(2))
				read := b.begin(t.Context(), 0, part("k", 1_000, 50_000))
				synctest.Wait()
				require.Equal(t, ports.NoSpace, a.putAs("other", 0, objectSize).Status, "a leased object is not evicted")
				w.pass(800 * time.Millisecond)
				a.put(objectSize, "other")
				g.Open()
				out := read.wait()
				require.Equal(t, ports.NotFound, out[0].Status, "%v", out[0].Err)
				require.EqualValues(t, 50_000, b.Stats().DuplicateBytes)
			})
		})
	}
}

// TestInstantOfTheTransportCounts: bytes that were there in time count, however late the word of it comes.
func TestBytesThatTheTransportSawInTimeCountHoweverLateTheWordComes(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := leases(w, r.cfg)
				b.place.registered = r.direct
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, holdAfter(&g)), when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N > 1 }, stale))
				read := b.begin(t.Context(), 0, part("k", 0, 50_000))
				synctest.Wait()
				w.pass(2 * time.Second)
				a.put(objectSize, "other")
				g.Open()
				require.Equal(t, ports.Hit, read.wait()[0].Status)
				require.Zero(t, b.Stats().DuplicateBytes)
			})
		})
	}
}

func TestLeasesAreRenewedInFlight(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := leases(w, r.cfg)
				b.place.registered = r.direct
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, hold(&g)))
				read := b.begin(t.Context(), 0, part("k", 0, 50_000))
				synctest.Wait()
				for range 20 {
					w.pass(100 * time.Millisecond)
					require.Equal(t, ports.NoSpace, a.putAs("other", 0, objectSize).Status)
				}
				g.Open()
				require.Equal(t, ports.Hit, read.wait()[0].Status)
				s := b.Stats()
				require.InDelta(t, 8, s.LeasesRenewed, 1, "one request at half of each lease")
				require.Zero(t, s.DuplicateBytes)
			})
		})
	}
}

func TestLeaseIsRenewedWhileACallWaitsForTheArena(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		cfg := noPool
		cfg.TransferTimeout, cfg.CallTimeout, cfg.ArenaWait = time.Minute, time.Minute, time.Minute
		a, b := w.pair(place{}, place{Config: cfg, get: 64 * kib})
		a.put(objectSize, "k", "l")
		var g faults.Gate
		b.fail(next(1, "Link", "Op", nil, hold(&g)))
		first := b.begin(t.Context(), 0, part("k", 0, 64*kib))
		synctest.Wait()
		second := b.begin(t.Context(), 0, part("l", 0, 64*kib))
		w.pass(3 * time.Second)
		g.Open()
		require.Equal(t, ports.Hit, first.wait()[0].Status)
		require.Equal(t, ports.Hit, second.wait()[0].Status)
		require.Zero(t, b.Stats().DuplicateBytes)
		require.EqualValues(t, 2, b.faults.Count("Link", "Op"))
	})
}

func TestLaterCallsSkipTheResolveWhileHalfOfTheLeaseIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		w.pass(240 * time.Millisecond)
		b.mustGet(ports.FromSlot, part("k", 1_000, 1_000))
		require.EqualValues(t, 1, b.faults.Count("PeerResolver", "Resolve"))
		w.pass(20 * time.Millisecond)
		b.mustGet(ports.FromSlot, part("k", 2_000, 1_000))
		require.NotZero(t, b.Stats().LeasesRenewed) // by the call, and by the renewer where it was faster
		w.pass(time.Second)                         // past its end: resolved anew
		b.mustGet(ports.FromSlot, part("k", 3_000, 1_000))
		require.NotZero(t, b.Stats().LeasesStale)
		b.mustGet(ports.FromSlot, part("k", 0, 4_000))
		require.EqualValues(t, 4_000, b.Stats().Wire[ports.PurposeGet])
	})
}

func TestSessionKeepsItsViewForTheArena(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool})
		a.put(objectSize, "k")
		id, err := b.OpenRead(t.Context(), namespace)
		require.NoError(t, err)
		for i := range uint64(4) {
			require.Equal(t, ports.Hit, b.getIn(t.Context(), id, part("k", i*1_000, 1_000))[0].Status)
		}
		require.EqualValues(t, 1, b.faults.Count("PeerResolver", "Resolve"))
		require.NoError(t, b.CloseRead(id))
	})
}

func TestOwnerRefusesToRenewWhatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := leases(w, noPull)
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		require.NoError(t, a.Clear(t.Context()))
		require.EqualValues(t, 4, a.Stats().Table.Pages[domain.SlotDoomed], "a peer may be reading them")
		w.pass(300 * time.Millisecond)
		require.Equal(t, ports.NotFound, b.get(part("k", 1_000, 1_000))[0].Status)
		s := b.Stats()
		require.NotZero(t, s.LeasesStale)
		require.Zero(t, s.Table.Pages[domain.SlotFilling], "what was fetched of a version that nobody has is doomed")
	})
}

// TestRenewalThatNobodyCanMeanIsNoAnswer: a peer that promises for ever promises nothing, also where it only renews.
func TestRenewalThatNobodyCanMeanIsNoAnswer(t *testing.T) {
	for _, lease := range []time.Duration{math.MaxInt64, 0, -1} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := leases(w, noPull)
			a.put(objectSize, "k")
			b.mustGet(ports.FromSlot, part("k", 0, 1_000))
			w.pass(300 * time.Millisecond) // more than half of the lease
			b.fail(faults.Every("PeerResolver", "Resolve", faults.Verdict{Edit: func(r any) { r.(*ports.ResolveReply).LeaseNanos[0] = int64(lease) }}))
			require.Equal(t, ports.PeerUnavailable, b.get(part("k", 1_000, 1_000))[0].Status)
			b.fail()
			b.mustGet(ports.FromSlot, part("k", 1_000, 1_000))
		})
	}
}

// TestAnswerThatTakesLongerThanItsLeaseIsNotUsed: the lease runs from before the request.
func TestAnswerThatTakesLongerThanItsLeaseIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		b.fail(next(1, "PeerResolver", "Resolve", nil, faults.Verdict{After: faults.For(600 * time.Millisecond)}))
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		require.EqualValues(t, 2, b.faults.Count("PeerResolver", "Resolve"))
		require.Zero(t, b.Stats().DuplicateBytes)

		b.fail(faults.Every("PeerResolver", "Resolve", faults.Verdict{After: faults.For(600 * time.Millisecond)}))
		w.pass(time.Second)
		require.Contains(t, []ports.Status{ports.Late, ports.PeerUnavailable}, b.get(part("k", 5_000, 1_000))[0].Status)
	})
}
