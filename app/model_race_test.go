package app_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

var crowdFor = flag.Duration("crowd.for", 400*time.Millisecond, "how long each crowd of readers and writers runs at least, in real time")

const (
	crowdKeys   = 12
	crowdLayers = 8
	crowdLayer  = 3_000
	crowdSize   = crowdLayers * crowdLayer
	crowdPage   = 4_096
	crowdLink   = 2 * crowdLayer // so that calls wait for links, and are sent by each other
)

// crowd is readers and writers on some nodes, in real time, over media that hold a part of what is put.
type crowd struct {
	w     *world
	nodes []*node
	live  []atomic.Pointer[app.Node] // nil: down
	over  context.Context
	wg    sync.WaitGroup
	reads chan *read // to be checked by the test's goroutine; closed when all have ended
	turn  atomic.Uint64
	gone  chan struct{} // closed when nobody checks any more
	brief bool          // contexts end at random
	meets func() bool   // reports whether the crowd has met what it is for; nil: it is for hits alone
}

func newCrowd(t *testing.T, w *world, nodes int, p place) *crowd {
	c := &crowd{w: w, live: make([]atomic.Pointer[app.Node], nodes), reads: make(chan *read), gone: make(chan struct{})}
	for i := range nodes {
		p.Locality = []domain.LocalityMode{domain.LocalityFill, domain.LocalityFill, domain.LocalityPullOnly}[i]
		n := w.node(ports.PeerID(fmt.Sprint("n", i)), p)
		c.nodes = append(c.nodes, n)
		c.live[i].Store(n.Node)
	}
	return c
}

// run starts the readers and writers, checks what they read, and calls disturb in between, until the time is over and the crowd has met
// what it is for: on a busy machine that takes longer.
func (c *crowd) run(t *testing.T, readers, writers int, disturb func(r *rand.Rand)) {
	over, cancel := context.WithTimeout(context.Background(), *crowdFor+time.Minute)
	defer cancel()
	defer close(c.gone)
	c.over = over
	for i := range writers {
		c.wg.Go(func() { c.write(rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	for i := range readers {
		c.wg.Go(func() { c.read(i, rand.New(rand.NewPCG(2, uint64(i)))) })
	}
	go func() {
		c.wg.Wait()
		close(c.reads)
	}()
	r := rand.New(rand.NewPCG(3, 0))
	begun := time.Now()
	next := begun
	hits := 0
	for got := range c.reads {
		for _, number := range got.check() {
			if number >= 0 {
				hits++
			}
		}
		if hits > 0 && time.Since(begun) > *crowdFor && (c.meets == nil || c.meets()) {
			cancel()
		}
		if time.Now().After(next) && over.Err() == nil {
			next = time.Now().Add(20 * time.Millisecond)
			disturb(r)
			for _, n := range c.w.alive() {
				require.NoError(t, n.CheckForTesting())
			}
		}
	}
	require.NotZero(t, hits)
	for i := range c.nodes {
		if c.nodes[i].down {
			c.nodes[i].start()
		}
	}
	c.w.settle()
	for _, n := range c.w.alive() { // what flew for calls that have ended lands, and what writers that died had reserved ends
		begun := time.Now()
		c.w.await(func() bool { return n.CheckIdleForTesting() == nil }, func() string { return fmt.Sprint(n.id, ": ", n.CheckIdleForTesting()) })
		require.Less(t, time.Since(begun), 20*time.Second, "less than a reservation of the usual length: nobody died who held one")
	}
	t.Log(hits, "hits of", c.turn.Load())
}

// context of one call: its own end, at random, where the crowd is brief.
func (c *crowd) context(r *rand.Rand) (context.Context, context.CancelFunc) {
	if c.brief && r.IntN(3) == 0 {
		return context.WithTimeout(context.Background(), time.Duration(r.IntN(3_000))*time.Microsecond)
	}
	return context.Background(), func() {}
}

func crowdKey(r *rand.Rand) string { return fmt.Sprint("key", r.IntN(crowdKeys)) }

// write puts here and there. A key has four contents, so that nodes hold different ones.
func (c *crowd) write(r *rand.Rand) {
	for c.over.Err() == nil {
		i, key, salt := r.IntN(len(c.nodes)), crowdKey(r), uint64(r.IntN(4))
		n := c.live[i].Load()
		if n == nil {
			continue
		}
		c.w.note(key, put{contentOf(key, salt), crowdSize})
		b := ports.WholeBatch{Namespace: namespace, Keys: []string{key}, Targets: []ports.Target{{Len: crowdSize}},
			Regions: []ports.Memory{{Region: ports.HostRegionOf(bytesOf(key, salt, crowdSize))}}, To: c.nodes[r.IntN(len(c.nodes))].id}
		ctx, cancel := c.context(r)
		_ = n.BatchPut(ctx, &b, make([]ports.Result, 1)) // any status will do: readers see to it that what was put is whole
		cancel()
	}
}

// read reads in one of four ways: layer by layer, whole, in an order of its own, or its own layers of every key.
func (c *crowd) read(worker int, r *rand.Rand) {
	for c.over.Err() == nil {
		i := r.IntN(len(c.nodes))
		key := crowdKey(r)
		switch (worker + r.IntN(2)) % 4 {
		case 0:
			other := crowdKey(r)
			for layer := range crowdLayers {
				c.one(i, r, crowdRuns(key, layer), crowdRuns(other, layer))
			}
		case 1:
			c.one(i, r, whole(key, crowdSize))
		case 2:
			c.one(i, r, crowdRuns(key, r.Perm(crowdLayers)...))
		case 3:
			c.one(i, r, crowdRuns(key, worker%crowdLayers, (worker+3)%crowdLayers))
		}
	}
}

func crowdRuns(key string, layers ...int) want {
	var runs []domain.Run
	for _, l := range layers {
		runs = append(runs, domain.Run{Off: uint64(l) * crowdSize / crowdLayers, Len: crowdSize / crowdLayers})
	}
	return parts(key, runs...)
}

func (c *crowd) one(i int, r *rand.Rand, wants ...want) {
	n := c.live[i].Load()
	if n == nil {
		return
	}
	ctx, cancel := c.context(r)
	defer cancel()
	got := c.nodes[i].prepare(0, wants...)
	if got.err = n.BatchGetRanges(ctx, &got.batch, got.out); got.err == nil {
		c.turn.Add(uint64(len(wants)))
		select {
		case c.reads <- got:
		case <-c.gone:
		}
	}
}

// TestACrowdOverAMediumThatIsTooSmallReadsRight is for the race detector: memory is Go heap, and leases outlast the run, so that
// nobody may touch what another one writes.
func TestACrowdOverAMediumThatIsTooSmallReadsRight(t *testing.T) {
	w := newWorld(t, false)
	w.lasting = true
	c := newCrowd(t, w, 2, place{page: crowdPage, pages: 6 * (crowdSize/crowdPage + 1), get: 16 * kib, put: 16 * kib, link: crowdLink,
		Config: app.Config{PeerLease: time.Hour, FillingShare: 0.5}})
	c.run(t, 4, 2, func(r *rand.Rand) {})
}

func TestACrowdWithCancellationsAndRestartsReadsRight(t *testing.T) {
	w := newWorld(t, true)
	w.lasting = true
	c := newCrowd(t, w, 3, place{page: crowdPage, pages: 6 * (crowdSize/crowdPage + 1), get: 16 * kib, put: 16 * kib, link: crowdLink,
		Config: app.Config{PeerLease: time.Hour, FillingShare: 0.5, Reservation: 200 * time.Millisecond, BreakerMin: 5 * time.Millisecond, BreakerMax: 20 * time.Millisecond, SweepEvery: 5 * time.Millisecond}})
	c.brief = true
	c.nodes[2].place.registered = true // by pull only: what it reads in part goes to its callers directly
	c.run(t, 4, 2, func(r *rand.Rand) {
		i := r.IntN(len(c.nodes))
		if n := c.nodes[i]; n.down {
			n.start()
			c.live[i].Store(n.Node)
		} else if r.IntN(3) == 0 {
			c.live[i].Store(nil)
			n.stop()
		}
	})
}

// TestACrowdWithLeasesOfMillisecondsReadsLateButRight lets owners reuse pages that others still read: memory is off the heap, leases
// are shorter than some ways, and answers to renewals are lost.
func TestACrowdWithLeasesOfMillisecondsReadsLateButRight(t *testing.T) {
	w := newWorldOver(t, true, &inproc.LinkModel{BytesPerSecond: 200e6, Delay: 300 * time.Microsecond})
	c := newCrowd(t, w, 3, place{page: crowdPage, pages: 4 * (crowdSize/crowdPage + 1), get: 16 * kib, put: 16 * kib, offHeap: true,
		Config: app.Config{PeerLease: 8 * time.Millisecond, FillingShare: 0.5, SweepEvery: time.Millisecond}})
	c.nodes[2].place.registered = true // by pull only: what it reads in part goes to its callers directly
	var calls atomic.Uint64
	for _, n := range c.nodes {
		n.fail(func(f faults.Call) faults.Verdict {
			if f.Port == "Link" && f.Method == "Op" && f.Op.Dir == ports.Read && calls.Add(1)%7 == 0 {
				return faults.Verdict{Before: faults.For(12 * time.Millisecond)}
			}
			return faults.Verdict{}
		})
	}
	c.meets = func() bool {
		return slices.ContainsFunc(c.nodes, func(n *node) bool { return n.Stats().Downgrades[ports.DowngradeLate] > 0 })
	}
	c.run(t, 4, 2, func(r *rand.Rand) {
		require.NoError(t, c.nodes[r.IntN(len(c.nodes))].Clear(context.Background()))
	})
	require.True(t, c.meets(), "no lease was ever too short")
}
