package app_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// samples keeps what a node told.
type samples struct {
	mu   sync.Mutex
	seen []ports.BatchSample
}

func (s *samples) Batch(b ports.BatchSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, b)
}

// take is what was told since the last time.
func (s *samples) take() []ports.BatchSample {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.seen
	s.seen = nil
	return all
}

func observedBy(o ports.Observer, p place) place {
	p.ports = func(to *app.Ports) { to.Observer = o }
	return p
}

// batch is one of a kind that took no time of the bubble.
func batch(kind ports.BatchKind, bytes map[ports.Source]uint64) []ports.BatchSample {
	s := ports.BatchSample{Kind: kind}
	for from, n := range bytes {
		s.Bytes[from] = n
	}
	return []ports.BatchSample{s}
}

func TestEachBatchIsObservedOnceWithTheBytesOfItsRoutes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var s samples
		a, b := w.pair(place{}, observedBy(&s, place{Config: noPull}))
		a.put(objectSize, "k", "l")
		b.put(objectSize, "own")
		require.Equal(t, batch(ports.BatchPutWhole, map[ports.Source]uint64{ports.FromLocal: objectSize}), s.take())
		b.get(part("own", 5, 100), part("k", 0, 1_000), part("nowhere", 0, 1))
		require.Equal(t, batch(ports.BatchGetRanges, map[ports.Source]uint64{ports.FromLocal: 100, ports.FromSlot: 1_000}), s.take(), "one sample for all keys")
		b.getWhole(objectSize, "l")
		require.Equal(t, batch(ports.BatchGetWhole, map[ports.Source]uint64{ports.FromSlot: objectSize}), s.take())
		require.Equal(t, ports.Stored, b.Put(t.Context(), namespace, "m", ports.HostRegionOf(make([]byte, 300))).Status)
		require.Equal(t, batch(ports.BatchPutWhole, map[ports.Source]uint64{ports.FromLocal: 300}), s.take())
		require.Equal(t, ports.Exists, b.Put(t.Context(), namespace, "m", ports.HostRegionOf(make([]byte, 300))).Status)
		require.Equal(t, batch(ports.BatchPutWhole, nil), s.take(), "nothing was stored")
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 1, objectSize, 3, "given")[0].Status)
		require.Equal(t, batch(ports.BatchPutRanges, map[ports.Source]uint64{ports.FromArena: objectSize}), s.take())
		require.Error(t, b.BatchGetRanges(t.Context(), &ports.GetBatch{Keys: []string{"k"}}, nil))
		require.Empty(t, s.take(), "a malformed call is no batch")
	})
}

func TestBytesByTheArenaAreObserved(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var s samples
		a, b := w.pair(place{}, observedBy(&s, place{Config: noPool}))
		a.put(objectSize, "k")
		b.mustGet(ports.FromArena, part("k", 7, 1_000))
		require.Equal(t, batch(ports.BatchGetRanges, map[ports.Source]uint64{ports.FromArena: 1_000}), s.take())
	})
}

func TestBytesFromAndToRegisteredMemoryAreObserved(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var s samples
		a, b := w.pair(place{}, observedBy(&s, place{registered: true, Config: noPool}))
		a.put(objectSize, "k")
		b.mustGet(ports.FromDirect, part("k", 7, 1_000))
		require.Equal(t, batch(ports.BatchGetRanges, map[ports.Source]uint64{ports.FromDirect: 1_000}), s.take())
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 1, objectSize, 2, "l")[0].Status)
		require.Equal(t, batch(ports.BatchPutRanges, map[ports.Source]uint64{ports.FromDirect: objectSize}), s.take())
	})
}

// TestABatchTakesUntilItEnds: also one whose caller left, of which nothing is told twice.
func TestABatchTakesUntilItEnds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var s samples
		a, b := w.pair(place{}, observedBy(&s, place{Config: noPull}))
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(next(2, "Link", "Op", nil, hold(&g)))
		r := b.begin(t.Context(), 0, part("k", 0, 1_000))
		synctest.Wait()
		w.pass(300 * time.Millisecond)
		g.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)
		took := s.take()
		require.Len(t, took, 1)
		require.Equal(t, 300*time.Millisecond, took[0].Took)
		require.EqualValues(t, 1_000, took[0].Bytes[ports.FromSlot])

		var late faults.Gate
		b.fail(next(1, "Link", "Op", nil, hold(&late)))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.Equal(t, ports.Cancelled, b.begin(ctx, 0, part("k", 5_000, 1_000)).wait()[0].Status)
		late.Open()
		w.settle()
		took = s.take()
		require.Len(t, took, 1)
		require.Equal(t, 50*time.Millisecond, took[0].Took)
		require.Zero(t, took[0].Bytes, "a failed read is no sample of a route")
	})
}

// counting is an observer that keeps nothing.
type counting struct{ batches uint64 }

func (c *counting) Batch(ports.BatchSample) { c.batches++ }

func TestObservedReadsDoNotAllocate(t *testing.T) {
	w := newWorld(t, false)
	var c counting
	n := w.node("a", observedBy(&c, quiet(64*kib, 64)))
	n.put(objectSize, "k")
	require.Zero(t, allocated(t, n.prepare(0, part("k", 5, 1_000))))
	require.Greater(t, c.batches, uint64(50))
}
