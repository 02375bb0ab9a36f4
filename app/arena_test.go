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

// gapped is n runs of that length which no two are adjacent.
func gapped(key string, n int, length uint64) want {
	w := want{key: key}
	for i := range uint64(n) {
		w.runs = append(w.runs, domain.Run{Off: i * (length + 1), Len: length})
	}
	return w
}

func TestPartialReadLargerThanTheArenaSplits(t *testing.T) {
	overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
		a, b := w.pair(place{page: page, pages: 4 * pages}, place{Config: noPool, get: 16 * kib})
		a.put(objectSize, "k", "l")
		b.mustGet(ports.FromArena, gapped("k", 19, 10_000), gapped("l", 24, 8_000))
		s := b.Stats()
		require.EqualValues(t, 190_000+24*8_000, s.Wire[ports.PurposeGet])
		require.GreaterOrEqual(t, s.ArenaRounds[0], uint64(24))
	})
}

func TestMoreKeysThanTheArenaHoldsAreRightTwice(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{page: 4 * kib, pages: 1_000}, place{Config: app.Config{Locality: domain.LocalityPullOnly, FillingShare: 1}, get: 64 * kib})
		names := keys("k", 10)
		a.put(objectSize, names...)
		b.mustGet(ports.FromArena, partsOf(names, 1, 20_000)...)
		for _, r := range b.get(partsOf(names, 1, 20_000)...) { // by whatever route
			require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
		}
	})
}

func TestTotalEqualToTheArenaDoesNotSplitAndAGreaterOneDoes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		arena  uint64
		length uint64 // of one span of each of two keys
		rounds uint64
	}{
		{"equal", 2 * kib, kib, 1},
		{"equal after rounding up to 64", 2 * kib, kib - 63, 1},
		{"greater", 2*kib - 64, kib, 2},
		{"greater after rounding up to 64", 256, 65, 1},
		{"greater by rounding alone", 192, 65, 2},
		{"arena that is no multiple of 64", 255, 65, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: noPool, get: tt.arena})
				a.put(objectSize, "k", "l")
				b.mustGet(ports.FromArena, part("k", 3, tt.length), part("l", 70_000, tt.length))
				require.Equal(t, tt.rounds, b.Stats().ArenaRounds[0])
			})
		})
	}
}

func TestSpanLargerThanTheArenaFailsItsKeyWholeAndAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool, get: 4 * kib})
		a.put(objectSize, "k", "l", "m")
		out := b.get(part("l", 0, 4*kib), parts("k", domain.Run{Off: 0, Len: 10}, domain.Run{Off: 100, Len: 4*kib + 1}), part("m", 9, 4*kib))
		require.Equal(t, ports.Hit, out[0].Status)
		require.Equal(t, ports.TooLarge, out[1].Status)
		require.EqualValues(t, objectSize, out[1].Size)
		require.ErrorContains(t, out[1].Err, "4097, limit 4096")
		require.Equal(t, ports.Hit, out[2].Status)
		s := b.Stats()
		require.EqualValues(t, 8*kib, s.Wire[ports.PurposeGet], "nothing moves for a key that fails")
		require.EqualValues(t, 1, s.Downgrades[ports.DowngradeTooLarge])
	})
}

func TestObjectLargerThanTheArenaIsServed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull, get: 4 * kib})
		c := w.node("c", place{Config: noPool, get: 4 * kib})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, objectSize))
		c.mustGet(ports.FromArena, gapped("k", 50, 3_999))
		require.Greater(t, c.Stats().ArenaRounds[0], uint64(49))
	})
}

func TestArenaThatIsOffLeavesSlotsAndFailsTheRestForSpace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull, get: arenaOff, put: arenaOff})
		c := w.node("c", place{Config: noPool, get: arenaOff})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, objectSize))
		out := c.get(part("k", 0, 1), part("k", 5, 1))
		require.Equal(t, ports.NoSpace, out[0].Status)
		require.ErrorIs(t, out[0].Err, ports.ErrNoSpace)
		require.Equal(t, ports.NoSpace, out[1].Status)
		require.EqualValues(t, 2, c.Stats().Downgrades[ports.DowngradeArenaOff])
		r := b.putTo(t.Context(), "a", 0, 100, 1, "new")[0]
		require.Equal(t, ports.NoSpace, r.Status)
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeArenaOff])
	})
}

// TestArenaIsFirstComeFirstServed: one read has half of the arena, one waits for all of it, one could do with the free half.
func TestArenaIsFirstComeFirstServed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool, get: 64 * kib})
		a.put(objectSize, "k", "l", "m")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		first := b.begin(t.Context(), 0, part("k", 0, 32*kib))
		synctest.Wait()
		second := b.begin(t.Context(), 0, part("l", 0, 64*kib))
		synctest.Wait()
		third := b.begin(t.Context(), 0, part("m", 0, kib))
		synctest.Wait()
		s := b.Stats()
		require.EqualValues(t, 2, s.ArenaWaiting[0])
		require.EqualValues(t, 2, s.ArenaWaits[0])
		require.EqualValues(t, 32*kib, s.ArenaUsed[0])
		require.EqualValues(t, 3, s.Calls)
		require.Equal(t, 1, g.Held(), "the third does not overtake the second")
		for _, r := range []*reading{first, second, third} {
			require.Equal(t, 1, g.Held())
			g.Open()
			synctest.Wait()
			require.Equal(t, ports.Hit, r.wait()[0].Status)
		}
	})
}

func TestWaitForTheArenaIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		cfg := noPool
		cfg.ArenaWait = 300 * time.Millisecond
		a, b := w.pair(place{}, place{Config: cfg, get: 64 * kib})
		a.put(objectSize, "k", "l")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		first := b.begin(t.Context(), 0, part("k", 0, 64*kib))
		synctest.Wait()
		began := time.Now()
		out := b.get(part("l", 0, 10), part("l", 20, 10))
		require.Equal(t, cfg.ArenaWait, time.Since(began))
		require.Equal(t, ports.Busy, out[0].Status)
		require.Equal(t, ports.Busy, out[1].Status)
		require.ErrorIs(t, out[0].Err, ports.ErrBusy)
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeArenaTimeout])
		g.Open()
		require.Equal(t, ports.Hit, first.wait()[0].Status)
		b.fail()
		b.mustGet(ports.FromArena, part("l", 0, 64*kib))
	})
}

// TestResolveDoesNotWaitForTheArena: a read that has to wait has resolved already.
func TestRouteAndResolveComeBeforeAnyArenaWait(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool, get: 64 * kib})
		a.put(objectSize, "k", "l")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		first := b.begin(t.Context(), 0, part("k", 0, 64*kib))
		synctest.Wait()
		second := b.begin(t.Context(), 0, part("l", 0, 10))
		synctest.Wait()
		require.EqualValues(t, 2, b.faults.Count("PeerResolver", "Resolve"))
		require.EqualValues(t, 1, b.Stats().ArenaWaiting[0])
		g.Open()
		synctest.Wait()
		g.Open()
		first.wait()
		second.wait()
	})
}

func TestGetAndPutAtOnceDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool, get: 32 * kib, put: 32 * kib})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		r := b.begin(t.Context(), 0, part("k", 0, 32*kib))
		synctest.Wait()
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, objectSize, 3, "l")[0].Status)
		g.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)

		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), "a", 0, 100_000, 2, "m") }()
		synctest.Wait()
		require.NotZero(t, g.Held())
		require.NotZero(t, b.Stats().ArenaUsed[1])
		b.mustGet(ports.FromArena, part("l", 5, 32*kib))
		b.fail()
		for range 4 {
			g.Open()
			synctest.Wait()
		}
		require.Equal(t, ports.Stored, (<-done)[0].Status)
		a.requireLocal(objectSize, "k", "l")
		a.requireLocal(100_000, "m")
	})
}

// TestNextRoundIsFetchedWhileTheOneBeforeIsCopiedOut holds the first copy: the second round's bytes come meanwhile.
func TestNextRoundIsFetchedWhileTheOneBeforeIsCopiedOut(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool, get: 64 * kib})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(next(1, "Copier", "Copy", nil, hold(&g)))
		r := b.begin(t.Context(), 0, gapped("k", 3, 31*kib))
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		require.EqualValues(t, 2, b.faults.Count("Link", "Op"), "ops of two rounds")
		g.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)
	})
}

// leaving is a context whose caller looks at something whenever it is about to wait.
type leaving struct {
	context.Context
	look func()
}

func (l leaving) Done() <-chan struct{} {
	l.look()
	return l.Context.Done()
}

// TestSliceThatIsGrantedAsItsCallLeavesGoesBack has the grant and the end of the context come in one wait, again and again: which of
// the two is seen is drawn.
func TestSliceThatIsGrantedAsItsCallLeavesGoesBack(t *testing.T) {
	for range 12 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, false)
			a, b := w.pair(place{}, place{Config: noPool, get: 64 * kib})
			a.put(64*kib, "k", "l")
			var g faults.Gate
			b.fail(next(1, "Link", "Op", nil, holdAfter(&g)))
			first := b.begin(t.Context(), 0, part("k", 0, 64*kib))
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			once := false
			second := b.begin(leaving{ctx, func() {
				if !once && b.Stats().ArenaWaiting[0] == 1 {
					once = true
					g.Open()
					w.pass(time.Millisecond) // the first call gives its slice back, and the second is granted it
					cancel()
				}
			}}, 0, part("l", 0, 64*kib))
			require.Equal(t, ports.Hit, first.wait()[0].Status)
			second.wait()
			require.True(t, once)
			w.settle()
			require.Zero(t, b.Stats().ArenaUsed[0])
		})
	}
}

// TestArenasOfLessThanASliceAreOff: they hold nothing, and nobody waits for them.
func TestArenasOfLessThanASliceAreOff(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool, get: domain.ArenaAlign - 1, put: domain.ArenaAlign - 1})
		a.put(100, "k")
		require.Equal(t, ports.NoSpace, b.get(part("k", 0, 10))[0].Status)
		require.Equal(t, ports.NoSpace, b.putTo(t.Context(), "a", 0, 100, 1, "l")[0].Status)
		require.EqualValues(t, 2, b.Stats().Downgrades[ports.DowngradeArenaOff])
	})
}
