package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/ports"
)

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
	windows []period // in which requests were timed: what offload puts then counts for its rate
	offload *offload

	tally    *tally
	ttfl     Samples
	restore  Samples
	stall    Samples
	getBytes uint64
	getTime  time.Duration
	noise    Noise
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
	if !r.o.LocalOnly && len(r.o.Remotes) == 0 {
		needs = append(needs, MemoryNeed{"other node's medium", r.ownerBytes()})
	}
	return needs
}

// spec is the reader, node 0, and the node that was seeded. The latter only serves, and needs no arena for that.
func (r *restoreRow) spec() ClusterSpec {
	arena := uint64(r.o.ScratchMiB) * mibBytes
	s := ClusterSpec{Transport: r.o.Transport, Remotes: r.o.Remotes, Secret: r.o.Secret, Locality: r.o.Locality, NoPrefetch: r.o.NoPrefetch, NoChecksums: r.o.NoChecksums, Link: r.o.Link,
		Copier: r.limiter.Copier, GPU: r.o.GPU, Fetch: r.o.Fetch, SharedArena: r.o.SharedArena,
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
	r.o.Progress.Step(fmt.Sprintf("%d ranks: getting MiB of memory", r.sets.ranks), sumNeeds(r.needs())/mibBytes, 0)
	r.cluster, err = open(ctx, r.spec())
	if err != nil {
		return nil, fmt.Errorf("open nodes: %w", err)
	}
	defer func() { // once the row's memory has been given back: bare loops take as much again
		if row != nil {
			err = errors.Join(err, r.addShares(row))
		}
	}()
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	defer func() { err = errors.Join(err, r.closeRanks()) }()
	for id := range r.sets.ranks {
		k, err := newRank(fmt.Sprintf("rank %d", id), r.walk, r.reader().BatchGetRanges)
		if err != nil {
			return nil, err
		}
		r.ranks = append(r.ranks, k)
		if r.o.GPU.toGPU() {
			if err := k.moveTo(r.o.GPU); err != nil {
				return nil, err
			}
		}
		if r.o.Register {
			if err := k.register(ctx, r.reader()); err != nil {
				return nil, err
			}
		}
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
	var err error
	r.offload, err = startOffload(ctx, r)
	defer r.offload.stop()
	if err != nil {
		return nil, err
	}
	if err := r.request(ctx, 0); err != nil {
		return nil, err
	}
	r.windows = nil
	before, err := r.settledCounts(ctx)
	if err != nil {
		return nil, err
	}
	noise := startNoise(r.cluster, r.o.Link, r.o.Root)
	for q := 1; q < r.sets.requests; q++ {
		r.o.Progress.Step(fmt.Sprintf("%d ranks: request", r.sets.ranks), uint64(q), uint64(r.sets.requests-1))
		if err := r.request(ctx, q); err != nil {
			return nil, err
		}
	}
	r.noise = noise.stop()
	after, err := r.settledCounts(ctx)
	if err != nil {
		return nil, err
	}
	r.offload.stop()
	if err := r.checkStored(ctx); err != nil {
		return nil, err
	}
	d := after.since(before)
	row := r.figures(d)
	return row, errors.Join(r.checkSwitches(d), r.checkCounted(d), r.checkKernel(), r.failures.err())
}

// request runs one request of all ranks; request 0 is the warm-up, which is checked and not measured. Poisoning and checking
// lie outside of the window.
func (r *restoreRow) request(ctx context.Context, q int) (err error) {
	defer func() { err = errors.Join(err, r.closeSessions()) }()
	if err := r.openSessions(ctx); err != nil {
		return err
	}
	err = inParallel(len(r.ranks), func(i int) error {
		name := func(pool, page int) string { return r.sets.name(i, q, pool, page) }
		return r.ranks[i].prepare(ctx, r.limiter, namespace, r.o.Pages, name)
	})
	if err != nil {
		return err
	}
	times := r.restoreTogether(ctx)
	// When ctx has ended, check says so before it looks at anything: reads that were cut short are no failures.
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

// openSessions gives each rank a session, as an engine opens one for a restore.
func (r *restoreRow) openSessions(ctx context.Context) (err error) {
	for _, k := range r.ranks {
		if k.session, err = r.reader().OpenRead(ctx, namespace); err != nil {
			return err
		}
	}
	return nil
}

func (r *restoreRow) closeSessions() error {
	var errs []error
	for _, k := range r.ranks {
		if k.session != 0 {
			errs = append(errs, r.reader().CloseRead(k.session))
		}
		k.session = 0
	}
	return errors.Join(errs...)
}

// restoreTogether starts all ranks at once and waits for all of them.
func (r *restoreRow) restoreTogether(ctx context.Context) []walkTimes {
	gate := newStartGate(len(r.ranks))
	times := make([]walkTimes, len(r.ranks))
	_ = inParallel(len(r.ranks)+1, func(i int) error {
		if i == len(r.ranks) {
			gate.start()
			return nil
		}
		times[i] = r.ranks[i].restore(ctx, gate, r.o.Compute, r.o.ComputePerLayer)
		return nil
	})
	r.windows = append(r.windows, period{gate.at, time.Now()})
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
