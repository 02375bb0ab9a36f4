package hip

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
)

// foreground and background are the queues of a device.
const (
	foreground = iota
	background
)

// device is one GPU: two queues of jobs, and threads that take from them.
type device struct {
	r       *Runtime
	ordinal int
	pci     string
	lost    chan struct{} // closed at the first step past its deadline
	lose    sync.Once
	ended   chan struct{} // closed by the last thread

	start    sync.Once
	startErr error // why the threads did not start
	stats    counters

	// mu guards the queues. Threads wait for work under it; nothing else waits under it, and no call of the library is made.
	mu struct {
		sync.Mutex
		work       sync.Cond
		closed     bool
		queues     [2][]*job // foreground, background
		background int       // jobs of the second that are being carried out
		running    int       // threads
	}
}

// counters are kept by threads and callers.
type counters struct{ jobs, rounds, submitted, bytes, timeouts, refused, errors atomic.Uint64 }

func newDevice(r *Runtime, ordinal int) *device {
	d := &device{r: r, ordinal: ordinal, lost: make(chan struct{}), ended: make(chan struct{})}
	d.mu.work.L = &d.mu
	return d
}

func (d *device) isLost() bool {
	select {
	case <-d.lost:
		return true
	default:
		return false
	}
}

// markLost ends the device's use, and wakes its threads and everyone who waits.
func (d *device) markLost() {
	d.lose.Do(func() {
		close(d.lost)
		d.mu.Lock()
		d.mu.work.Broadcast()
		d.mu.Unlock()
	})
}

// begin makes the threads at the first use. A thread that cannot be set up ends all of them.
func (d *device) begin() error {
	d.start.Do(func() { d.startErr = d.startThreads() })
	return d.startErr
}

func (d *device) startThreads() error {
	d.mu.Lock()
	if d.mu.closed {
		d.mu.Unlock()
		return ports.ErrClosed
	}
	d.mu.running = d.r.cfg.Threads
	d.mu.Unlock()
	ready := make(chan error, d.r.cfg.Threads) // a word of each thread, which nobody may wait for any more
	for range d.r.cfg.Threads {
		go d.thread(ready) // close waits for them by ended
	}
	timer := time.NewTimer(slowDeadline)
	defer timer.Stop()
	var err error
	for range d.r.cfg.Threads {
		select {
		case werr := <-ready:
			err = errors.Join(err, werr)
		case <-timer.C:
			err = fmt.Errorf("%w: it did not start within %v", ErrLost, slowDeadline)
			d.markLost()
		}
		if err != nil {
			d.endThreads()
			break
		}
	}
	return err
}

// endThreads has them end after what they are at.
func (d *device) endThreads() (some bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.closed = true
	d.mu.work.Broadcast()
	return d.mu.running > 0
}

// thread is one of the device's: it takes jobs until the device closes or is lost.
func (d *device) thread(ready chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and what was set on it
	w, err := newWorker(d)
	ready <- err
	if err == nil {
		for !w.away { // else the driver may still use what is this thread's
			j, queue := d.next()
			if j == nil {
				break
			}
			w.run(j, queue)
			d.finished(queue)
		}
		w.close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.running--; d.mu.running == 0 {
		close(d.ended)
	}
}

// next waits for a job: foreground before background, and background on half of the threads at most. nil is the end. What was queued
// before the device closed is carried out, for somebody waits for it.
func (d *device) next() (j *job, queue int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.isLost() {
		if j, queue = d.takeLocked(); j != nil || d.mu.closed {
			return j, queue
		}
		d.mu.work.Wait()
	}
	return nil, 0
}

func (d *device) takeLocked() (*job, int) {
	for q := range d.mu.queues {
		jobs := d.mu.queues[q]
		if len(jobs) == 0 || q == background && d.mu.background >= max(1, d.r.cfg.Threads/2) {
			continue
		}
		j := jobs[0]
		d.mu.queues[q] = slices.Delete(jobs, 0, 1)
		if q == background {
			d.mu.background++
		}
		return j, q
	}
	return nil, 0
}

// finished lets the next background job begin.
func (d *device) finished(queue int) {
	if queue != background {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.background--
	d.mu.work.Signal()
}

// submit queues a job.
func (d *device) submit(j *job, queue int) error {
	if d.isLost() {
		return ErrLost
	}
	if err := d.begin(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return ports.ErrClosed
	}
	d.mu.queues[queue] = append(d.mu.queues[queue], j)
	d.mu.work.Signal()
	return nil
}

// drop takes a job out that was given up.
func (d *device) drop(j *job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.mu.queues {
		if i := slices.Index(d.mu.queues[q], j); i >= 0 {
			d.mu.queues[q] = slices.Delete(d.mu.queues[q], i, i+1)
		}
	}
}

// close ends the threads, waits for them for a bounded time, and says what could not be given back.
func (d *device) close() error {
	if d.endThreads() {
		timer := time.NewTimer(d.r.cfg.Deadline)
		defer timer.Stop()
		select {
		case <-d.ended:
		case <-timer.C:
			return fail("close", d.ordinal, fmt.Errorf("%w: a thread is still in the library, and keeps its memory", ErrLost))
		}
	}
	if d.isLost() {
		return fail("close", d.ordinal, fmt.Errorf("%w: what was under way keeps its memory", ErrLost))
	}
	return nil
}

// do runs f on a thread of the device and waits for it, for at most a slow call's time.
func (d *device) do(op string, f func(*hiprt.Lib) (uint64, error)) (uint64, error) {
	j := newJob()
	j.do = f
	if err := d.submit(j, foreground); err != nil {
		return 0, fail(op, d.ordinal, err)
	}
	if !j.wait(d, slowDeadline) {
		return 0, fail(op, d.ordinal, ErrLost)
	}
	return j.value, fail(op, d.ordinal, j.err)
}
