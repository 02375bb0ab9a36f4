package faults

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/spanpool/spanpool/ports"
)

// link stands between the caller and the inner link. Ops go on under ids of its own (tags of two queues may be equal) and
// come back to its own queue, from which one goroutine forwards them.
//
// States of an op: held (not submitted: its Before runs, or it is dropped) -> flying (the inner link has it) -> landed (its
// result is here and held back by After, or dropped) -> complete, which takes it out of ops. From held and landed it may
// complete at once, by Cancel, its deadline, or the link's end; while it is flying only the inner link may say that its memory
// is quiet.
//
// INVARIANT: an op completes when it is taken out of ops, under mu, so it does so once. done is closed after ops is empty.
// Rejected: to post from the caller's Submit what fails at once, past the queue; then two goroutines decide on one op.
type link struct {
	i     *Injector
	inner ports.Link
	peer  ports.Peer

	in        *ports.Completions // of the inner link
	closeOnce func() error
	over      context.CancelFunc // ends the wait for in: the inner link is dead
	done      chan struct{}      // closed by forward, last
	ended     sync.WaitGroup     // the two goroutines
	submits   sync.WaitGroup     // calls to inner.Submit under way; none is added once dead

	mu struct { // guards ops; never held across a call to the inner link or a Delay
		sync.Mutex
		ops  map[uint64]*op
		last uint64 // id; 0 is the wake-up
		dead bool

		thrown [ports.NumPurposes]uint64 // bytes that the inner link moved for ops that then failed here
	}
}

type op struct {
	ports.Op // the caller's
	q        *ports.Completions
	segments []ports.Segment // the caller's column
	v        Verdict
	state    state
	result   ports.Completion // when landed
	moved    uint64           // bytes that the inner link moved for it, when landed and well
}

type state uint8

const (
	held state = iota
	flying
	landed
)

// wakeUp is posted to the forwarder's own queue when a deadline may have come nearer.
const wakeUp = 0

// longTime stands for no limit.
const longTime = 100 * 365 * 24 * time.Hour

func newLink(i *Injector, inner ports.Link, peer ports.Peer) *link {
	l := &link{i: i, inner: inner, peer: peer, in: ports.NewCompletions(), closeOnce: sync.OnceValue(inner.Close), done: make(chan struct{})}
	l.mu.ops = map[uint64]*op{}
	return l
}

// start starts what Close waits for; whenDone is called at the end.
func (l *link) start(whenDone func()) {
	ctx, over := context.WithCancel(context.Background())
	l.over = over
	l.ended.Go(func() {
		select {
		case <-l.inner.Done():
		case <-ctx.Done():
		}
		over()
	})
	l.ended.Go(func() {
		defer whenDone()
		l.forward(ctx)
	})
}

func (l *link) call(method string) Call { return Call{Port: "Link", Method: method, Peer: l.peer} }

// Submit asks the plan about the call and then about each op. Err: nothing is submitted. What passes at once goes on as one
// batch; what is held goes on alone.
func (l *link) Submit(b *ports.Batch, q *ports.Completions) error {
	v := l.i.decide(l.call("Submit"))
	v.Before.run()
	if v.Err != nil {
		return v.Err
	}
	if contradicts(b) {
		return orElse(l.inner.Submit(b, l.in), ports.ErrBounds) // for the inner link to refuse, before anything of it is held
	}
	var now, later []*op
	for _, o := range b.Ops {
		c := l.call("Op")
		c.Op = o
		n := newOp(o, b.Segments, q, l.i.decide(c))
		if n.state == flying {
			now = append(now, n)
		} else {
			later = append(later, n)
		}
	}
	if !l.enter() {
		return orElse(l.inner.Submit(b, l.in), ports.ErrClosed) // dead, and knows why
	}
	defer l.submits.Done()
	if err := l.submit(now, l.add(now)); err != nil {
		return err
	}
	for j, id := range l.add(later) {
		l.begin(id, later[j])
	}
	v.After.run()
	return nil
}

// contradicts says that a batch is a bug of its caller's.
func contradicts(b *ports.Batch) bool {
	return slices.ContainsFunc(b.Ops, func(o ports.Op) bool {
		return uint64(o.First)+uint64(o.Count) > uint64(len(b.Segments)) || o.Purpose >= ports.NumPurposes || o.Dir > ports.Write
	})
}

func newOp(o ports.Op, segments []ports.Segment, q *ports.Completions, v Verdict) *op {
	if v.Short {
		v.Err = orElse(v.Err, ports.ErrReset)
	}
	n := &op{Op: o, q: q, segments: segments, v: v}
	if v.Before == nil && n.reachesInner() {
		n.state = flying
	}
	return n
}

// reachesInner says whether the inner link sees anything of the op.
func (o *op) reachesInner() bool {
	if o.v.Short {
		return o.Count/2 > 0
	}
	return !o.v.fails() || o.v.Effect
}

// enter holds off the link's end until submits.Done, or says that it has come.
func (l *link) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.dead {
		l.submits.Add(1)
	}
	return !l.mu.dead
}

func (l *link) add(ops []*op) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]uint64, len(ops))
	for j, o := range ops {
		l.mu.last++
		ids[j] = l.mu.last
		l.mu.ops[ids[j]] = o
	}
	return ids
}

// submit hands flying ops to the inner link, in one batch of their own. If it refuses, they are as if they had never been.
// Segments stay the caller's column, which is borrowed until the last op has completed to the caller, and so until the inner
// link has let go of it.
func (l *link) submit(ops []*op, ids []uint64) error {
	if len(ops) == 0 {
		return nil
	}
	b := ports.Batch{Segments: ops[0].segments}
	for j, o := range ops {
		if o.Dir == ports.Write {
			o.flip() // what leaves; land sets the source right again
		}
		b.Ops = append(b.Ops, o.forInner(ids[j]))
	}
	err := l.inner.Submit(&b, l.in)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		for j, id := range ids {
			delete(l.mu.ops, id)
			if ops[j].Dir == ports.Write {
				ops[j].flip() // back
			}
		}
	}
	return err
}

// names says whether the op's bytes come from or go to r. Ops name whole regions.
func (o *op) names(r ports.Region) bool {
	for _, s := range o.segments[o.First : o.First+o.Count] {
		if sameMemory(s.Local, r) {
			return true
		}
	}
	return false
}

func sameMemory(a, b ports.Region) bool {
	ha, hostA := a.(ports.HostRegion)
	hb, hostB := b.(ports.HostRegion)
	if hostA && hostB {
		return ha.Len() > 0 && ha.Len() == hb.Len() && &ha.Bytes()[0] == &hb.Bytes()[0]
	}
	return hostA == hostB && a == b
}

// flip turns a bit of the local memory over, in the middle of what the op moves, if it is to be flipped, and says whether it did.
func (o *op) flip() bool {
	if !o.v.Flip || o.Count == 0 {
		return false
	}
	s := o.segments[o.First+o.Count/2]
	h, ok := s.Local.(ports.HostRegion)
	if !ok || s.Len == 0 {
		return false
	}
	h.Bytes()[s.LocalOff+s.Len/2] ^= 0x10
	return true
}

func (o *op) forInner(id uint64) ports.Op {
	n := o.Op
	n.Tag = id
	if o.v.Short {
		n.Count /= 2
	}
	return n
}

// innerBytes is what the inner link was asked to move.
func (o *op) innerBytes() (sum uint64) {
	n := o.forInner(0)
	for _, s := range o.segments[n.First : n.First+n.Count] {
		sum += s.Len
	}
	return sum
}

// begin starts what did not go to the inner link with its batch.
func (l *link) begin(id uint64, o *op) {
	if o.Deadline != 0 {
		l.in.Post(ports.Completion{Tag: wakeUp})
	}
	if o.v.Before == nil {
		l.goOn(id)
		return
	}
	o.v.Before(func() { l.goOn(id) })
}

// goOn is what follows Before.
func (l *link) goOn(id uint64) {
	l.mu.Lock()
	o := l.mu.ops[id]
	if o == nil || o.state != held || l.mu.dead {
		l.mu.Unlock() // released twice, cancelled, or left to the link's end
		return
	}
	if !o.reachesInner() {
		l.mu.Unlock()
		l.land(id, ports.Completion{At: l.i.now()})
		return
	}
	o.state = flying
	l.submits.Add(1)
	l.mu.Unlock()
	defer l.submits.Done()
	if err := l.submit([]*op{o}, []uint64{id}); err != nil {
		if errors.Is(err, ports.ErrClosed) {
			err = ports.ErrReset // for the caller it was submitted before the end
		}
		o.q.Post(ports.Completion{Tag: o.Tag, At: l.i.now(), Err: err}) // submit took it out
	}
}

// land takes a result, and holds it back if the verdict says so.
func (l *link) land(id uint64, c ports.Completion) {
	l.mu.Lock()
	o := l.mu.ops[id]
	if o == nil {
		l.mu.Unlock()
		return
	}
	if o.state == flying && (o.Dir == ports.Write || c.Err == nil) {
		if o.flip() {
			c.Sum, c.Summed = 0, false // of what came before the flip, which stands for one on the wire
		}
	}
	if o.state == flying && c.Err == nil {
		o.moved = o.innerBytes()
	}
	c.Tag, c.Err = o.Tag, orElse(o.v.Err, c.Err)
	if c.Summed = c.Summed && c.Err == nil; o.v.Missum {
		c.Sum ^= 0x40
	}
	o.state, o.result = landed, c
	l.mu.Unlock()
	release := func() { l.finish(nil, func(k uint64, _ *op) bool { return k == id }) }
	switch {
	case o.v.Drop:
	case o.v.After != nil:
		o.v.After(release)
	default:
		release()
	}
}

// finish tells the callers of the ops that done picks, once each: with err, or with the op's result if that is nil.
func (l *link) finish(err error, done func(uint64, *op) bool) (finished int) {
	at := l.i.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, o := range l.mu.ops {
		if !done(id, o) {
			continue
		}
		delete(l.mu.ops, id)
		c := o.result
		if err != nil {
			c = ports.Completion{Tag: o.Tag, At: at, Err: err}
		}
		if c.Err != nil {
			l.mu.thrown[o.Purpose] += o.moved
		}
		o.q.Post(c)
		finished++
	}
	return finished
}

// forward is the one goroutine that takes what the inner link posts, and that ends ops whose time is over.
func (l *link) forward(ctx context.Context) {
	var took []ports.Completion
	var err error
	for err == nil {
		took, err = l.wait(ctx, took[:0])
		l.landAll(took)
		if l.endLate() {
			_ = l.closeOnce() // as a transport does with an op past its deadline; what flies completes with ErrReset
			l.over()
		}
	}
	l.endAll(took)
}

// wait is Take until the nearest deadline of a held op, and without end if there is none.
func (l *link) wait(ctx context.Context, took []ports.Completion) ([]ports.Completion, error) {
	atMost := l.untilDeadline()
	took, err := l.in.Take(ctx, atMost, took)
	if atMost == longTime && len(took) == 0 && err == nil {
		<-ctx.Done() // without a timer, or a bubble in which nothing moves any more would never find out
		return took, context.Cause(ctx)
	}
	return took, err
}

func (l *link) landAll(took []ports.Completion) {
	for _, c := range took {
		if c.Tag != wakeUp {
			l.land(c.Tag, c)
		}
	}
}

// waitsForUs says that the op's time is ours to watch: the inner link watches what flies.
func (o *op) waitsForUs() bool { return o.state != flying && o.Deadline != 0 }

func (l *link) untilDeadline() time.Duration {
	if l.i.Time == nil {
		return longTime
	}
	now, nearest := l.i.now(), longTime
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.mu.ops {
		if o.waitsForUs() {
			nearest = min(nearest, max(o.Deadline.Sub(now), 1))
		}
	}
	return nearest
}

// endLate completes held and landed ops that are past their deadlines, and says whether there were any.
func (l *link) endLate() bool {
	if l.i.Time == nil {
		return false
	}
	now := l.i.now()
	return l.finish(ports.ErrTimeout, func(_ uint64, o *op) bool { return o.waitsForUs() && o.Deadline <= now }) > 0
}

// endAll follows the inner link's death, by which it has completed all that it took. What landed keeps its result.
func (l *link) endAll(took []ports.Completion) {
	l.mu.Lock()
	l.mu.dead = true
	l.mu.Unlock()
	l.submits.Wait() // bounded: Submit does not wait for the network
	took, _ = l.in.Take(context.Background(), 0, took[:0])
	l.landAll(took)
	l.finish(nil, func(_ uint64, o *op) bool { return o.state == landed && !o.v.Drop })
	l.finish(ports.ErrReset, func(uint64, *op) bool { return true })
	close(l.done)
}

// Cancel ends at once what is held before the inner link or dropped, and passes on the rest. A completion that After holds
// back stays held: it is on its way. Drop or Err: nobody hears it.
func (l *link) Cancel(q *ports.Completions, tags []uint64) {
	v := l.i.decide(l.call("Cancel"))
	v.Before.run()
	if v.fails() && !v.Effect {
		return
	}
	asked := map[uint64]bool{}
	for _, tag := range tags {
		asked[tag] = true
	}
	var inFlight []uint64
	l.finish(ports.ErrCancelled, func(id uint64, o *op) bool {
		if o.q != q || !asked[o.Tag] {
			return false
		}
		if o.state == flying {
			inFlight = append(inFlight, id)
		}
		return o.state == held || o.state == landed && o.v.Drop
	})
	if len(inFlight) > 0 {
		l.inner.Cancel(l.in, inFlight)
	}
	v.After.run()
}

// Counts adds to what was thrown away what arrived for ops that were made to fail.
func (l *link) Counts() ports.LinkStats {
	s := l.inner.Counts()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, n := range l.mu.thrown {
		s.Thrown[i] += n
	}
	return s
}

func (l *link) Done() <-chan struct{} { return l.done }

// Close always closes, and waits for both goroutines.
func (l *link) Close() error {
	return l.i.closing(l.call("Close"), func() error {
		err := l.closeOnce()
		l.over()
		l.ended.Wait()
		return err
	})
}
