package app_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

func TestOnePartThatFailsMakesItsKeyAMiss(t *testing.T) {
	for _, r := range readers {
		for bad := range int64(4) {
			t.Run(r.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					a, b := w.pair(place{}, place{Config: r.cfg, get: 16 * kib})
					b.place.registered = r.direct
					a.put(objectSize, "k", "l")
					skip := bad
					b.fail(when("Link", "Op", func(faults.Call) bool { skip--; return skip == -1 }, faults.Verdict{Err: errTest}))
					out := b.get(gapped("k", 10, 5_000), gapped("l", 10, 5_000))
					failed := 0
					for _, res := range out {
						if res.Status != ports.Hit {
							require.Equal(t, ports.TransferFailed, res.Status)
							require.ErrorIs(t, res.Err, errTest)
							failed++
						}
					}
					if r.from == ports.FromArena || bad < 2 { // a slot takes one op a key
						require.Equal(t, 1, failed)
					}
					b.fail()
					b.mustGet(r.from, gapped("k", 10, 5_000), gapped("l", 10, 5_000))
				})
			})
		}
	}
}

// TestLostCompletionIsABoundedWait: the call ends by its own bound, the memory is not reused until the op's deadline made it quiet.
func TestLostCompletionIsABoundedWaitAndItsMemoryIsNotReusedBefore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		cfg := noPool
		cfg.CallTimeout, cfg.TransferTimeout = 300*time.Millisecond, time.Second
		a, b := w.pair(place{}, place{Config: cfg, get: 64 * kib})
		a.put(objectSize, "k")
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Drop: true, Effect: true}), faults.Every("Link", "Cancel", faults.Verdict{Drop: true}))
		began := time.Now()
		out := b.get(part("k", 0, 64*kib))
		require.Equal(t, ports.TransferFailed, out[0].Status)
		require.Equal(t, 300*time.Millisecond, time.Since(began))
		require.EqualValues(t, 64*kib, b.Stats().ArenaUsed[0])
		require.EqualValues(t, 1, b.Stats().Calls)
		w.pass(time.Second)
		synctest.Wait()
		require.Zero(t, b.Stats().ArenaUsed[0])
		require.Zero(t, b.Stats().Calls)
		b.fail()
		b.mustGet(ports.FromArena, part("k", 0, 64*kib))
	})
}

func TestAllPeersThatMayHoldAKeyAreAskedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		names := []ports.PeerID{"c", "d", "e", "f"}
		a := w.node("a", place{})
		for _, id := range names {
			w.node(id, place{})
		}
		b := w.node("b", place{Config: app.Config{NoRangedLocalityPrefetch: true}})
		a.put(1_000, "k")
		var g faults.Gate
		b.fail(faults.Every("PeerResolver", "Probe", hold(&g)))
		r := b.begin(t.Context(), 0, part("k", 0, 1_000))
		synctest.Wait()
		require.Equal(t, 5, g.Held())
		g.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)
		require.EqualValues(t, 1, b.faults.Count("PeerResolver", "Resolve"), "one is resolved")
	})
}

// TestKeyThatWasAnsweredIsNotAskedForAgain takes in, in one step, another peer's word on a key and then the answer of its holder.
func TestKeyThatWasAnsweredIsNotAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.node("a", place{})
		c, d := w.node("c", place{}), w.node("d", place{})
		b := w.node("b", place{Config: noPull})
		c.put(1_000, "kc")
		d.put(1_000, "kd")
		var probe, resolve, op, copied faults.Gate
		b.fail(when("PeerResolver", "Probe", peerIs("a"), hold(&probe)), when("PeerResolver", "Resolve", peerIs("d"), holdAfter(&resolve)),
			when("Link", "Op", peerIs("c"), holdAfter(&op)), next(1, "Copier", "Copy", nil, hold(&copied)))
		read := b.begin(t.Context(), 0, part("kd", 0, 1_000), part("kc", 0, 1_000))
		for _, g := range []*faults.Gate{&op, &probe, &resolve, &copied} { // kc is copied out while the answers for kd come
			synctest.Wait()
			require.Equal(t, 1, g.Held())
			g.Open()
		}
		for _, r := range read.wait() {
			require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
		}
		require.EqualValues(t, 2, b.faults.Count("PeerResolver", "Resolve"))
	})
}

// TestSlowPeerDelaysOnlyItsOwnKeys: the others' keys are copied out before it answers; all of the call waits for it.
func TestSlowPeerDelaysOnlyItsOwnKeys(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, c, b := w.three(place{Config: r.cfg})
				b.place.registered = r.direct
				a.put(1_000, "ka")
				c.put(1_000, "kc")
				var g faults.Gate
				b.fail(when("PeerResolver", "Resolve", peerIs("a"), hold(&g)))
				read := b.begin(t.Context(), 0, part("ka", 0, 1_000), part("kc", 0, 1_000))
				synctest.Wait()
				require.Equal(t, 1, g.Held())
				require.EqualValues(t, 1_000, b.Stats().CallerBytes, "kc is with the caller")
				require.Zero(t, b.Stats().ArenaUsed[0])
				g.Open()
				for _, res := range read.wait() {
					require.Equal(t, ports.Hit, res.Status)
				}
			})
		})
	}
}

// TestLocalCopiesRunWhilePeersAnswer: what is here is copied out before anyone answers.
func TestLocalCopiesRunWhilePeersAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(1_000, "far")
		b.put(1_000, "near")
		var g faults.Gate
		b.fail(faults.Every("PeerResolver", "Resolve", hold(&g)))
		r := b.begin(t.Context(), 0, part("far", 0, 1_000), part("near", 0, 1_000))
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		require.EqualValues(t, 1_000, b.Stats().CallerBytes)
		require.Zero(t, b.Stats().Table.Pins, "and let go of")
		g.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)
	})
}
