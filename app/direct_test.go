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

// noHop is a node that makes nothing local and has no arenas: what it moves goes from and to registered memory, or not at all.
var noHop = place{get: arenaOff, put: arenaOff, registered: true, Config: app.Config{Locality: domain.LocalityOff}}

func (n *node) copies() int {
	var all int
	for _, c := range n.faults.Calls() {
		if c.Port == "Copier" && c.Method == "Op" {
			all++
		}
	}
	return all
}

func TestReadsIntoRegisteredMemoryTakeNoHop(t *testing.T) {
	for name, page := range geometries(objectSize) {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				there, here := noHop, noHop
				there.page, there.pages, there.Locality = page, 4*(objectSize/page+1), domain.LocalityFill
				a, b := w.pair(there, here)
				a.put(objectSize, "k", "l")
				out := b.mustGet(ports.FromDirect, gapped("k", 50, 3_999), part("l", 7, 1), parts("k", domain.Run{Off: 9, Len: 3}, domain.Run{Off: 1, Len: 2}))
				require.EqualValues(t, sumOf(gapped("k", 50, 3_999))+1+5, out[0].Fetched+out[1].Fetched+out[2].Fetched)
				for _, r := range b.getWhole(objectSize, "k") {
					require.Equal(t, ports.FromDirect, r.Source)
				}
				require.Zero(t, b.copies())
				require.Zero(t, b.Stats().Wire[ports.PurposePull], "where nothing is installed nothing is pulled")
			})
		})
	}
}

func sumOf(w want) (sum uint64) {
	for _, r := range w.runs {
		sum += r.Len
	}
	return sum
}

func TestASlotIsPreferredToADirectRead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{registered: true, pages: 64, page: kib, Config: app.Config{FillingShare: 0.5, NoRangedLocalityPrefetch: true}})
		a.put(20*kib, "k")
		a.put(40*kib, "l")
		b.mustGet(ports.FromSlot, part("k", 0, 100))
		b.mustGet(ports.FromDirect, part("l", 0, 100)) // of which fills may take half of the medium: 32 KiB
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeNoSlot])
	})
}

func TestADirectReadIsFollowedByThePull(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{registered: true, Config: app.Config{Locality: domain.LocalityPullOnly}})
		a.put(objectSize, "k")
		b.mustGet(ports.FromDirect, part("k", 10, 100))
		w.settle()
		b.requireLocal(objectSize, "k")
	})
}

// TestACancelledDirectReadReturnsWhenItsMemoryIsQuiet: the bytes land after the caller has left, and before its call returns.
func TestACancelledDirectReadReturnsWhenItsMemoryIsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, noHop)
		a.put(objectSize, "k", "l")
		b.mustGet(ports.FromDirect, part("k", 0, 1))
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), holdAfter(&g)))
		ctx, cancel := context.WithCancel(t.Context())
		r := b.begin(ctx, 0, part("k", 0, 100), part("l", 0, 100))
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-r.done:
			require.FailNow(t, "the call returned while a link may write to its memory")
		default:
		}
		g.Open()
		for _, res := range r.wait() {
			require.Equal(t, ports.Cancelled, res.Status)
		}
	})
}

func TestADirectReadGoesToTheNextHolder(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, noHop)
		c := w.node("c", place{})
		a.put(objectSize, "k")
		c.mustGet(ports.FromSlot, part("k", 0, objectSize))
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Err: ports.ErrBounds}))
		b.mustGet(ports.FromDirect, part("k", 5, 100))
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeNextHolder])
	})
}

func TestMemoryThatIsNotRegisteredIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(objectSize, "k")
		mem := make([]byte, 300)
		m, err := b.RegisterMemory(t.Context(), ports.HostRegionOf(mem))
		require.NoError(t, err)
		other := ports.Memory{Region: ports.HostRegionOf(make([]byte, 300)), ID: m.ID}
		unknown := ports.Memory{Region: m.Region, ID: m.ID + 1}
		get := ports.GetBatch{Namespace: namespace, Keys: []string{"k", "k", "k", "k"}, End: []uint32{1, 2, 3, 4}, Regions: []ports.Memory{m, other, unknown, {Region: other.Region}},
			Ranges: []domain.Range{{Len: 10}, {Len: 10, Region: 1}, {Len: 10, Region: 2}, {Len: 10, Region: 3}}}
		out := make([]ports.Result, 4)
		require.NoError(t, b.BatchGetRanges(t.Context(), &get, out))
		for i, want := range []ports.Status{ports.Hit, ports.NotRegistered, ports.NotRegistered, ports.Hit} {
			require.Equal(t, want, out[i].Status, "%d: %v", i, out[i].Err)
		}
		require.ErrorContains(t, out[2].Err, "no memory 2 is registered")
		p := ports.PutBatch{Namespace: namespace, Keys: []string{"x", "y"}, Sizes: []uint64{10, 10}, End: []uint32{1, 2}, Regions: []ports.Memory{unknown, m},
			Ranges: []domain.Range{{Len: 10}, {Len: 10, Region: 1}}}
		require.NoError(t, b.BatchPutRanges(t.Context(), &p, out[:2]))
		require.Equal(t, ports.NotRegistered, out[0].Status)
		require.Equal(t, ports.Stored, out[1].Status)
		require.NoError(t, b.DeregisterMemory(t.Context(), m.ID))
		require.ErrorIs(t, b.DeregisterMemory(t.Context(), m.ID), ports.ErrNotFound)
		require.NoError(t, b.BatchGetRanges(t.Context(), &get, out))
		require.Equal(t, ports.NotRegistered, out[0].Status)
		w.note("x", put{0, 10}) // whatever it holds
		require.NoError(t, b.Clear(t.Context()))
	})
}

func TestMemoryIsDeregisteredWhenItsCallsHaveEnded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, noHop)
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		r := b.begin(t.Context(), 0, part("k", 0, 100))
		synctest.Wait()
		id := r.batch.Regions[0].ID
		soon, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		err := b.DeregisterMemory(soon, id)
		require.ErrorContains(t, err, "1 calls use it")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		ended := make(chan error, 1)
		go func() { ended <- b.DeregisterMemory(t.Context(), id) }()
		synctest.Wait()
		require.Empty(t, ended)
		require.ErrorIs(t, b.DeregisterMemory(t.Context(), id), ports.ErrNotFound, "somebody waits for it already")
		out := make([]ports.Result, 1)
		require.NoError(t, b.BatchGetRanges(t.Context(), &ports.GetBatch{Namespace: namespace, Keys: keysOf("k"), End: []uint32{1},
			Ranges: []domain.Range{{Len: 1}}, Regions: r.batch.Regions}, out))
		require.Equal(t, ports.NotRegistered, out[0].Status, "no further call gets it")
		g.Open()
		require.NoError(t, <-ended)
		r.forget = func() {}
		require.Equal(t, ports.Hit, r.wait()[0].Status)
	})
}

// TestMemoryThatNobodyUsesIsDeregisteredWhoeverLeaves: which of two reasons is seen first is drawn, hence the repeats.
func TestMemoryThatNobodyUsesIsDeregisteredWhoeverLeaves(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, b := w.pair(place{}, noHop)
		left, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			m, err := b.RegisterMemory(t.Context(), ports.HostRegionOf(make([]byte, 8)))
			require.NoError(t, err)
			require.NoError(t, b.DeregisterMemory(left, m.ID))
		}
	})
}

func TestPutsFromRegisteredMemoryTakeNoHop(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, noHop)
		for _, r := range b.putTo(t.Context(), "a", 0, objectSize, 7, "k", "l") {
			require.Equal(t, ports.Stored, r.Status, "%v", r.Err)
		}
		require.Zero(t, b.copies())
		a.requireLocal(objectSize, "k", "l")
		require.EqualValues(t, 2*objectSize, b.Stats().Wire[ports.PurposePut])
	})
}

// TestALargePutFromRegisteredMemoryGoesInRounds: an op's time begins when it is submitted, so not all of it is submitted at once.
func TestALargePutFromRegisteredMemoryGoesInRounds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const size = 50 << 20
		a, b := w.pair(place{page: 1 << 20, pages: 60}, noHop)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), hold(&g)))
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(t.Context(), "a", 0, size, 3, "k") }()
		synctest.Wait()
		var ops int
		for _, c := range b.faults.Calls() {
			if c.Port == "Link" && c.Method == "Op" {
				ops++
			}
		}
		require.Equal(t, 2, ops)
		for len(done) == 0 {
			g.Open()
			synctest.Wait()
		}
		r := (<-done)[0]
		require.Equal(t, ports.Stored, r.Status, "%v", r.Err)
		a.requireLocal(size, "k")
	})
}

// TestACancelledDirectPutReturnsWhenItsMemoryIsQuiet as a read does.
func TestACancelledDirectPutReturnsWhenItsMemoryIsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, b := w.pair(place{}, noHop)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposePut), holdAfter(&g)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(ctx, "a", 0, objectSize, 3, "k") }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Empty(t, done, "the call returned while a link may read its memory")
		g.Open()
		require.Equal(t, ports.Cancelled, (<-done)[0].Status)
	})
}
