package inproc

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/spanpool/spanpool/domain"
)

// pacer is the driver of Driver OSThread: one locked thread steps all pairs and rings the alarms of control messages. Between
// two steps it sleeps in the kernel, with a timer slack of 1 ns, and not at all while it is behind: a sleep at every turn would
// make each of them late, and the rate with them. It copies itself: handing a turn to another goroutine costs a wake-up, which
// beside goroutines that keep all processors busy takes longer than the copy.
//
// A sleep is not interrupted by what is submitted meanwhile, hence its bound: whatever is submitted takes the link's delay at
// least, so a sleep that is no longer is over in time.
type pacer struct {
	net  *Network
	wake chan struct{} // capacity 1: "look again"

	// mu guards the lists only.
	mu struct {
		sync.Mutex
		pairs  []*pair
		alarms fifo[alarm] // in the order in which they are due, since all wait for the same delay
	}
}

type alarm struct {
	due  domain.Instant
	ring chan time.Time
}

// minNap bounds sleeps on links without a delay, where a bound of the delay would be no sleep at all.
const minNap = 50 * time.Microsecond

func newPacer(n *Network) *pacer { return &pacer{net: n, wake: make(chan struct{}, 1)} }

func (p *pacer) add(x *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.pairs = append(slices.Clip(p.mu.pairs), x) // a copy: run reads the old one without the lock
}

// alarm returns a channel that gets one value at that instant; nobody closes it.
func (p *pacer) alarm(due domain.Instant) <-chan time.Time {
	ring := make(chan time.Time, 1)
	p.mu.Lock()
	p.mu.alarms.push(alarm{due, ring})
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return ring
}

func (p *pacer) run() {
	runtime.LockOSThread() // for good: the thread ends with the goroutine, and what it is set to with it
	becomePacer()
	nap := max(minNap, p.net.model.Delay)
	for p.net.stop.Err() == nil {
		next, some := p.step()
		if !some {
			select {
			case <-p.wake:
			case <-p.net.stop.Done():
			}
			continue
		}
		if d := next.Sub(p.net.clock.Now()); d > 0 {
			nanosleep(min(d, nap))
		}
	}
}

// step steps every pair once.
func (p *pacer) step() (next domain.Instant, ok bool) {
	p.mu.Lock()
	pairs := p.mu.pairs
	for now := p.net.clock.Now(); p.mu.alarms.len() > 0; p.mu.alarms.pop() {
		a := p.mu.alarms.front()
		if a.due > now {
			next, ok = a.due, true
			break
		}
		a.ring <- time.Time{} // it has room for its one value
	}
	p.mu.Unlock()
	for _, x := range pairs {
		if at, some := x.step(); some && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}
