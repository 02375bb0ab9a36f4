package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// Limits of options that nothing else bounds; arbitrary.
const (
	maxNodes        = 64
	maxCapacity     = 1 << 32
	maxBlockBytes   = 1 << 30
	replayPutBlocks = 256 // of one put: bounds the memory that it is put from
	replayNamespace = "trace"
	replayPagesStep = 256 // a trace whose requests grow is planned a few times and not at each
)

// Assign is which node a request of a trace goes to.
type Assign string

// The ways: in turns, or all to the first node, with the others as peers that hold nothing.
const (
	RoundRobin Assign = "round-robin"
	First      Assign = "first"
)

// ParseAssign reads the value of --assign.
func ParseAssign(text string) (Assign, error) {
	return Assign(text), CheckAvailable("--assign", text, []string{string(RoundRobin), string(First)})
}

// Replay is the options of the trace's replay: each request finds its longest prefix, reads it by layer group, and puts the
// rest.
type Replay struct {
	Trace      string
	Nodes      int
	Capacities []int // blocks of a node's medium; one row each
	BlockBytes int
	Layers     int
	Grouping   Grouping
	Assign     Assign
	Limit      int // requests; 0: all
	Locality   domain.LocalityMode
	NoPrefetch bool
	Verify     bool
	ScratchMiB int
	MaxMemory  uint64
	Transport  string
	Remotes    []Remote // what the one node puts goes there
	Secret     []byte
	Places     int

	Errors   io.Writer
	Progress *Progress
}

// Check refuses options that cannot be run. Every error is an OptionError.
func (o *Replay) Check() error {
	if o.Trace == "" {
		return badOption("--trace", "", "want a file of requests, one a line")
	}
	if len(o.Capacities) == 0 {
		return badOption("--capacity-blocks", "", "want 1 or more numbers of blocks")
	}
	for _, n := range o.Capacities {
		if err := checkBetween("--capacity-blocks", n, 1, maxCapacity); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		flag          string
		value, lo, hi int
	}{
		{"--nodes", o.Nodes, 1, maxNodes},
		{"--block-bytes", o.BlockBytes, 1, maxBlockBytes},
		{"--layers", o.Layers, 1, maxPoolLayers},
		{"--layer-group", o.Grouping.Size, 1, maxLayerNumber + 1},
		{"--scratch-mib", o.ScratchMiB, 0, maxMiB},
		{"--limit", o.Limit, 0, 1 << 40},
	} {
		if err := checkBetween(c.flag, c.value, c.lo, c.hi); err != nil {
			return err
		}
	}
	if err := checkTransport(o.Transport, LinkSpec{}, o.Remotes); err != nil {
		return err
	}
	if o.Nodes > 1 && len(o.Remotes) > 0 {
		return badOption("--nodes", o.Nodes, "with --peer this process is 1 node, and its blocks are put on the others")
	}
	if o.BlockBytes%o.Layers != 0 {
		return badOption("--block-bytes", o.BlockBytes, "want a multiple of --layers, %d", o.Layers)
	}
	return nil
}

// shape is one pool whose objects are the blocks.
func (o *Replay) shape() Shape {
	p := Pool{Name: "block", LayerBytes: uint64(o.BlockBytes / o.Layers)}
	for l := range o.Layers {
		p.Layers = append(p.Layers, l)
	}
	return Shape{Layers: o.Layers, Pools: []Pool{p}}
}

// Run replays the trace once for each capacity and gives each row to emit as it is there. Rows that failed are given to emit
// all the same.
func (o *Replay) Run(ctx context.Context, open OpenCluster, emit func(ReplayRow)) error {
	if err := o.Check(); err != nil {
		return err
	}
	defer o.Progress.Clear()
	var errs []error
	for _, capacity := range o.Capacities {
		row, err := o.row(ctx, open, capacity)
		if err != nil {
			errs = append(errs, fmt.Errorf("row of %d blocks: %w", capacity, err))
		}
		if row != nil {
			emit(*row)
		}
		// A trace that cannot be read is no better for the next capacity.
		var bad *TraceError
		if ctx.Err() != nil || errors.As(err, &bad) {
			break
		}
	}
	return errors.Join(errs...)
}

func (o *Replay) row(ctx context.Context, open OpenCluster, capacity int) (row *ReplayRow, err error) {
	trace, err := OpenTrace(o.Trace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = trace.Close() }() // it was only read
	err = checkMemory("it", o.needs(capacity), o.MaxMemory)
	if err != nil {
		return nil, err
	}
	cluster, err := open(ctx, o.spec(capacity))
	if err != nil {
		return nil, fmt.Errorf("open nodes: %w", err)
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	p := newReplayRow(o, capacity, cluster)
	defer func() { err = errors.Join(err, p.close()) }()
	begin := time.Now()
	if err := p.replay(ctx, trace); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	return p.figures(time.Since(begin)), errors.Join(p.checkCounted(), p.failures.err())
}

func (o *Replay) needs(capacity int) []MemoryNeed {
	return []MemoryNeed{
		{"media", times(uint64(capacity), uint64(o.BlockBytes), uint64(o.Nodes))},
		{"arenas", times(uint64(o.ScratchMiB), mibBytes, 2, uint64(o.Nodes))},
		{"put source", times(replayPutBlocks, uint64(o.BlockBytes))},
	}
}

func (o *Replay) spec(capacity int) ClusterSpec {
	s := ClusterSpec{Transport: o.Transport, Remotes: o.Remotes, Secret: o.Secret, Locality: o.Locality, NoPrefetch: o.NoPrefetch}
	arena := uint64(o.ScratchMiB) * mibBytes
	for range o.Nodes {
		s.Nodes = append(s.Nodes, NodeSpec{MediumBytes: uint64(capacity) * uint64(o.BlockBytes), PageBytes: uint64(o.BlockBytes),
			GetArena: arena, PutArena: arena})
	}
	return s
}

// replayRow is one replay over nodes of its own. Requests come one after the other, as in the trace.
type replayRow struct {
	o        *Replay
	capacity int
	cluster  *Cluster
	limiter  *Limiter
	failures *failures
	src      *buffer // that is put from
	rank     *rank   // reads; made anew, and larger, when a request needs it
	names    []string
	found    []bool

	requests, blocks, hits, remote, missed, stored, refused uint64
	ttfl                                                    Samples
}

func newReplayRow(o *Replay, capacity int, c *Cluster) *replayRow {
	return &replayRow{o: o, capacity: capacity, cluster: c, limiter: NewLimiter(o.Places), failures: newFailures(o.Errors, o.Progress)}
}

func (p *replayRow) close() error {
	var errs []error
	if p.rank != nil {
		errs = append(errs, p.rank.close())
	}
	if p.src != nil {
		errs = append(errs, p.src.close())
	}
	return errors.Join(errs...)
}

// errLimit ends the trace at --limit.
var errLimit = errors.New("enough requests")

func (p *replayRow) replay(ctx context.Context, trace io.Reader) (err error) {
	if p.src, err = openBuffer(replayPutBlocks * uint64(p.o.BlockBytes)); err != nil {
		return err
	}
	err = ReadTrace(trace, p.o.Trace, func(req TraceRequest) error {
		if err := p.request(ctx, req.HashIDs); err != nil {
			return err
		}
		p.o.Progress.Step("requests replayed", p.requests, uint64(p.o.Limit))
		if p.o.Limit > 0 && p.requests == uint64(p.o.Limit) {
			return errLimit
		}
		return nil
	})
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// node is the one that the next request goes to.
func (p *replayRow) node() ports.Pool {
	if p.o.Assign == First {
		return p.cluster.Nodes[0].Pool
	}
	return p.cluster.Nodes[p.requests%uint64(len(p.cluster.Nodes))].Pool
}

func (p *replayRow) request(ctx context.Context, ids []uint64) error {
	pool := p.node()
	p.name(ids)
	if err := p.makeRoom(len(ids)); err != nil {
		return err
	}
	begin := time.Now()
	leading, err := pool.BatchExists(ctx, replayNamespace, p.names, 0, p.found)
	if err != nil {
		return fmt.Errorf("request %d: exists of %d keys: %w", p.requests, len(ids), err)
	}
	found := time.Since(begin)
	hit, err := p.read(ctx, pool, leading, found)
	if err != nil {
		return err
	}
	p.requests++
	p.blocks += uint64(len(ids))
	p.hits += uint64(hit)
	return p.putRest(ctx, pool, hit)
}

// name makes the request's keys: an equal id is an equal prefix up to and including the block.
func (p *replayRow) name(ids []uint64) {
	p.names = p.names[:0]
	for _, id := range ids {
		p.names = append(p.names, strconv.FormatUint(id, 10))
	}
	p.found = append(p.found[:0], make([]bool, len(ids))...)
}

// makeRoom plans reads of up to n blocks and opens their destination, outside of any sample.
func (p *replayRow) makeRoom(n int) error {
	if p.rank != nil && n <= p.rank.walk.Pages {
		return nil
	}
	pages := int(roundUp(uint64(n), replayPagesStep))
	if ranges := pages * p.o.Layers; ranges > maxWalkRanges {
		return fmt.Errorf("request %d of %d blocks: %d ranges, limit %d", p.requests, n, ranges, maxWalkRanges)
	}
	dest := MemoryNeed{"destination", NewLayout(p.o.shape(), pages).Bytes()}
	err := checkMemory(fmt.Sprintf("request %d of %d blocks", p.requests, n), append(p.o.needs(p.capacity), dest), p.o.MaxMemory)
	if err != nil {
		return err
	}
	if p.rank != nil {
		if err := p.rank.close(); err != nil {
			return err
		}
		p.rank = nil
	}
	walk := PlanWalk(p.o.shape(), p.o.Grouping, pages, domain.MaxCallRanges)
	r, err := newRank("replay", walk, nil)
	if err != nil {
		return err
	}
	r.mayMiss = true // what exists found may be evicted by the time it is read: a miss then
	p.rank = r
	return nil
}

// read restores the first blocks by layer group and returns how many of them were there to the last group. found is the time
// that exists took.
func (p *replayRow) read(ctx context.Context, pool ports.Pool, blocks int, found time.Duration) (hit int, err error) {
	if blocks == 0 {
		return 0, nil
	}
	r := p.rank
	r.fetch = pool.BatchGetRanges
	err = r.prepare(ctx, p.limiter, replayNamespace, blocks, func(_, page int) string { return p.names[page] })
	if err != nil {
		return 0, err
	}
	readable := make([]chan struct{}, len(r.walk.Groups))
	for g := range readable {
		readable[g] = make(chan struct{})
	}
	first, _ := r.load(ctx, time.Now(), readable)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	bad, err := r.check(ctx, p.limiter, p.failures, p.o.Verify)
	if err != nil {
		return 0, err
	}
	hit, remote := p.leading(blocks)
	p.missed += uint64(blocks - hit)
	p.remote += uint64(remote)
	if bad == 0 && hit == blocks {
		p.ttfl = append(p.ttfl, found+first)
	}
	return hit, nil
}

// leading is the run of blocks that every group found, and how many of them took a byte from a peer.
func (p *replayRow) leading(blocks int) (hit, remote int) {
	lost, fetched := blocks, make([]bool, blocks)
	for i := range p.rank.reads {
		c := &p.rank.reads[i]
		for k, res := range c.out {
			page := c.call.FirstPage + k
			if res.Status != ports.Hit {
				lost = min(lost, page)
			}
			fetched[page] = fetched[page] || res.Remote()
		}
	}
	for _, f := range fetched[:lost] {
		if f {
			remote++
		}
	}
	return lost, remote
}

// putRest puts the request's blocks from the first one that was not there on.
func (p *replayRow) putRest(ctx context.Context, pool ports.Pool, from int) error {
	size := uint64(p.o.BlockBytes)
	for rest := p.names[from:]; len(rest) > 0; {
		n := min(len(rest), replayPutBlocks)
		batch := ports.WholeBatch{Namespace: replayNamespace, Keys: rest[:n], Regions: []ports.Memory{{Region: p.src.region()}}}
		err := p.limiter.Do(ctx, func() {
			for i, name := range rest[:n] {
				at := uint64(i) * size
				content.Fill(p.src.b[at:at+size], contentKey(name), 0)
				batch.Targets = append(batch.Targets, ports.Target{Off: at, Len: size})
			}
		})
		if err != nil {
			return err
		}
		out := make([]ports.Result, n)
		if err := pool.BatchPut(ctx, &batch, out); err != nil {
			return fmt.Errorf("request %d: put of %d keys: %w", p.requests, n, err)
		}
		p.countPuts(batch.Keys, out)
		rest = rest[n:]
	}
	return context.Cause(ctx)
}

// countPuts takes a medium without room for what it is; anything else that is no success fails the run.
func (p *replayRow) countPuts(keys []string, out []ports.Result) {
	for i := range out {
		switch out[i].Status {
		case ports.Stored:
			p.stored++
		case ports.Exists:
		case ports.NoSpace, ports.Busy:
			p.refused++
		default:
			p.failures.put("put of key %q: status %s, want %s or %s", replayNamespace+"/"+keys[i], out[i].Status, ports.Stored, ports.Exists)
		}
	}
}

// settle waits for the pulls under way, whose bytes belong to the run.
func (p *replayRow) settle(ctx context.Context) error {
	for _, n := range p.cluster.Nodes {
		done, err := waitUntil(ctx, settleBound, func() bool { return n.Pool.Stats().PullWaiting == 0 })
		if err != nil {
			return err
		}
		if !done {
			return fmt.Errorf("%w: node %s: %d pulls still wait after %v", ErrFailed, n.ID, n.Pool.Stats().PullWaiting, settleBound)
		}
	}
	return nil
}

// checkCounted is that of a restore: each node's transports counted what came to be something there.
func (p *replayRow) checkCounted() error {
	for _, n := range p.cluster.Nodes {
		s := n.Pool.Stats()
		if err := conserved(s.Wire, s.NeededBytes, s.DuplicateBytes); err != nil {
			return fmt.Errorf("node %s: %w", n.ID, err)
		}
	}
	return nil
}
