package daemon

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// resources is what was opened, and the goroutines that serve.
type resources struct {
	serving sync.WaitGroup
	failed  chan error // capacity 1: the first is what the daemon stops for, and what it reports
	mu      struct {
		sync.Mutex
		opened []resource
	}
}

type resource struct {
	part  string
	close func() error
}

func newResources() *resources { return &resources{failed: make(chan error, 1)} }

// opened notes how a part is closed: after all that are opened later.
func (r *resources) opened(part string, close func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.opened = append(r.mu.opened, resource{part, close})
}

// serve runs what serves until it is stopped; an error is one that the daemon stops for.
func (r *resources) serve(part string, run func() error) {
	r.serving.Go(func() {
		if err := run(); err != nil {
			select {
			case r.failed <- partError(part, err):
			default:
			}
		}
	})
}

// close closes in reverse order, once. It ends at the first part that cannot be closed or not within its time: what lies below it may
// still be in use, memory above all.
func (r *resources) close() error {
	r.mu.Lock()
	opened := r.mu.opened
	r.mu.opened = nil
	r.mu.Unlock()
	for len(opened) > 0 {
		last := opened[len(opened)-1]
		opened = opened[:len(opened)-1]
		if err := within(closeTimeout, last.close); err != nil {
			return partError("close "+last.part, err)
		}
	}
	return within(closeTimeout, func() error { r.serving.Wait(); return nil })
}

var errOvertime = errors.New("it takes too long")

// within leaves f running when it takes longer: the process is about to end.
func within(limit time.Duration, f func() error) error {
	done := make(chan error, 1) // f may end after nobody waits any more
	go func() { done <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: %v", errOvertime, limit)
	}
}
