package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// settleBound is how long a row waits for the pulls of its requests: far longer than any takes, so that only one that
// never ends meets it.
const settleBound = 60 * time.Second

// restoreRow is one run of one row: a number of ranks that restore together, over nodes of its own.
type restoreRow struct {
	o        *Layerwise
	walk     *Walk
	sets     sets
	offloads int
	putsHere bool // offload puts to the reader
	limiter  *Limiter
	failures *failures

	cluster *Cluster
	ranks   []*rank
	window  atomic.Bool // a request is being timed: what offload puts now counts for its rate
	offload *offload

	tally    *tally
	ttfl     Samples
	restore  Samples
	stall    Samples
	getBytes uint64
	getTime  time.Duration
}

func newRestoreRow(o *Layerwise, ranks int) *restoreRow {
	r := &restoreRow{o: o, offloads: o.OffloadRanks, putsHere: o.OffloadLocal || o.LocalOnly, limiter: NewLimiter(o.Places), failures: newFailures(o.Errors, o.Progress)}
	if r.offloads < 0 {
		r.offloads = ranks
	}
	r.walk = PlanWalk(o.Shape, o.Grouping, o.Pages, o.RangesPerCall)
	r.sets = sets{walk: r.walk, ranks: ranks, requests: o.Requests + 1, shared: o.SharedKeys}
	r.tally = newTally(r.walk)
	return r
}

// setBytes is the room that one set of a request's objects takes in a medium.
func (r *restoreRow) setBytes() uint64 {
	var perPage uint64
	for _, p := range r.o.Shape.Pools {
		perPage += roundUp(p.ObjectBytes(), r.o.pageBytes())
	}
	return times(perPage, uint64(r.o.Pages))
}

// inFlight is how many sets are being read at once.
func (r *restoreRow) inFlight() int {
	if r.o.SharedKeys {
		return 1
	}
	return r.sets.ranks
}

// readerBytes is the reader's medium. By default there is room for every set, and filling slots, which may hold a quarter,
// have room for all sets that are read at once.
func (r *restoreRow) readerBytes() uint64 {
	if r.o.MediumMiB > 0 {
		return uint64(r.o.MediumMiB) * mibBytes / r.o.pageBytes() * r.o.pageBytes()
	}
	n := max(r.sets.count(), 4*r.inFlight())
	if r.putsHere {
		n += r.offloadSets()
	}
	return times(r.setBytes(), uint64(n))
}

// ownerBytes is the medium of the node that was seeded: it always has room for everything.
func (r *restoreRow) ownerBytes() uint64 {
	n := r.sets.count()
	if !r.putsHere {
		n += r.offloadSets()
	}
	return times(r.setBytes(), uint64(n))
}

// offloadSets is how many sets offload ranks keep: two each, and the older one goes before a newer one is put.
func (r *restoreRow) offloadSets() int { return 2 * r.offloads }

// needs is the memory of the row, computed before anything is allocated.
func (r *restoreRow) needs() []MemoryNeed {
	needs := []MemoryNeed{
		{"reader's medium", r.readerBytes()},
		{"arenas", times(uint64(r.o.ScratchMiB), mibBytes, 2)},
		{"destinations", times(r.walk.Layout.Bytes(), uint64(r.sets.ranks))},
		{"offload sources", times(offloadSource(r.walk, r.o.RangesPerCall), uint64(r.offloads))},
		{"seeding", times(r.o.Shape.LargestObject(), uint64(r.limiter.Places()))},
	}
	if !r.o.LocalOnly {
		needs = append(needs, MemoryNeed{"other node's medium", r.ownerBytes()})
	}
	return needs
}

// spec is the reader, node 0, and the node that was seeded. The latter only serves, and needs no arena for that.
func (r *restoreRow) spec() ClusterSpec {
	arena := uint64(r.o.ScratchMiB) * mibBytes
	s := ClusterSpec{Transport: r.o.Transport, Locality: r.o.Locality, NoPrefetch: r.o.NoPrefetch, Link: r.o.Link,
		Nodes: []NodeSpec{{MediumBytes: r.readerBytes(), PageBytes: r.o.pageBytes(), GetArena: arena, PutArena: arena}}}
	if !r.o.LocalOnly {
		s.Nodes = append(s.Nodes, NodeSpec{MediumBytes: r.ownerBytes(), PageBytes: r.o.pageBytes()})
	}
	return s
}

func (r *restoreRow) reader() ports.Pool { return r.cluster.Nodes[0].Pool }

// owner is the node that was seeded; with --local-only the reader itself.
func (r *restoreRow) owner() Node { return r.cluster.Nodes[len(r.cluster.Nodes)-1] }

// run opens the nodes, measures, and closes them, so that nothing of the row is left for the next one.
func (r *restoreRow) run(ctx context.Context, open OpenCluster) (row *Row, err error) {
	r.cluster, err = open(ctx, r.spec())
	if err != nil {
		return nil, fmt.Errorf("open nodes: %w", err)
	}
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	defer func() { err = errors.Join(err, r.closeRanks()) }()
	for id := range r.sets.ranks {
		k, err := newRank(fmt.Sprintf("rank %d", id), r.walk, r.reader().BatchGetRanges)
		if err != nil {
			return nil, err
		}
		r.ranks = append(r.ranks, k)
	}
	if err := r.seed(ctx); err != nil {
		return nil, err
	}
	return r.measure(ctx)
}

func (r *restoreRow) closeRanks() error {
	var errs []error
	for _, k := range r.ranks {
		errs = append(errs, k.close())
	}
	return errors.Join(errs...)
}

// measure runs the warm-up, the requests, and the checks that come after them.
func (r *restoreRow) measure(ctx context.Context) (*Row, error) {
	r.offload = startOffload(ctx, r)
	defer r.offload.stop()
	if err := r.request(ctx, 0); err != nil {
		return nil, err
	}
	before, err := r.settledCounts(ctx)
	if err != nil {
		return nil, err
	}
	for q := 1; q < r.sets.requests; q++ {
		r.o.Progress.Step(fmt.Sprintf("%d ranks: request", r.sets.ranks), uint64(q), uint64(r.sets.requests-1))
		if err := r.request(ctx, q); err != nil {
			return nil, err
		}
	}
	after, err := r.settledCounts(ctx)
	if err != nil {
		return nil, err
	}
	r.offload.stop()
	if err := r.checkStored(ctx); err != nil {
		return nil, err
	}
	d := after.since(before)
	return r.figures(d), errors.Join(r.checkSwitches(d), r.failures.err())
}

// request runs one request of all ranks; request 0 is the warm-up, which is checked and not measured. Poisoning and checking
// lie outside of the window.
func (r *restoreRow) request(ctx context.Context, q int) error {
	err := inParallel(len(r.ranks), func(i int) error {
		name := func(pool, page int) string { return r.sets.name(i, q, pool, page) }
		return r.ranks[i].prepare(ctx, r.limiter, namespace, r.o.Pages, name)
	})
	if err != nil {
		return err
	}
	times := r.restoreTogether(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx) // reads that were cut short are no failures
	}
	bad := make([]int, len(r.ranks))
	err = inParallel(len(r.ranks), func(i int) (err error) {
		bad[i], err = r.ranks[i].check(ctx, r.limiter, r.failures, r.o.Verify)
		return err
	})
	if err != nil || q == 0 {
		return err
	}
	r.record(times, bad)
	return nil
}

// restoreTogether starts all ranks at once and waits for all of them.
func (r *restoreRow) restoreTogether(ctx context.Context) []walkTimes {
	gate := newStartGate(len(r.ranks))
	times := make([]walkTimes, len(r.ranks))
	_ = inParallel(len(r.ranks)+1, func(i int) error {
		if i == len(r.ranks) {
			gate.start(func() { r.window.Store(true) })
			return nil
		}
		times[i] = r.ranks[i].restore(ctx, gate, r.o.Compute, r.o.ComputePerLayer)
		return nil
	})
	r.window.Store(false)
	return times
}

// record takes the samples of the ranks whose reads were all right. The throughput takes a window with all its ranks or not
// at all.
func (r *restoreRow) record(times []walkTimes, bad []int) {
	var loaded time.Duration
	var all []fetched
	whole := true
	before := r.tally.bytes()
	for i, k := range r.ranks {
		seen := r.tally.addRank(k)
		all = append(all, seen)
		if !r.o.SharedKeys {
			r.tally.addWhole(seen)
		}
		loaded = max(loaded, times[i].loaded)
		if bad[i] > 0 {
			whole = false
			continue
		}
		r.ttfl = append(r.ttfl, times[i].ttfl)
		r.restore = append(r.restore, times[i].restore)
		r.stall = append(r.stall, times[i].stall)
	}
	if r.o.SharedKeys {
		r.tally.addWhole(all...)
	}
	if whole {
		r.getBytes += r.tally.bytes() - before
		r.getTime += loaded
	}
}

// counts is what the reader has counted, and what offload has stored there by then.
type counts struct {
	wire       [ports.NumPurposes]uint64
	duplicate  uint64
	localWrite uint64
}

// settledCounts waits for the pulls under way and reads the counters while no put of offload is under way.
func (r *restoreRow) settledCounts(ctx context.Context) (counts, error) {
	done, err := waitUntil(ctx, settleBound, func() bool { return r.reader().Stats().PullWaiting == 0 })
	if err != nil {
		return counts{}, err
	}
	if !done {
		return counts{}, fmt.Errorf("%w: %d pulls still wait after %v", ErrFailed, r.reader().Stats().PullWaiting, settleBound)
	}
	defer r.offload.pause()()
	s := r.reader().Stats()
	c := counts{wire: s.Wire, duplicate: s.DuplicateBytes, localWrite: s.PutBytes - r.offload.storedAtReader()}
	for _, n := range s.InstalledBytes {
		c.localWrite += n
	}
	return c, nil
}

func (c counts) since(before counts) counts {
	for p := range c.wire {
		c.wire[p] -= before.wire[p]
	}
	c.duplicate -= before.duplicate
	c.localWrite -= before.localWrite
	return c
}

// checkSwitches fails a run whose switches did not do what they say.
func (r *restoreRow) checkSwitches(d counts) error {
	if r.o.NoPrefetch && d.wire[ports.PurposePull] != 0 {
		return fmt.Errorf("%w: --no-prefetch: wire_background_mib is %.2f (%d bytes), want 0", ErrFailed,
			toMiB(d.wire[ports.PurposePull]), d.wire[ports.PurposePull])
	}
	nothingInstalls := r.o.Locality == domain.LocalityOff || r.o.NoPrefetch && r.o.Locality == domain.LocalityPullOnly && !r.walk.Tiles()
	if nothingInstalls && d.localWrite != 0 {
		return fmt.Errorf("%w: local_write_mib is %.2f (%d bytes), want 0: by --locality and --no-prefetch nothing may become local",
			ErrFailed, toMiB(d.localWrite), d.localWrite)
	}
	return nil
}

func (r *restoreRow) figures(d counts) *Row {
	failed, _ := r.failures.counts()
	row := &Row{Verified: r.o.Verify, Pools: r.tally.poolRows()}
	row.Values = [NumColumns]float64{
		ColRanks:          float64(r.sets.ranks),
		ColLayers:         float64(r.o.Shape.Layers),
		ColGroup:          float64(r.o.Grouping.Size),
		ColPages:          float64(r.o.Pages),
		ColObjectKiB:      float64(r.o.Shape.ObjectBytes()) / 1024,
		ColRestoreP50:     milliseconds(r.restore.Percentile(50)),
		ColRestoreP95:     milliseconds(r.restore.Percentile(95)),
		ColTTFLP50:        microseconds(r.ttfl.Percentile(50)),
		ColTTFLP95:        microseconds(r.ttfl.Percentile(95)),
		ColStallP50:       milliseconds(r.stall.Percentile(50)),
		ColGetRate:        gibPerSecond(r.getBytes, r.getTime),
		ColPutRate:        r.offload.rate(),
		ColLocalHits:      r.tally.localHitPct(),
		ColRemoteCalls:    float64(r.tally.remoteCalls),
		ColRemoteKeys:     float64(r.tally.remoteKeys),
		ColRepeatRemote:   float64(r.tally.repeats),
		ColWireWhole:      toMiB(r.tally.wholeBytes),
		ColWireRange:      toMiB(d.wire[ports.PurposeGet]),
		ColLocalWrite:     toMiB(d.localWrite),
		ColWireBackground: toMiB(d.wire[ports.PurposePull]),
		ColWireDuplicate:  toMiB(d.duplicate),
		ColFailedReads:    float64(failed),
	}
	return row
}

// seed puts every set at the owner, and before that --fill times its medium of other objects at the reader.
func (r *restoreRow) seed(ctx context.Context) error {
	size := r.o.Shape.LargestObject()
	fill := int(times(uint64(r.o.Fill), r.readerBytes()) / roundUp(size, r.o.pageBytes()))
	err := r.eachObject(ctx, "filling", fill, func(b []byte, i int) error {
		return r.seedOne(ctx, r.reader(), fmt.Sprintf("fill/%d", i), b[:size])
	})
	if err != nil {
		return err
	}
	return r.eachObject(ctx, "seeding", r.sets.objects(), func(b []byte, i int) error {
		name, pool := r.sets.object(i)
		return r.seedOne(ctx, r.owner().Pool, name, b[:r.o.Shape.Pools[pool].ObjectBytes()])
	})
}

func (r *restoreRow) seedOne(ctx context.Context, p ports.Pool, name string, b []byte) error {
	content.Fill(b, contentKey(name), 0)
	if res := p.Put(ctx, namespace, name, ports.HostRegionOf(b)); res.Status != ports.Stored {
		return fmt.Errorf("seed key %q of %d bytes: status %s, want %s", namespace+"/"+name, len(b), res.Status, ports.Stored)
	}
	return nil
}

// eachObject runs f for 0, ..., n-1 in as many goroutines as the limiter has places, each with room for one object.
func (r *restoreRow) eachObject(ctx context.Context, what string, n int, f func(b []byte, i int) error) error {
	var next, done atomic.Int64
	return inParallel(min(r.limiter.Places(), n), func(int) error {
		b, err := openBuffer(r.o.Shape.LargestObject())
		if err != nil {
			return err
		}
		for i := int(next.Add(1)) - 1; i < n && err == nil; i = int(next.Add(1)) - 1 {
			if lerr := r.limiter.Do(ctx, func() { err = f(b.b, i) }); lerr != nil {
				err = lerr
			}
			r.o.Progress.Step(fmt.Sprintf("%d ranks: %s", r.sets.ranks, what), uint64(done.Add(1)), uint64(n))
		}
		return errors.Join(err, b.close())
	})
}

// checkStored reads whole what the run left behind: what became local at the reader, and what offload put. A piece of an
// object that no rank asked for after it came would go unseen otherwise.
func (r *restoreRow) checkStored(ctx context.Context) error {
	if !r.o.Verify {
		return nil
	}
	evictable := r.o.MediumMiB > 0 || r.o.Fill > 0
	kept := r.offload.kept()
	holder := r.owner().Pool
	if r.putsHere {
		holder = r.reader()
	}
	err := r.eachObject(ctx, "checking offload", len(kept), func(b []byte, i int) error {
		r.checkObject(ctx, holder, kept[i].name, b[:r.o.Shape.Pools[kept[i].pool].ObjectBytes()], evictable && r.putsHere)
		return nil
	})
	if err != nil || r.o.Locality == domain.LocalityOff {
		return err
	}
	return r.eachObject(ctx, "checking", r.sets.objects(), func(b []byte, i int) error {
		name, pool := r.sets.object(i)
		r.checkObject(ctx, r.reader(), name, b[:r.o.Shape.Pools[pool].ObjectBytes()], false)
		return nil
	})
}

// checkObject reads a whole object. One that may have been evicted may be gone.
func (r *restoreRow) checkObject(ctx context.Context, p ports.Pool, name string, b []byte, mayBeGone bool) {
	content.Poison(b)
	res := p.Get(ctx, namespace, name, ports.HostRegionOf(b))
	if ctx.Err() != nil || mayBeGone && res.Status == ports.NotFound {
		return
	}
	if res.Status != ports.Hit {
		r.failures.read("after the run: read of key %q from offset 0: status %s, want %s", namespace+"/"+name, res.Status, ports.Hit)
		return
	}
	key := contentKey(name)
	if at := content.Check(b, key, 0); at >= 0 {
		r.failures.read("after the run: wrong byte of key %q at offset %d: got %#02x, want %#02x", namespace+"/"+name, at, b[at], wantByte(key, uint64(at)))
	}
}
