package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// Fetch reads the ranges of one call. A comparison brings its own.
type Fetch func(ctx context.Context, g *ports.GetBatch, out []ports.Result) error

// rank is one worker of the engine: a destination and the calls of a walk into it. It is used by one goroutine at a time, but
// that a request's loader and its forward thread run beside each other.
type rank struct {
	who     string // in what it reports: "rank 3"
	walk    *Walk
	fetch   Fetch
	mayMiss bool // a key that was not found is no failure
	dest    *buffer
	device  *mirror    // of dest; nil: dest itself is read to
	at      ports.Pool // where the region is registered; nil: nowhere
	regions []ports.Memory
	session ports.SessionID
	names   [][]string // of the current request, by pool and page
	reads   []readCall // in the walk's order
}

// readCall is one call of a request and what became of it. A request of fewer pages than the walk has fewer keys in its last
// calls, or none.
type readCall struct {
	group int
	call  *Call
	batch ports.GetBatch
	out   []ports.Result // as long as the batch's keys
	err   error
}

func newRank(who string, w *Walk, fetch Fetch) (*rank, error) {
	dest, err := openBuffer(w.Layout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("destination of %s: %w", who, err)
	}
	content.Poison(dest.b)
	r := &rank{who: who, walk: w, fetch: fetch, dest: dest, regions: []ports.Memory{{Region: dest.region()}}}
	for range w.Shape.Pools {
		r.names = append(r.names, make([]string, w.Pages))
	}
	for g := range w.Groups {
		for i := range w.Groups[g].Calls {
			c := &w.Groups[g].Calls[i]
			r.reads = append(r.reads, readCall{group: g, call: c, out: make([]ports.Result, c.Pages)})
		}
	}
	return r, nil
}

// moveTo has the rank read to a device.
func (r *rank) moveTo(g *GPU) (err error) {
	if r.device, err = newMirror(g, r.dest.region()); err != nil {
		return fmt.Errorf("destination of %s: %w", r.who, err)
	}
	r.regions[0].Region = r.device.region()
	return nil
}

// register makes the destination known to a node, once it is where it is read to.
func (r *rank) register(ctx context.Context, at ports.Pool) (err error) {
	if r.regions[0], err = at.RegisterMemory(ctx, r.regions[0].Region); err != nil {
		return fmt.Errorf("destination of %s: %w", r.who, err)
	}
	r.at = at
	return nil
}

func (r *rank) close() error {
	var err error
	if r.at != nil {
		err = r.at.DeregisterMemory(context.Background(), r.regions[0].ID)
	}
	return errors.Join(err, r.device.close(), r.dest.close())
}

// prepare names the keys of a request of the walk's first pages, and poisons their destinations, so that nothing of an earlier
// request passes for this one's.
func (r *rank) prepare(ctx context.Context, l *Limiter, namespace string, pages int, name func(pool, page int) string) error {
	for pool, names := range r.names {
		for page := range pages {
			names[page] = name(pool, page)
		}
	}
	for i := range r.reads {
		r.reads[i].prepare(r, namespace, pages)
	}
	err := l.Do(ctx, func() {
		for pool, p := range r.walk.Shape.Pools {
			for i := range p.Layers {
				lo := r.walk.Layout.Off(pool, i, 0)
				_, hi := r.walk.Layout.Guard(pool, i, pages-1)
				content.Poison(r.dest.b[lo-guardBytes : hi])
			}
		}
	})
	return errors.Join(err, r.device.toDevice())
}

// prepare cuts the call to the request's pages.
func (c *readCall) prepare(r *rank, namespace string, pages int) {
	n := max(0, min(c.call.Pages, pages-c.call.FirstPage))
	ranges := uint32(0)
	if n > 0 {
		ranges = c.call.End[n-1]
	}
	c.batch = ports.GetBatch{Namespace: namespace, Keys: r.names[c.call.Pool][c.call.FirstPage:][:n], End: c.call.End[:n],
		Ranges: c.call.Ranges[:ranges], Regions: r.regions, Session: r.session}
	c.out = c.out[:n]
	clear(c.out)
	c.err = nil
}

// startGate lets all ranks of a request start at once, when all their threads are there.
type startGate struct {
	waiting sync.WaitGroup
	open    chan struct{} // closed by start
	at      time.Time     // set before open is closed
}

// newStartGate makes the gate of a number of ranks, each with a loader and a forward thread.
func newStartGate(ranks int) *startGate {
	g := &startGate{open: make(chan struct{})}
	g.waiting.Add(2 * ranks)
	return g
}

// wait is called by each thread once.
func (g *startGate) wait() {
	g.waiting.Done()
	<-g.open
}

func (g *startGate) start() {
	g.waiting.Wait()
	g.at = time.Now()
	close(g.open)
}

// walkTimes is one rank's sample of a request.
type walkTimes struct {
	ttfl    time.Duration // the first group is readable
	loaded  time.Duration // the last one is
	restore time.Duration // the last one is computed
	stall   time.Duration // the forward thread waited
}

// restore walks a request once the gate opens: the loader fetches group by group while the forward thread waits for each group
// and computes it.
func (r *rank) restore(ctx context.Context, gate *startGate, compute Compute, perLayer time.Duration) walkTimes {
	readable := make([]chan struct{}, len(r.walk.Groups))
	for g := range readable {
		readable[g] = make(chan struct{})
	}
	var t walkTimes
	_ = inParallel(2, func(i int) error {
		if i == 0 {
			gate.wait()
			t.ttfl, t.loaded = r.load(ctx, gate.at, readable)
			return nil
		}
		pass := newForwardPass(compute)
		gate.wait()
		t.stall = r.forward(ctx, readable, pass, perLayer)
		t.restore = time.Since(gate.at)
		return nil
	})
	return t
}

// load closes readable[g] when all calls of group g have ended, well or not: what failed is told by the results.
func (r *rank) load(ctx context.Context, start time.Time, readable []chan struct{}) (first, last time.Duration) {
	next := 0
	for g := range readable {
		for ; next < len(r.reads) && r.reads[next].group == g; next++ {
			if read := &r.reads[next]; len(read.out) > 0 {
				read.err = r.fetch(ctx, &read.batch, read.out)
			}
		}
		last = time.Since(start)
		close(readable[g])
		if g == 0 {
			first = last
		}
	}
	return first, last
}

// forward waits for each group and computes it, in one pass unless that takes longer than anyone who ends a run would wait.
func (r *rank) forward(ctx context.Context, readable []chan struct{}, pass func(time.Duration), perLayer time.Duration) (stall time.Duration) {
	const longest = 100 * time.Millisecond
	for g := range readable {
		begin := time.Now()
		<-readable[g]
		stall += time.Since(begin)
		for d := time.Duration(r.walk.Groups[g].Layers) * perLayer; d > 0 && ctx.Err() == nil; d -= longest {
			pass(min(d, longest))
		}
	}
	return stall
}

// check verifies statuses and, where asked for, contents and guards, and returns how many reads of the request are bad.
func (r *rank) check(ctx context.Context, l *Limiter, f *failures, contents bool) (bad int, err error) {
	if err := r.device.back(); err != nil {
		return 0, err
	}
	for i := range r.reads {
		err := l.Do(ctx, func() { bad += r.checkCall(&r.reads[i], f, contents) })
		if err != nil {
			return bad, err
		}
	}
	return bad, nil
}

func (r *rank) checkCall(c *readCall, f *failures, contents bool) (bad int) {
	for i, name := range c.batch.Keys {
		if !r.checkKey(c, i, name, f, contents) {
			bad++
		}
	}
	return bad
}

// checkKey reports the first thing that is wrong with one read.
func (r *rank) checkKey(c *readCall, i int, name string, f *failures, contents bool) bool {
	ranges := c.call.RangesOf(i)
	full := c.batch.Namespace + "/" + name
	status := c.out[i].Status
	switch {
	case c.err != nil:
		f.read("%s: read of key %q from offset %d: the call failed: %v", r.who, full, ranges[0].Off, c.err)
		return false
	case status == ports.NotFound && r.mayMiss:
		return !contents || r.checkGuards(c, i, full, f)
	case status != ports.Hit:
		f.read("%s: read of key %q from offset %d: status %s, want %s", r.who, full, ranges[0].Off, status, ports.Hit)
		return false
	case !contents:
		return true
	}
	key := contentKey(name)
	for _, g := range ranges {
		got := r.dest.b[g.RegionOff : g.RegionOff+g.Len]
		if at := content.Check(got, key, g.Off); at >= 0 {
			off := g.Off + uint64(at)
			f.read("%s: wrong byte of key %q at offset %d: got %#02x, want %#02x", r.who, full, off, got[at], wantByte(key, off))
			return false
		}
	}
	return r.checkGuards(c, i, full, f)
}

// checkGuards looks at what lies behind each destination of the read, and before the very first one.
func (r *rank) checkGuards(c *readCall, i int, full string, f *failures) bool {
	page, layerBytes := c.call.FirstPage+i, r.walk.Shape.Pools[c.call.Pool].LayerBytes
	for _, g := range c.call.RangesOf(i) {
		lo, hi := r.walk.Layout.Guard(c.call.Pool, int(g.Off/layerBytes), page)
		if at := content.CheckPoison(r.dest.b[lo:hi]); at >= 0 {
			f.read("%s: read of key %q wrote %d bytes past the destination of offset %d", r.who, full, at+1, g.Off)
			return false
		}
		// The guard before belongs to the neighbour, if there is one; its end is looked at for both.
		if at := content.CheckPoison(r.dest.b[g.RegionOff-guardBytes : g.RegionOff]); at >= 0 {
			f.read("%s: read of key %q wrote %d bytes before the destination of offset %d", r.who, full, guardBytes-at, g.Off)
			return false
		}
	}
	return true
}

func wantByte(key, off uint64) byte {
	var b [1]byte
	content.Fill(b[:], key, off)
	return b[0]
}
