package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// quiet is a node on which nothing but the calls allocates: no sweep, no renewal and no fault wrapper while it is measured.
func quiet(page, pages uint64) place {
	return place{page: page, pages: pages, bare: true, Config: app.Config{NoRangedLocalityPrefetch: true, FillingShare: 1, SweepEvery: time.Hour, PeerLease: time.Hour}}
}

// allocated is what one run of a read costs, once its scratch has grown.
func allocated(t *testing.T, reads ...*read) float64 {
	t.Helper()
	next := 0
	run := func() {
		r := reads[next%len(reads)]
		next++
		if err := r.n.BatchGetRanges(t.Context(), &r.batch, r.out); err != nil {
			t.Fatal(err)
		}
		for i := range r.out {
			if r.out[i].Status != ports.Hit {
				t.Fatal(r.out[i].Status, r.out[i].Err)
			}
		}
	}
	for range 4 * len(reads) {
		run()
	}
	return testing.AllocsPerRun(50, run)
}

func TestReadsOfCommittedKeysDoNotAllocate(t *testing.T) {
	for name, page := range geometries(objectSize) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			n := w.node("a", quiet(page, 10*objectSize/page+10))
			names := keys("k", 8)
			n.put(objectSize, names...)
			var wants []want
			for _, key := range names {
				wants = append(wants, gapped(key, 20, 5_000), part(key, 0, objectSize), randomOrder(key))
			}
			require.Zero(t, allocated(t, n.prepare(0, wants...)))
			id, err := n.OpenRead(t.Context(), namespace)
			require.NoError(t, err)
			require.Zero(t, allocated(t, n.prepare(id, partsOf(names, 1, 1_000)...)), "in a session")
			r := n.prepare(0, wants...).run(t.Context())
			r.check()
			require.Zero(t, allocated(t, n.prepare(0, whole("k0", objectSize))), "a whole range")
		})
	}
}

// randomOrder is ranges that have to be sorted.
func randomOrder(key string) want {
	return parts(key, domain.Run{Off: 100_000, Len: 50}, domain.Run{Off: 5, Len: 7}, domain.Run{Off: 50_000, Len: 50_000})
}

func TestReadsOfFillingKeysThatHoldTheBytesDoNotAllocate(t *testing.T) {
	for name, page := range geometries(objectSize) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			w.lasting = true
			a, b := w.pair(quiet(page, 10*objectSize/page+10), quiet(page, 10*objectSize/page+10))
			names := keys("k", 8)
			a.put(objectSize, names...)
			b.mustGet(ports.FromSlot, partsOf(names, 1_000, 150_000)...)
			require.Zero(t, allocated(t, b.prepare(0, partsOf(names, 5_000, 100_000)...)))
			require.EqualValues(t, 8, b.Stats().Table.Slots[domain.SlotFilling])
			require.Zero(t, allocated(t, b.prepare(0, gapped("k3", 10, 1_000).from(1_000), randomRuns("k5"))))
		})
	}
}

// from moves a want's runs.
func (w want) from(off uint64) want {
	for i := range w.runs {
		w.runs[i].Off += off
	}
	return w
}

func randomRuns(key string) want {
	return parts(key, domain.Run{Off: 90_000, Len: 50}, domain.Run{Off: 1_000, Len: 7}, domain.Run{Off: 50_000, Len: 10_000})
}

// TestFetchIntoFillingKeysWhoseViewIsKeptDoesNotAllocate reads other bytes in each run, 8 keys of one peer in a call. AllocsPerRun
// rounds down: extents and queues that still grow cost less than one allocation a call.
func TestFetchIntoFillingKeysWhoseViewIsKeptDoesNotAllocate(t *testing.T) {
	w := newWorld(t, false)
	w.lasting = true
	const runs = 200
	a, b := w.pair(quiet(64*kib, 64), quiet(64*kib, 64))
	names := keys("k", 8)
	a.putCut(objectSize, objectSize/500, names...) // so that all of it is verified
	var reads []*read
	for i := range uint64(runs) {
		reads = append(reads, b.prepare(0, partsOf(names, i*500, 500)...))
	}
	next := 0
	run := func() {
		r := reads[next]
		next++
		if err := b.BatchGetRanges(t.Context(), &r.batch, r.out); err != nil || r.out[7].Status != ports.Hit {
			t.Fatal(err, r.out[7])
		}
	}
	for range 50 {
		run()
	}
	before := b.Stats().Wire[ports.PurposeGet]
	require.Zero(t, testing.AllocsPerRun(100, run))
	require.EqualValues(t, 101*8*500, b.Stats().Wire[ports.PurposeGet]-before, "every run fetched")
	require.Zero(t, b.Stats().UnverifiedBytes)
	for _, r := range reads[:next] {
		r.check()
	}
}

// TestDirectReadsDoNotAllocate reads the same bytes again and again, straight into registered memory.
func TestDirectReadsDoNotAllocate(t *testing.T) {
	w := newWorld(t, false)
	w.lasting = true
	here := quiet(64*kib, 64)
	here.registered, here.Locality, here.get = true, domain.LocalityOff, arenaOff
	a, b := w.pair(quiet(64*kib, 64), here)
	names := keys("k", 8)
	a.putCut(objectSize, objectSize/500, names...)
	id, err := b.OpenRead(t.Context(), namespace) // whose keys keep their views
	require.NoError(t, err)
	r := b.prepare(id, partsOf(names, 70_000, 500)...)
	run := func() {
		if err := b.BatchGetRanges(t.Context(), &r.batch, r.out); err != nil || r.out[7].Status != ports.Hit || r.out[7].Source != ports.FromDirect {
			t.Fatal(err, r.out[7])
		}
	}
	for range 50 {
		run()
	}
	require.Zero(t, testing.AllocsPerRun(100, run))
	require.Zero(t, b.Stats().UnverifiedBytes)
	r.check()
}

// TestVerifiedReadsThroughTheArenaDoNotAllocate more than those that are not: what they cost else, the arena's rounds cost.
func TestVerifiedReadsThroughTheArenaDoNotAllocate(t *testing.T) {
	cost := map[bool]float64{}
	for _, off := range []bool{false, true} {
		w := newWorld(t, false)
		w.lasting = true
		here := quiet(64*kib, 64)
		here.Locality, here.NoChecksums = domain.LocalityOff, off
		a, b := w.pair(quiet(64*kib, 64), here)
		names := keys("k", 8)
		a.putCut(objectSize, objectSize/500, names...)
		id, err := b.OpenRead(t.Context(), namespace)
		require.NoError(t, err)
		r := b.prepare(id, partsOf(names, 70_000, 5_000)...)
		cost[off] = allocated(t, r)
		require.Equal(t, !off, r.out[7].Verified)
		r.check()
	}
	require.Equal(t, cost[true], cost[false])
}
