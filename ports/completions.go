package ports

import (
	"context"
	"sync"
	"time"

	"github.com/spanpool/spanpool/domain"
)

// Completion of one op. Every submitted op completes exactly once; after that its memory is quiet.
//
// Sum is the CRC-32C of the op's bytes in the order of its segments, when Summed says so. It is of the bytes that were stored at
// their destination: each was loaded once, for both, or it was summed where it had been stored. It is never of a second look at the
// source, which its owner may overwrite meanwhile: then it would vouch for bytes that nobody has. Only an op that asked, and that
// completed well, is summed; one that asked may come without, and whoever needs its sum makes it. Segments that share a byte of the
// destination make it meaningless.
type Completion struct {
	Tag    uint64
	At     domain.Instant // when the transport saw it: what a lease is compared with
	Err    error
	Sum    uint32
	Summed bool
}

// Completions is the one queue in which a call waits. Links post to it, and so do flights that the call joined, arena grants
// and answers of peers. A concrete type: a queue that is mocked would prove nothing.
type Completions struct {
	mu struct {
		sync.Mutex
		items []Completion
	}
	wake  chan struct{} // capacity 1: "there may be items"
	timer *time.Timer   // of Take; reused, so that a bounded wait allocates nothing
}

// NewCompletions makes an empty queue.
func NewCompletions() *Completions {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Completions{wake: make(chan struct{}, 1), timer: t}
}

// Post never blocks, and may be called with a lock held. It keeps the room it grew to, so it does not allocate in steady state.
func (q *Completions) Post(c Completion) {
	q.mu.Lock()
	q.mu.items = append(q.mu.items, c)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Take appends what has come to dst. It waits for at least one, for at most the given time (zero: not at all), and returns
// what dst held when nothing came. The context's end ends the wait only, with its cause. One taker at a time.
func (q *Completions) Take(ctx context.Context, atMost time.Duration, dst []Completion) ([]Completion, error) {
	held := len(dst)
	armed := false
	for {
		q.mu.Lock()
		dst = append(dst, q.mu.items...)
		q.mu.items = q.mu.items[:0]
		q.mu.Unlock()
		if len(dst) > held || atMost <= 0 {
			q.disarm(armed)
			return dst, nil
		}
		if !armed {
			q.timer.Reset(atMost)
			armed = true
		}
		select {
		case <-q.wake:
		case <-q.timer.C:
			return q.drain(dst), nil
		case <-ctx.Done():
			q.disarm(armed)
			return q.drain(dst), context.Cause(ctx)
		}
	}
}

// Len is the number of completions that wait to be taken.
func (q *Completions) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.mu.items)
}

func (q *Completions) drain(dst []Completion) []Completion {
	q.mu.Lock()
	defer q.mu.Unlock()
	dst = append(dst, q.mu.items...)
	q.mu.items = q.mu.items[:0]
	return dst
}

func (q *Completions) disarm(armed bool) {
	if armed {
		q.timer.Stop()
	}
}
