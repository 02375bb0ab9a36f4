package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// putKey is one key of a put, from check to result.
type putKey struct {
	done    bool
	direct  bool         // remote: written from the caller's memory
	route   ports.Source // by which its bytes go; FromNowhere: none have moved
	lo, hi  uint32       // ranges, as places of the order
	size    uint64
	version domain.Version
	slot    domain.SlotID // local: pending, pinned
	layout  domain.Layout // of the slot, or of the peer's pages
	token   ports.GrantToken
	summer  domain.Summer // of its put-ranges; not begun: no sums are made
	twin    int           // an earlier key of this call with the same name, plus 1
	err     error
}

// putCall is one put. It is not reused: a put allocates what it needs.
type putCall struct {
	n         *Node
	ctx       context.Context
	namespace string
	space     domain.Space
	names     []string
	ranges    []domain.Range
	regions   []ports.Memory
	out       []ports.Result
	keys      []putKey
	order     []uint32
	spans     []domain.Span
	flat      []domain.PageRef
	byName    map[string]int
	memories  []*memory // the caller's, as borrowed
	kind      ports.BatchKind
	moved     [ports.NumSources]uint64 // bytes that were stored
	deadline  domain.Instant
}

// BatchPutRanges stores objects that the caller holds as ranges.
func (n *Node) BatchPutRanges(ctx context.Context, p *ports.PutBatch, out []ports.Result) error {
	if err := checkPut(p, len(out)); err != nil {
		return n.malformed(ports.BatchPutRanges, out, err)
	}
	return n.put(ctx, ports.BatchPutRanges, p, out)
}

// BatchPut stores whole objects.
func (n *Node) BatchPut(ctx context.Context, w *ports.WholeBatch, out []ports.Result) error {
	if err := checkWhole(w, len(out)); err != nil {
		return n.malformed(ports.BatchPutWhole, out, err)
	}
	p := &ports.PutBatch{Namespace: w.Namespace, Keys: w.Keys, Regions: w.Regions, To: w.To}
	for i, t := range w.Targets {
		p.Sizes = append(p.Sizes, t.Len)
		p.End = append(p.End, uint32(i)+1)
		p.Ranges = append(p.Ranges, domain.Range{Len: t.Len, Region: t.Region, RegionOff: t.Off})
	}
	return n.put(ctx, ports.BatchPutWhole, p, out)
}

// Put stores one whole object on this node.
func (n *Node) Put(ctx context.Context, namespace, name string, b ports.HostRegion) ports.Result {
	var out [1]ports.Result
	_ = n.BatchPut(ctx, wholeOf(namespace, name, b), out[:]) // the result says it all
	return out[0]
}

func (n *Node) put(ctx context.Context, kind ports.BatchKind, p *ports.PutBatch, out []ports.Result) error {
	if err := n.enter(); err != nil {
		return refuseAll(out, ports.Cancelled, err)
	}
	defer n.leave()
	n.counters.putCalls.Add(1)
	n.mu.Lock()
	space, err := n.mu.spaces.intern(p.Namespace)
	if err != nil {
		n.mu.Unlock()
		return n.malformed(kind, out, err)
	}
	memories := n.borrowLocked(p.Regions, nil)
	n.mu.Unlock()
	defer n.returnMemory(memories)
	began := n.now()
	c := &putCall{n: n, ctx: ctx, kind: kind, namespace: p.Namespace, space: space, names: p.Keys, ranges: p.Ranges, regions: p.Regions, out: out,
		keys: make([]putKey, len(p.Keys)), byName: make(map[string]int, len(p.Keys)), memories: memories, deadline: began.Add(n.cfg.CallTimeout)}
	for r := range len(p.Regions) + 1 {
		c.flat = append(c.flat, domain.PageRef{Buffer: uint32(r)})
	}
	for i := range p.Keys {
		r := rows(p.End, i)
		if err := c.layOut(i, p.Ranges, r, p.Sizes[i]); err != nil {
			c.finish(i, ports.Invalid, err)
		} else if err := checkMemories(p.Regions, memories, p.Ranges[r.lo:r.hi]); err != nil {
			c.finish(i, ports.NotRegistered, err)
		}
	}
	if p.To == "" || p.To == n.self.ID {
		c.local()
	} else {
		c.remote(p.To)
	}
	c.twins()
	n.observe(kind, began, &c.moved)
	return nil
}

// layOut checks that a key's ranges tile its object, and lie in the call's regions.
func (c *putCall) layOut(i int, ranges []domain.Range, r row, size uint64) error {
	k := &c.keys[i]
	k.size, k.lo = size, uint32(len(c.order))
	own := ranges[r.lo:r.hi]
	switch {
	case size == 0 || size > domain.MaxObjectSize:
		return &domain.LimitError{What: "object bytes (1 or more)", Value: size, Limit: domain.MaxObjectSize}
	case len(own) > domain.MaxPutRanges:
		return &domain.LimitError{What: "put-ranges of an object", Value: uint64(len(own)), Limit: domain.MaxPutRanges}
	}
	if err := domain.CheckKey(c.names[i]); err != nil {
		return err
	}
	var err error
	if c.order, c.spans, err = domain.AppendSpans(own, c.order, c.spans[:0]); err != nil {
		return err
	}
	if !domain.Tiles(c.spans, size) {
		return fmt.Errorf("%d ranges do not tile the %d bytes of the object: %w", len(own), size, domain.ErrInvalid)
	}
	for j := k.lo; j < uint32(len(c.order)); j++ {
		c.order[j] += r.lo
	}
	k.hi = uint32(len(c.order))
	for _, o := range own {
		if err := inRegion(c.regions, o.Region, o.RegionOff, o.Len); err != nil {
			return err
		}
	}
	if first, ok := c.byName[c.names[i]]; ok {
		k.twin = first + 1
	} else {
		c.byName[c.names[i]] = i
	}
	return nil
}

// pendingKey says whether key i is still to be put; a repeat in the call is decided by the first.
func (c *putCall) pendingKey(i int) bool { return !c.keys[i].done && c.keys[i].twin == 0 }

// twins gives repeats the answer of the key that they repeat: what that one stored exists.
func (c *putCall) twins() {
	for i := range c.keys {
		if k := &c.keys[i]; !k.done {
			first := c.out[k.twin-1]
			if first.Status == ports.Stored {
				first.Status = ports.Exists
			}
			if first.Status == ports.Exists && first.Size != k.size {
				first.Status, first.Err = ports.Conflict, errOtherSize(first.Size, k.size)
			}
			c.finish(i, first.Status, first.Err)
		}
	}
}

func (c *putCall) finish(i int, s ports.Status, err error) {
	c.keys[i].done = true
	if s == ports.Exists || s == ports.Conflict {
		c.keys[i].route = ports.FromNowhere // what was written is not what is there
	}
	c.out[i] = ports.Result{Status: s, Size: c.keys[i].size, Err: err}
	if s == ports.Stored {
		c.out[i].Source = ports.FromLocal
		c.moved[c.keys[i].route] += c.keys[i].size
	}
	c.n.counters.keys(c.kind, c.keys[i].route, s, 1)
}

// local reserves, copies straight into the slots, and commits.
func (c *putCall) local() {
	n := c.n
	now := n.now()
	n.mu.Lock()
	for i := range c.keys {
		if c.pendingKey(i) {
			c.reserveLocked(i, now)
		}
	}
	n.mu.Unlock()
	errs := make([]error, len(c.keys))
	if n.sumsPuts(n.regions) {
		c.copyAndSum(errs)
	} else {
		c.copyAll(errs)
	}
	now = n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range c.keys {
		if c.pendingKey(i) {
			c.commitLocked(i, errs[i], now)
		}
	}
}

// copyAll copies the keys into their slots in one batch. errs is a place per key.
func (c *putCall) copyAll(errs []error) {
	var copies []ports.CopyOp
	ends := make([]int, len(c.keys))
	for i := range c.keys {
		if k := &c.keys[i]; c.pendingKey(i) {
			copies = c.addCopies(copies, k, domain.Run{Len: k.size}, c.n.regions, k.layout, 0)
		}
		ends[i] = len(copies)
	}
	each := make([]error, len(copies))
	c.n.p.Copier.Copy(c.ctx, copies, each)
	lo := 0
	for i := range c.keys {
		errs[i] = firstError(each[lo:ends[i]])
		lo = ends[i]
	}
}

func (c *putCall) reserveLocked(i int, now domain.Instant) {
	n, k := c.n, &c.keys[i]
	committed, _, pending := n.mu.table.Lookup(c.space, c.names[i])
	if n.expiredLocked(pending, now) {
		pending = 0
	}
	switch {
	case committed != 0:
		c.finishExisting(i, n.mu.table.Info(committed).Size)
		return
	case pending != 0:
		c.finish(i, ports.Busy, fmt.Errorf("another writer has reserved the key: %w", ports.ErrBusy))
		return
	}
	k.version = n.drawVersion()
	id, err := n.makeRoomLocked(domain.NewSlot{Space: c.space, Name: c.names[i], Version: k.version, Size: k.size,
		State: domain.SlotPending, Origin: domain.PutHere, Deadline: now.Add(n.cfg.Reservation)}, now)
	if err != nil {
		c.finish(i, ports.NoSpace, n.errFullLocked(k.size))
		return
	}
	n.mu.table.Pin(id)
	k.slot, k.layout, k.route = id, n.mu.table.Layout(id), ports.FromLocal
}

func (c *putCall) finishExisting(i int, size uint64) {
	if size != c.keys[i].size {
		c.finish(i, ports.Conflict, errOtherSize(size, c.keys[i].size))
		return
	}
	c.finish(i, ports.Exists, nil)
}

// errFullLocked says whether an object could ever lie here: one of the pool's size can, when nobody reads, holds or writes what is there.
func (n *Node) errFullLocked(size uint64) error {
	return fmt.Errorf("%d bytes into a pool of %d: %w", size, n.mu.table.Stats().PagesTotal*n.page, ports.ErrNoSpace)
}

func errOtherSize(size, not uint64) error {
	return fmt.Errorf("exists with %d bytes, not %d: %w", size, not, domain.ErrInvalid)
}

// commitLocked publishes a slot that was written, or dooms one that was not.
func (c *putCall) commitLocked(i int, err error, now domain.Instant) {
	n, k := c.n, &c.keys[i]
	t := n.mu.table
	defer t.Unpin(k.slot, now)
	if err != nil {
		n.doomLocked(k.slot, domain.DoomFailed, now)
		c.finish(i, copyStatus(c.ctx, err), fmt.Errorf("copy in: %w", err))
		return
	}
	t.SetSums(k.slot, c.putLens(k), k.summer.Sums())
	if n.commitLocked(k.slot, now) {
		n.counters.putBytes.Add(k.size)
		c.finish(i, ports.Stored, nil)
		return
	}
	if committed, _, _ := t.Lookup(c.space, c.names[i]); committed != 0 {
		c.finishExisting(i, t.Info(committed).Size) // a reader's or another peer's copy was first
		return
	}
	c.finish(i, ports.Cancelled, fmt.Errorf("cleared or removed while it was written: %w", ports.ErrCancelled))
}

func copyStatus(ctx context.Context, err error) ports.Status {
	if context.Cause(ctx) != nil && !errors.Is(err, ports.ErrBounds) {
		return ports.Cancelled
	}
	return ports.CopyFailed
}

// putLens is the lengths of a key's put-ranges in object order.
func (c *putCall) putLens(k *putKey) []uint64 {
	lens := make([]uint64, 0, k.hi-k.lo)
	for _, o := range c.order[k.lo:k.hi] {
		lens = append(lens, c.ranges[o].Len)
	}
	return lens
}

// addCopies plans the copies of a run of the object from the caller's ranges to dst, a layout over regions in which the run
// begins at dstOff.
func (c *putCall) addCopies(copies []ports.CopyOp, k *putKey, run domain.Run, regions []ports.Region, dst domain.Layout, dstOff uint64) []ports.CopyOp {
	for _, o := range c.order[k.lo:k.hi] {
		r := c.ranges[o]
		lo, hi := max(r.Off, run.Off), min(r.Off+r.Len, run.End())
		if lo >= hi {
			continue
		}
		src := c.regions[r.Region].Region
		flat := domain.Flat(c.flat[r.Region:r.Region+1], src.Len())
		err := domain.ForEachPair(dst, domain.Run{Off: dstOff + lo - run.Off, Len: hi - lo}, flat, domain.Run{Off: r.RegionOff + lo - r.Off, Len: hi - lo},
			func(p domain.Pair) bool {
				copies = append(copies, ports.CopyOp{Dst: regions[p.A], DstOff: p.AOff, Src: src, SrcOff: p.BOff, Len: p.Len})
				return true
			})
		mustPlan(err)
	}
	return copies
}
