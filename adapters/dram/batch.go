package dram

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/spanpool/spanpool/ports"
)

// batch is a Copy of more than a moment. It is copied in turns: a caller has a place for one turn and then goes behind those who
// wait for one, so that a read of a layer passes a put of many MiB after a turn of it. While places are free a large batch has
// helpers, goroutines that take turns of the same batch; they leave after a turn as soon as anyone waits for a place, and the
// caller waits for all of them before it returns.
//
// Rejected: workers that live as long as the Copier. They need an owner who closes it, and a queue between callers and them;
// to start a goroutine costs a hundredth of the smallest batch that has helpers.
type batch struct {
	c       *Copier
	ctx     context.Context
	ops     []ports.CopyOp
	errs    []error // an op's belongs to who claimed it; of an op in pieces it is guarded by mu
	streams bool

	helpers sync.WaitGroup
	helping atomic.Int32
	help    func() // b.assist: made once, so that go allocates nothing

	// mu serialises claims, and lets claimed turns run at once.
	mu struct {
		sync.Mutex
		next int    // the first op that nobody claimed, or the one that is given out in pieces
		off  uint64 // how much of it is given out
	}
}

const (
	// turnBytes is what is copied without a chance for the scheduler, or for who waits for a place: a tenth of a millisecond.
	// It is the size from which on the runtime's copy goes past the caches, which matters where stream is that copy.
	turnBytes = 1 << 20
	// maxHelpers keeps one large put of a machine with many processors off most of them. The number is arbitrary.
	maxHelpers = 3
)

// take makes a batch, or takes one that nobody uses. No sync.Pool: it forgets some now and then, and then a copy allocates.
func (c *Copier) take() *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.mu.spare); n > 0 {
		b := c.mu.spare[n-1]
		c.mu.spare = c.mu.spare[:n-1]
		return b
	}
	b := &batch{c: c}
	b.help = b.assist
	return b
}

func (c *Copier) giveBack(b *batch) {
	b.ctx, b.ops, b.errs = nil, nil, nil
	b.mu.next, b.mu.off = 0, 0
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.spare = append(c.mu.spare, b)
}

func (c *Copier) tryEnter() bool {
	select {
	case c.places <- struct{}{}:
		return true
	default:
		return false
	}
}

func (c *Copier) leave() { <-c.places }

// copy copies the batch and returns when nobody touches its memory any more.
func (b *batch) copy(shared bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	select {
	case b.c.places <- struct{}{}:
	case <-b.ctx.Done():
		failAll(b.errs, context.Cause(b.ctx))
		return
	}
	for more := true; more; {
		if shared {
			b.recruit()
		}
		more = b.turn()
		b.c.leave()
		if more { // what was begun is finished, whatever the context does: no look at it here
			b.c.places <- struct{}{}
		}
	}
	b.helpers.Wait()
}

// recruit takes the places that are free. Their goroutines are the batch's.
func (b *batch) recruit() {
	for b.helping.Load() < maxHelpers && b.c.tryEnter() {
		b.helping.Add(1)
		b.helpers.Add(1)
		go b.help()
	}
}

// assist has a place when it begins.
func (b *batch) assist() {
	defer b.helpers.Done()
	defer b.helping.Add(-1)
	debug.SetPanicOnFault(true) // of this goroutine, which ends here
	for more := true; more; {
		more = b.turn()
		b.c.leave()
		more = more && b.c.tryEnter()
	}
}

// claim is a turn: whole ops, or a piece of a large one.
type claim struct {
	lo, hi  int
	off, n  uint64 // of a piece of op lo; n is 0 for whole ops
	ongoing bool   // there is more to claim
}

// turn copies what it can claim, and reports whether there is more.
func (b *batch) turn() bool {
	var ended error
	if b.ctx.Err() != nil {
		ended = context.Cause(b.ctx)
	}
	t := b.claim(ended)
	switch {
	case t.n > 0:
		if err := b.copyPiece(t); err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.errs[t.lo] = err
		}
	case t.lo < t.hi:
		copyOps(b.ctx, b.ops[t.lo:t.hi], b.errs[t.lo:t.hi], b.streams)
	}
	return t.ongoing
}

// claim takes the next turn out of the batch. ended is the cause of a context that has ended: it is that of all ops that were not
// begun.
func (b *batch) claim(ended error) claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &b.mu
	if ended != nil && m.off == 0 {
		failAll(b.errs[m.next:], ended)
		m.next = len(b.ops)
	}
	t := claim{lo: m.next, hi: m.next}
	if m.off == 0 {
		var sum uint64
		for t.hi < len(b.ops) && sum < turnBytes && !divisible(&b.ops[t.hi]) {
			sum += min(b.ops[t.hi].Len, turnBytes)
			t.hi++
		}
		m.next = t.hi
	}
	if t.lo == t.hi && m.next < len(b.ops) {
		size := b.ops[m.next].Len
		t.hi, t.off, t.n = t.lo+1, m.off, min(turnBytes, size-m.off)
		if m.off += t.n; m.off == size {
			m.next, m.off = m.next+1, 0
		}
	}
	t.ongoing = m.next < len(b.ops)
	return t
}

// divisible says that an op may be copied in pieces, by several and in any order. One that is summed is not.
func divisible(op *ports.CopyOp) bool {
	if op.Len <= turnBytes || op.Sum {
		return false
	}
	dst, src, err := sidesOf(op)
	return err == nil && !overlap(dst, src)
}

// copyPiece copies a claimed piece of a divisible op.
func (b *batch) copyPiece(t claim) (err error) {
	defer func() {
		if b.streams {
			fence()
		}
		if r := recover(); r != nil {
			err = faultOf(r)
		}
	}()
	dst, src, err := sidesOf(&b.ops[t.lo])
	copyBytes(dst[t.off:t.off+t.n], src[t.off:t.off+t.n], nil, b.streams)
	return err
}
