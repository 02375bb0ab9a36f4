package app_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// What follows was found by the scripts of model_test.go and the enumeration of model_faults_test.go.

func TestASessionKeepsTheVersionThatItReadByTheArena(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: app.Config{Locality: domain.LocalityOff}})
		require.Equal(t, ports.Stored, a.putAs("k", 0, 1000).Status)
		s, err := b.OpenRead(context.Background(), namespace)
		require.NoError(t, err)
		first := b.prepare(s, part("k", 0, 500)).run(context.Background())
		require.Equal(t, []int{0}, first.check())
		require.Equal(t, ports.FromArena, first.out[0].Source)
		require.Equal(t, ports.Stored, b.putAs("k", 1, 1000).Status)
		require.Equal(t, []int{0}, b.prepare(s, part("k", 500, 500)).run(context.Background()).check())
		require.NoError(t, b.CloseRead(s))
	})
}

func TestADirectoryThatIsDownIsNamedAsTheReason(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, b := w.pair(place{}, place{})
		b.fail(faults.Every("Directory", "Holders", faults.Verdict{Err: ports.ErrPeer}))
		r := b.get(part("k", 0, 1))[0]
		require.Equal(t, ports.PeerUnavailable, r.Status)
		require.ErrorContains(t, r.Err, "directory")
	})
}

func TestReadsOfASessionSideBySideAreOfOneVersion(t *testing.T) {
	for _, mode := range []domain.LocalityMode{domain.LocalityFill, domain.LocalityOff} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.pair(place{}, place{Config: app.Config{Locality: mode}})
			require.Equal(t, ports.Stored, a.putAs("k", 0, 1000).Status)
			s, err := b.OpenRead(context.Background(), namespace)
			require.NoError(t, err)
			var gate faults.Gate
			b.fail(faults.Every("Link", "Op", faults.Verdict{After: gate.Hold}))
			slow := b.begin(context.Background(), s, part("k", 0, 500))
			synctest.Wait()
			require.Equal(t, ports.Stored, b.putAs("k", 1, 1000).Status)
			require.Equal(t, []int{1}, b.prepare(s, part("k", 0, 500)).run(context.Background()).check())
			gate.Open()
			slow.wait()
			require.Equal(t, []int{1}, slow.check(), "the slow read is of the other put")
			require.NoError(t, b.CloseRead(s))
		})
	}
}

func TestASessionKeepsNoViewOfAVersionThatItDidNotRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		require.Equal(t, ports.Stored, a.putAs("k", 0, 1000).Status)
		s, err := b.OpenRead(context.Background(), namespace)
		require.NoError(t, err)
		var gate faults.Gate
		b.fail(faults.Every("PeerResolver", "Resolve", faults.Verdict{After: gate.Hold}))
		first := b.begin(context.Background(), s, part("k", 0, 500))
		synctest.Wait()
		require.Equal(t, ports.Stored, b.putAs("k", 1, 1000).Status)
		gate.Open()
		first.wait()
		require.Equal(t, []int{1}, first.check())
		b.fail()
		require.NoError(t, b.Clear(context.Background()))
		require.Equal(t, ports.Late, b.getIn(context.Background(), s, part("k", 500, 500))[0].Status, "the version that the session has read is gone")
		require.NoError(t, b.CloseRead(s))
	})
}

func TestUnitsThatCameWithTheLastWordGiveTheirSliceBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{get: kib, Config: app.Config{Locality: domain.LocalityOff}})
		a.put(1000, "k")
		ctx, cancel := context.WithCancel(context.Background())
		b.fail(faults.Every("Link", "Op", faults.Verdict{After: faults.Do(cancel)}))
		require.NotEqual(t, ports.StatusNone, b.getIn(ctx, 0, part("k", 0, 1000))[0].Status)
		w.settle()
		require.Zero(t, b.Stats().ArenaUsed)
	})
}

func TestNoRowIsReservedForAnAskerThatHasLeft(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		b.get(part("none", 0, 1)) // so that there is a link
		var gate faults.Gate
		a.fail(faults.Every("Transport", "Grant", faults.Verdict{Before: gate.Hold}))
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Millisecond, cancel)
		for _, r := range b.putTo(ctx, "a", 0, 1000, 1, "k0", "k1") {
			require.False(t, r.Status.OK(), "%v", r.Status)
		}
		a.fail()
		gate.Open()
		w.settle()
		require.NoError(t, a.CheckIdleForTesting(), "a row that came behind the abort waits for its deadline")
	})
}

func TestAJoinerOfASlotThatWasCommittedAndClearedIsServed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(1000, "k")
		b.put(1000, "here")
		var ops, copies faults.Gate
		b.fail(faults.Every("Link", "Op", faults.Verdict{After: ops.Hold}), faults.Every("Copier", "Copy", faults.Verdict{Before: copies.Hold}))
		first := b.begin(context.Background(), 0, part("k", 0, 500))
		synctest.Wait()
		second := b.begin(context.Background(), 0, part("k", 500, 500))
		synctest.Wait()
		joiner := b.begin(context.Background(), 0, part("here", 0, 1000), part("k", 0, 500)) // is busy with a copy when its flight lands
		synctest.Wait()
		ops.Open()
		synctest.Wait()
		require.EqualValues(t, 2, b.committed())
		require.NoError(t, b.Clear(context.Background()))
		b.fail()
		copies.Open()
		for _, r := range []*reading{first, second, joiner} {
			for _, out := range r.wait() {
				require.Equal(t, ports.Hit, out.Status, "%v", out.Err)
			}
		}
	})
}

func TestWhoWantsWhatIsBeingInstalledFromTheArenaJoinsIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node("a", place{page: kib, pages: 4})
		b := w.node("b", place{page: kib, pages: 4, Config: app.Config{FillingShare: 1}})
		c := w.node("c", place{page: kib, pages: 4, Config: app.Config{FillingShare: 1}})
		b.put(4000, "old")
		a.put(4000, "k")
		c.mustGet(ports.FromSlot, whole("old", 4000)) // takes a lease of it, so that b has no slot
		var op, copies faults.Gate
		b.fail(faults.Every("Link", "Op", faults.Verdict{After: op.Hold}), faults.Every("Copier", "Copy", faults.Verdict{Before: copies.Hold}))
		first := b.begin(context.Background(), 0, parts("k", domain.Run{Len: 4000}))
		synctest.Wait()
		require.Equal(t, 1, op.Held())
		w.pass(600 * time.Millisecond) // it ends
		op.Open()
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().Table.Slots[domain.SlotFilling], "the install is under way")
		second := b.begin(context.Background(), 0, part("k", 100, 50))
		synctest.Wait()
		b.fail()
		begin := w.clock.Now()
		copies.Open()
		require.Equal(t, ports.Hit, first.wait()[0].Status)
		require.Equal(t, ports.Hit, second.wait()[0].Status)
		require.Less(t, w.clock.Now().Sub(begin), time.Second, "a call that nobody wakes ends by its own time")
	})
}
