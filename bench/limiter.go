package bench

import (
	"context"
	"sync"

	"github.com/spanpool/spanpool/ports"
)

// Limiter bounds how many goroutines copy, generate, poison or check content at once, whatever the number of ranks, so that a
// run never takes more processors than there are and the driver of a modelled link finds one when it wakes.
type Limiter struct{ free chan struct{} }

// NewLimiter makes a limiter of n places.
func NewLimiter(n int) *Limiter { return &Limiter{free: make(chan struct{}, n)} } // capacity: the places

// Do runs f in a place of its own, or returns the context's cause. f is one object's work and must not call Do, nor a pool
// whose copies the limiter bounds: with all places taken that way nobody could go on.
func (l *Limiter) Do(ctx context.Context, f func()) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.leave()
	f()
	return nil
}

func (l *Limiter) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case l.free <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Limiter) leave() { <-l.free }

// Places is how many may run at once.
func (l *Limiter) Places() int { return cap(l.free) }

// Copier is c within the limiter's places: a batch takes one, and lets the next in now and then.
func (l *Limiter) Copier(c ports.Copier) ports.Copier { return limitedCopier{l, c} }

type limitedCopier struct {
	l     *Limiter
	inner ports.Copier
}

var _ ports.Copier = limitedCopier{}

// copyTurn is the bytes after which a batch gives its place to whoever waits, as the system's scheduler would its processor: a
// put of many MiB would keep a short read waiting otherwise. A tenth of a millisecond; an op is not cut.
const copyTurn = 1 << 20

// Copy is ports.Copier's: a context that ends before there is a place leaves the ops that were not begun with its cause.
func (c limitedCopier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	for len(ops) > 0 {
		n := turnOf(ops)
		if err := c.l.enter(ctx); err != nil {
			for i := range errs {
				errs[i] = err
			}
			return
		}
		c.inner.Copy(ctx, ops[:n], errs[:n])
		c.l.leave()
		ops, errs = ops[n:], errs[n:]
	}
}

// turnOf is how many ops a turn takes: one at least.
func turnOf(ops []ports.CopyOp) int {
	var sum uint64
	for i := range ops {
		if sum += ops[i].Len; sum >= copyTurn {
			return i + 1
		}
	}
	return len(ops)
}

// inParallel runs f(0), ..., f(n-1) at once and returns the first error by index when all have ended.
func inParallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
