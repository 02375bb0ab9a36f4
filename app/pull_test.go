package app_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// pullWhole is a reader whose pulls have a slot to themselves: partial reads go through the arena.
var pullWhole = app.Config{Locality: domain.LocalityPullOnly, FillingShare: 1}

// stalled keeps a call of b waiting for its first bytes, and with it the pull, until the function is called.
func stalled(t *testing.T, b *node, key string) (letGo func()) {
	t.Helper()
	g := new(faults.Gate)
	b.fail(next(1, "Link", "Op", purpose(ports.PurposeGet), hold(g)))
	r := b.begin(t.Context(), 0, part(key, 0, 1))
	synctest.Wait()
	require.Equal(t, 1, g.Held())
	return func() {
		g.Open()
		r.wait()
	}
}

func TestPullIsDedupedWhenQueued(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const size = 12 * domain.PullPieceBytes
		a, b := w.pair(place{page: domain.PullPieceBytes, pages: 12}, place{page: domain.PullPieceBytes, pages: 12, Config: app.Config{FillingShare: 1}})
		a.put(size, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePull), hold(&g)))
		for i := range uint64(3) {
			b.mustGet(ports.FromSlot, part("k", 10*domain.PullPieceBytes+i*1_000, 1_000))
			synctest.Wait()
		}
		require.Equal(t, 8, g.Held())
		b.fail()
		g.Open()
		w.settle()
		s := b.Stats()
		require.EqualValues(t, 1, s.PullQueued, "three reads, one pull")
		require.EqualValues(t, 2, s.PullDeduped)
		require.EqualValues(t, size, s.Wire[ports.PurposePull]+s.Wire[ports.PurposeGet])
		require.Zero(t, s.DuplicateBytes)
		b.requireLocal(size, "k")
	})
}

// TestPullIsDedupedWhenRun queues more keys than a pass takes, and completes the last one before its turn.
func TestPullIsDedupedAgainWhenRun(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{page: 100, pages: 800}, place{page: 100, pages: 800, Config: pullWhole})
		names := keys("k", domain.PullPassKeys+1)
		a.put(100, names...)
		a.put(100, "stall")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromArena, partsOf(names[:domain.PullPassKeys], 0, 10)...)
		last := names[domain.PullPassKeys]
		b.mustGet(ports.FromArena, part(last, 0, 10))
		b.mustGet(ports.FromSlot, part(last, 0, 100))
		letGo()
		w.settle()
		s := b.Stats()
		require.EqualValues(t, 1, s.PullDeduped)
		require.EqualValues(t, domain.PullPassKeys+2, s.PullQueued)
		require.EqualValues(t, domain.PullPassKeys+2, s.PullDone)
		require.EqualValues(t, 100*(domain.PullPassKeys+1), s.Wire[ports.PurposePull])
		b.requireLocal(100, names...)
	})
}

func TestPullsQueueThatIsFullDropsAndCounts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const many = domain.PullQueueKeys + domain.PullPassKeys + 20
		a, b := w.pair(place{page: 100, pages: 2_000}, place{page: 100, pages: 2_000, Config: pullWhole})
		names := keys("k", many)
		a.put(100, names...)
		a.put(100, "stall")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromArena, partsOf(names[:domain.PullPassKeys], 0, 10)...)
		synctest.Wait()
		b.mustGet(ports.FromArena, partsOf(names[domain.PullPassKeys:], 0, 10)...)
		s := b.Stats()
		require.EqualValues(t, 20, s.PullDropped)
		require.EqualValues(t, 20, s.InstallFailures[ports.InstallQueueFull])
		require.EqualValues(t, many-20, s.PullWaiting)
		letGo()
		w.settle()
		s = b.Stats()
		require.EqualValues(t, many+1, s.PullDone+s.PullDropped, "asked for == done + dropped; one is the stalled key's")
		require.EqualValues(t, s.PullDropped, s.InstallFailures[ports.InstallQueueFull])
		require.EqualValues(t, s.PullDone, b.committed())
	})
}

func TestPullIsOneResolveAndOneBatchPerPeerAndPass(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{page: 100, pages: 800}, place{page: 100, pages: 800, Config: pullWhole})
		names := keys("k", 100)
		a.put(100, names...)
		a.put(100, "stall")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromArena, partsOf(names, 0, 10)...)
		w.pass(time.Second) // the views that the reads brought have ended
		resolves, submits := b.faults.Count("PeerResolver", "Resolve"), b.faults.Count("Link", "Submit")
		letGo()
		w.settle()
		require.LessOrEqual(t, b.faults.Count("PeerResolver", "Resolve")-resolves, uint64(3), "the pull's, and the stalled key's")
		require.LessOrEqual(t, b.faults.Count("Link", "Submit")-submits, uint64(3))
		require.EqualValues(t, 101, b.committed())
	})
}

// TestPullIsBreadthFirst: the lowest piece of every key before the second of any.
func TestPullIsBreadthFirstInPieces(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const size = 3 * domain.PullPieceBytes
		a, b := w.pair(place{page: domain.PullPieceBytes, pages: 12}, place{page: domain.PullPieceBytes, pages: 12, Config: pullWhole})
		a.put(size, "k", "l")
		a.put(100, "stall")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromArena, part("k", 0, 10))
		b.mustGet(ports.FromArena, part("l", 0, 10))
		letGo()
		w.settle()
		var lens []uint32
		for _, c := range b.faults.Calls() {
			if c.Port == "Link" && c.Method == "Op" && c.Op.Purpose == ports.PurposePull {
				lens = append(lens, c.Op.Count)
			}
		}
		require.Len(t, lens, 7, "three pieces of two keys, and the stalled one")
		b.requireLocal(size, "k", "l")
	})
}

// TestThePullFetchesAPieceOfEveryKeyBeforeTheNextOfAny lets two pieces pass: they are one of each key.
func TestThePullFetchesAPieceOfEveryKeyBeforeTheNextOfAny(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const size = 3 * domain.PullPieceBytes
		medium := place{page: domain.PullPieceBytes, pages: 12, Config: app.Config{FillingShare: 1}}
		a, b := w.pair(medium, medium)
		a.put(size, "k", "l")
		a.put(100, "stall")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromSlot, part("k", 0, 10))
		b.mustGet(ports.FromSlot, part("l", 0, 10))
		var g faults.Gate
		var pieces atomic.Uint64
		b.fail(when("Link", "Op", func(c faults.Call) bool { return c.Op.Purpose == ports.PurposePull && pieces.Add(1) > 2 }, hold(&g)))
		letGo()
		synctest.Wait()
		require.NotZero(t, g.Held())
		for _, r := range b.get(part("k", 20, 10), part("l", 20, 10)) {
			require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
			require.Zero(t, r.Fetched+r.Joined, "its first piece is here")
		}
		b.fail()
		g.Open()
		w.settle()
		b.requireLocal(size, "k", "l")
	})
}

func TestPullTakesAtMostItsShareOfTheLink(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const size = 16 * domain.PullPieceBytes
		a, b := w.pair(place{page: domain.PullPieceBytes, pages: 32}, place{page: domain.PullPieceBytes, pages: 32, Config: app.Config{FillingShare: 1}})
		a.put(size, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePull), hold(&g)))
		b.mustGet(ports.FromSlot, part("k", 0, 10))
		synctest.Wait()
		require.EqualValues(t, domain.PullInFlightBytes/domain.PullPieceBytes, g.Held())
		b.fail()
		g.Open()
		w.settle()
		b.requireLocal(size, "k")
	})
}

func TestPullThatFailsIsCountedByReason(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(t *testing.T, w *world, a, b *node)
		want ports.InstallFailure
	}{
		{"transfer failed", func(t *testing.T, w *world, a, b *node) {
			b.fail(when("Link", "Op", purpose(ports.PurposePull), faults.Verdict{Err: errTest}))
		}, ports.InstallPeerFailed},
		{"link reset twice", func(t *testing.T, w *world, a, b *node) {
			b.fail(when("Link", "Op", purpose(ports.PurposePull), faults.Verdict{Err: ports.ErrReset}))
		}, ports.InstallPeerFailed},
		{"late twice", func(t *testing.T, w *world, a, b *node) {
			b.fail(when("Link", "Op", purpose(ports.PurposePull), faults.Verdict{Before: faults.For(time.Second)}),
				when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N%2 == 0 }, stale))
		}, ports.InstallLease},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{offHeap: true}, place{Config: app.Config{TransferTimeout: time.Minute}, offHeap: true})
				a.put(objectSize, "k")
				tt.fail(t, w, a, b)
				b.mustGet(ports.FromSlot, part("k", 0, 1_000))
				w.settle()
				s := b.Stats()
				require.EqualValues(t, 1, s.InstallFailures[tt.want], "%v", s.InstallFailures)
				require.EqualValues(t, 1, s.PullFailed)
				require.Zero(t, b.committed())
				b.fail()
				b.mustGet(ports.FromSlot, part("k", 1_000, 1_000)) // asks for the pull again
				w.settle()
				b.requireLocal(objectSize, "k")
			})
		})
	}
}

func TestPullFetchesAPieceOnceMore(t *testing.T) {
	for _, tt := range []struct {
		name string
		once faults.Verdict
		want ports.Downgrade
	}{
		{"link reset", faults.Verdict{Err: ports.ErrReset}, ports.DowngradeReset},
		{"late", faults.Verdict{Before: faults.For(time.Second)}, ports.DowngradeLate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{offHeap: true}, place{Config: app.Config{TransferTimeout: time.Minute}, offHeap: true})
				a.put(objectSize, "k")
				b.fail(next(1, "Link", "Op", purpose(ports.PurposePull), tt.once), noRenewal(2))
				b.mustGet(ports.FromSlot, part("k", 0, 1_000))
				w.settle()
				s := b.Stats()
				require.EqualValues(t, 1, s.Downgrades[tt.want], "%v", s.Downgrades)
				require.Zero(t, s.InstallFailures)
				require.EqualValues(t, 1, s.PullDone)
				b.fail()
				b.requireLocal(objectSize, "k")
			})
		})
	}
}

// TestPullWhoseSlotGaveWay: an idle filling slot is no pin.
func TestPullWhoseSlotGaveWayIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{pages: 5, Config: app.Config{FillingShare: 1}})
		a.put(objectSize, "k")
		a.put(100, "stall")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		synctest.Wait()
		b.put(objectSize, "new") // k's slot is idle: the pull may not go on
		letGo()
		w.settle()
		require.EqualValues(t, 1, b.Stats().InstallFailures[ports.InstallSlotRefused])
		b.requireLocal(objectSize, "new")
	})
}

func TestPullMeetsACommitThatWasFirst(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: pullWhole})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePull), hold(&g)))
		b.mustGet(ports.FromArena, part("k", 0, 1_000))
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		require.Equal(t, ports.Stored, b.putAs("k", 1, 1_000).Status)
		b.fail()
		g.Open()
		w.settle()
		b.requireLocal(1_000, "k")
	})
}

func TestPullDoesNotMixVersions(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: pullWhole})
		a.put(objectSize, "k")
		a.put(100, "stall")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromArena, part("k", 0, 1_000))
		require.NoError(t, a.Clear(t.Context()))
		w.pass(time.Second)
		require.Equal(t, ports.Stored, a.putAs("k", 1, objectSize).Status)
		letGo()
		w.settle()
		s := b.Stats()
		require.EqualValues(t, 1, s.InstallFailures[ports.InstallPeerFailed], "the version is gone")
		for _, r := range b.get(part("k", 0, objectSize)) {
			require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
		}
	})
}

func TestSwitchedOffPullHasNoQueue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for _, cfg := range []app.Config{noPull, noPool} {
			a, b := w.node(ports.PeerID(fmt.Sprint("a", cfg.Locality)), place{}), w.node(ports.PeerID(fmt.Sprint("b", cfg.Locality)), place{Config: cfg})
			a.put(objectSize, "k")
			b.get(part("k", 0, 10))
			s := b.Stats()
			require.Zero(t, s.PullQueued+s.PullDropped+s.PullWaiting)
		}
	})
}

// TestPullOfAPeerThatAnswersSlowlyEnds: its answers take more than half of the leases that they bring.
func TestPullOfAPeerThatAnswersSlowlyEnds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{Config: app.Config{PeerLease: 100 * time.Millisecond}}, place{})
		a.put(3*domain.PullPieceBytes, "k")
		b.fail(when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N > 1 }, faults.Verdict{After: faults.For(60 * time.Millisecond)}),
			when("Link", "Op", purpose(ports.PurposeGet), faults.Verdict{After: faults.For(80 * time.Millisecond)})) // so that the pull has to ask
		b.mustGet(ports.FromSlot, part("k", 0, 10))
		w.settle()
		require.EqualValues(t, 1, b.Stats().PullDone)
		require.Less(t, b.faults.Count("PeerResolver", "Resolve"), uint64(12))
		b.fail()
		b.requireLocal(3*domain.PullPieceBytes, "k")
	})
}

func TestPullWhoseAnswersComeAfterTheirLeasesIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{Config: app.Config{PeerLease: 100 * time.Millisecond}}, place{})
		a.put(objectSize, "k")
		b.fail(when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N > 1 }, faults.Verdict{After: faults.For(200 * time.Millisecond)}),
			when("Link", "Op", purpose(ports.PurposeGet), faults.Verdict{After: faults.For(80 * time.Millisecond)})) // so that the pull has to ask
		b.mustGet(ports.FromSlot, part("k", 0, 10))
		w.settle()
		s := b.Stats()
		require.EqualValues(t, 1, s.InstallFailures[ports.InstallLease], "%v", s.InstallFailures)
		require.EqualValues(t, 1, s.PullFailed)
		b.fail()
	})
}

// TestPullThatFindsAnotherVersionOnItsWayLeavesIt waits behind a full pass of others while a reader begins with the other version.
func TestPullThatFindsAnotherVersionOnItsWayLeavesIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		small := place{page: 100, pages: 800, Config: pullWhole}
		a, b := w.pair(small, small)
		c := w.node("c", small)
		names := keys("other", domain.PullPassKeys)
		a.put(100, names...)
		a.put(100, "k", "stall")
		c.put(100, "y")
		letGo := stalled(t, b, "stall")
		b.mustGet(ports.FromArena, append(partsOf(names, 0, 10), part("k", 0, 10))...)
		require.NoError(t, a.Remove(t.Context(), namespace, keysOf("k"), make([]ports.Removal, 1)))
		require.Equal(t, ports.Stored, c.putAs("k", 1, 100).Status)
		w.pass(time.Second)
		var g faults.Gate
		b.fail(next(1, "Link", "Op", func(c faults.Call) bool { return c.Peer.ID == "c" }, hold(&g)))
		r := b.begin(t.Context(), 0, part("k", 0, 100), part("y", 0, 100)) // the first of them is held, the second shows that bytes come
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		letGo()
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().InstallFailures[ports.InstallCommitRefused])
		g.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)
		w.settle()
		require.Equal(t, ports.FromLocal, b.get(part("k", 0, 100))[0].Source)
	})
}

// TestPullEndsWhenItsSlotWasCommittedAndGivenUpWhileItAsked: somebody still copies from the slot, so that it is not free either.
func TestPullEndsWhenItsSlotWasCommittedAndGivenUpWhileItAsked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{Config: app.Config{PeerLease: 100 * time.Millisecond}}, place{Config: app.Config{FillingShare: 1}})
		c := w.node("c", place{})
		a.putLayers(objectSize, "k")
		c.put(objectSize, "x")
		letGo := stalled(t, b, "x")
		b.mustGet(ports.FromSlot, layer("k", 0))
		var asked, copied faults.Gate
		b.fail(next(1, "PeerResolver", "Resolve", peerIs("a"), hold(&asked)))
		w.pass(time.Second + time.Millisecond) // the lease is over, and the pull has looked
		require.Equal(t, 1, asked.Held())
		b.fail(when("Copier", "Copy", func(faults.Call) bool { return true }, hold(&copied)))
		r := b.begin(t.Context(), 0, part("k", objectSize/layers, objectSize-objectSize/layers))
		synctest.Wait()
		require.Equal(t, 1, copied.Held())
		require.EqualValues(t, 1, b.committed(), "the read has completed it")
		require.NoError(t, b.Clear(t.Context()))
		b.fail()
		asked.Open()
		synctest.Wait()
		copied.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)
		letGo()
		w.settle()
		require.EqualValues(t, 1, b.Stats().PullFailed)
	})
}
