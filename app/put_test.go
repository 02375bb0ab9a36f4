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

// overTargets runs a claim for puts that stay here and for puts to a peer: b puts, the objects are to be on owner.
func overTargets(t *testing.T, claim func(t *testing.T, w *world, b, owner *node)) {
	t.Run("here", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			b := w.node("b", place{})
			claim(t, w, b, b)
		})
	})
	t.Run("peer", func(t *testing.T) {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.pair(place{}, place{put: 64 * kib})
			claim(t, w, b, a)
		})
	})
}

func TestPutThenGetShowsTheBytesFromEverywhere(t *testing.T) {
	overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
		a := w.node("a", place{page: page, pages: 8 * pages})
		b := w.node("b", place{page: page, pages: 8 * pages, put: 32 * kib})
		for i, r := range b.putTo(t.Context(), "a", 0, objectSize, 7, "k", "l") {
			require.Equal(t, ports.Stored, r.Status, "key %d: %v", i, r.Err)
			require.EqualValues(t, objectSize, r.Size)
		}
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "", 0, objectSize, 5, "m")[0].Status)
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "b", 0, 100, 5, "n")[0].Status, "to itself by name")
		a.requireLocal(objectSize, "k", "l")
		b.requireLocal(objectSize, "m")
		b.mustGet(ports.FromSlot, part("k", 0, objectSize))
		a.mustGet(ports.FromSlot, part("m", 0, objectSize))
		require.EqualValues(t, 2*objectSize, b.Stats().Wire[ports.PurposePut])
		require.EqualValues(t, 2*objectSize, a.Stats().PutBytes)
		require.EqualValues(t, objectSize+100, b.Stats().PutBytes)
		require.Greater(t, b.Stats().ArenaRounds[1], uint64(12), "an object larger than the arena goes in rounds")
	})
}

func TestPutRangesMustTileTheObject(t *testing.T) {
	overTargets(t, func(t *testing.T, w *world, b, owner *node) {
		for name, ranges := range map[string][]domain.Range{
			"gap":           {{Off: 0, Len: 10}, {Off: 11, Len: 89}},
			"overlap":       {{Off: 0, Len: 11}, {Off: 10, Len: 90}},
			"late begin":    {{Off: 1, Len: 99}},
			"early end":     {{Off: 0, Len: 99}},
			"past the end":  {{Off: 0, Len: 101}},
			"none":          {},
			"empty one":     {{Off: 0, Len: 0}, {Off: 0, Len: 100}},
			"twice":         {{Off: 0, Len: 100}, {Off: 0, Len: 100}},
			"out of memory": {{Off: 0, Len: 100, RegionOff: 450}},
			"no region":     {{Off: 0, Len: 100, Region: 1}},
			"whole":         {{Off: 0, Len: domain.Whole}},
		} {
			p := &ports.PutBatch{Namespace: namespace, Keys: keysOf("bad", "good"+name), Sizes: []uint64{100, 100}, To: owner.id,
				Ranges: append(ranges, domain.Range{Len: 100}), End: []uint32{uint32(len(ranges)), uint32(len(ranges)) + 1}, Regions: []ports.Memory{{Region: hostMemory(500)}}}
			out := make([]ports.Result, 2)
			require.NoError(t, b.BatchPutRanges(t.Context(), p, out))
			require.Equal(t, ports.Invalid, out[0].Status, name)
			require.ErrorIs(t, out[0].Err, domain.ErrInvalid, name)
			require.Equal(t, ports.Stored, out[1].Status, "%s: the other key: %v", name, out[1].Err)
		}
		p := &ports.PutBatch{Namespace: namespace, Keys: keysOf("bad"), Sizes: []uint64{0}, To: owner.id, End: []uint32{0}}
		out := make([]ports.Result, 1)
		require.NoError(t, b.BatchPutRanges(t.Context(), p, out))
		require.Equal(t, ports.Invalid, out[0].Status)
		require.ErrorContains(t, out[0].Err, "object bytes (1 or more): 0")
		found, _ := owner.exists(t, 0, "bad")
		require.False(t, found[0])
	})
}

func TestPutOfWhatIsThereWritesNothing(t *testing.T) {
	overTargets(t, func(t *testing.T, w *world, b, owner *node) {
		owner.put(objectSize, "k")
		require.Equal(t, ports.Exists, b.putTo(t.Context(), owner.id, 1, objectSize, 3, "k")[0].Status)
		r := b.putTo(t.Context(), owner.id, 1, objectSize-1, 3, "k")[0]
		require.Equal(t, ports.Conflict, r.Status)
		require.ErrorIs(t, r.Err, domain.ErrInvalid)
		require.Zero(t, b.Stats().Wire[ports.PurposePut])
		read := owner.prepare(0, part("k", 0, objectSize)).run(t.Context())
		require.Equal(t, []int{0}, read.check())
	})
}

func TestDuplicateKeyInOneBatchExists(t *testing.T) {
	overTargets(t, func(t *testing.T, w *world, b, owner *node) {
		out := b.putTo(t.Context(), owner.id, 0, 1_000, 2, "k", "l", "k")
		require.Equal(t, []ports.Status{ports.Stored, ports.Stored, ports.Exists}, []ports.Status{out[0].Status, out[1].Status, out[2].Status})
		p := &ports.PutBatch{Namespace: namespace, Keys: keysOf("m", "m"), Sizes: []uint64{10, 20}, End: []uint32{1, 2}, To: owner.id,
			Ranges: []domain.Range{{Len: 10}, {Len: 20}}, Regions: []ports.Memory{{Region: hostMemory(20)}}}
		require.NoError(t, b.BatchPutRanges(t.Context(), p, out[:2]))
		require.Equal(t, ports.Stored, out[0].Status)
		require.Equal(t, ports.Conflict, out[1].Status)
	})
}

// TestSecondWriterIsBusy: a live reservation refuses others, and the key is there when its writer has ended.
func TestAnotherLiveReservationIsBusy(t *testing.T) {
	overTargets(t, func(t *testing.T, w *world, b, owner *node) {
		var g faults.Gate
		b.fail(next(1, "Copier", "Copy", nil, hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), owner.id, 0, 1_000, 1, "k") }()
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		r := owner.putAs("k", 1, 1_000)
		require.Equal(t, ports.Busy, r.Status)
		require.ErrorIs(t, r.Err, ports.ErrBusy)
		require.Equal(t, ports.Busy, b.putTo(t.Context(), owner.id, 1, 1_000, 1, "k")[0].Status)
		g.Open()
		require.Equal(t, ports.Stored, (<-done)[0].Status)
		owner.requireLocal(1_000, "k")
	})
}

func TestFillingSlotNeverRefusesAWriter(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k", "l")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000), part("l", 0, 1_000))
		require.Equal(t, ports.Stored, b.putAs("k", 1, objectSize).Status)
		require.Equal(t, ports.Stored, a.putTo(t.Context(), "b", 1, objectSize, 2, "l")[0].Status)
		b.requireLocal(objectSize, "k", "l")
		require.EqualValues(t, 2, b.Stats().Table.Doomed[domain.DoomLost])
	})
}

func TestPutThatFailsPublishesNothingAndGivesItsPagesBack(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan faults.Plan
		want ports.Status
	}{
		{"copy in", faults.Every("Copier", "Op", faults.Verdict{Err: errTest}), ports.CopyFailed},
		{"short copy", faults.Every("Copier", "Copy", faults.Verdict{Short: true}), ports.CopyFailed},
		{"write", faults.Every("Link", "Op", faults.Verdict{Err: errTest}), ports.TransferFailed},
		{"half a write", faults.Every("Link", "Op", faults.Verdict{Short: true, Err: errTest}), ports.TransferFailed},
		{"write that landed all the same", faults.Every("Link", "Op", faults.Verdict{Err: errTest, Effect: true}), ports.TransferFailed},
		{"every link reset", faults.Every("Link", "Op", faults.Verdict{Err: ports.ErrReset}), ports.PeerUnavailable},
		{"write without an answer", faults.Every("Link", "Op", faults.Verdict{Drop: true}), ports.PeerUnavailable},
		{"reserve", faults.Every("PeerWriter", "Reserve", faults.Verdict{Err: errTest}), ports.PeerUnavailable},
		{"reserve whose answer is lost", faults.Every("PeerWriter", "Reserve", faults.Verdict{Err: errTest, Effect: true}), ports.PeerUnavailable},
		{"short answer to reserve", faults.Every("PeerWriter", "Reserve", faults.Verdict{Short: true}), ports.PeerUnavailable},
		{"no row reserved", faults.Every("PeerWriter", "Reserve", faults.Verdict{Edit: func(r any) {
			for i := range r.(*ports.ReserveReply).Status {
				r.(*ports.ReserveReply).Status[i] = ports.ReserveRefused
			}
		}}), ports.Refused},
		{"pages out of the buffers", faults.Every("PeerWriter", "Reserve", faults.Verdict{Edit: func(r any) { r.(*ports.ReserveReply).Pages[0].Page = 1 << 30 }}), ports.TransferFailed},
		{"too few pages", faults.Every("PeerWriter", "Reserve", faults.Verdict{Edit: func(r any) {
			v := r.(*ports.ReserveReply)
			v.Pages, v.PageEnd[0] = v.Pages[:1], 1
		}}), ports.TransferFailed},
		{"forged grant", faults.Every("PeerWriter", "Reserve", faults.Verdict{Edit: func(r any) { r.(*ports.ReserveReply).Tokens[0][20]++ }}), ports.TransferFailed},
		{"commit", faults.Every("PeerWriter", "Commit", faults.Verdict{Err: errTest}), ports.PeerUnavailable},
		{"hello", faults.Every("PeerResolver", "Hello", faults.Verdict{Err: errTest}), ports.PeerUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: app.Config{}})
				b.fail(tt.plan)
				r := b.putTo(t.Context(), "a", 0, objectSize, 3, "k")[0]
				require.Equal(t, tt.want, r.Status, "%v", r.Err)
				require.Error(t, r.Err)
				found, _ := a.exists(t, 0, "k")
				require.False(t, found[0])
				b.fail()
				w.pass(31 * time.Second) // an abort that could not be told is a reservation that ends by itself
				require.Equal(t, a.Stats().Table.PagesTotal, a.Stats().Table.PagesFree)
				require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, objectSize, 3, "k")[0].Status, "the key is writable again")
			})
		})
	}
}

func TestCommitWhoseAnswerWasLostIsTheSameAnswerAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		b.fail(next(1, "PeerWriter", "Commit", nil, faults.Verdict{Err: ports.ErrTimeout, Effect: true}))
		r := b.putTo(t.Context(), "a", 0, objectSize, 3, "k")[0]
		require.Equal(t, ports.Stored, r.Status, "%v", r.Err)
		require.EqualValues(t, 2, b.faults.Count("PeerWriter", "Commit"))
		require.EqualValues(t, objectSize, a.Stats().PutBytes)
		a.requireLocal(objectSize, "k")
	})
}

func TestWriteGoesOnAfterALinkWasReset(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{put: 64 * kib})
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Err: ports.ErrReset}))
		r := b.putTo(t.Context(), "a", 0, objectSize, 3, "k")[0]
		require.Equal(t, ports.Stored, r.Status, "%v", r.Err)
		a.requireLocal(objectSize, "k")
	})
}

func TestFirstWriterWinsAcrossNodes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		var g faults.Gate
		b.fail(next(1, "PeerWriter", "Reserve", nil, hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), "a", 1, objectSize, 1, "k") }()
		synctest.Wait()
		a.put(objectSize, "k")
		g.Open()
		require.Equal(t, ports.Exists, (<-done)[0].Status)
		read := a.prepare(0, part("k", 0, objectSize)).run(t.Context())
		require.Equal(t, []int{1}, read.check())
	})
}

// TestWriterThatWasStoppedHarmsNobody: its reservation ends, its pages are another key's, and then its writes go out.
func TestWriterThatWasStoppedAfterReserveWritesIntoNobodysPages(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		patient := app.Config{TransferTimeout: time.Hour, CallTimeout: time.Hour, ControlTimeout: time.Hour}
		a, b := w.pair(place{pages: 4, Config: app.Config{Reservation: 300 * time.Millisecond}}, place{Config: patient})
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), "a", 0, objectSize, 1, "k") }()
		synctest.Wait()
		require.NotZero(t, g.Held())
		require.Equal(t, ports.NoSpace, a.putAs("other", 0, objectSize).Status, "the pages are the writer's")
		w.pass(time.Second)
		require.EqualValues(t, 1, a.Stats().Table.Doomed[domain.DoomDeadline])
		require.EqualValues(t, 1, a.Stats().Revokes)
		a.put(objectSize, "other")
		b.fail()
		g.Open()
		r := (<-done)[0]
		require.False(t, r.Status.OK())
		require.ErrorIs(t, r.Err, ports.ErrRevoked)
		a.requireLocal(objectSize, "other")
		require.Equal(t, ports.NotFound, a.get(part("k", 0, 1))[0].Status)
	})
}

func TestWriterThatIsGoneLeavesTheKeyWritableInBoundedTime(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: app.Config{TransferTimeout: time.Hour, CallTimeout: time.Hour}})
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)), faults.Every("PeerWriter", "Abort", faults.Verdict{Err: errTest}))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), "a", 0, objectSize, 1, "k") }()
		synctest.Wait()
		b.stop()
		require.False(t, (<-done)[0].Status.OK())
		require.Equal(t, ports.Busy, a.putAs("k", 1, 100).Status)
		w.pass(31 * time.Second)
		require.Equal(t, ports.Stored, a.putAs("k", 1, 100).Status)
	})
}

func TestNextStartOfAWriterVoidsItsReservations(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, b := w.pair(place{}, place{Config: app.Config{TransferTimeout: time.Hour, CallTimeout: time.Hour}})
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)), faults.Every("PeerWriter", "Abort", faults.Verdict{Err: errTest}))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), "a", 0, objectSize, 1, "k") }()
		synctest.Wait()
		b.restart()
		require.False(t, (<-done)[0].Status.OK())
		b.fail()
		require.Equal(t, ports.NotFound, b.get(part("k", 0, 1))[0].Status) // says hello
		w.settle()
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, objectSize, 1, "k")[0].Status)
	})
}

// TestTimeAloneFreesNothing: while Revoke fails the pages stay out.
func TestPagesOfAWriterReturnOnlyAfterItIsFenced(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{pages: 4}, place{})
		a.fail(faults.Every("Transport", "Revoke", faults.Verdict{Err: errTest}))
		b.fail(when("Link", "Op", purpose(ports.PurposePut), faults.Verdict{Err: errTest}))
		require.Equal(t, ports.TransferFailed, b.putTo(t.Context(), "a", 0, objectSize, 1, "k")[0].Status)
		w.pass(time.Minute)
		s := a.Stats()
		require.EqualValues(t, 1, s.RevokesPending)
		require.EqualValues(t, 4, s.Table.Pages[domain.SlotDoomed])
		require.Equal(t, ports.NoSpace, a.putAs("other", 0, objectSize).Status)
		a.fail()
		w.pass(time.Second)
		require.Zero(t, a.Stats().RevokesPending)
		a.put(objectSize, "other")
	})
}

func TestCommitWhoseGrantCannotBeRevokedIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.fail(faults.Every("Transport", "Revoke", faults.Verdict{Err: errTest}))
		r := b.putTo(t.Context(), "a", 0, objectSize, 1, "k")[0]
		require.Equal(t, ports.TransferFailed, r.Status)
		found, _ := a.exists(t, 0, "k")
		require.False(t, found[0])
		a.fail()
		w.pass(time.Second)
		require.Equal(t, a.Stats().Table.PagesTotal, a.Stats().Table.PagesFree)
	})
}

func TestReserveThatCannotBeGrantedIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.fail(faults.Every("Transport", "Grant", faults.Verdict{Err: errTest}))
		r := b.putTo(t.Context(), "a", 0, objectSize, 1, "k")[0]
		require.Equal(t, ports.Refused, r.Status)
		require.ErrorIs(t, r.Err, ports.ErrRefused)
		require.Equal(t, a.Stats().Table.PagesTotal, a.Stats().Table.PagesFree)
	})
}

func TestPutToAPeerWithoutRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.node("a", place{pages: 2})
		w.node("c", place{noMedium: true})
		b := w.node("b", place{})
		for _, to := range []ports.PeerID{"a", "c"} {
			r := b.putTo(t.Context(), to, 0, objectSize, 1, "k")[0]
			require.Equal(t, ports.NoSpace, r.Status, "%v", r.Err)
		}
		r := b.putTo(t.Context(), "nobody", 0, objectSize, 1, "k")[0]
		require.Equal(t, ports.PeerUnavailable, r.Status)
	})
}

func TestPutIsCancelledWithItsContextAndItsMemoryIsQuiet(t *testing.T) {
	overTargets(t, func(t *testing.T, w *world, b, owner *node) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := b.putTo(ctx, owner.id, 0, objectSize, 1, "k")[0]
		if b == owner {
			require.Equal(t, ports.Cancelled, r.Status, "%v", r.Err)
		} else {
			require.False(t, r.Status.OK())
		}
		ctx, cancel = context.WithCancel(t.Context())
		var g faults.Gate
		b.fail(next(1, "Link", "Op", nil, hold(&g)), next(1, "Copier", "Copy", func(faults.Call) bool { return b == owner }, hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(ctx, owner.id, 0, objectSize, 1, "l") }() // k's reserve may still be on its way
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		cancel()
		r = (<-done)[0]
		require.Equal(t, ports.Cancelled, r.Status, "%v", r.Err)
		g.Open()
		w.settle()
		w.pass(31 * time.Second)
		require.Equal(t, owner.Stats().Table.PagesTotal, owner.Stats().Table.PagesFree)
	})
}

func TestPutWaitsForItsArenaBoundedAndInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{put: 32 * kib, Config: app.Config{ArenaWait: 200 * time.Millisecond}})
		var g faults.Gate
		b.fail(next(2, "Link", "Op", nil, hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(context.Background(), "a", 0, 32*kib, 1, "k") }()
		synctest.Wait()
		require.EqualValues(t, 32*kib, b.Stats().ArenaUsed[1])
		waiting := make(chan []ports.Result, 1)
		go func() { waiting <- b.putTo(context.Background(), "a", 0, 100, 1, "l") }()
		synctest.Wait()
		require.EqualValues(t, 1, b.Stats().ArenaWaiting[1])
		require.EqualValues(t, 1, b.Stats().ArenaWaits[1])
		r := (<-waiting)[0]
		require.Equal(t, ports.Busy, r.Status)
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeArenaTimeout])
		g.Open()
		require.Equal(t, ports.Stored, (<-done)[0].Status)
		a.requireLocal(32*kib, "k")
	})
}

// asks is a start of a peer that speaks to an owner directly.
func asks(t *testing.T, a *node) ports.Peer {
	t.Helper()
	from := ports.Peer{ID: "x", Incarnation: 7}
	var reply ports.HelloReply
	require.NoError(t, a.PeerServer().Hello(t.Context(), from, &ports.Hello{From: from, Protocol: ports.ProtocolVersion, Namespaces: []string{namespace}}, &reply))
	require.Equal(t, a.Self(), reply.From)
	return from
}

func TestOwnerAnswersReservationsByKeyAndVersion(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node("a", place{})
		from, srv := asks(t, a), a.PeerServer()
		v, other := domain.Version{Hi: 1}, domain.Version{Hi: 2}
		var reply ports.ReserveReply
		reserve := func(v domain.Version, size uint64, key string) ports.ReserveStatus {
			t.Helper()
			req := &ports.ReserveRequest{Via: "inproc", Keys: []ports.Key{{Name: key}}, Versions: []domain.Version{v}, Sizes: []uint64{size}}
			require.NoError(t, srv.Reserve(t.Context(), from, req, &reply))
			require.Len(t, reply.Status, 1)
			return reply.Status[0]
		}
		commit := func(v domain.Version, key string, lens ...uint64) ports.CommitStatus {
			t.Helper()
			var out []ports.CommitStatus
			req := &ports.CommitRequest{Keys: []ports.Key{{Name: key}}, Versions: []domain.Version{v}, LenEnd: []uint32{uint32(len(lens))}, PutLens: lens, SumEnd: []uint32{0}}
			require.NoError(t, srv.Commit(t.Context(), from, req, &out))
			return out[0]
		}
		abort := func(v domain.Version, key string) {
			t.Helper()
			require.NoError(t, srv.Abort(t.Context(), from, []ports.Key{{Name: key}}, []domain.Version{v}, true))
			w.settle()
		}
		require.Equal(t, ports.ReserveRefused, reserve(v, 0, "k"), "size 0")
		require.Equal(t, ports.ReserveRefused, reserve(domain.Version{}, 10, "k"), "no version")
		require.Equal(t, ports.ReserveRefused, reserve(v, domain.MaxObjectSize+1, "k"))
		require.Equal(t, ports.ReserveRefused, reserve(v, 10, ""))
		require.Equal(t, ports.ReserveNoSpace, reserve(v, domain.MaxObjectSize, "k"))
		require.Equal(t, ports.CommitRefused, commit(v, "k"), "unknown")

		require.Equal(t, ports.Reserved, reserve(v, 100, "k"))
		pages, token := reply.Pages[0], reply.Tokens[0]
		require.Equal(t, ports.ReservedYours, reserve(v, 100, "k"))
		require.Equal(t, pages, reply.Pages[0])
		require.Equal(t, token, reply.Tokens[0])
		require.Equal(t, ports.ReserveBusy, reserve(other, 100, "k"))
		require.Equal(t, ports.CommitRefused, commit(other, "k", 100))
		abort(other, "k") // another put's
		require.Equal(t, ports.CommitDone, commit(v, "k", 60, 40))
		require.Equal(t, ports.CommitDone, commit(v, "k", 60, 40), "the first answer again")
		require.Equal(t, ports.CommitExists, commit(other, "k", 100))
		require.Equal(t, ports.ReserveExists, reserve(other, 100, "k"))
		require.Equal(t, ports.ReserveConflict, reserve(other, 101, "k"))

		require.Equal(t, ports.Reserved, reserve(v, 100, "l"))
		require.Equal(t, ports.CommitRefused, commit(v, "l", 60, 41), "put-ranges that do not tile")
		require.Equal(t, ports.CommitRefused, commit(v, "l", 60, 40), "which ended it")
		w.settle()
		require.Equal(t, ports.Reserved, reserve(v, 100, "l"))
		abort(v, "l")
		require.Equal(t, ports.CommitRefused, commit(v, "l", 100), "aborted")
		require.Equal(t, ports.Reserved, reserve(v, 100, "l"))
		w.pass(31 * time.Second)
		require.Equal(t, ports.CommitRefused, commit(v, "l", 100), "expired")

		require.Error(t, srv.Reserve(t.Context(), from, &ports.ReserveRequest{Via: "pigeon", Keys: []ports.Key{{Name: "k"}}, Versions: []domain.Version{v}, Sizes: []uint64{1}}, &reply))
		require.ErrorIs(t, srv.Reserve(t.Context(), from, &ports.ReserveRequest{Via: "inproc", Keys: []ports.Key{{Name: "k"}}}, &reply), domain.ErrInvalid)
		stranger := ports.Peer{ID: "x", Incarnation: 8}
		var out []ports.CommitStatus
		require.ErrorIs(t, srv.Commit(t.Context(), stranger, &ports.CommitRequest{Keys: []ports.Key{{Name: "k"}}, Versions: []domain.Version{v}, LenEnd: []uint32{0}, SumEnd: []uint32{0}}, &out), ports.ErrRestarted)
	})
}

func TestOwnerRefusesMalformedRequests(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node("a", place{})
		a.put(100, "k")
		from, srv := asks(t, a), a.PeerServer()
		key, v := []ports.Key{{Name: "k"}}, make([]domain.Version, 1)
		var hello ports.HelloReply
		var probe ports.ProbeReply
		var resolve ports.ResolveReply
		var commits []ports.CommitStatus
		var status []ports.KeyStatus
		for name, err := range map[string]error{
			"hello of another":    srv.Hello(t.Context(), from, &ports.Hello{From: ports.Peer{ID: "y", Incarnation: 7}, Protocol: 1}, &hello),
			"hello without start": srv.Hello(t.Context(), ports.Peer{ID: "y"}, &ports.Hello{From: ports.Peer{ID: "y"}, Protocol: 1}, &hello),
			"protocol 0":          srv.Hello(t.Context(), from, &ports.Hello{From: from}, &hello),
			"resolve columns":     srv.Resolve(t.Context(), from, &ports.ResolveRequest{Keys: key}, &resolve),
			"resolve held":        srv.Resolve(t.Context(), from, &ports.ResolveRequest{Keys: key, Versions: v}, &resolve),
			"resolve rows":        srv.Resolve(t.Context(), from, &ports.ResolveRequest{Keys: make([]ports.Key, domain.MaxCallKeys+1)}, &resolve),
			"probe rows":          srv.Probe(t.Context(), from, make([]ports.Key, domain.MaxCallKeys+1), &probe),
			"commit columns":      srv.Commit(t.Context(), from, &ports.CommitRequest{Keys: key, Versions: v}, &commits),
			"commit ends":         srv.Commit(t.Context(), from, &ports.CommitRequest{Keys: key, Versions: v, LenEnd: []uint32{5}, SumEnd: []uint32{0}}, &commits),
			"abort columns":       srv.Abort(t.Context(), from, key, nil, true),
			"abort rows":          srv.Abort(t.Context(), from, make([]ports.Key, domain.MaxCallKeys+1), nil, true),
			"remove rows":         srv.Remove(t.Context(), from, make([]ports.Key, domain.MaxCallKeys+1), &status),
			"complaints":          srv.Complain(t.Context(), from, make([]domain.Generation, domain.MaxCallKeys+1)),
		} {
			require.ErrorIs(t, err, domain.ErrInvalid, name)
		}
		bad := []ports.Key{{Space: 9, Name: "k"}, {Name: ""}, {Name: "k"}}
		require.NoError(t, srv.Probe(t.Context(), from, bad, &probe))
		require.Equal(t, []ports.KeyStatus{ports.KeyRefused, ports.KeyRefused, ports.KeyHere}, probe.Status)
		require.NoError(t, srv.Resolve(t.Context(), from, &ports.ResolveRequest{Keys: bad, Versions: make([]domain.Version, 3), Held: make([]domain.Generation, 3)}, &resolve))
		require.Equal(t, []ports.KeyStatus{ports.KeyRefused, ports.KeyRefused, ports.KeyHere}, resolve.Status)
		require.NoError(t, srv.Remove(t.Context(), from, bad[:2], &status))
		require.Equal(t, []ports.KeyStatus{ports.KeyRefused, ports.KeyRefused}, status)
		require.NoError(t, srv.Complain(t.Context(), from, []domain.Generation{resolve.Generations[2]}))
		require.EqualValues(t, 1, a.committed(), "without sums there is nothing to verify against")
	})
}

// TestPutEndsWithItsContextWhateverThePeerDoes: a control call that is not answered costs the caller no more than it wants to wait,
// nor more than a call may take; the owner is told to wait no longer.
func TestPutEndsWithItsContextWhateverThePeerDoes(t *testing.T) {
	for method, status := range map[string]ports.Status{"Reserve": ports.Cancelled, "Commit": ports.PeerUnavailable} { // it may have been committed
		t.Run(method, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{})
				b.fail(next(1, "PeerWriter", method, nil, faults.Verdict{Drop: true, Effect: method == "Reserve"}),
					next(1, "PeerWriter", "Abort", nil, faults.Verdict{Before: faults.For(300 * time.Millisecond)}))
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				began := time.Now()
				out := b.putTo(ctx, "a", 0, 100, 1, "k")
				require.Equal(t, 100*time.Millisecond, time.Since(began))
				require.Equal(t, status, out[0].Status)
				require.ErrorIs(t, out[0].Err, ports.ErrCancelled)
				w.settle()
				require.Zero(t, a.Stats().Table.Slots[domain.SlotPending], "the owner was told")
				require.False(t, b.Stats().Peers[0].Down, "a caller that leaves says nothing of the peer")
				b.fail()
				require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, 100, 1, "k")[0].Status)
			})
		})
	}
}

func TestPutIsBoundedThoughNoControlCallIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, b := w.pair(place{}, place{Config: app.Config{CallTimeout: 500 * time.Millisecond}})
		b.fail(faults.Every("PeerWriter", "Commit", faults.Verdict{Drop: true}), faults.Every("PeerWriter", "Abort", faults.Verdict{Drop: true}))
		began := time.Now()
		require.Equal(t, ports.PeerUnavailable, b.putTo(t.Context(), "a", 0, 100, 1, "k")[0].Status)
		require.Equal(t, 500*time.Millisecond, time.Since(began))
	})
}

// TestReservationThatHasEndedIsRefusedBeforeItIsSwept: the sweep comes seldom, and the time is compared on access.
func TestReservationThatHasEndedIsRefusedBeforeItIsSwept(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		owner := app.Config{Reservation: 100 * time.Millisecond, SweepEvery: 20 * time.Second}
		a, b := w.pair(place{Config: owner}, place{})
		c := w.node("c", place{})
		b.fail(faults.Every("PeerWriter", "Commit", faults.Verdict{Before: faults.For(500 * time.Millisecond)}))
		out := b.putTo(t.Context(), "a", 0, 100, 1, "k")
		require.Equal(t, ports.TransferFailed, out[0].Status)
		require.ErrorIs(t, out[0].Err, ports.ErrRevoked)
		for i, again := range []func() ports.Status{
			func() ports.Status { return c.putTo(t.Context(), "a", 1, 100, 1, "l0")[0].Status },
			func() ports.Status { return a.putAs("l1", 1, 100).Status },
		} {
			key := keys("l", 2)[i]
			b.fail(faults.Every("PeerWriter", "Commit", faults.Verdict{Drop: true}), faults.Every("PeerWriter", "Abort", faults.Verdict{Drop: true}))
			require.Equal(t, ports.PeerUnavailable, b.putTo(t.Context(), "a", 0, 100, 1, key)[0].Status)
			require.Equal(t, ports.Stored, again(), "a writer that is gone keeps nobody from %s", key)
			w.pass(2 * time.Second) // the breaker
		}
	})
}

func TestDuplicateKeyOfAnotherSizeSaysWhatIsThere(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{})
		out := make([]ports.Result, 2)
		require.NoError(t, n.BatchPut(t.Context(), &ports.WholeBatch{Namespace: namespace, Keys: []string{"k", "k"}, Regions: []ports.Memory{{Region: hostMemory(100)}},
			Targets: []ports.Target{{Len: 10}, {Len: 20}}}, out))
		require.Equal(t, ports.Stored, out[0].Status)
		require.Equal(t, ports.Conflict, out[1].Status)
		require.ErrorContains(t, out[1].Err, "exists with 10 bytes, not 20")
	})
}
