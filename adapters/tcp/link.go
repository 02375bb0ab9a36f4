package tcp

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Link reaches the memory of one start of a peer. Its ops wait in a queue for each direction, from which each lane draws requests as it has room
// for them.
//
// The life of an op: queued (some of it is not drawn) -> flying (requests of it are on lanes) -> complete. It is complete when
// nothing of it is queued or flying; or earlier, by Cancel, its deadline or the end of the link: then what flies is disowned,
// under the locks that touching memory needs, and what arrives for it later is thrown away. Rejected: to wait for what flies, as
// a queue pair must; one stalled peer would then hold every caller's memory.
//
// INVARIANT: what a caller lent is not touched after the completion was posted.
type Link struct {
	t     *Transport
	to    ports.PeerID
	lanes []*lane
	over  chan struct{} // closed when the link is dead
	done  chan struct{} // closed when its goroutines have ended, too
	wake  chan struct{} // capacity 1: "a deadline may have come nearer"
	wg    sync.WaitGroup

	bytes           [ports.NumPurposes]atomic.Uint64
	framing, thrown atomic.Uint64
	lost            [ports.NumPurposes]atomic.Uint64 // bytes of ops that did not complete well, thrown included

	// mu guards the ops and what is on the lanes. Sockets are read and written without it.
	mu struct {
		sync.Mutex
		dead     error // why there are no new ops; nil: open
		ops      []*op
		free     []*op
		queues   [2]opQueue     // by direction: ops of which something is not drawn
		reads    int            // requests of reads since the last of a write, while there were both
		backlog  uint64         // bytes of the queues
		next     int            // lane to wake first
		earliest domain.Instant // not after the earliest deadline; zero: none
		waiters  int
		quiet    *sync.Cond // an op completed, and somebody waits for that
	}
}

// readsPerWrite is how many requests of reads there are to one of a write when there are both: somebody waits for what is read, and
// nobody for what is put. 8 ranks that restored beside 8 that offload, all on 2 processors, ended at p95 after 470 to 500 ms by turns
// and 350 to 400 by twos, and puts kept four fifths of their rate.
const readsPerWrite = 2

// opQueue is first come, first served. Reads and writes have one each and take turns, so that a read does not stand behind all that
// is being put.
type opQueue struct{ head, tail *op }

// op is the record of one op under way. Guarded by Link.mu.
type op struct {
	live       bool
	queued     bool
	prev, next *op
	q          *ports.Completions
	tag        uint64
	dir        ports.Direction
	why        ports.Purpose
	token      *ports.GrantToken // the caller's column
	until      domain.Instant
	segs       []ports.Segment // the caller's column
	at         int             // segs before it are drawn
	off        uint64          // bytes of segs[at] that are drawn
	left       uint64          // bytes that are not drawn
	flying     int             // requests that are on lanes and not disowned
	moved      atomic.Uint64   // bytes that arrived for it, or were applied; added to by lanes
	sums       bool            // its sum is asked for, and can be made; written before any of it is drawn
	sum        uint32          // of the requests that have landed, each moved on by what lies behind it
	err        error           // what it will complete with
}

var _ ports.Link = (*Link)(nil)

func newLink(t *Transport, to ports.PeerID, socks []*socket) *Link {
	l := &Link{t: t, to: to, over: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1)}
	l.mu.quiet = sync.NewCond(&l.mu)
	for _, s := range socks {
		l.lanes = append(l.lanes, newLane(l, s))
	}
	return l
}

// begin starts the goroutines; keepTime waits for the others.
func (l *Link) begin() {
	for _, c := range l.lanes {
		l.wg.Go(c.transmit)
		l.wg.Go(c.receive)
	}
	go l.keepTime()
}

// Submit checks every op and queues the good ones; the others complete at once. After the end of the link it is refused with
// ErrReset, or ErrClosed if Close ended it. An op without a deadline gets Config.OpTimeout.
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
	l.wakeLanesLocked()
	return nil
}

func (l *Link) admitLocked(b *ports.Batch, in *ports.Op, q *ports.Completions, now domain.Instant) {
	segs := b.Segments[in.First : in.First+in.Count]
	bytes, err := l.t.checkLocal(segs)
	until := in.Deadline
	if until == 0 {
		until = now.Add(l.t.cfg.OpTimeout)
	}
	if err == nil && until <= now {
		err = ports.ErrTimeout
	}
	if err != nil || bytes == 0 {
		l.post(q, ports.Completion{Tag: in.Tag, At: now, Err: err})
		return
	}
	o := l.newOpLocked()
	o.sums = in.Sum && in.Dir == ports.Read && !l.t.anyDevice(segs)
	o.live, o.q, o.tag, o.dir, o.why, o.token, o.until, o.segs, o.left = true, q, in.Tag, in.Dir, in.Purpose, &in.Grant, until, segs, bytes
	l.enqueueLocked(o)
	if l.mu.earliest == 0 || until < l.mu.earliest {
		l.mu.earliest = until
		signal(l.wake)
	}
}

// checkLocal says whether our side of an op can be carried out, and returns its length. The owner checks the other.
func (t *Transport) checkLocal(segs []ports.Segment) (bytes uint64, err error) {
	for i := range segs {
		s := &segs[i]
		r := s.Local
		if err := t.reaches(r); err != nil {
			return 0, fmt.Errorf("segment %d: local %w", i, err)
		}
		if s.LocalOff > r.Len() || s.Len > r.Len()-s.LocalOff {
			return 0, fmt.Errorf("segment %d: local offset %d, length %d, of %d bytes: %w", i, s.LocalOff, s.Len, r.Len(), ports.ErrBounds)
		}
		if s.RemoteOff+s.Len < s.RemoteOff {
			return 0, fmt.Errorf("segment %d: remote offset %d, length %d: %w", i, s.RemoteOff, s.Len, ports.ErrBounds)
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
	o.queued, o.prev = true, q.tail
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.next = o
	}
	q.tail = o
	l.mu.backlog += o.left
}

// nextLocked is the op of which a request is to be drawn; nil: there is none.
func (l *Link) nextLocked() *op {
	reads, writes := l.mu.queues[ports.Read].head, l.mu.queues[ports.Write].head
	if reads == nil || writes != nil && l.mu.reads >= readsPerWrite {
		l.mu.reads = 0
		return writes
	}
	if writes != nil {
		l.mu.reads++
	}
	return reads
}

// dequeueLocked takes an op out of the queue; what is left of it will not be drawn.
func (l *Link) dequeueLocked(o *op) {
	if !o.queued {
		return
	}
	q := &l.mu.queues[o.dir]
	if o.prev == nil {
		q.head = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		q.tail = o.prev
	} else {
		o.next.prev = o.prev
	}
	l.mu.backlog -= o.left
	o.queued, o.prev, o.next, o.left = false, nil, nil, 0
}

// wakeLanesLocked wakes as many lanes as there is work for, beginning with another one each time.
func (l *Link) wakeLanesLocked() {
	if l.mu.backlog == 0 {
		return
	}
	n := min(len(l.lanes), int(min(l.mu.backlog/chunkBytes, maxConns))+1)
	for range n {
		signal(l.lanes[l.mu.next].wake)
		l.mu.next = (l.mu.next + 1) % len(l.lanes)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *Link) post(q *ports.Completions, c ports.Completion) {
	if c.Err != nil {
		c.Err = fail("op", l.to, c.Err)
	}
	q.Post(c)
}

// completeLocked posts an op's completion and lets go of everything that its caller lent.
func (l *Link) completeLocked(o *op, now domain.Instant, err error) {
	l.dequeueLocked(o)
	if o.flying > 0 {
		l.disownLocked(o, (*lane).disown)
	}
	if err != nil {
		l.lost[o.why].Add(o.moved.Load())
	}
	done := ports.Completion{Tag: o.tag, At: now, Err: err}
	if o.sums && err == nil {
		done.Sum, done.Summed = o.sum, true
	}
	l.post(o.q, done)
	*o = op{}
	l.mu.free = append(l.mu.free, o)
	if l.mu.waiters > 0 {
		l.mu.quiet.Broadcast()
	}
}

// disownLocked takes the op's requests away from it, as far as how allows.
func (l *Link) disownLocked(o *op, how func(*lane, *flight) bool) {
	for _, c := range l.lanes {
		for i := range c.count {
			if f := c.flight(i); f.op == o && how(c, f) {
				o.flying--
			}
		}
	}
}

// Cancel completes what it can at once: reads, whose bytes are thrown away when they come, and writes of which no request is half
// sent. The others complete when the owner has answered that one.
func (l *Link) Cancel(q *ports.Completions, tags []uint64) {
	named := make(map[uint64]struct{}, len(tags))
	for _, t := range tags {
		named[t] = struct{}{}
	}
	now := l.t.cfg.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.mu.ops {
		if !o.live || o.q != q {
			continue
		}
		if _, ok := named[o.tag]; ok {
			l.cancelLocked(o, now)
		}
	}
}

func (l *Link) cancelLocked(o *op, now domain.Instant) {
	o.err = ports.ErrCancelled
	l.dequeueLocked(o)
	l.disownLocked(o, (*lane).disownUnlessSending)
	if o.flying == 0 {
		l.completeLocked(o, now, o.err)
	}
}

// awaitQuiet returns when no op under way names any of that memory.
func (l *Link) awaitQuiet(r ports.Region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.waiters++
	defer func() { l.mu.waiters-- }()
	for slices.ContainsFunc(l.mu.ops, func(o *op) bool { return o.names(r) }) {
		l.mu.quiet.Wait()
	}
}

func (o *op) names(r ports.Region) bool {
	return slices.ContainsFunc(o.segs, func(s ports.Segment) bool { return shared(s.Local, r) })
}

// Counts is by purpose, and readable after Close. Bytes that were thrown away count too: they crossed.
func (l *Link) Counts() ports.LinkStats {
	var s ports.LinkStats
	for i := range s.Bytes {
		s.Thrown[i] = l.lost[i].Load() // first: no more is thrown away than had come
		s.Bytes[i] = l.bytes[i].Load()
	}
	return s
}

// Wire is what a link's connections carried, as we count it and as the kernel does.
type Wire struct {
	Framing uint64 // bytes that came to us and were no payload
	Thrown  uint64 // bytes of reads that came for ops which had ended; they are in Counts
	Kernel  KernelCounts
}

// Wire is readable after Close.
func (l *Link) Wire() Wire {
	w := Wire{Framing: l.framing.Load(), Thrown: l.thrown.Load()}
	for _, c := range l.lanes {
		k := c.sock.counts()
		w.Kernel.Received += k.Received
		w.Kernel.Acked += k.Acked
	}
	return w
}

// Done is closed when the link is dead and every op has completed.
func (l *Link) Done() <-chan struct{} { return l.done }

// Close ends the link: what is under way completes with ErrReset. Twice is allowed.
func (l *Link) Close() error {
	l.end(ports.ErrClosed)
	<-l.done
	return nil
}

// end makes the link dead; keepTime does the rest.
func (l *Link) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(why)
}

func (l *Link) endLocked(why error) {
	if l.mu.dead != nil {
		return
	}
	l.mu.dead = why
	now := l.t.cfg.Clock.Now()
	for _, o := range l.mu.ops {
		if o.live {
			l.completeLocked(o, now, ports.ErrReset)
		}
	}
	close(l.over)
}

// keepTime completes ops whose deadline has passed, until the link is dead and its other goroutines have ended.
func (l *Link) keepTime() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := l.expire()
		if next != 0 {
			timer.Reset(max(next.Sub(l.t.cfg.Clock.Now()), 0))
		}
		select {
		case <-l.over:
			for _, c := range l.lanes {
				c.sock.close() // not under mu: it waits for steps, which may want that
			}
			l.wg.Wait()
			for _, c := range l.lanes {
				c.free()
			}
			l.t.forget(l)
			close(l.done)
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// expire ends the link if bytes of an op that is past its deadline are under way: the peer, or the way to it, is too slow to wait
// for. One that was never sent costs its neighbours nothing. It returns the next deadline.
func (l *Link) expire() domain.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.t.cfg.Clock.Now()
	if l.mu.earliest == 0 || now < l.mu.earliest {
		return l.mu.earliest
	}
	l.mu.earliest = 0
	late := false
	for _, o := range l.mu.ops {
		switch {
		case !o.live:
		case o.until <= now:
			late = late || o.flying > 0
			l.completeLocked(o, now, ports.ErrTimeout)
		case l.mu.earliest == 0 || o.until < l.mu.earliest:
			l.mu.earliest = o.until
		}
	}
	if late {
		l.endLocked(ports.ErrReset)
	}
	return l.mu.earliest
}
