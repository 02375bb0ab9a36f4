package hip

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
)

// The states of a job. Its thread moves it from touching to away and to ended, and by compare-and-swap from queued and from away to
// touching; who waits moves it from queued and from away to abandoned, which is the end of it.
const (
	queued uint32 = iota
	touching
	away
	ended
	abandoned
)

// job is what a thread carries out: ops of one device, or a function. The columns are the caller's, and are read and written by the
// thread while it is touching only.
type job struct {
	ctx   context.Context
	ops   []ports.CopyOp
	errs  []error
	mine  []uint32 // of ops, in their order; of this device
	next  int      // the first of mine that is not decided
	state atomic.Uint32
	steps atomic.Uint64 // moves with every state; who waits sees by it that the thread goes on

	do    func(*hiprt.Lib) (uint64, error)
	value uint64
	err   error

	done  chan struct{} // capacity 1: the thread's last word
	timer *time.Timer
}

func newJob() *job {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &job{done: make(chan struct{}, 1), timer: t}
}

func (j *job) reset() {
	j.ctx, j.ops, j.errs, j.mine, j.next, j.do, j.err = nil, nil, nil, j.mine[:0], 0, nil, nil
	j.state.Store(queued)
}

// touch is the thread's right to read and write the columns and the callers' memory; false: the job was given up.
func (j *job) touch(from uint32) bool {
	j.steps.Add(1)
	return j.state.CompareAndSwap(from, touching)
}

// leave says that only the driver is at work from now on.
func (j *job) leave() {
	j.steps.Add(1)
	j.state.Store(away)
}

func (j *job) end() {
	j.state.Store(ended)
	j.done <- struct{}{}
}

// lostTick is how often a wait looks again when the device is lost and the thread is touching.
const lostTick = time.Millisecond

// wait returns true when the job has ended, and false when it was given up: then nothing touches its columns or host memory any more,
// and the job is not used again. It gives up when the thread stood still for the deadline, or the device is lost.
func (j *job) wait(d *device, deadline time.Duration) bool {
	lost := d.lost
	last, tick := j.steps.Load(), deadline
	for {
		j.timer.Reset(tick)
		select {
		case <-j.done:
			j.timer.Stop()
			return true
		case <-lost:
			lost, tick = nil, lostTick
		case <-j.timer.C:
		}
		steps := j.steps.Load()
		still := steps == last
		last = steps
		switch {
		case still && lost != nil && j.state.CompareAndSwap(away, abandoned):
			d.stats.timeouts.Add(1)
			d.markLost()
			return false
		case lost == nil && (j.state.CompareAndSwap(away, abandoned) || j.state.CompareAndSwap(queued, abandoned)):
			d.drop(j)
			return false
		}
	}
}
