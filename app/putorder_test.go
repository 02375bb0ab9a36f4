package app_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// twoRounds is a node of which puts have two rounds on a link, of 16 KiB each.
var twoRounds = place{put: 64 * kib, link: 8 * kib}

// startPut puts from a goroutine; it asks for its place before the next one does.
func startPut(ctx context.Context, b *node, size uint64, keys ...string) chan []ports.Result {
	done := make(chan []ports.Result, 1)
	go func() { done <- b.putTo(ctx, "a", 0, size, 1, keys...) }()
	synctest.Wait()
	return done
}

func TestPutsEndOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOver(t, false, &inproc.LinkModel{BytesPerSecond: 1e6, Delay: 50 * time.Microsecond})
		a, b := w.pair(place{}, place{put: 32 * kib, link: 8 * kib})
		begin := time.Now()
		var took [3]time.Duration
		var all [3]chan []ports.Result
		for i, key := range []string{"k", "l", "m"} {
			done := startPut(t.Context(), b, 96*kib, key) // in six rounds
			w.pass(time.Millisecond)
			all[i] = make(chan []ports.Result, 1)
			go func() {
				r := <-done
				took[i] = time.Since(begin)
				all[i] <- r
			}()
		}
		for _, done := range all {
			require.Equal(t, ports.Stored, (<-done)[0].Status)
		}
		require.Less(t, took[0], took[2]*2/5, "by turns all would end in the last fifth")
		require.Less(t, took[1], took[2]*3/4)
		a.requireLocal(96*kib, "k", "l", "m")
	})
}

func TestNoMoreThanTwoRoundsOfPutsAreOnALink(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, twoRounds)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		var all []chan []ports.Result
		for _, key := range keys("k", 5) {
			all = append(all, startPut(t.Context(), b, 16*kib, key))
		}
		for _, held := range []int{2, 2, 1} {
			require.Equal(t, held, g.Held())
			g.Open()
			synctest.Wait()
		}
		for _, done := range all {
			require.Equal(t, ports.Stored, (<-done)[0].Status)
		}
		a.requireLocal(16*kib, keys("k", 5)...)
	})
}

func TestAPutThatWaitsForALinkEndsWithItsContextAndTheNextGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, twoRounds)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		first := startPut(t.Context(), b, 32*kib, "k")
		ctx, cancel := context.WithCancel(t.Context())
		second := startPut(ctx, b, 32*kib, "l")
		third := startPut(t.Context(), b, 32*kib, "m")
		require.Equal(t, 1, g.Held())
		cancel()
		require.Equal(t, ports.Cancelled, (<-second)[0].Status)
		for range 2 {
			g.Open()
			synctest.Wait()
		}
		require.Equal(t, ports.Stored, (<-first)[0].Status)
		require.Equal(t, ports.Stored, (<-third)[0].Status)
		require.EqualValues(t, 64*kib, b.Stats().Wire[ports.PurposePut], "nothing of the second call crossed")
		a.requireLocal(32*kib, "k", "m")
	})
}

func TestAPutForWhichThereIsRoomWaitsBehindAnOlderOneUntilThatLeaves(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, twoRounds)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		first := startPut(t.Context(), b, 24*kib, "k")
		ctx, cancel := context.WithCancel(t.Context())
		second := startPut(ctx, b, 16*kib, "l")
		third := startPut(t.Context(), b, 4*kib, "m")
		require.Equal(t, 1, g.Held(), "others overtake")
		cancel()
		require.Equal(t, ports.Cancelled, (<-second)[0].Status)
		synctest.Wait()
		require.Equal(t, 2, g.Held(), "who left lets nobody in")
		g.Open()
		require.Equal(t, ports.Stored, (<-first)[0].Status)
		require.Equal(t, ports.Stored, (<-third)[0].Status)
		a.requireLocal(24*kib, "k")
	})
}

func TestOneRoundThatEndsLetsInAllForWhichThereIsRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, twoRounds)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		first := startPut(t.Context(), b, 32*kib, "k")
		second, third := startPut(t.Context(), b, 16*kib, "l"), startPut(t.Context(), b, 16*kib, "m")
		require.Equal(t, 1, g.Held())
		g.Open()
		synctest.Wait()
		require.Equal(t, 2, g.Held())
		g.Open()
		for _, done := range []chan []ports.Result{first, second, third} {
			require.Equal(t, ports.Stored, (<-done)[0].Status)
		}
		a.requireLocal(16*kib, "l", "m")
	})
}

func TestALinkThatEndsFailsThePutsThatWaitForIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, twoRounds)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		first, second := startPut(t.Context(), b, 32*kib, "k"), startPut(t.Context(), b, 32*kib, "l")
		a.stop()
		for _, done := range []chan []ports.Result{first, second} {
			require.Equal(t, ports.PeerUnavailable, (<-done)[0].Status)
		}
	})
}
