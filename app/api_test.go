package app_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// exists asks for keys with a hold.
func (n *node) exists(t *testing.T, hold time.Duration, names ...string) (found []bool, leading int) {
	t.Helper()
	found = make([]bool, len(names))
	leading, err := n.BatchExists(t.Context(), namespace, names, hold, found)
	require.NoError(t, err)
	return found, leading
}

func TestExistsAnswersPerKeyAndTheLeadingRun(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{})
		b.put(100, "near")
		a.put(100, "ka")
		c.put(100, "kc")
		found, leading := b.exists(t, 0, "near", "ka", "kc", "nowhere", "ka")
		require.Equal(t, []bool{true, true, true, false, true}, found)
		require.Equal(t, 3, leading)
		_, leading = b.exists(t, 0, "nowhere", "near")
		require.Zero(t, leading)
		_, leading = b.exists(t, 0, "near", "kc")
		require.Equal(t, 2, leading)
		require.Zero(t, b.faults.Count("PeerResolver", "Resolve"))
		require.Zero(t, a.Stats().LeasesRenewed)
		require.NoError(t, a.Clear(t.Context()))
		require.EqualValues(t, a.Stats().Table.PagesTotal, a.Stats().Table.PagesFree, "exists takes no lease")
		found, _ = b.exists(t, 0, "ka")
		require.False(t, found[0])
	})
}

func TestExistsTakesAPeerThatDoesNotAnswerAsNotHavingIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{})
		a.put(100, "ka")
		c.put(100, "kc")
		b.fail(when("PeerResolver", "Probe", peerIs("a"), faults.Verdict{Drop: true}))
		began := time.Now()
		found, leading := b.exists(t, 0, "kc", "ka")
		require.Equal(t, []bool{true, false}, found)
		require.Equal(t, 1, leading)
		require.LessOrEqual(t, time.Since(began), time.Second)
		b.fail(faults.Every("Directory", "Holders", faults.Verdict{Err: errTest}))
		_, err := b.BatchExists(t.Context(), namespace, []string{"ka"}, 0, found[:1])
		require.ErrorIs(t, err, errTest)
	})
}

// TestABlackHoleKeepsNoAnswerThatAnotherPeerHasGiven: exists and size ask all peers, and wait for those only that can still say something.
func TestABlackHoleKeepsNoAnswerThatAnotherPeerHasGiven(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{})
		a.put(100, "ka")
		c.put(77, "kc", "kd")
		b.exists(t, 0, "ka", "kc", "kd") // links are there
		b.fail(when("PeerResolver", "Probe", peerIs("a"), faults.Verdict{Drop: true}), when("PeerResolver", "Resolve", peerIs("a"), faults.Verdict{Drop: true}))
		began := time.Now()
		found, leading := b.exists(t, 0, "kc", "kd")
		require.Equal(t, []bool{true, true}, found)
		require.Equal(t, 2, leading)
		size, err := b.Size(t.Context(), namespace, "kc")
		require.NoError(t, err)
		require.EqualValues(t, 77, size)
		require.Zero(t, time.Since(began))
		for _, p := range b.Stats().Peers {
			require.NoError(t, p.Failure, "it was not waited for: that is no failure of its")
		}
	})
}

func TestExistsImpliesAFullGet(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 10)) // filling: invisible
		require.NoError(t, a.Clear(t.Context()))
		found, _ := b.exists(t, 0, "k")
		if found[0] { // the pull had it all by then
			b.requireLocal(objectSize, "k")
		}
	})
}

func TestFillingSlotsAreInvisibleToExistsAndToPeers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, objectSize-1))
		require.NoError(t, a.Clear(t.Context()))
		found, _ := b.exists(t, 0, "k")
		require.False(t, found[0])
		require.Equal(t, ports.NotFound, a.get(part("k", 0, 1))[0].Status)
	})
}

func TestExistsMovesNoRecency(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{page: 100, pages: 3})
		n.put(100, "old", "mid", "new")
		n.exists(t, 0, "old")
		n.put(100, "one more")
		found, _ := n.exists(t, 0, "old", "mid", "new")
		require.Equal(t, []bool{false, true, true}, found)
		n.mustGet(ports.FromLocal, part("mid", 0, 1))
		n.put(100, "and another")
		found, _ = n.exists(t, 0, "mid", "new")
		require.Equal(t, []bool{true, false}, found, "a get moves it")
	})
}

func TestHoldKeepsWhatExistsFoundForAShortTime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{page: 100, pages: 20})
		names := keys("k", 20)
		n.put(100, names...)
		n.exists(t, time.Hour, names[0], names[1], names[2]) // a tenth of the medium is 2 pages
		s := n.Stats()
		require.EqualValues(t, 1, s.Downgrades[ports.DowngradeHoldRefused])
		require.EqualValues(t, 2, s.Table.HeldPages)
		n.put(100, keys("l", 18)...)
		found, _ := n.exists(t, 0, names[0], names[1], names[2])
		require.Equal(t, []bool{true, true, false}, found)
		w.pass(2100 * time.Millisecond) // HoldTime, though an hour was asked for
		n.put(100, keys("m", 20)...)
		found, _ = n.exists(t, 0, names[0], names[1])
		require.Equal(t, []bool{false, false}, found)
	})
}

func TestSizeIsThatOfTheObjectHereOrAtAPeer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{})
		a.put(objectSize, "k")
		b.put(77, "near")
		for name, size := range map[string]uint64{"k": objectSize, "near": 77} {
			got, err := b.Size(t.Context(), namespace, name)
			require.NoError(t, err)
			require.Equal(t, size, got)
		}
		_, err := b.Size(t.Context(), namespace, "nowhere")
		require.ErrorIs(t, err, ports.ErrNotFound)
		_, err = b.Size(t.Context(), "another namespace", "k")
		require.ErrorIs(t, err, ports.ErrNotFound)
		c.stop()
		_, err = b.Size(t.Context(), namespace, "nowhere")
		require.ErrorIs(t, err, ports.ErrPeer)
		got, err := b.Size(t.Context(), namespace, "k")
		require.NoError(t, err)
		require.EqualValues(t, objectSize, got)
		b.fail(faults.Every("Directory", "Holders", faults.Verdict{Err: errTest}))
		_, err = b.Size(t.Context(), namespace, "k")
		require.ErrorIs(t, err, errTest)
	})
}

func TestRemoveDoomsEveryCopyAndNamesWhoDidNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{Config: noPull})
		a.put(objectSize, "k", "l")
		c.put(objectSize, "m")
		b.put(objectSize, "n")
		b.mustGet(ports.FromSlot, part("k", 0, objectSize), part("l", 0, 1))
		out := make([]ports.Removal, 5)
		require.NoError(t, b.Remove(t.Context(), namespace, keysOf("k", "l", "m", "n", "nowhere"), out))
		require.Equal(t, []ports.Removal{{Found: true}, {Found: true}, {Found: true}, {Found: true}, {}}, out)
		for _, n := range []*node{a, b, c} {
			require.Zero(t, n.committed(), "%s", n.id)
			require.Zero(t, n.Stats().Table.Slots[domain.SlotFilling])
		}
		a.put(objectSize, "k")
		c.stop()
		require.NoError(t, b.Remove(t.Context(), namespace, keysOf("k", "m"), out[:2]))
		require.Equal(t, []ports.Removal{{Found: true, Unanswered: []ports.PeerID{"c"}}, {Unanswered: []ports.PeerID{"c"}}}, out[:2])
		b.fail(faults.Every("PeerWriter", "Remove", faults.Verdict{Short: true}))
		require.NoError(t, b.Remove(t.Context(), namespace, keysOf("k"), out[:1]))
		require.ElementsMatch(t, []ports.PeerID{"a", "c"}, out[0].Unanswered, "an answer without its rows is none")
	})
}

func TestClearIsThisNodesOnlyAndVoidsReservations(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, objectSize))
		var g faults.Gate
		b.fail(next(1, "PeerWriter", "Commit", nil, hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), "a", 0, 1_000, 2, "new") }()
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		require.NoError(t, a.Clear(t.Context()))
		g.Open()
		r := (<-done)[0]
		require.Equal(t, ports.TransferFailed, r.Status, "a commit from before a clear is refused")
		require.ErrorIs(t, r.Err, ports.ErrRevoked)
		require.Zero(t, a.committed())
		require.EqualValues(t, 1, b.committed())
		b.requireLocal(objectSize, "k")
		found, _ := a.exists(t, 0, "k", "new")
		require.Equal(t, []bool{true, false}, found)
	})
}

// TestCacheRemoteFetches: Get and BatchGet ask the switch, the ranged calls do not.
func TestCacheRemoteFetchesOffInstallsNothingByWholeGets(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: app.Config{NoCacheRemoteFetches: true}})
		a.put(objectSize, "k", "l")
		for range 2 {
			r := b.getWhole(objectSize, "k")[0]
			require.Equal(t, ports.Hit, r.Status)
			require.Equal(t, ports.FromArena, r.Source)
		}
		w.settle()
		s := b.Stats()
		require.Zero(t, b.committed())
		require.Equal(t, s.Table.PagesTotal, s.Table.PagesFree)
		require.Zero(t, s.PullQueued)
		b.fail(when("Link", "Op", purpose(ports.PurposePull), faults.Verdict{Err: errTest}))
		b.mustGet(ports.FromSlot, part("l", 0, 1_000)) // a ranged call makes a filling slot
		before := b.Stats().Wire[ports.PurposeGet]
		r := b.getWhole(objectSize, "l")[0] // which a whole get may read
		require.Equal(t, ports.Hit, r.Status)
		require.Equal(t, ports.FromSlot, r.Source)
		require.EqualValues(t, objectSize-1_000, b.Stats().Wire[ports.PurposeGet]-before)
		b.fail()
		b.mustGet(ports.FromSlot, part("k", 0, objectSize))
		b.requireLocal(objectSize, "k")
	})
}

func TestNamespacesAreApart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 10)) // the hello told one namespace
		other := ports.HostRegionOf(bytesOf("k", 9, 500))
		require.Equal(t, ports.Stored, a.Put(t.Context(), "other", "k", other).Status)
		got := ports.HostRegionOf(make([]byte, 500))
		require.Equal(t, ports.Hit, b.Get(t.Context(), "other", "k", got).Status)
		require.Equal(t, other.Bytes(), got.Bytes())
		require.Equal(t, ports.NotFound, b.Get(t.Context(), "third", "k", got).Status)
		b.mustGet(ports.FromSlot, part("k", 0, 20_000))
		id, err := b.OpenRead(t.Context(), "other")
		require.NoError(t, err)
		r := b.prepare(id, part("k", 0, 1)).run(t.Context())
		require.ErrorIs(t, r.err, domain.ErrInvalid)
		require.NoError(t, b.CloseRead(id))
		alone := w.node("alone", place{ports: func(p *app.Ports) { p.Directory = nil }})
		for i := range 5_000 {
			if _, err = alone.Size(t.Context(), fmt.Sprint("n", i), "k"); !errors.Is(err, ports.ErrNotFound) {
				break
			}
		}
		require.ErrorContains(t, err, "namespaces: 4097, limit 4096")
	})
}

func TestSessionsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{})
		var err error
		for range 65_536 {
			_, err = n.OpenRead(t.Context(), namespace)
			require.NoError(t, err)
		}
		_, err = n.OpenRead(t.Context(), namespace)
		require.ErrorIs(t, err, ports.ErrRefused)
		require.ErrorContains(t, err, "65537, limit 65536")
		require.EqualValues(t, 65_536, n.Stats().Sessions)
	})
}

func TestSessionThatIsFullRefusesNewKeysOnly(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		b.LimitSessionKeysForTesting(2)
		a.put(1_000, "k", "l", "m")
		id, err := b.OpenRead(t.Context(), namespace)
		require.NoError(t, err)
		out := b.getIn(t.Context(), id, partsOf(keysOf("k", "l"), 0, 10)...)
		require.Equal(t, ports.Hit, out[0].Status)
		out = b.getIn(t.Context(), id, partsOf(keysOf("m", "l"), 0, 20)...)
		require.Equal(t, ports.Refused, out[0].Status)
		require.ErrorContains(t, out[0].Err, "keys of a session: 3, limit 2")
		require.Equal(t, ports.Hit, out[1].Status)
		b.mustGet(ports.FromSlot, part("m", 0, 10)) // outside of the session
	})
}

func TestRegisteredMemoryComesAndGoes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{})
		_, err := n.RegisterMemory(t.Context(), nil)
		require.ErrorIs(t, err, domain.ErrInvalid)
		_, err = n.RegisterMemory(t.Context(), hostMemory(0))
		require.ErrorIs(t, err, domain.ErrInvalid)
		n.fail(next(1, "Transport", "Register", nil, faults.Verdict{Err: errTest}))
		_, err = n.RegisterMemory(t.Context(), hostMemory(10))
		require.ErrorIs(t, err, errTest)
		for range 100 {
			m, err := n.RegisterMemory(t.Context(), hostMemory(10))
			require.NoError(t, err)
			require.NoError(t, n.DeregisterMemory(t.Context(), m.ID))
			require.ErrorIs(t, n.DeregisterMemory(t.Context(), m.ID), ports.ErrNotFound)
		}
		m, err := n.RegisterMemory(t.Context(), hostMemory(10))
		require.NoError(t, err)
		n.fail(next(1, "Transport", "Deregister", nil, faults.Verdict{Err: errTest, Effect: true}))
		require.ErrorIs(t, n.DeregisterMemory(t.Context(), m.ID), errTest)
	})
}

func TestEvictionIsExactLRUAndCopiesGiveWayFirst(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{page: 100, pages: 20}, place{page: 100, pages: 4, Config: app.Config{FillingShare: 1}})
		a.put(100, "copy")
		b.put(100, "p0", "p1", "p2")
		b.mustGet(ports.FromSlot, part("copy", 0, 100))
		b.mustGet(ports.FromLocal, part("p0", 0, 1))
		b.put(100, "p3") // the copy goes, though it is the newest
		b.put(100, "p4") // p1 is the oldest
		require.NoError(t, a.Clear(t.Context()))
		found, _ := b.exists(t, 0, "copy", "p0", "p1", "p2", "p3", "p4")
		require.Equal(t, []bool{false, true, false, true, true, true}, found)
		require.EqualValues(t, 2, b.Stats().Table.Doomed[domain.DoomEvicted])
	})
}

func TestBackgroundEvictionKeepsUseBetweenTheWatermarks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{page: 100, pages: 100, Config: app.Config{HighWatermark: 0.9, LowWatermark: 0.7}})
		n.put(100, keys("k", 90)...)
		w.pass(time.Second)
		require.EqualValues(t, 90, n.committed())
		n.put(100, "one more")
		w.pass(time.Second)
		require.EqualValues(t, 70, n.committed())
		require.EqualValues(t, 21, n.Stats().Table.Doomed[domain.DoomPressure])
		found, _ := n.exists(t, 0, "one more", "k20", "k21")
		require.Equal(t, []bool{true, false, true}, found)
	})
}

func TestMediumThatIsPinnedFailsFast(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{pages: 4})
		n.put(objectSize, "k")
		var g faults.Gate
		n.fail(next(1, "Copier", "Copy", nil, hold(&g)))
		r := n.begin(t.Context(), 0, part("k", 0, 10))
		synctest.Wait()
		began := time.Now()
		out := n.putAs("l", 0, objectSize)
		require.Equal(t, ports.NoSpace, out.Status)
		require.ErrorIs(t, out.Err, ports.ErrNoSpace)
		require.ErrorContains(t, out.Err, "200000 bytes")
		require.Zero(t, time.Since(began))
		g.Open()
		r.wait()
		n.put(objectSize, "l")
	})
}

func TestFillingSlotsTakeTheirShareOnly(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{pages: 32, Config: app.Config{NoRangedLocalityPrefetch: true}}) // 8 pages: two objects
		a.put(objectSize, keys("k", 4)...)
		b.mustGet(ports.FromSlot, partsOf(keys("k", 2), 0, 10)...)
		require.EqualValues(t, 8, b.Stats().Table.Pages[domain.SlotFilling])
		for i, r := range b.get(part("k2", 0, 10), part("k3", 0, 10)) {
			require.Equal(t, ports.Hit, r.Status)
			require.Equal(t, ports.FromSlot, r.Source, "key %d: idle filling slots give way", i)
		}
		require.LessOrEqual(t, b.Stats().Table.Pages[domain.SlotFilling], uint64(8))
	})
}
