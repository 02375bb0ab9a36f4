// Package faults wraps ports so that a test decides, call by call, what goes wrong: an error before or after the effect, a
// delay, an answer that never comes, comes out of order, is short, or lies. A wrapped port keeps its contract, however bad its
// news: every op completes exactly once, and its memory is quiet after that.
//
// A Plan is asked about every call, and about every op of a batch, by port, method and number. So a test can run a case once
// without faults, and then once more for each call that Calls lists, with a fault in that place.
//
// Delays are functions of the test's: in a synctest bubble they take virtual time. Nothing here sleeps.
package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Call is what a Plan is asked about.
type Call struct {
	Port, Method string       // "Link", "Submit"; an op of a batch is "Link", "Op" or "Copier", "Op"
	N            uint64       // the n-th call of this method of this port, from 1
	Peer         ports.Peer   // where there is one; a link's has no incarnation
	Op           ports.Op     // of "Link", "Op"
	Copy         ports.CopyOp // of "Copier", "Op"
}

func (c Call) String() string { return fmt.Sprintf("%s.%s #%d", c.Port, c.Method, c.N) }

// Delay holds something back until release is called: on any goroutine, once or more. It must not block; a delay that nobody
// releases ends with the call's context, or the link.
type Delay func(release func())

// Verdict is what happens to a call. The zero Verdict lets it pass.
type Verdict struct {
	// Before holds the call back until the port sees it, After its answer until the caller does. For an op of a link: the
	// submission, and the completion (whose instant stays the one at which the inner transport saw it). In what must not
	// block (Submit, Cancel, Announce, Withdraw, Now) they run and hold nothing back.
	Before, After Delay
	// Err is what the caller gets in place of an answer. The port never sees the call, unless Effect.
	Err error
	// Drop: there is no answer. The call waits for its context's end (a call without one panics: the plan is wrong). An op
	// of a link waits for Cancel (ErrCancelled), its deadline (ErrTimeout, and the link dies, as by contract; needs the
	// Injector's Time), or the link's end (ErrReset). Directory.Announce and Withdraw just drop. The port never sees it, unless
	// Effect.
	Drop bool
	// Effect: with Err or Drop, the port does what was asked, and the caller is not told.
	Effect bool
	// Short: the answer lacks its last row; the last op of a Copy fails; an op of a link moves only the first half of its
	// segments and fails. Err says with what; none: ErrReset for a link, ErrShort for a Copy.
	Short bool
	// Flip: one bit of what an op of a link moves is another one when it arrives, and the op goes well. It says nothing of a Copy,
	// and memory that is not the host's stays.
	Flip bool
	// Missum: the sum that comes with an op of a link is not that of its bytes.
	Missum bool
	// Edit changes a reply (*ports.ResolveReply, *ports.HelloReply, *ports.Holders, ...) before the caller sees it.
	Edit func(reply any)
}

func (v Verdict) isZero() bool {
	return v.Before == nil && v.After == nil && v.Err == nil && !v.Drop && !v.Effect && !v.Short && !v.Flip && !v.Missum && v.Edit == nil
}

// fails says that the caller gets no answer of the port's.
func (v Verdict) fails() bool { return v.Err != nil || v.Drop }

// Plan decides. It is called by many goroutines at once, and with no lock held.
type Plan func(Call) Verdict

// At is a fault at one call, as Calls listed it.
func At(c Call, v Verdict) Plan {
	return func(d Call) Verdict {
		if d.Port == c.Port && d.Method == c.Method && d.N == c.N {
			return v
		}
		return Verdict{}
	}
}

// Every is a fault at every call of a method.
func Every(port, method string, v Verdict) Plan {
	return func(c Call) Verdict {
		if c.Port == port && c.Method == method {
			return v
		}
		return Verdict{}
	}
}

// First is the first verdict of several plans that does anything.
func First(plans ...Plan) Plan {
	return func(c Call) Verdict {
		for _, p := range plans {
			if v := p(c); !v.isZero() {
				return v
			}
		}
		return Verdict{}
	}
}

// For is a Delay of d, virtual in a bubble.
func For(d time.Duration) Delay {
	return func(release func()) { time.AfterFunc(d, release) }
}

// Do is no delay: it runs f in that place, on the goroutine that is there.
func Do(f func()) Delay {
	return func(release func()) {
		f()
		release()
	}
}

// Gate holds back whatever is given its Hold, until it is opened. The zero Gate is closed.
type Gate struct {
	mu struct {
		sync.Mutex
		held []func()
	}
}

// Hold is the Delay.
func (g *Gate) Hold(release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.held = append(g.mu.held, release)
}

// Held is the number of things that wait.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.held)
}

// Open lets go of what waits now, in the order of its coming.
func (g *Gate) Open() { g.open(false) }

// OpenReversed lets go of what waits now, the last first.
func (g *Gate) OpenReversed() { g.open(true) }

func (g *Gate) open(reversed bool) {
	g.mu.Lock()
	held := g.mu.held
	g.mu.held = nil
	g.mu.Unlock()
	if reversed {
		slices.Reverse(held)
	}
	for _, release := range held {
		release()
	}
}

// Reverse is a Delay that lets go of each n of what it holds in reverse order. What is left of fewer than n is held on.
func Reverse(n int) Delay {
	var mu sync.Mutex
	var g Gate
	return func(release func()) {
		mu.Lock()
		defer mu.Unlock()
		g.Hold(release)
		if g.Held() >= n {
			g.OpenReversed()
		}
	}
}

// Injector wraps ports and keeps the books. One serves all ports of a node, or of several. Safe for parallel use.
type Injector struct {
	// Time dates the completions that the Injector makes itself and enforces the deadlines of ops that it holds. Without
	// one, the former have no date, and the latter wait for Cancel or the link's end. Set it before the first call.
	Time ports.Clock

	plan Plan
	mu   struct { // guards the books only: the plan and the ports are called without it
		sync.Mutex
		counts map[[2]string]uint64
		calls  []Call
		skew   time.Duration
	}
}

// New makes an Injector. A nil plan lets everything pass.
func New(plan Plan) *Injector {
	i := &Injector{plan: plan}
	i.mu.counts = map[[2]string]uint64{}
	return i
}

// Calls lists what was called so far, in order, ops included. Clock.Now is counted, but too frequent to be listed.
func (i *Injector) Calls() []Call {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.mu.calls)
}

// Count is the number of calls of a method.
func (i *Injector) Count(port, method string) uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.counts[[2]string{port, method}]
}

// Skew moves what wrapped clocks say ahead, by d from now on. Back is against a Clock's contract, and panics.
func (i *Injector) Skew(d time.Duration) {
	if d < 0 {
		panic(fmt.Sprintf("faults: skew of %v: a clock never goes back", d))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.skew += d
}

// decide numbers a call and asks the plan.
func (i *Injector) decide(c Call) Verdict {
	i.mu.Lock()
	name := [2]string{c.Port, c.Method}
	i.mu.counts[name]++
	c.N = i.mu.counts[name]
	if c.Port != "Clock" {
		i.mu.calls = append(i.mu.calls, c)
	}
	i.mu.Unlock()
	if i.plan == nil {
		return Verdict{}
	}
	return i.plan(c)
}

func (i *Injector) now() domain.Instant {
	if i.Time == nil {
		return 0
	}
	return i.Time.Now()
}

// call is a call that answers by reply and error. inner has its effect or fails; reply is what the caller will look at, nil
// if there is none.
func (i *Injector) call(ctx context.Context, c Call, reply any, inner func() error) error {
	v := i.decide(c)
	if err := v.Before.wait(ctx); err != nil {
		return err
	}
	var err error
	if !v.fails() || v.Effect {
		err = inner()
	}
	if late := v.After.wait(ctx); late != nil {
		return late // the answer came to nobody
	}
	switch {
	case v.Drop:
		return drop(ctx, c)
	case v.Err != nil:
		return v.Err
	case err != nil:
		return err
	}
	v.spoil(reply)
	return nil
}

// wait returns the context's cause if that ended before the release.
func (d Delay) wait(ctx context.Context) error {
	if d == nil {
		return nil
	}
	released := make(chan struct{})
	d(sync.OnceFunc(func() { close(released) }))
	select {
	case <-released:
		return nil
	default:
	}
	select {
	case <-released:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func drop(ctx context.Context, c Call) error {
	if ctx.Done() == nil {
		panic(fmt.Sprintf("faults: Drop of %s.%s, whose context never ends", c.Port, c.Method))
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (v Verdict) spoil(reply any) {
	if v.Short {
		shorten(reply)
	}
	if v.Edit != nil {
		v.Edit(reply)
	}
}
