package app_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// layers is how many put-ranges the objects of these tests have.
const layers = 4

// putLayers stores keys on the node, cut into put-ranges of the same length.
func (n *node) putLayers(size uint64, keys ...string) {
	n.w.t.Helper()
	n.putCut(size, layers, keys...)
}

// putCut stores keys on the node, cut into as many put-ranges.
func (n *node) putCut(size, cuts uint64, keys ...string) {
	n.w.t.Helper()
	for i, r := range n.putTo(context.Background(), n.id, 0, size, cuts, keys...) {
		require.Equal(n.w.t, ports.Stored, r.Status, "%q: %v", keys[i], r.Err)
	}
}

// layer is one put-range of an object of objectSize.
func layer(key string, i uint64) want { return part(key, objectSize/layers*i, objectSize/layers) }

// flip turns a bit of the node's copy of a key over.
func (n *node) flip(key string, off uint64) {
	n.w.t.Helper()
	require.True(n.w.t, n.FlipForTesting(namespace, key, off), "%s holds no byte %d of %q", n.id, off, key)
}

// heard lets all that is under way end, complaints included.
func (w *world) heard() {
	w.t.Helper()
	w.settle()
	synctest.Wait()
}

var flipped = faults.Verdict{Flip: true}

// requireStatus requires one result, for its only key.
func requireStatus(t *testing.T, want ports.Status, out []ports.Result) {
	t.Helper()
	require.Len(t, out, 1)
	require.Equal(t, want, out[0].Status, "%v", out[0].Err)
}

// overReaders runs a claim for each route that fetches.
func overReaders(t *testing.T, claim func(t *testing.T, w *world, reader place, from ports.Source)) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) { claim(t, w, place{Config: r.cfg, registered: r.direct}, r.from) })
		})
	}
}

func TestReadsThatCoverPutRangesWholeAreVerified(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k")
		reads := [][]want{{layer("k", 2)}, {layer("k", 0), layer("k", 1)}, {part("k", 0, objectSize/2)}, {whole("k", objectSize)}}
		for _, wants := range reads {
			for _, r := range b.get(wants...) {
				require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
				require.True(t, r.Verified)
			}
		}
		require.Zero(t, b.Stats().UnverifiedBytes)
		for _, r := range a.get(part("k", 5, 10), whole("k", objectSize)) {
			require.True(t, r.Verified, "what is stored here was summed here")
		}
		require.Zero(t, a.Stats().UnverifiedBytes)
	})
}

// TestBytesOfPutRangesThatWereNotReadWholeAreCountedAsUnverified: a whole one, and 7 bytes of the next.
func TestBytesOfPutRangesThatWereNotReadWholeAreCountedAsUnverified(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k", "l")
		r := b.mustGet(from, part("k", 0, objectSize/layers+7), layer("l", 0))
		require.False(t, r[0].Verified)
		require.True(t, r[1].Verified)
		require.Equal(t, [ports.NumUnverified]uint64{ports.UnverifiedPartial: 7}, b.Stats().UnverifiedBytes)
	})
}

// TestPutRangesThatCameInPartsAreVerifiedByWhoeverReadsThemWhole, and then no more.
func TestPutRangesThatCameInPartsAreVerifiedByWhoeverReadsThemWhole(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.putLayers(objectSize, "k")
		require.False(t, b.mustGet(ports.FromSlot, part("k", 0, 20_000))[0].Verified)
		require.True(t, b.mustGet(ports.FromSlot, layer("k", 0))[0].Verified)
		require.True(t, b.mustGet(ports.FromSlot, part("k", 0, 20_000))[0].Verified, "of a put-range that was verified by now")
		require.EqualValues(t, 20_000, b.Stats().UnverifiedBytes[ports.UnverifiedPartial])
	})
}

// TestSumsAreCarriedWithTheVersion: from the put over a copy to a third node, whichever way the copy came to be.
func TestSumsAreCarriedWithTheVersion(t *testing.T) {
	for name, cfg := range map[string]app.Config{"slot": noPull, "pull": {}, "arena": {Locality: domain.LocalityPullOnly}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: cfg})
				c := w.node("c", place{Config: noPool})
				for i, r := range a.putTo(t.Context(), "b", 0, objectSize, layers, "of a put") {
					require.Equal(t, ports.Stored, r.Status, "%d: %v", i, r.Err)
				}
				a.putLayers(objectSize, "of a read")
				if name == "pull" {
					b.get(layer("of a read", 1))
				} else {
					b.get(whole("of a read", objectSize))
				}
				w.settle()
				require.EqualValues(t, 2, b.committed())
				a.stop()
				w.pass(2 * time.Second)
				for _, r := range c.mustGet(ports.FromArena, layer("of a put", 3), layer("of a read", 3)) {
					require.True(t, r.Verified)
				}
			})
		})
	}
}

// TestAFlippedByteOnAHolderIsNoHit: the reader complains, and the owner looks at its copy and drops it.
func TestAFlippedByteOnAHolderIsNoHit(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k")
		a.flip("k", objectSize/2+5)
		b.mustGet(from, layer("k", 1))
		requireStatus(t, ports.Corrupt, b.get(layer("k", 2)))
		w.heard()
		w.pass(time.Second)
		require.Zero(t, a.committed(), "the owner keeps a bad copy")
		requireStatus(t, ports.NotFound, b.get(layer("k", 2)))
		sa, sb := a.Stats(), b.Stats()
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintDropped: 1}, sa.Complaints)
		require.EqualValues(t, 1, sa.Table.Doomed[domain.DoomCorrupt])
		require.EqualValues(t, 1, sb.ComplaintsMade)
		require.EqualValues(t, 1, sb.CorruptRanges)
		require.EqualValues(t, 1, sb.GetKeys[ports.Corrupt])
		require.EqualValues(t, objectSize/layers, sb.DuplicateBytes, "what was thrown away")
		if from == ports.FromSlot {
			require.EqualValues(t, 1, sb.InstallFailures[ports.InstallCorrupt])
			require.EqualValues(t, 1, sb.Table.Doomed[domain.DoomCorrupt])
		}
	})
}

// TestCorruptBytesAreReadFromTheNextHolder: of the same version; the other one's copy stays.
func TestCorruptBytesAreReadFromTheNextHolder(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		holders := place{Config: app.Config{PeerLease: time.Minute}}
		a, c, b := w.node("a", holders), w.node("c", holders), w.node("b", reader)
		a.putLayers(objectSize, "k")
		c.mustGet(ports.FromSlot, whole("k", objectSize))
		session, err := b.OpenRead(t.Context(), namespace) // so that the second read begins with the holder of the first
		require.NoError(t, err)
		requireStatus(t, ports.Hit, b.getIn(t.Context(), session, layer("k", 0)))
		first, second := a, c
		if b.Stats().Peers[1].Wire[ports.PurposeGet] > 0 {
			first, second = c, a
		}
		first.flip("k", objectSize-1)
		out := b.getIn(t.Context(), session, layer("k", 3))
		requireStatus(t, ports.Hit, out)
		require.True(t, out[0].Verified)
		w.heard()
		w.pass(time.Second)
		require.Zero(t, first.committed())
		require.EqualValues(t, 1, second.committed())
		s := b.Stats()
		require.EqualValues(t, 1, s.Downgrades[ports.DowngradeNextHolder])
		require.EqualValues(t, 1, s.CorruptRanges)
		require.EqualValues(t, 1, s.ComplaintsMade)
		w.lasting = true
	})
}

// TestAFlippedByteOnTheWireIsNoHit: the owner is told, finds its copy right, and keeps it. The next read is right.
func TestAFlippedByteOnTheWireIsNoHit(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k")
		for _, read := range []want{layer("k", 1), whole("k", objectSize)} {
			b.fail(next(1, "Link", "Op", nil, flipped))
			requireStatus(t, ports.Corrupt, b.get(read))
			require.Zero(t, b.committed())
			w.heard()
		}
		w.pass(time.Second)
		require.EqualValues(t, 1, a.committed(), "the owner dropped a good copy")
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 2}, a.Stats().Complaints)
		require.True(t, b.mustGet(from, layer("k", 1))[0].Verified)
	})
}

// TestWhatIsInstalledFromTheArenaIsTheUnitThatWasVerified: at once, and not when it does not match.
func TestWhatIsInstalledFromTheArenaIsTheUnitThatWasVerified(t *testing.T) {
	for _, bad := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			a, b, makeRoom := crowded(t, w, app.Config{NoRangedLocalityPrefetch: true})
			a.put(objectSize, "k")
			var g faults.Gate
			b.fail(next(1, "Link", "Op", nil, faults.Verdict{Flip: bad, After: g.Hold}))
			r := b.begin(t.Context(), 0, part("k", 0, objectSize))
			synctest.Wait()
			makeRoom()
			b.fail()
			g.Open()
			out := r.wait()
			if bad {
				requireStatus(t, ports.Corrupt, out)
				require.Zero(t, b.Stats().InstalledObjects[domain.LocalFromArena])
				require.EqualValues(t, 1, b.Stats().CorruptRanges)
				return
			}
			requireStatus(t, ports.Hit, out)
			require.True(t, out[0].Verified)
			require.EqualValues(t, 1, b.Stats().InstalledObjects[domain.LocalFromArena])
			require.True(t, b.mustGet(ports.FromLocal, part("k", 3, 5))[0].Verified)
		})
	}
}

// TestThePullAsksForSumsOfItsOwn: the view that it was asked with is over before it begins.
func TestThePullAsksForSumsOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: app.Config{Locality: domain.LocalityPullOnly}})
		a.putLayers(objectSize, "k", "l")
		b.fail(when("Link", "Op", func(c faults.Call) bool { return c.N == 2 }, faults.Verdict{Before: faults.For(1_500 * time.Millisecond)}))
		b.mustGet(ports.FromArena, layer("k", 0), layer("l", 0)) // the pull of k waits for the end of the call
		w.settle()
		require.EqualValues(t, 2, b.committed())
		for _, r := range b.mustGet(ports.FromLocal, layer("k", 1), layer("l", 1)) {
			require.True(t, r.Verified)
		}
	})
}

// TestAFlippedByteInAFillingSlotIsFoundWhenItsPutRangeIsReadWhole.
func TestAFlippedByteInAFillingSlotIsFoundWhenItsPutRangeIsReadWhole(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.putLayers(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 20_000))
		b.flip("k", 10_000)
		requireStatus(t, ports.Corrupt, b.get(layer("k", 0)))
		require.EqualValues(t, 1, b.Stats().Table.Doomed[domain.DoomCorrupt])
		require.EqualValues(t, 1, b.Stats().InstallFailures[ports.InstallCorrupt])
		w.heard()
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 1}, a.Stats().Complaints)
		require.True(t, b.mustGet(ports.FromSlot, layer("k", 0))[0].Verified, "from nothing")
	})
}

// TestASlotIsVerifiedBeforeItCommits: the object is one put-range, which no read covers whole. Whoever lands its last byte finds out.
func TestASlotIsVerifiedBeforeItCommits(t *testing.T) {
	for _, bad := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.pair(place{}, place{Config: noPull})
			a.put(objectSize, "k")
			require.False(t, b.mustGet(ports.FromSlot, part("k", 0, 150_000))[0].Verified)
			if bad {
				b.flip("k", 149_999)
			}
			out := b.get(part("k", 150_000, 50_000))
			w.heard()
			if !bad {
				requireStatus(t, ports.Hit, out)
				require.True(t, out[0].Verified, "with the rest of its put-range")
				require.EqualValues(t, 1, b.committed())
				return
			}
			requireStatus(t, ports.Corrupt, out)
			require.Zero(t, b.committed())
			require.EqualValues(t, 1, b.Stats().InstallFailures[ports.InstallCorrupt])
			require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 1}, a.Stats().Complaints)
			require.True(t, b.mustGet(ports.FromSlot, whole("k", objectSize))[0].Verified)
			require.EqualValues(t, 1, b.committed())
		})
	}
}

// TestThePullCommitsNothingThatDoesNotMatch: what it fetched itself, and what was there before.
func TestThePullCommitsNothingThatDoesNotMatch(t *testing.T) {
	for name, spoil := range map[string]func(b *node){
		"on the wire": func(b *node) {
			b.fail(next(1, "Link", "Op", purpose(ports.PurposePull), flipped))
		},
		"in the slot": func(b *node) {
			b.fail(next(1, "Link", "Op", purpose(ports.PurposePull), faults.Verdict{Before: faults.Do(func() { b.flip("k", 3) })}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{})
				a.put(objectSize, "k")
				spoil(b)
				b.mustGet(ports.FromSlot, part("k", 0, 1_000))
				w.heard()
				s := b.Stats()
				require.Zero(t, b.committed())
				require.EqualValues(t, 1, s.InstallFailures[ports.InstallCorrupt])
				require.EqualValues(t, 1, s.PullFailed)
				require.EqualValues(t, 1, s.CorruptRanges)
				require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 1}, a.Stats().Complaints)
				b.mustGet(ports.FromSlot, part("k", 0, 1_000))
				w.heard()
				b.requireLocal(objectSize, "k")
			})
		})
	}
}

// TestAPieceOfThePullThatDoesNotMatchIsThrownAway: before anyone can read it.
func TestAPieceOfThePullThatDoesNotMatchIsThrownAway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.putLayers(objectSize, "k")
		b.fail(next(1, "Link", "Op", purpose(ports.PurposePull), flipped))
		b.mustGet(ports.FromSlot, layer("k", 3))
		w.heard()
		require.Zero(t, b.committed())
		require.EqualValues(t, objectSize/layers*3, b.Stats().DuplicateBytes)
		require.EqualValues(t, 1, b.Stats().InstallFailures[ports.InstallCorrupt])
	})
}

// TestAfterCorruptBytesTheirOwnerIsAskedAnew: it may have dropped what a session still has a view of.
func TestAfterCorruptBytesTheirOwnerIsAskedAnew(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k")
		session, err := b.OpenRead(t.Context(), namespace)
		require.NoError(t, err)
		requireStatus(t, ports.Hit, b.getIn(t.Context(), session, layer("k", 0)))
		b.fail(next(1, "Link", "Op", nil, flipped))
		requireStatus(t, ports.Corrupt, b.getIn(t.Context(), session, layer("k", 1)))
		asked := b.faults.Count("PeerResolver", "Resolve")
		requireStatus(t, ports.Hit, b.getIn(t.Context(), session, layer("k", 1)))
		require.Equal(t, asked+1, b.faults.Count("PeerResolver", "Resolve"))
	})
}

// TestCorruptBytesAreNotReadFromAHolderOfAnotherVersion: the failure table's word.
func TestCorruptBytesAreNotReadFromAHolderOfAnotherVersion(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, c, b := w.node("a", place{}), w.node("c", place{}), w.node("b", reader)
		a.putLayers(objectSize, "k")
		c.putLayers(objectSize, "k")
		b.fail(when("PeerResolver", "Probe", peerIs("c"), faults.Verdict{After: faults.For(time.Millisecond)}), next(1, "Link", "Op", nil, faults.Verdict{Flip: true, After: faults.For(10 * time.Millisecond)}))
		requireStatus(t, ports.Corrupt, b.get(layer("k", 1)))
	})
}

// TestAPutThatIsWrittenAgainIsSummedAgain: its link was reset when all of it was summed.
func TestAPutThatIsWrittenAgainIsSummedAgain(t *testing.T) {
	for _, writer := range []place{{}, noHop} {
		bubble(t, func(t *testing.T, w *world) {
			_, b := w.pair(place{}, writer)
			b.fail(next(1, "Link", "Op", purpose(ports.PurposePut), faults.Verdict{Err: ports.ErrReset}))
			for _, r := range b.putTo(t.Context(), "a", 0, objectSize, layers, "k", "l") {
				require.Equal(t, ports.Stored, r.Status, "%v", r.Err)
			}
			require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeReset])
			for _, r := range b.get(layer("k", 1), layer("l", 2)) {
				require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
				require.True(t, r.Verified)
			}
		})
	}
}

// TestWhoWaitsForCorruptBytesOfAnotherReadFetchesThemItself.
func TestWhoWaitsForCorruptBytesOfAnotherReadFetchesThemItself(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.putLayers(objectSize, "k")
		var g faults.Gate
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Flip: true, After: g.Hold}))
		first := b.begin(t.Context(), 0, layer("k", 1))
		synctest.Wait()
		second := b.begin(t.Context(), 0, layer("k", 1))
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().FlightsJoined)
		g.Open()
		requireStatus(t, ports.Corrupt, first.wait())
		out := second.wait()
		requireStatus(t, ports.Hit, out)
		require.True(t, out[0].Verified)
	})
}

// TestLateBytesThatDoNotMatchAreNobodysFault: the owner may have reused the pages by then.
func TestLateBytesThatDoNotMatchAreNobodysFault(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := leases(w, reader.Config)
		b.place.registered = reader.registered
		a.putLayers(objectSize, "k")
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Flip: true, Before: faults.For(2 * time.Second)}),
			when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N == 2 }, stale))
		r := b.get(layer("k", 1))
		w.heard()
		require.Contains(t, []ports.Status{ports.Hit, ports.Late}, r[0].Status, "%v", r[0].Err)
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeLate])
		require.Zero(t, b.Stats().CorruptRanges)
		require.Zero(t, b.Stats().ComplaintsMade)
	})
}

// TestAPutThatArrivesChangedIsNotPublished.
func TestAPutThatArrivesChangedIsNotPublished(t *testing.T) {
	for _, b := range []place{{put: 64 * kib}, noHop} {
		bubble(t, func(t *testing.T, w *world) { putsThatArriveChanged(t, w, b) })
	}
}

func putsThatArriveChanged(t *testing.T, w *world, writer place) {
	a, b := w.pair(place{}, writer)
	b.fail(next(1, "Link", "Op", purpose(ports.PurposePut), flipped))
	out := b.putTo(t.Context(), "a", 0, objectSize, layers, "k", "l")
	require.Equal(t, ports.TransferFailed, out[0].Status, "%v", out[0].Err)
	require.Equal(t, ports.Stored, out[1].Status, "%v", out[1].Err)
	s := a.Stats()
	require.EqualValues(t, 1, a.committed())
	require.EqualValues(t, 1, s.CorruptRanges)
	require.EqualValues(t, 1, s.Table.Doomed[domain.DoomCorrupt])
	require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, objectSize, layers, "k")[0].Status)
	for _, r := range b.get(layer("k", 1), layer("l", 2)) {
		require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
		require.True(t, r.Verified)
	}
}

// TestAWriteInPartsIsVerifiedByItsParts: in whatever order they were written.
func TestAWriteInPartsIsVerifiedByItsParts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		id := a.openWrite(objectSize, ports.Hit, "k")
		require.Equal(t, ports.Stored, a.writePart(id, "k", objectSize, domain.Run{Off: 90_000, Len: objectSize - 90_000}, domain.Run{Off: 0, Len: 40_000}).Status)
		require.Equal(t, ports.Stored, a.writePart(id, "k", objectSize, domain.Run{Off: 40_000, Len: 50_000}).Status)
		require.Equal(t, ports.Stored, a.commitWrite(id, "k")[0].Status)
		require.True(t, b.mustGet(ports.FromSlot, part("k", 40_000, 50_000))[0].Verified)
		a.flip("k", 39_999)
		requireStatus(t, ports.Corrupt, b.get(part("k", 0, 40_000)))
		w.heard()
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintDropped: 1}, a.Stats().Complaints)
	})
}

// TestALongWriteIsSummedStepByStep: a range of several steps between short ones, of which some share a step.
func TestALongWriteIsSummedStepByStep(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const size = 3 << 20
		roomy := place{page: 4 * kib, pages: 4 * size / (4 * kib)}
		a, b := w.pair(roomy, roomy)
		id := a.openWrite(size, ports.Hit, "k")
		var runs []domain.Run
		var at uint64
		for _, n := range []uint64{7, 400_000, 300_000, 1_700_001, 512 << 10, 1} {
			runs = append(runs, domain.Run{Off: at, Len: n})
			at += n
		}
		runs = append(runs, domain.Run{Off: at, Len: size - at})
		require.Equal(t, ports.Stored, a.writePart(id, "k", size, runs...).Status)
		require.Equal(t, ports.Stored, a.commitWrite(id, "k")[0].Status)
		require.True(t, b.mustGet(ports.FromSlot, parts("k", runs...))[0].Verified)
	})
}

// TestADirectReadIsVerifiedHoweverItsRangesCutThePutRanges: in pieces that lie apart, and two at once.
func TestADirectReadIsVerifiedHoweverItsRangesCutThePutRanges(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, noHop)
		a.putLayers(objectSize, "k")
		pieces := parts("k", domain.Run{Off: 70_000, Len: 60_000}, domain.Run{Off: 10, Len: 9}, domain.Run{Off: 49_000, Len: 21_000}, domain.Run{Off: 130_000, Len: 21_000})
		require.False(t, b.mustGet(ports.FromDirect, pieces)[0].Verified)
		require.Equal(t, [ports.NumUnverified]uint64{ports.UnverifiedPartial: 9 + 1_000 + 1_000}, b.Stats().UnverifiedBytes)
		for _, off := range []uint64{50_000, 69_999, 70_000, 99_999, 100_000, 149_999} {
			a.flip("k", off)
			generation := a.GenerationForTesting(namespace, "k")
			requireStatus(t, ports.Corrupt, b.get(pieces))
			w.heard()
			w.pass(time.Second)
			require.NotEqual(t, generation, a.GenerationForTesting(namespace, "k"), "byte %d", off)
			a.putLayers(objectSize, "k")
		}
	})
}

// TestAComplaintDropsNothingThatIsGood: whoever makes it, and whatever it names.
func TestAComplaintDropsNothingThatIsGood(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.putLayers(objectSize, "good", "bad")
		b.get(part("good", 0, 1)) // so that a knows b
		a.flip("bad", 77)
		good, bad := a.GenerationForTesting(namespace, "good"), a.GenerationForTesting(namespace, "bad")
		require.NoError(t, a.PeerServer().Complain(t.Context(), b.Self(), []domain.Generation{good, {}, {Incarnation: good.Incarnation, Counter: 1 << 50}, bad, bad, good}))
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 2, ports.ComplaintDropped: 1, ports.ComplaintGone: 3}, a.Stats().Complaints)
		require.EqualValues(t, 1, a.committed())
		require.Zero(t, a.GenerationForTesting(namespace, "bad"))
		require.Zero(t, a.Stats().Table.Pins)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.PeerServer().Complain(over, b.Self(), []domain.Generation{good}), context.Canceled)
		require.Zero(t, a.Stats().Table.Pins)
	})
}

func TestAComplaintThatIsNotHeardIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.putLayers(objectSize, "k")
		b.fail(next(1, "Link", "Op", nil, flipped), faults.Every("PeerResolver", "Complain", faults.Verdict{Drop: true}))
		requireStatus(t, ports.Corrupt, b.get(layer("k", 1)))
		w.pass(2 * time.Second)
		require.EqualValues(t, 1, b.Stats().ComplaintsLost)
		require.EqualValues(t, 1, b.Stats().ComplaintsMade)
	})
}

// TestOneComplaintOfACopyIsMadeAtATime: who reads the same bad bytes meanwhile adds none.
func TestOneComplaintOfACopyIsMadeAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.putLayers(objectSize, "k")
		var g faults.Gate
		b.fail(faults.Every("Link", "Op", flipped), faults.Every("PeerResolver", "Complain", hold(&g)))
		for _, made := range []uint64{1, 2} {
			for range 3 {
				requireStatus(t, ports.Corrupt, b.get(layer("k", 1)))
				synctest.Wait()
			}
			require.Equal(t, made, b.Stats().ComplaintsMade)
			g.Open()
			w.heard()
		}
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 2}, a.Stats().Complaints)
	})
}

// TestComplaintsAreLookedIntoOneAtATime, and one that waits ends with its caller: a peer that lies costs no more than a core.
func TestComplaintsAreLookedIntoOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool})
		a.putLayers(objectSize, "k")
		b.mustGet(ports.FromArena, layer("k", 0))
		complain := func(ctx context.Context) error {
			return a.PeerServer().Complain(ctx, b.Self(), []domain.Generation{a.GenerationForTesting(namespace, "k")})
		}
		over := a.LookForTesting()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, complain(ctx), context.DeadlineExceeded)
		over()
		require.NoError(t, complain(t.Context()))
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 1}, a.Stats().Complaints)
	})
}

// TestAPeerThatSendsNoSumsIsReadUnverified: a release that has none, or one where they are switched off. What is made local of it has
// none either, also for a node that has them.
func TestAPeerThatSendsNoSumsIsReadUnverified(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{Config: app.Config{NoChecksums: true}}, reader)
		a.putLayers(objectSize, "k")
		require.False(t, b.mustGet(from, layer("k", 0))[0].Verified)
		require.False(t, b.mustGet(from, whole("k", objectSize))[0].Verified)
		require.Equal(t, [ports.NumUnverified]uint64{ports.UnverifiedNoSums: objectSize / layers * 5}, b.Stats().UnverifiedBytes)
		if from == ports.FromSlot {
			require.False(t, b.mustGet(ports.FromLocal, layer("k", 0))[0].Verified)
		}
		require.NoError(t, a.PeerServer().Complain(t.Context(), b.Self(), []domain.Generation{a.GenerationForTesting(namespace, "k")}))
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintGone: 1}, a.Stats().Complaints, "there is nothing to hold it to")
		require.EqualValues(t, 1, a.committed())
	})
}

// TestANodeWithoutChecksumsVerifiesNothing: it asks for no sums, and takes none that are sent.
func TestANodeWithoutChecksumsVerifiesNothing(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		reader.NoChecksums = true
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k")
		b.fail(faults.Every("PeerResolver", "Resolve", editResolve(func(r *ports.ResolveReply) {
			require.Empty(t, r.Sums)
			r.Sums, r.SumEnd[0] = []uint32{1, 2, 3, 4}, 4
		})))
		require.False(t, b.mustGet(from, layer("k", 0))[0].Verified)
		require.Equal(t, [ports.NumUnverified]uint64{ports.UnverifiedOff: objectSize / layers}, b.Stats().UnverifiedBytes)
		b.fail()
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, objectSize, layers, "put")[0].Status)
		require.False(t, a.mustGet(ports.FromLocal, layer("put", 0))[0].Verified, "whose writer made no sums")
	})
}

// TestHoldersThatTellDifferentSumsOfAVersionDoNotMix: whoever is wrong, nothing wrong is read, and the slot starts from nothing.
func TestHoldersThatTellDifferentSumsOfAVersionDoNotMix(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.putLayers(objectSize, "k")
		b.fail(next(1, "PeerResolver", "Resolve", nil, editResolve(func(r *ports.ResolveReply) { r.Sums[2]++ })))
		b.mustGet(ports.FromSlot, layer("k", 1))
		requireStatus(t, ports.Corrupt, b.get(layer("k", 2)))
		w.heard()
		require.Equal(t, [ports.NumComplaints]uint64{ports.ComplaintKept: 1}, a.Stats().Complaints)
		w.pass(time.Second)
		require.True(t, b.mustGet(ports.FromSlot, layer("k", 2))[0].Verified)
	})
}

// TestASlotIsNotGivenSumsThatNobodyHeldItTo: its bytes come from a holder that has none, and another read of it knows of some.
func TestASlotIsNotGivenSumsThatNobodyHeldItTo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{Config: app.Config{PeerLease: time.Minute}}, place{Config: noPull})
		c := w.node("c", place{Config: app.Config{NoChecksums: true}})
		a.putLayers(objectSize, "k")
		c.mustGet(ports.FromSlot, whole("k", objectSize))
		var asked, fetched faults.Gate
		at := func(id ports.PeerID, also faults.Plan) {
			b.fail(func(call faults.Call) faults.Verdict {
				if call.Port != "Directory" || call.Method != "Holders" {
					return also(call)
				}
				return faults.Verdict{Edit: func(reply any) {
					h := reply.(*ports.Holders)
					i := slices.Index(h.Peers, id)
					h.Peers, h.Versions, h.End = h.Peers[i:i+1], h.Versions[i:i+1], []uint32{1}
				}}
			})
		}
		at("a", faults.Every("PeerResolver", "Resolve", hold(&asked)))
		second := b.begin(t.Context(), 0, layer("k", 1))
		synctest.Wait()
		at("c", next(1, "Link", "Op", nil, faults.Verdict{Flip: true, Before: fetched.Hold}))
		first := b.begin(t.Context(), 0, whole("k", objectSize))
		synctest.Wait()
		require.Equal(t, 1, fetched.Held())
		asked.Open()
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().FlightsJoined)
		fetched.Open()
		requireStatus(t, ports.Corrupt, first.wait())
		require.Regexp(t, `^put-range \[\d+, \+50000\): bytes do not match their sum$`, first.out[0].Err.Error())
		second.wait() // a hit that is right, unless the bit was one of its own
		require.Zero(t, b.committed())
		require.EqualValues(t, 1, b.Stats().CorruptRanges, "the first holder's bytes are held to the second's sums")
	})
}
