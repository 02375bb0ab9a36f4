package bench

import (
	"context"
	"sync"
)

// Limiter bounds how many goroutines generate, poison or check content at once, whatever the number of ranks, so that the
// benchmark's own work never takes more processors than there are.
type Limiter struct{ free chan struct{} }

// NewLimiter makes a limiter of n places.
func NewLimiter(n int) *Limiter { return &Limiter{free: make(chan struct{}, n)} } // capacity: the places

// Do runs f in a place of its own, or returns the context's cause. f is one object's work and must not call Do.
func (l *Limiter) Do(ctx context.Context, f func()) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case l.free <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.free }()
	f()
	return nil
}

// Places is how many may run at once.
func (l *Limiter) Places() int { return cap(l.free) }

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
