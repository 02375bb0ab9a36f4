package inproc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/spanpool/spanpool/adapters/internal/grants"
	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// pair is what joins two nodes: a pipe for each direction, the ops under way, and one driver that carries their bytes (a
// goroutine of its own, or the network's pacer).
//
// The life of an op: queued (its pipe has turns left for it) -> landed (all bytes are there; the link's delay is left) -> free.
// While the pair is cut, an op whose turns are over without its bytes is lost, and queued again after the healing. An op
// completes once: when the delay is over, or earlier with an error (deadline, Cancel, the end of the link). In the second case
// its record stays as a husk, without the caller's memory, until the pipe lets go of its number; an op that is being copied at
// that moment completes when its chunk is done. INVARIANT: what a caller lent is not touched after the completion was posted.
type pair struct {
	net  *Network
	key  pairKey
	wake chan struct{} // capacity 1: "look again"

	devices deviceCopies // of the driver

	// mu serialises everything but the copying of a chunk, during which the driver lets it go.
	mu struct {
		sync.Mutex
		pipes    [2]direction // 0: from key.a to key.b
		ops      []*op        // by number
		free     []uint32
		severed  chan struct{}  // not nil while the pair is cut; closed by the healing
		deadline domain.Instant // not after the earliest deadline under way; zero: none
		quiet    *sync.Cond     // an op completed
	}
}

// direction is one pipe with what has landed by it.
type direction struct {
	*Pipe
	landed [2]fifo[uint32] // by ports.Direction of the op: for each, landing order is completion order
	meter  meter
}

// op is the record of one op under way.
type op struct {
	id    uint32
	state opState
	pipe  int
	link  *Link // nil: a husk
	q     *ports.Completions
	tag   uint64
	dir   ports.Direction
	why   ports.Purpose
	until domain.Instant // zero: no deadline
	segs  []ports.Segment
	at    int    // segs before it are copied
	done  uint64 // bytes of segs[at] that are copied
	left  uint64 // bytes of all segs that are not copied
	due   domain.Instant
	grant *grants.Grant

	sums bool   // reads of which the sum is asked for, and can be made
	sum  uint32 // of what was copied

	copying bool
	doom    error // what to complete with after the chunk that is being copied
}

type opState uint8

const (
	opFree opState = iota
	opQueued
	opLost
	opLanded
)

func newPair(n *Network, key pairKey) *pair {
	p := &pair{net: n, key: key, wake: make(chan struct{}, 1)}
	for i := range p.mu.pipes {
		p.mu.pipes[i].Pipe = NewPipe(n.model.BytesPerSecond)
	}
	p.mu.quiet = sync.NewCond(&p.mu)
	return p
}

func (p *pair) now() domain.Instant { return p.net.clock.Now() }

// kick makes the driver look again.
func (p *pair) kick() {
	wake := p.wake
	if p.net.pacer != nil {
		wake = p.net.pacer.wake
	}
	select {
	case wake <- struct{}{}:
	default:
	}
}

func (p *pair) submit(l *Link, b *ports.Batch, q *ports.Completions) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.dead != nil {
		return l.ours.fail("submit", l.theirs.start.ep.id, l.dead)
	}
	now := p.now()
	for i := range b.Ops {
		p.admitLocked(l, b, i, q, now)
	}
	p.kick()
	return nil
}

func (p *pair) admitLocked(l *Link, b *ports.Batch, i int, q *ports.Completions, now domain.Instant) {
	in := &b.Ops[i]
	segs := b.Segments[in.First : in.First+in.Count]
	bytes, g, err := l.check(in, segs)
	if err != nil {
		q.Post(ports.Completion{Tag: in.Tag, At: now, Err: l.ours.fail("op", l.theirs.start.ep.id, err)})
		return
	}
	o := p.newOpLocked()
	o.link, o.q, o.tag, o.dir, o.why, o.until = l, q, in.Tag, in.Dir, in.Purpose, in.Deadline
	o.segs, o.at, o.done, o.left, o.grant = segs, 0, 0, bytes, g
	o.sums, o.sum = in.Sum && in.Dir == ports.Read, 0
	l.live++
	if o.until != 0 && (p.mu.deadline == 0 || o.until < p.mu.deadline) {
		p.mu.deadline = o.until
	}
	o.pipe = l.up
	if o.dir == ports.Read { // the request goes first, and takes the delay; the bytes come the other way
		o.pipe = 1 - l.up
		now = now.Add(p.net.model.Delay)
	}
	p.queueLocked(o, now)
}

func (p *pair) queueLocked(o *op, at domain.Instant) {
	o.state = opQueued
	p.mu.pipes[o.pipe].Add(o.id, flowKey(o.q), o.left, at)
}

func (p *pair) newOpLocked() *op {
	if n := len(p.mu.free); n > 0 {
		o := p.mu.ops[p.mu.free[n-1]]
		p.mu.free = p.mu.free[:n-1]
		return o
	}
	o := &op{id: uint32(len(p.mu.ops))}
	p.mu.ops = append(p.mu.ops, o)
	return o
}

func (p *pair) freeLocked(o *op) {
	*o = op{id: o.id}
	p.mu.free = append(p.mu.free, o.id)
}

// moved is what of an op has been copied.
func (o *op) moved() uint64 {
	var all uint64
	for i := range o.segs {
		all += o.segs[i].Len
	}
	return all - o.left
}

// completeLocked posts an op's completion and lets go of everything that its caller lent. The record is the caller's to free.
func (p *pair) completeLocked(o *op, now domain.Instant, err error) {
	l := o.link
	if err != nil {
		err = l.ours.fail("op", l.theirs.start.ep.id, err)
		l.stats.Thrown[o.why] += o.moved()
	}
	done := ports.Completion{Tag: o.tag, At: now, Err: err}
	if o.sums && err == nil {
		done.Sum, done.Summed = o.sum, true
	}
	o.q.Post(done)
	o.link, o.q, o.segs, o.grant, o.doom = nil, nil, nil, nil, nil
	l.live--
	if l.dead != nil && l.live == 0 {
		close(l.done)
	}
	p.mu.quiet.Broadcast()
}

// failLocked ends an op early.
func (p *pair) failLocked(o *op, now domain.Instant, err error) {
	if o.copying {
		if o.doom == nil {
			o.doom = err
		}
		return
	}
	p.completeLocked(o, now, err)
	switch o.state {
	case opQueued:
		p.mu.pipes[o.pipe].Drop(o.id)
	case opLost:
		p.freeLocked(o)
	}
}

// end makes a link dead: the ops under way complete with ErrReset.
func (p *pair) end(l *Link, why error) {
	p.mu.Lock()
	if l.dead != nil {
		p.mu.Unlock()
		return
	}
	l.dead = why
	now := p.now()
	if l.live == 0 {
		close(l.done)
	}
	for _, o := range p.mu.ops {
		if o.link == l {
			p.failLocked(o, now, ports.ErrReset)
		}
	}
	p.mu.Unlock()
	p.kick()
	l.ours.forget(l)
	l.theirs.forget(l)
}

func (p *pair) cancel(l *Link, q *ports.Completions, tags []uint64) {
	named := make(map[uint64]struct{}, len(tags))
	for _, t := range tags {
		named[t] = struct{}{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for _, o := range p.mu.ops {
		if o.link != l || o.q != q || o.state == opLanded {
			continue
		}
		if _, ok := named[o.tag]; ok {
			p.failLocked(o, now, ports.ErrCancelled)
		}
	}
	p.kick()
}

// awaitQuiet returns when no op of the link under way names any of that memory.
func (p *pair) awaitQuiet(l *Link, r ports.Region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for slices.ContainsFunc(p.mu.ops, func(o *op) bool { return o.link == l && o.names(r) }) {
		p.mu.quiet.Wait()
	}
}

func (o *op) names(r ports.Region) bool {
	return slices.ContainsFunc(o.segs, func(s ports.Segment) bool { return shared(s.Local, r) })
}

// shared says that two regions share memory.
func shared(a, b ports.Region) bool {
	if a, ok := a.(ports.DeviceRegion); ok {
		b, ok := b.(ports.DeviceRegion)
		return ok && a.Overlaps(b)
	}
	h, ok := b.(ports.HostRegion)
	return ok && overlap(a.(ports.HostRegion).Bytes(), h.Bytes())
}

// cut makes the pair a black hole, or heals it.
func (p *pair) cut(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.mu.severed == nil:
		p.mu.severed = make(chan struct{})
	case !on && p.mu.severed != nil:
		close(p.mu.severed)
		p.mu.severed = nil
		for _, o := range p.mu.ops {
			if o.state == opLost {
				p.queueLocked(o, p.now())
			}
		}
	}
	p.kick()
}

// stepTurns bounds the turns of a direction that one step carries, so that a pair which is behind does not keep the pacer from
// the others. With turns of a few KiB the step around a turn costs more than its copy, hence more than one. The number is
// arbitrary.
const stepTurns = 4

// step does what is due, a few chunks of each direction at most, and returns when the next thing is due, if there is one.
func (p *pair) step() (domain.Instant, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.expireLocked(now)
	for i := range p.mu.pipes {
		p.releaseLocked(&p.mu.pipes[i], now)
		for range stepTurns {
			t, ok := p.mu.pipes[i].Take(now)
			if !ok {
				break
			}
			now = p.carryLocked(i, t, now)
		}
	}
	return p.nextLocked()
}

// expireLocked completes the ops whose deadline has passed.
func (p *pair) expireLocked(now domain.Instant) {
	if p.mu.deadline == 0 || now < p.mu.deadline {
		return
	}
	p.mu.deadline = 0
	for _, o := range p.mu.ops {
		switch {
		case o.link == nil || o.until == 0:
		case o.until <= now:
			p.failLocked(o, now, ports.ErrTimeout)
		case p.mu.deadline == 0 || o.until < p.mu.deadline:
			p.mu.deadline = o.until
		}
	}
}

// releaseLocked completes what has landed and has waited for the link's delay.
func (p *pair) releaseLocked(d *direction, now domain.Instant) {
	for i := range d.landed {
		f := &d.landed[i]
		for f.len() > 0 {
			o := p.mu.ops[*f.front()]
			if o.link != nil && (p.mu.severed != nil || o.due > now) {
				break
			}
			f.pop()
			if o.link != nil {
				d.meter.late(now.Sub(o.due))
				p.completeLocked(o, now, nil)
			}
			p.freeLocked(o)
		}
	}
}

// carryLocked copies the bytes of a turn, with the lock let go meanwhile, and sees to what becomes of the op. It returns when it
// ended: reading the clock is a system call, which costs as much as a copy of some KiB.
func (p *pair) carryLocked(pipe int, t Turn, now domain.Instant) domain.Instant {
	o := p.mu.ops[t.Op]
	if o.link != nil && p.mu.severed == nil {
		now = p.copyLocked(o, t)
	}
	if !t.Last {
		return now
	}
	switch {
	case o.link == nil:
		p.freeLocked(o)
	case o.left > 0 && p.mu.severed != nil:
		o.state = opLost
	case o.left > 0: // its turns fell into a cut that is over
		p.queueLocked(o, now)
	default:
		p.landLocked(o, t.End, now)
	}
	return now
}

// copyLocked copies one chunk and returns when it was done. Afterwards the op may be complete, with an error.
func (p *pair) copyLocked(o *op, t Turn) domain.Instant {
	n := min(t.Len, o.left)
	o.copying = true
	p.mu.Unlock()
	err := o.copy(n, &p.devices)
	p.mu.Lock()
	o.copying = false
	now := p.now()
	if err == nil {
		o.left -= n
		o.link.stats.Bytes[o.why] += n
		p.mu.pipes[o.pipe].meter.carried(t, now)
	}
	if o.doom != nil {
		err = o.doom
	}
	if err != nil {
		p.failLocked(o, now, err)
	}
	return now
}

// landLocked lets the op wait for the delay of its link: reads have paid half of it before, with their request.
func (p *pair) landLocked(o *op, end, now domain.Instant) {
	o.state = opLanded
	o.due = end.Add(p.net.model.Delay)
	if o.dir == ports.Write {
		o.due = o.due.Add(p.net.model.Delay)
	}
	d := &p.mu.pipes[o.pipe]
	d.landed[o.dir].push(o.id)
	p.releaseLocked(d, now)
}

// nextLocked is when step has something to do.
func (p *pair) nextLocked() (next domain.Instant, ok bool) {
	earliest := func(at domain.Instant) {
		if !ok || at < next {
			next, ok = at, true
		}
	}
	for i := range p.mu.pipes {
		d := &p.mu.pipes[i]
		if at, some := d.Next(); some {
			earliest(at)
		}
		for j := range d.landed {
			if d.landed[j].len() > 0 && p.mu.severed == nil {
				earliest(p.mu.ops[*d.landed[j].front()].due)
			}
		}
	}
	if p.mu.deadline != 0 {
		earliest(p.mu.deadline)
	}
	return next, ok
}

// run is the driver of a pair of its own: it steps, and waits for the next instant or a kick, until the network ends.
func (p *pair) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for p.net.stop.Err() == nil {
		next, some := p.step()
		d := time.Duration(0)
		if some {
			if d = next.Sub(p.now()); d <= 0 {
				continue
			}
			timer.Reset(d)
		}
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.net.stop.Done():
		}
	}
}

// deviceCopies is what a chunk copies from and to device memory; the driver's own.
type deviceCopies struct {
	ops  []ports.CopyOp
	errs []error
}

// run does them. They are begun, so they are finished whoever leaves; the copier has its own bound.
func (d *deviceCopies) run(c ports.Copier) error {
	if len(d.ops) == 0 {
		return nil
	}
	for len(d.errs) < len(d.ops) {
		d.errs = append(d.errs, nil)
	}
	errs := d.errs[:len(d.ops)]
	c.Copy(context.Background(), d.ops, errs)
	clear(d.ops)
	d.ops = d.ops[:0]
	return errors.Join(errs...)
}

// copy moves the next n bytes of the op. A write is applied under its grant's lock, after asking whether it stands. Where one side is
// device memory, no byte of it is touched here: the network's copier does it.
func (o *op) copy(n uint64, d *deviceCopies) error {
	if o.grant != nil {
		o.grant.Lock()
		defer o.grant.Unlock()
		if !o.grant.Stands() {
			return ports.ErrRevoked
		}
	}
	exposed := o.link.theirs.mu.exposed
	for n > 0 {
		s := &o.segs[o.at]
		k := min(n, s.Len-o.done)
		c := ports.CopyOp{Dst: s.Local, DstOff: s.LocalOff + o.done, Src: exposed[s.Remote], SrcOff: s.RemoteOff + o.done, Len: k}
		if o.dir == ports.Write {
			c.Dst, c.DstOff, c.Src, c.SrcOff = c.Src, c.SrcOff, c.Dst, c.DstOff
		}
		c.Sum, c.CRC = o.sums, o.sum
		if copyHost(&c) {
			o.sum = c.CRC
		} else {
			d.ops = append(d.ops, c)
			o.sums = false
		}
		n -= k
		o.done += k
		if o.done == s.Len {
			o.at, o.done = o.at+1, 0
		}
	}
	return d.run(o.link.ours.start.ep.net.copiers[o.why])
}

// copyHost copies where both sides are host memory, and goes on with the sum that is asked for.
func copyHost(c *ports.CopyOp) bool {
	dst, ok := c.Dst.(ports.HostRegion)
	if !ok {
		return false
	}
	src, ok := c.Src.(ports.HostRegion)
	if !ok {
		return false
	}
	into, from := dst.Bytes()[c.DstOff:][:c.Len], src.Bytes()[c.SrcOff:][:c.Len]
	if c.Sum {
		c.CRC = crc32c.Copy(into, from, nil, c.CRC)
	} else {
		copy(into, from)
	}
	return true
}

// crossing waits for one way of a control message: the link's delay, and as long as the pair is cut.
func (p *pair) crossing(ctx context.Context, s *start) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if err := p.net.sleep(ctx, s, p); err != nil {
		return err
	}
	for {
		p.mu.Lock()
		severed := p.mu.severed
		p.mu.Unlock()
		if severed == nil {
			return nil
		}
		select {
		case <-severed:
		case <-ctx.Done():
			return ended(ctx)
		case <-s.over.Done():
			return ports.ErrClosed
		}
	}
}

func (p *pair) roundTrip(ctx context.Context, s *start) error {
	if err := p.crossing(ctx, s); err != nil {
		return err
	}
	return p.crossing(ctx, s)
}
