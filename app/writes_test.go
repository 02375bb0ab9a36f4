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
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// openWrite reserves keys of one size, all of which must be refused or reserved as said.
func (n *node) openWrite(size uint64, due ports.Status, keys ...string) ports.WriteID {
	n.w.t.Helper()
	sizes, out := make([]uint64, len(keys)), make([]ports.Result, len(keys))
	for i, k := range keys {
		sizes[i] = size
		n.w.note(k, put{pattern.KeyOf(k, 0), size})
	}
	id, err := n.OpenWrite(context.Background(), namespace, keys, sizes, out)
	require.NoError(n.w.t, err)
	for i, r := range out {
		require.Equal(n.w.t, due, r.Status, "%q: %v", keys[i], r.Err)
	}
	return id
}

// writePart writes a run of a key.
func (n *node) writePart(id ports.WriteID, key string, size uint64, runs ...domain.Run) ports.Result {
	p := ports.PutBatch{Keys: []string{key}, End: []uint32{uint32(len(runs))}, Regions: []ports.Memory{{Region: ports.HostRegionOf(bytesOf(key, 0, size))}}}
	for _, r := range runs {
		p.Ranges = append(p.Ranges, domain.Range{Off: r.Off, Len: r.Len, RegionOff: r.Off % size})
	}
	out := make([]ports.Result, 1)
	if err := n.WriteRanges(context.Background(), id, &p, out); err != nil {
		out[0].Err = err
	}
	return out[0]
}

func (n *node) commitWrite(id ports.WriteID, keys ...string) []ports.Result {
	n.w.t.Helper()
	out := make([]ports.Result, len(keys))
	require.NoError(n.w.t, n.CommitWrite(context.Background(), id, keys, out))
	return out
}

func TestAWriteInPartsIsSeenWholeAndOnlyAfterCommit(t *testing.T) {
	overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
		n := w.node("a", place{page: page, pages: 4 * pages})
		id := n.openWrite(objectSize, ports.Hit, "k", "l")
		cut := uint64(objectSize/3 + 1)
		require.Equal(t, ports.Stored, n.writePart(id, "k", objectSize, domain.Run{Off: cut, Len: objectSize - cut}).Status)
		r := n.commitWrite(id, "k", "l")
		require.Equal(t, []ports.Status{ports.Invalid, ports.Invalid}, []ports.Status{r[0].Status, r[1].Status}, "not whole yet")
		found, _ := n.exists(t, 0, "k")
		require.False(t, found[0])
		require.Equal(t, ports.Busy, n.putAs("k", 0, objectSize).Status, "the key is reserved")
		for _, run := range []domain.Run{{Off: cut, Len: 1}, {Off: cut - 1, Len: 2}, {Off: 0, Len: objectSize + 1}, {Off: objectSize, Len: 1}, {Off: 1, Len: 0}} {
			require.Equal(t, ports.Invalid, n.writePart(id, "k", objectSize, run).Status, run)
		}
		require.Equal(t, ports.Stored, n.writePart(id, "k", objectSize, domain.Run{Off: 7, Len: cut - 7}, domain.Run{Off: 0, Len: 7}).Status)
		require.Equal(t, ports.Stored, n.commitWrite(id, "k")[0].Status)
		require.Equal(t, ports.Stored, n.commitWrite(id, "k")[0].Status, "the same answer again")
		require.Equal(t, ports.Invalid, n.writePart(id, "k", objectSize, domain.Run{Len: 1}).Status, "it is written once")
		n.requireLocal(objectSize, "k")
		require.NoError(t, n.AbortWrite(id))
		require.ErrorIs(t, n.AbortWrite(id), ports.ErrNotFound)
		n.requireLocal(objectSize, "k")
		require.Equal(t, ports.Stored, n.putAs("l", 0, objectSize).Status, "what was aborted may be put")
		require.EqualValues(t, 2*objectSize, n.Stats().PutBytes)
	})
}

func TestOpenWriteSaysWhyNot(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{page: 4 * kib, pages: 4})
		n.put(100, "there")
		n.openWrite(100, ports.Exists, "there")
		n.openWrite(99, ports.Conflict, "there")
		id := n.openWrite(100, ports.Hit, "k")
		n.openWrite(100, ports.Busy, "k")
		n.openWrite(0, ports.Invalid, "zero")
		n.openWrite(64*kib, ports.NoSpace, "large")
		require.Equal(t, ports.Invalid, n.writePart(id, "other", 100, domain.Run{Len: 1}).Status)
		require.ErrorIs(t, n.writePart(77, "k", 100, domain.Run{Len: 1}).Err, ports.ErrNotFound)
		require.NoError(t, n.AbortWrite(id))
		require.Zero(t, n.Stats().Table.Slots[domain.SlotPending])
	})
}

// TestAWriterThatStopsLosesItsPages: the pages are another key's by the time it goes on.
func TestAWriterThatStopsLosesItsPages(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{page: 4 * kib, pages: 1, Config: app.Config{Reservation: 300 * time.Millisecond}})
		id := n.openWrite(100, ports.Hit, "k")
		require.Equal(t, ports.Stored, n.writePart(id, "k", 100, domain.Run{Len: 50}).Status)
		w.pass(400 * time.Millisecond)
		n.put(4*kib, "next")
		r := n.writePart(id, "k", 100, domain.Run{Off: 50, Len: 50})
		require.Equal(t, ports.Cancelled, r.Status)
		require.ErrorIs(t, r.Err, ports.ErrRevoked)
		require.Equal(t, ports.Cancelled, n.commitWrite(id, "k")[0].Status)
		n.requireLocal(4*kib, "next")
	})
}

func TestAbortWaitsForNobodyAndPagesForTheCopy(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{page: 4 * kib, pages: 1})
		id := n.openWrite(100, ports.Hit, "k")
		var g faults.Gate
		n.fail(next(1, "Copier", "Copy", nil, hold(&g)))
		done := make(chan ports.Result, 1)
		go func() { done <- n.writePart(id, "k", 100, domain.Run{Len: 100}) }()
		synctest.Wait()
		require.Equal(t, ports.Busy, n.commitWrite(id, "k")[0].Status, "bytes are on their way")
		require.NoError(t, n.AbortWrite(id))
		require.Equal(t, ports.NoSpace, n.putAs("next", 0, 100).Status, "the pages are still written to")
		g.Open()
		<-done
		n.put(4*kib, "next")
		n.requireLocal(4*kib, "next")
	})
}

// TestAReservationIsItsWritersAndNotItsKeys: who comes back late finds another writer at the key, and touches nothing of his.
func TestAReservationIsItsWritersAndNotItsKeys(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{page: 4 * kib, pages: 2, Config: app.Config{Reservation: 300 * time.Millisecond}})
		late := n.openWrite(100, ports.Hit, "k")
		w.pass(400 * time.Millisecond)
		other := n.openWrite(100, ports.Hit, "k")
		require.Equal(t, ports.Cancelled, n.writePart(late, "k", 100, domain.Run{Len: 100}).Status)
		require.Equal(t, ports.Cancelled, n.commitWrite(late, "k")[0].Status)
		require.NoError(t, n.AbortWrite(late))
		require.Equal(t, ports.Stored, n.writePart(other, "k", 100, domain.Run{Len: 100}).Status)
		require.Equal(t, ports.Stored, n.commitWrite(other, "k")[0].Status)
		n.requireLocal(100, "k")
	})
}
