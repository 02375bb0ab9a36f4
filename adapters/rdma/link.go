//go:build linux && cgo && rdma

package rdma

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Link reaches the memory of one start of a peer. One goroutine takes completions and keeps time; who submits posts as much as there is
// room for, and the goroutine the rest.
//
// The life of an op: (writes: waiting for its grant to be opened, then) queued -> flying (requests of it are posted) -> complete. It
// completes when nothing of it is queued or flying. When one of its requests fails the rest is not posted; when none flies it is
// begun again if it was not at fault, and completes with the error otherwise.
//
// INVARIANT: memory that a caller lent is named by no posted request after the completion was posted.
type Link struct {
	t      *Transport
	to     ports.PeerID
	start  uint64 // of the owner
	path   verbs.Path
	remote map[uint32]*buffer
	events *events
	mem    *mapped // for control messages, and the last word for what is read after writes
	ctl    *control
	pairs  []*pair       // the first ReadPairs carry reads
	done   chan struct{} // closed by run, last
	bytes  [ports.NumPurposes]atomic.Uint64
	thrown [ports.NumPurposes]atomic.Uint64

	// mu guards the ops, the rings and what is posted.
	mu struct {
		sync.Mutex
		dead     error // why there are no new ops; nil: open
		died     domain.Instant
		ops      []*op
		free     []*op
		queues   [2]queue // by direction: what may be posted
		stamp    uint64   // order of revivals and of openings
		admitted uint64   // ops so far
		waiting  []*opening
		until    domain.Instant // when run looks at the time again; zero: it is looking
		earliest domain.Instant // not after the earliest deadline; zero: none
		waiters  int
		quiet    *sync.Cond // an op completed, and somebody waits for that
		chain    *verbs.Chain
	}
}

// queue is ops in the order in which they were admitted.
type queue struct{ head, tail *op }

// op is the record of one op under way. Guarded by Link.mu.
type op struct {
	live   bool
	queued bool
	nth    uint64 // of the link's ops
	next   *op
	q      *ports.Completions
	tag    uint64
	dir    ports.Direction
	why    ports.Purpose
	token  *ports.GrantToken // the caller's column
	until  domain.Instant
	segs   []ports.Segment // the caller's column
	at     int             // segs before it are posted
	off    uint64          // bytes of segs[at] that are posted
	flying int             // requests that are posted
	grant  *opening        // writes: what it may write; nil: to be opened
	pair   *pair           // writes: the one that carries it, from the first request on
	tries  int             // how often it was begun again
	blame  bool            // err is its own fault
	stop   bool            // do not begin it again
	late   bool            // its deadline has passed
	err    error
	moved  uint64 // bytes of this try
}

// opening is a grant that is being opened, or was, for the ops of that moment.
type opening struct {
	token ports.GrantToken
	runs  []run
	asked uint64 // Link.mu.stamp when it was first asked
	ops   []*op  // that wait for it
}

// maxReopen bounds how often a write is begun again. Each time costs it a fence of somebody else's; the number is arbitrary.
const maxReopen = 16

var _ ports.Link = (*Link)(nil)

// newLink makes the queue pairs of a link, not connected.
func newLink(t *Transport, to ports.PeerID) (*Link, error) {
	l := &Link{t: t, to: to, remote: make(map[uint32]*buffer), done: make(chan struct{})}
	l.mu.quiet = sync.NewCond(&l.mu)
	if err := l.acquire(); err != nil {
		return nil, errors.Join(err, l.free())
	}
	return l, nil
}

func (l *Link) acquire() (err error) {
	t := l.t
	n := t.cfg.ReadPairs + t.cfg.WritePairs
	if l.events, err = openEvents(t.ctx, n*t.cfg.SendDepth+controlRecv+controlSend); err != nil {
		return err
	}
	if l.mem, err = mapMemory(t.pd, numSlots*messageBytes, verbs.LocalWrite); err != nil {
		return err
	}
	l.mu.chain = verbs.NewChain(t.cfg.SendDepth, t.cfg.MaxSGE)
	l.ctl = &control{l: l}
	if err := l.ctl.open(); err != nil {
		return err
	}
	for i := range n {
		p := newPair(l, i)
		l.pairs = append(l.pairs, p)
		if err := p.open(); err != nil {
			return err
		}
	}
	return nil
}

// free destroys what acquire made: no request touches memory after it.
func (l *Link) free() error {
	var errs []error
	for _, p := range l.pairs {
		errs = append(errs, destroy(&p.qp))
	}
	if l.ctl != nil {
		errs = append(errs, destroy(&l.ctl.qp))
	}
	if l.mu.chain != nil {
		l.mu.chain.Free()
		l.mu.chain = nil
	}
	if l.mem != nil {
		errs = append(errs, l.mem.close())
	}
	if l.events != nil {
		errs = append(errs, l.events.close())
	}
	return errors.Join(errs...)
}

// keep makes a pending link one of ours, unless the transport is closed: then it stays pending.
func (t *Transport) keep(p *pendingLink) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return false
	}
	delete(t.mu.pending, p)
	t.mu.links[p.link] = struct{}{}
	return true
}

// Submit checks every op and posts what there is room for; ops that are not good complete at once. After the end of the link it is
// refused with ErrReset, or ErrClosed if Close ended it. An op without a deadline gets Config.OpTimeout.
func (l *Link) Submit(b *ports.Batch, q *ports.Completions) error {
	if err := b.Check(); err != nil {
		return fail("submit", l.to, err)
	}
	now := l.t.cfg.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.dead != nil {
		return fail("submit", l.to, l.mu.dead)
	}
	for i := range b.Ops {
		l.admitLocked(b, &b.Ops[i], q, now)
	}
	l.postLocked(now)
	l.hurryLocked()
	return nil
}

func (l *Link) admitLocked(b *ports.Batch, in *ports.Op, q *ports.Completions, now domain.Instant) {
	segs := b.Segments[in.First : in.First+in.Count]
	bytes, err := l.check(segs)
	until := in.Deadline
	if until == 0 {
		until = now.Add(l.t.cfg.OpTimeout)
	}
	if err == nil && until <= now {
		err = ports.ErrTimeout
	}
	if err != nil || bytes == 0 {
		l.complete(q, in.Tag, now, err)
		return
	}
	o := l.newOpLocked()
	l.mu.admitted++
	*o = op{live: true, nth: l.mu.admitted, q: q, tag: in.Tag, dir: in.Dir, why: in.Purpose, token: &in.Grant, until: until, segs: segs}
	l.beginLocked(o)
	if l.mu.earliest == 0 || until < l.mu.earliest {
		l.mu.earliest = until
	}
}

// beginLocked puts an op at its first step.
func (l *Link) beginLocked(o *op) {
	l.thrown[o.why].Add(o.moved)
	o.at, o.off, o.pair, o.err, o.moved = 0, 0, nil, nil, 0
	if o.dir == ports.Write && o.grant == nil {
		l.askLocked(o)
		return
	}
	l.enqueueLocked(o)
}

// check says whether an op's segments lie within the peer's buffers and within memory that is registered here.
func (l *Link) check(segs []ports.Segment) (bytes uint64, err error) {
	table := *l.t.table.Load()
	for i := range segs {
		s := &segs[i]
		addr, device := addrOf(s.Local)
		if device && l.t.cfg.DMABuf == nil || s.Local == nil {
			return 0, fmt.Errorf("segment %d: local region of type %T: %w", i, s.Local, errors.ErrUnsupported)
		}
		if s.LocalOff > s.Local.Len() || s.Len > s.Local.Len()-s.LocalOff {
			return 0, fmt.Errorf("segment %d: local offset %d, length %d, of %d bytes: %w", i, s.LocalOff, s.Len, s.Local.Len(), ports.ErrBounds)
		}
		b := l.remote[s.Remote]
		if b == nil {
			return 0, fmt.Errorf("segment %d: the peer has no buffer %d: %w", i, s.Remote, ports.ErrBounds)
		}
		if s.RemoteOff > b.len || s.Len > b.len-s.RemoteOff {
			return 0, fmt.Errorf("segment %d: remote offset %d, length %d, of %d bytes: %w", i, s.RemoteOff, s.Len, b.len, ports.ErrBounds)
		}
		if s.Len == 0 {
			continue
		}
		if r := table.find(addr+s.LocalOff, s.Len, device); r == nil || r.closing.Load() {
			return 0, fmt.Errorf("segment %d: %d bytes at %#x of local memory are not registered: %w", i, s.Len, addr+s.LocalOff, ports.ErrBounds)
		}
		bytes += s.Len // each is within memory that is there: no count of them that fits a column overflows
	}
	return bytes, nil
}

func (l *Link) newOpLocked() *op {
	if n := len(l.mu.free); n > 0 {
		o := l.mu.free[n-1]
		l.mu.free = l.mu.free[:n-1]
		return o
	}
	o := &op{}
	l.mu.ops = append(l.mu.ops, o)
	return o
}

func (l *Link) enqueueLocked(o *op) {
	q := &l.mu.queues[o.dir]
	o.queued, o.next = true, nil
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.next = o
	}
	q.tail = o
}

// dequeueLocked takes an op out of its queue; the rest of it is not posted.
func (l *Link) dequeueLocked(o *op) {
	if !o.queued {
		return
	}
	q := &l.mu.queues[o.dir]
	var before *op
	for x := q.head; x != o; x = x.next {
		before = x
	}
	if before == nil {
		q.head = o.next
	} else {
		before.next = o.next
	}
	if q.tail == o {
		q.tail = before
	}
	o.queued, o.next = false, nil
}

// letGoLocked takes an op away from everything that may post more of it.
func (l *Link) letGoLocked(o *op) {
	l.dequeueLocked(o)
	for _, w := range l.mu.waiting {
		w.ops = slices.DeleteFunc(w.ops, func(x *op) bool { return x == o })
	}
}

func (l *Link) complete(q *ports.Completions, tag uint64, at domain.Instant, err error) {
	if err != nil {
		err = fail("op", l.to, err)
	}
	q.Post(ports.Completion{Tag: tag, At: at, Err: err})
}

// finishLocked completes an op. Precondition: nothing of it flies.
func (l *Link) finishLocked(o *op, now domain.Instant, err error) {
	l.letGoLocked(o)
	if err != nil {
		l.thrown[o.why].Add(o.moved)
	}
	l.complete(o.q, o.tag, now, err)
	*o = op{}
	l.mu.free = append(l.mu.free, o)
	if l.mu.waiters > 0 {
		l.mu.quiet.Broadcast()
	}
}

// failLocked gives an op an error: it completes with it when nothing of it flies. The first error stays.
func (l *Link) failLocked(o *op, now domain.Instant, err error, blame bool) {
	l.letGoLocked(o)
	if o.err == nil || blame && !o.blame {
		o.err, o.blame = err, blame
	}
	l.settleLocked(o, now)
}

// settleLocked completes an op, or begins it again, if nothing of it flies or is to be posted.
func (l *Link) settleLocked(o *op, now domain.Instant) {
	if !o.live || o.flying > 0 || o.queued {
		return
	}
	switch {
	case o.err == nil:
		l.finishLocked(o, now, nil)
	case !o.blame && !o.stop && l.mu.dead == nil && o.until > now && o.again():
		l.t.counts.note([]Event{EventReadRetried, EventWriteReopened}[o.dir])
		o.grant = nil
		l.beginLocked(o)
	default:
		l.finishLocked(o, now, o.err)
	}
}

// again reports whether an op may be begun once more: reads once; writes open their grant first.
func (o *op) again() bool {
	o.tries++
	return o.tries == 1 || o.dir == ports.Write && o.tries <= maxReopen
}

// Cancel completes what was not posted yet. What was is the device's until its completion.
func (l *Link) Cancel(q *ports.Completions, tags []uint64) {
	named := make(map[uint64]struct{}, len(tags))
	for _, t := range tags {
		named[t] = struct{}{}
	}
	now := l.t.cfg.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.mu.ops {
		if _, ok := named[o.tag]; ok && o.live && o.q == q {
			o.stop = true
			if o.queued || o.flying == 0 {
				l.failLocked(o, now, ports.ErrCancelled, true)
			}
		}
	}
}

// awaitQuiet returns when no op that is under way now names memory of a region. It does not wait for later ones: they are of others who
// have registered the same memory.
func (l *Link) awaitQuiet(r *region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.waiters++
	defer func() { l.mu.waiters-- }()
	last := l.mu.admitted
	for slices.ContainsFunc(l.mu.ops, func(o *op) bool { return o.nth <= last && o.names(r) }) {
		l.mu.quiet.Wait()
	}
}

func (o *op) names(r *region) bool {
	return slices.ContainsFunc(o.segs, func(s ports.Segment) bool {
		addr, device := addrOf(s.Local)
		return device == r.device && addr < r.lo+r.len && r.lo < addr+s.Local.Len()
	})
}

// Counts is by purpose, and readable after Close. Bytes of ops that failed or were begun again count too: they crossed.
func (l *Link) Counts() ports.LinkStats {
	var s ports.LinkStats
	for i := range s.Bytes {
		s.Thrown[i] = l.thrown[i].Load() // first: it is never more than the other
		s.Bytes[i] = l.bytes[i].Load()
	}
	return s
}

// Done is closed when the link is dead and every op has completed.
func (l *Link) Done() <-chan struct{} { return l.done }

// Close ends the link: what is under way completes with ErrReset. Twice is allowed.
func (l *Link) Close() error {
	l.end(ports.ErrClosed)
	<-l.done
	return nil
}

func (l *Link) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(l.t.cfg.Clock.Now(), why)
}

// endLocked makes the link dead; run does the rest.
func (l *Link) endLocked(now domain.Instant, why error) {
	if l.mu.dead != nil {
		return
	}
	l.mu.dead, l.mu.died = why, now
	for _, p := range l.pairs {
		p.failLocked(now)
	}
	for _, o := range l.mu.ops {
		if o.live {
			l.failLocked(o, now, ports.ErrReset, false)
		}
	}
	l.wakeLocked()
}

// brokenLocked ends a link that cannot go on since a call to the device failed.
func (l *Link) brokenLocked(now domain.Instant) {
	if l.mu.dead == nil {
		l.t.counts.note(EventCallFailed)
		l.endLocked(now, ports.ErrReset)
	}
}

// flushBound is how long a failed pair may take to flush before it is destroyed with what it holds, and how long one that cannot be
// destroyed is left before it is tried again. Devices flush within milliseconds.
const flushBound = time.Second

// flushLook is how long a dead link sleeps at most.
const flushLook = 20 * time.Millisecond

// run takes completions and keeps time until the link is dead and nothing flies.
func (l *Link) run() {
	wcs := make([]verbs.WC, pollBatch)
	idle := 0
	for {
		n, err := l.events.cq.Poll(wcs)
		l.mu.Lock()
		now := l.t.cfg.Clock.Now()
		l.mu.until = 0
		if err != nil {
			l.brokenLocked(now)
		}
		for i := range wcs[:n] {
			l.completedLocked(&wcs[i], now)
		}
		next := l.tickLocked(now)
		l.postLocked(now)
		over := l.mu.dead != nil && l.quietLocked()
		l.mu.Unlock()
		if over {
			break
		}
		if n > 0 {
			idle = 0
			continue
		}
		if idle++; idle < pollSpins {
			continue
		}
		l.sleep(next)
		idle = 0
	}
	l.bury()
}

// pollSpins is how often an empty queue is looked at before the goroutine sleeps: a few microseconds, about what an event costs.
const pollSpins = 8

// sleep waits for an event or for that instant. Between arming and sleeping it looks once more, since what came before the arming tells
// of no event.
func (l *Link) sleep(next domain.Instant) {
	err := l.events.cq.Arm()
	l.mu.Lock()
	now := l.t.cfg.Clock.Now()
	if err != nil {
		l.brokenLocked(now)
	}
	if l.mu.earliest != 0 && l.mu.earliest < next {
		next = l.mu.earliest
	}
	if l.mu.dead != nil {
		next = min(next, now.Add(flushLook))
	}
	l.mu.until = next
	l.events.until(time.Now().Add(max(next.Sub(now), 0)))
	if l.mu.dead != nil && l.quietLocked() {
		l.events.until(past)
	}
	l.mu.Unlock()
	var one [1]verbs.WC
	if n, err := l.events.cq.Poll(one[:]); err != nil || n == 0 {
		l.events.wait()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.completedLocked(&one[0], l.t.cfg.Clock.Now())
}

// hurryLocked wakes run if a deadline comes before it would look.
func (l *Link) hurryLocked() {
	if l.mu.until != 0 && l.mu.earliest != 0 && l.mu.earliest < l.mu.until {
		l.mu.until = l.mu.earliest
		l.events.until(time.Now().Add(max(l.mu.earliest.Sub(l.t.cfg.Clock.Now()), 0)))
	}
}

func (l *Link) wakeLocked() { l.events.until(past) }

// quietLocked reports whether no request is posted.
func (l *Link) quietLocked() bool {
	return !slices.ContainsFunc(l.pairs, func(p *pair) bool { return p.head != p.tail })
}

// tickLocked does what the time asks for, and says when to look again.
func (l *Link) tickLocked(now domain.Instant) (next domain.Instant) {
	next = now.Add(l.t.cfg.Keepalive)
	soon := func(at domain.Instant) {
		if at != 0 && at < next {
			next = at
		}
	}
	for _, p := range l.pairs {
		if p.state == pairFailing {
			if now >= p.since.Add(flushBound) {
				p.downLocked(now)
			}
			soon(p.since.Add(flushBound)) // of one that was destroyed: a look too many
		}
	}
	if l.mu.dead == nil {
		l.expireLocked(now)
		soon(l.mu.earliest)
		soon(l.ctl.tickLocked(now))
	}
	return next
}

// expireLocked gives ops that are past their deadline back: at once if nothing of them flies, else by failing the pairs that carry them.
func (l *Link) expireLocked(now domain.Instant) {
	if l.mu.earliest == 0 || now < l.mu.earliest {
		return
	}
	l.mu.earliest = 0
	for _, o := range l.mu.ops {
		switch {
		case !o.live || o.late:
		case o.until > now:
			if l.mu.earliest == 0 || o.until < l.mu.earliest {
				l.mu.earliest = o.until
			}
		default:
			if o.flying > 0 {
				l.t.counts.note(EventDeadline)
			}
			o.stop, o.late = true, true
			l.failLocked(o, now, ports.ErrTimeout, true)
			for _, p := range l.pairs {
				if p.carries(o) {
					p.failLocked(now)
				}
			}
		}
	}
}

// bury destroys the queue pairs of a dead link. Every op has completed.
func (l *Link) bury() {
	l.ctl.bye()
	_ = l.free() // what stays keeps the protection domain, of which the transport's Close tells
	l.t.mu.Lock()
	delete(l.t.mu.links, l)
	l.t.mu.Unlock()
	close(l.done)
}
