package shm

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/ports"
)

const (
	// turnBytes is what a worker copies of one batch before the next batch has its turn, so that a short call does not wait for a
	// long one; an op is not split. It is also what the copier is handed at once: enough to go past the caches, and not so much that
	// it should be parted. At 10 GB/s it is 100 us, far more than a turn's bookkeeping takes.
	turnBytes = 1 << 20
	// turnOps and turnCopies bound the scratch of a turn; the numbers are arbitrary.
	turnOps    = 256
	turnCopies = 1024
	// pieceBytes is the most that is copied without a look at whether the link still lives. It lies above 1 MiB, from which on the
	// runtime's copy goes past the caches. At 10 GB/s it takes a fifth of a millisecond.
	pieceBytes = 2 << 20
)

// copies is the work of all links of a transport: batches in a queue, of which workers carry out a turn each. Workers are there as
// long as there is work, so a transport at rest has none.
//
// INVARIANT: while the queue is not empty there is a worker.
type copies struct {
	t       *Transport
	workers int
	begin   func()         // work; a value that is made once, for a go statement with arguments allocates
	wg      sync.WaitGroup // workers

	// mu guards the queue and the batches on it. It is never held while bytes are copied.
	mu struct {
		sync.Mutex
		head, tail *run
		running    int
		active     map[*run]struct{} // batches of which ops are not complete
		free       []*run
		spare      []*scratch // of workers that have ended
		quiet      *sync.Cond // a batch has left active
	}
}

// run is a batch under way.
type run struct {
	link  *Link
	batch *ports.Batch
	q     *ports.Completions
	next  int       // ops before it were taken
	left  int       // ops that are not complete
	state []opState // by op; written under mu until the op was taken, then by its worker, but for cancelled
	then  *run      // behind it in the queue
}

// opState is atomic, for an op is cancelled while it is copied.
type opState struct{ atomic.Uint32 }

const (
	opWaits uint32 = iota
	opCancelled
	opRefused // complete since Submit
)

func (w *copies) open(t *Transport, workers int) {
	w.t, w.workers, w.begin = t, workers, w.work
	w.mu.active = make(map[*run]struct{})
	w.mu.quiet = sync.NewCond(&w.mu)
}

// submit queues a batch. Its bad ops complete at once.
func (w *copies) submit(l *Link, b *ports.Batch, q *ports.Completions) error {
	now := w.t.cfg.Clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.ended.Load() {
		return ports.ErrReset
	}
	r := w.newRunLocked(l, b, q)
	for i := range b.Ops {
		op := &b.Ops[i]
		segs := b.Segments[op.First : op.First+op.Count]
		err := l.check(op, segs)
		if err == nil && op.Deadline != 0 && op.Deadline <= now {
			err = ports.ErrTimeout
		}
		if err == nil && len(segs) > 0 {
			r.left++
			continue
		}
		r.state[i].Store(opRefused)
		if err != nil {
			err = fail("op", l.to, err)
		}
		q.Post(ports.Completion{Tag: op.Tag, At: now, Err: err})
	}
	if r.left == 0 {
		w.recycleLocked(r)
		return nil
	}
	r.skipRefused()
	l.ops.n += r.left
	w.mu.active[r] = struct{}{}
	w.pushLocked(r)
	w.spawnLocked()
	return nil
}

func (w *copies) newRunLocked(l *Link, b *ports.Batch, q *ports.Completions) *run {
	var r *run
	if n := len(w.mu.free); n > 0 {
		r, w.mu.free = w.mu.free[n-1], w.mu.free[:n-1]
	} else {
		r = &run{}
	}
	r.link, r.batch, r.q, r.next, r.left = l, b, q, 0, 0
	if cap(r.state) < len(b.Ops) {
		r.state = make([]opState, len(b.Ops))
	}
	r.state = r.state[:len(b.Ops)]
	for i := range r.state {
		r.state[i].Store(opWaits)
	}
	return r
}

func (w *copies) recycleLocked(r *run) {
	r.link, r.batch, r.q = nil, nil, nil
	w.mu.free = append(w.mu.free, r)
}

func (w *copies) pushLocked(r *run) {
	if w.mu.tail == nil {
		w.mu.head = r
	} else {
		w.mu.tail.then = r
	}
	w.mu.tail = r
}

func (w *copies) popLocked() *run {
	r := w.mu.head
	w.mu.head, r.then = r.then, nil
	if w.mu.head == nil {
		w.mu.tail = nil
	}
	return r
}

// spawnLocked starts a worker, if there is work for one more and there may be one more.
func (w *copies) spawnLocked() {
	if w.mu.head != nil && w.mu.running < w.workers {
		w.mu.running++
		w.wg.Add(1)
		go w.begin()
	}
}

// scratch gives a worker that begins the room of one that ended.
func (w *copies) scratch() *scratch {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.mu.spare)
	if n == 0 {
		return &scratch{}
	}
	s := w.mu.spare[n-1]
	w.mu.spare = w.mu.spare[:n-1]
	return s
}

// turn is a stretch of a batch's ops that one worker has taken.
type turn struct {
	*run
	lo, hi int
}

// take takes the first turn of the queue's head, and puts what is left of that behind the others. Without work the worker has ended.
func (w *copies) take(s *scratch) (t turn, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.head == nil {
		w.mu.running--
		clear(s.done)
		clear(s.errs)
		clear(s.copies[:cap(s.copies)])
		w.mu.spare = append(w.mu.spare, s)
		return t, false
	}
	r := w.popLocked()
	t = turn{run: r, lo: r.next}
	for bytes := uint64(0); r.next < len(r.state) && bytes < turnBytes && r.next-t.lo < turnOps; r.next++ {
		if r.state[r.next].Load() != opRefused {
			bytes += r.bytesOf(r.next)
		}
	}
	t.hi = r.next
	r.skipRefused()
	if r.next < len(r.state) {
		w.pushLocked(r)
	}
	w.spawnLocked()
	return t, true
}

// skipRefused moves on to an op that is to be copied. So a turn has one, which keeps the run from being recycled under its worker.
func (r *run) skipRefused() {
	for r.next < len(r.state) && r.state[r.next].Load() == opRefused {
		r.next++
	}
}

func (r *run) segments(i int) []ports.Segment {
	op := &r.batch.Ops[i]
	return r.batch.Segments[op.First : op.First+op.Count]
}

func (r *run) bytesOf(i int) (sum uint64) {
	segs := r.segments(i)
	for j := range segs {
		sum += segs[j].Len
	}
	return sum
}

// scratch is the room of one worker.
type scratch struct {
	done   []ports.Completion // of a turn's ops; Summed says until the end that there is a sum so far
	moved  []uint64           // bytes that arrived, by done
	copies []ports.CopyOp     // that the copier is handed next
	of     []int              // whose they are: places in done
	errs   []error
	bytes  uint64 // of copies
	join   crc32c.Joiner
}

// work is one worker: it carries out turns as long as there are any.
func (w *copies) work() {
	defer w.wg.Done()
	s := w.scratch()
	for {
		t, ok := w.take(s)
		if !ok {
			return
		}
		w.carry(t, s)
		// The one fence is the lease: an op is complete at an instant that is read after its last byte. One look at the clock, which is
		// a system call, does for a turn.
		at := w.t.cfg.Clock.Now()
		for i := range s.done {
			s.done[i].At = at
		}
		w.finish(t.run, s.done)
	}
}

// carry copies the ops of a turn, and says in the scratch what became of each.
func (w *copies) carry(t turn, s *scratch) {
	l := t.link
	s.done, s.moved = s.done[:0], s.moved[:0]
	now := w.t.cfg.Clock.Now()
	for i := t.lo; i < t.hi; i++ {
		if t.state[i].Load() == opRefused {
			continue
		}
		op := &t.batch.Ops[i]
		s.done, s.moved = append(s.done, ports.Completion{Tag: op.Tag, Summed: op.Sum}), append(s.moved, 0)
		if op.Deadline != 0 && op.Deadline <= now {
			s.done[len(s.done)-1].Err = ports.ErrTimeout
			continue
		}
		w.copySegments(l, t.segments(i), &t.state[i], s)
	}
	w.flush(s)
	k := 0
	for i := t.lo; i < t.hi; i++ {
		if t.state[i].Load() == opRefused {
			continue
		}
		why := t.batch.Ops[i].Purpose
		l.bytes[why].Add(s.moved[k])
		if c := &s.done[k]; c.Err != nil {
			l.thrown[why].Add(s.moved[k])
			c.Err = fail("op", l.to, c.Err)
			c.Sum, c.Summed = 0, false
		}
		k++
	}
}

// copySegments hands an op to the copier, in pieces, until it is cancelled or its link ends.
func (w *copies) copySegments(l *Link, segs []ports.Segment, state *opState, s *scratch) {
	k := len(s.done) - 1
	sum := s.done[k].Summed
	for i := range segs {
		seg := &segs[i]
		for off := uint64(0); off < seg.Len; {
			if s.done[k].Err == nil { // a piece of it that was copied may have failed
				s.done[k].Err = l.stops(state)
			}
			if s.done[k].Err != nil {
				return
			}
			n := min(seg.Len-off, pieceBytes)
			s.copies = append(s.copies, ports.CopyOp{Dst: seg.Local, Src: l.mapped.regions[seg.Remote],
				DstOff: seg.LocalOff + off, SrcOff: seg.RemoteOff + off, Len: n, Sum: sum})
			s.of = append(s.of, k)
			off += n
			if s.bytes += n; s.bytes >= turnBytes || len(s.copies) == turnCopies {
				w.flush(s)
			}
		}
	}
}

// stops says why an op is not to be copied any further; nil: it is.
func (l *Link) stops(state *opState) error {
	if l.ended.Load() {
		return ports.ErrReset
	}
	if state.Load() == opCancelled {
		return ports.ErrCancelled
	}
	return nil
}

// flush copies what was collected. Memory that is not there, a peer's or a caller's, fails the op.
func (w *copies) flush(s *scratch) {
	if len(s.copies) == 0 {
		return
	}
	for len(s.errs) < len(s.copies) {
		s.errs = append(s.errs, nil)
	}
	w.t.cfg.Copier.Copy(context.Background(), s.copies, s.errs[:len(s.copies)])
	for i, k := range s.of {
		if err := s.errs[i]; err == nil {
			s.moved[k] += s.copies[i].Len
			s.addSum(k, &s.copies[i])
		} else if s.done[k].Err == nil {
			w.t.note(Faulted)
			s.done[k].Err = err
		}
	}
	s.copies, s.of, s.bytes = s.copies[:0], s.of[:0], 0
}

// addSum joins what a copy has summed to the sum of op k, the copies of which come in order.
func (s *scratch) addSum(k int, c *ports.CopyOp) {
	done := &s.done[k]
	if done.Summed = done.Summed && c.Summed; done.Summed {
		done.Sum = s.join.Join(done.Sum, c.CRC, c.Len)
	}
}

// finish completes ops. The batch's columns are not touched from the moment on in which they may be the caller's again.
func (w *copies) finish(r *run, done []ports.Completion) {
	l, q := r.link, r.q
	w.mu.Lock()
	if r.left -= len(done); r.left == 0 {
		delete(w.mu.active, r)
		w.recycleLocked(r)
	}
	w.mu.quiet.Broadcast()
	w.mu.Unlock()
	for i := range done {
		q.Post(done[i])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.ops.n -= len(done); l.ops.n == 0 && l.ended.Load() {
		close(l.ops.quiet)
	}
}

// cancel marks ops; whoever copies them, or comes to, sees it.
func (w *copies) cancel(l *Link, q *ports.Completions, tags []uint64) {
	named := make(map[uint64]struct{}, len(tags))
	for _, t := range tags {
		named[t] = struct{}{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.mu.active {
		if r.link != l || r.q != q {
			continue
		}
		for i := range r.state {
			if _, ok := named[r.batch.Ops[i].Tag]; ok {
				r.state[i].CompareAndSwap(opWaits, opCancelled)
			}
		}
	}
}

// end makes a link take no more ops; those that it has complete soon.
func (w *copies) end(l *Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.ended.Store(true)
	if l.ops.n == 0 {
		close(l.ops.quiet)
	}
}

// awaitQuiet returns when no op of a batch under way names any of that memory.
func (w *copies) awaitQuiet(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.namedLocked(b) {
		w.mu.quiet.Wait()
	}
}

func (w *copies) namedLocked(b []byte) bool {
	for r := range w.mu.active {
		for i := range r.batch.Segments {
			if h, ok := r.batch.Segments[i].Local.(ports.HostRegion); ok && overlap(h.Bytes(), b) {
				return true
			}
		}
	}
	return false
}
