package shm

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

const (
	// turnBytes is what a worker copies of one batch before the next batch has its turn, so that a short call does not wait for a
	// long one; an op is not split. At 10 GB/s it is 50 us, far more than a turn's bookkeeping takes.
	turnBytes = 512 << 10
	// turnOps bounds the completions of a turn that wait for each other; the number is arbitrary.
	turnOps = 256
	// pieceBytes is how much is copied without a look at whether the link still lives, and without a chance for the scheduler. It
	// lies well above 1 MiB, from which on the runtime's copy goes past the caches. At 10 GB/s a piece takes under a millisecond.
	pieceBytes = 4 << 20
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
		scratch    []*[turnOps]ports.Completion // of workers that have ended
		quiet      *sync.Cond                   // a batch has left active
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
func (w *copies) scratch() *[turnOps]ports.Completion {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.mu.scratch)
	if n == 0 {
		return new([turnOps]ports.Completion)
	}
	s := w.mu.scratch[n-1]
	w.mu.scratch = w.mu.scratch[:n-1]
	return s
}

// turn is a stretch of a batch's ops that one worker has taken.
type turn struct {
	*run
	lo, hi int
}

// take takes the first turn of the queue's head, and puts what is left of that behind the others. Without work the worker has ended.
func (w *copies) take(scratch *[turnOps]ports.Completion) (t turn, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.head == nil {
		w.mu.running--
		clear(scratch[:])
		w.mu.scratch = append(w.mu.scratch, scratch)
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

// work is one worker: it carries out turns as long as there are any. Memory that is not there, a peer's or a caller's, fails the op.
func (w *copies) work() {
	defer w.wg.Done()
	scratch := w.scratch()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for {
		t, ok := w.take(scratch)
		if !ok {
			return
		}
		done := scratch[:0]
		now := w.t.cfg.Clock.Now()
		for i := t.lo; i < t.hi; i++ {
			if t.state[i].Load() != opRefused {
				done = append(done, ports.Completion{Tag: t.batch.Ops[i].Tag, Err: w.carry(t.run, i, now)})
			}
		}
		// The one fence is the lease: an op is complete at an instant that is read after its last byte. One look at the clock, which is
		// a system call, does for a turn.
		at := w.t.cfg.Clock.Now()
		for i := range done {
			done[i].At = at
		}
		w.finish(t.run, done)
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

// carry copies one op.
func (w *copies) carry(r *run, i int, now domain.Instant) error {
	l, op := r.link, &r.batch.Ops[i]
	var copied uint64
	var err error
	if op.Deadline != 0 && op.Deadline <= now {
		err = ports.ErrTimeout
	} else {
		copied, err = l.copySegments(r.segments(i), &r.state[i])
	}
	l.bytes[op.Purpose].Add(copied)
	if err == nil {
		return nil
	}
	l.thrown[op.Purpose].Add(copied)
	return fail("op", l.to, err)
}

// copySegments returns how many bytes arrived; after a fault that is not known.
func (l *Link) copySegments(segs []ports.Segment, state *opState) (copied uint64, err error) {
	defer func() {
		if r := recover(); r != nil {
			l.t.note(Faulted)
			err = faultOf(r)
		}
	}()
	for i := range segs {
		s := &segs[i]
		dst := s.Local.(ports.HostRegion).Bytes()[s.LocalOff : s.LocalOff+s.Len]
		src := l.mapped.buffers[s.Remote][s.RemoteOff : s.RemoteOff+s.Len]
		for {
			if l.ended.Load() {
				return copied, ports.ErrReset
			}
			if state.Load() == opCancelled {
				return copied, ports.ErrCancelled
			}
			n := copy(dst[:min(len(dst), pieceBytes)], src)
			copied += uint64(n)
			if dst, src = dst[n:], src[n:]; len(dst) == 0 {
				break
			}
		}
	}
	return copied, nil
}

// faultOf panics again with what is no memory fault: that is a bug.
func faultOf(r any) error {
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	return &FaultError{Addr: fault.Addr()}
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
