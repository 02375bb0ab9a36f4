package app_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// scenario is some calls, on nodes a (owner), b (who calls) and c (owner too), that go well when nothing goes wrong.
type scenario struct {
	name     string
	get, put uint64 // arenas of b
	locality domain.LocalityMode
	direct   bool // b's callers register their memory
	puts     bool
	prepare  func(s *attempt)
	act      func(s *attempt)
	after    func(s *attempt) // without faults; it must go well whatever act met
}

// attempt is one run of a scenario: with no fault, or with one.
type attempt struct {
	w        *world
	a, b, c  *node
	ctx      context.Context
	cancel   context.CancelFunc
	session  ports.SessionID
	statuses []ports.Status
	beside   []ports.Status // of calls that nobody cancels
	longest  time.Duration
	grace    time.Duration // for which a cancelled call may go on
	calm     chan struct{} // capacity 1: a lock that virtual time waits at, between restarts and looks at the nodes
	sudden   atomic.Int64  // when the context was cancelled, in nanoseconds of the clock; 0: never
}

func (s *attempt) nodes() []*node { return []*node{s.a, s.b, s.c} }

// get reads by b and checks every hit.
func (s *attempt) get(wants ...want) {
	s.timed(func() { s.note(s.b.getIn(s.ctx, s.session, wants...)) })
}

func (s *attempt) timed(f func()) {
	begin := s.w.clock.Now()
	f()
	s.longest = max(s.longest, s.w.clock.Now().Sub(begin))
	if at := domain.Instant(s.sudden.Load()); at != 0 {
		require.LessOrEqual(s.w.t, s.w.clock.Now().Sub(max(at, begin)), s.grace, "a cancelled call goes on")
	}
}

func (s *attempt) note(out []ports.Result) {
	for _, r := range out {
		s.statuses = append(s.statuses, r.Status)
	}
}

// stepsOf is the runs lo, lo+by, ... below hi of n of each key.
func stepsOf(n, lo, hi, by uint64, keys ...string) (wants []want) {
	const size = faultSize
	for _, k := range keys {
		var runs []domain.Run
		for i := lo; i < hi; i += by {
			runs = append(runs, domain.Run{Off: size * i / n, Len: size*(i+1)/n - size*i/n})
		}
		wants = append(wants, parts(k, runs...))
	}
	return wants
}

const faultSize = 2_500

// faultCuts is a multiple of every number of steps, so that what is read is put-ranges: a bit that turns over is found.
const faultCuts = 56

var scenarios = []scenario{
	{
		name: "layer-wise get over slots with pull",
		prepare: func(s *attempt) {
			s.a.putCut(faultSize, faultCuts, "k0", "k1")
			s.c.putCut(faultSize, faultCuts, "k2")
		},
		act: func(s *attempt) {
			s.get(stepsOf(4, 0, 1, 1, "k0", "k1", "k2")...)
			s.get(stepsOf(4, 1, 3, 1, "k2", "k1", "k0")...)
			s.rest()
		},
		after: func(s *attempt) { s.mustRead("k0", "k1", "k2") },
	},
	{
		name: "two readers of the same bytes",
		prepare: func(s *attempt) {
			s.a.putCut(faultSize, faultCuts, "k0", "k1")
			s.c.putCut(faultSize, faultCuts, "k2")
		},
		act: func(s *attempt) {
			other := s.b.begin(context.Background(), 0, stepsOf(4, 0, 2, 1, "k0", "k1", "k2")...)
			s.get(stepsOf(4, 0, 3, 1, "k0", "k1", "k2")...)
			for _, r := range other.wait() {
				s.beside = append(s.beside, r.Status)
			}
			s.rest()
		},
		after: func(s *attempt) { s.mustRead("k0", "k1", "k2") },
	},
	{
		name: "arena get in several rounds",
		get:  1_024, locality: domain.LocalityOff,
		prepare: func(s *attempt) {
			s.a.putCut(faultSize, faultCuts, "k0", "k1")
			s.c.putCut(faultSize, faultCuts, "k2")
		},
		act:   func(s *attempt) { s.get(stepsOf(7, 0, 7, 2, "k0", "k1", "k2")...) },
		after: func(s *attempt) { s.get(stepsOf(7, 1, 7, 2, "k0", "k1", "k2")...) },
	},
	{
		name: "direct get", direct: true,
		get: arenaOff, locality: domain.LocalityOff,
		prepare: func(s *attempt) {
			s.a.putCut(faultSize, faultCuts, "k0", "k1")
			s.c.putCut(faultSize, faultCuts, "k2")
		},
		act: func(s *attempt) {
			s.grace = 25 * time.Millisecond // it returns when its memory is quiet
			s.get(stepsOf(7, 0, 7, 2, "k0", "k1", "k2")...)
		},
		after: func(s *attempt) { s.get(stepsOf(7, 1, 7, 2, "k0", "k1", "k2")...) },
	},
	{
		name: "direct put", direct: true,
		put:  arenaOff,
		puts: true,
		prepare: func(s *attempt) {
			s.b.get(part("none", 0, 1)) // so that links are there
		},
		act: func(s *attempt) {
			s.grace = 25 * time.Millisecond
			s.timed(func() { s.note(s.b.putTo(s.ctx, "a", 0, faultSize, 3, "k0", "k1")) })
		},
		after: func(s *attempt) {
			s.w.pass(4 * time.Second) // a reservation whose end was not told ends by its deadline
			for _, r := range s.b.putTo(context.Background(), "a", 1, faultSize, 3, "k0", "k1") {
				require.Contains(s.w.t, []ports.Status{ports.Stored, ports.Exists}, r.Status, "%v", r.Err)
			}
			s.mustRead("k0", "k1")
		},
	},
	{
		name: "remote put in several rounds",
		put:  1_024,
		puts: true,
		prepare: func(s *attempt) {
			s.b.get(part("none", 0, 1)) // so that links are there
		},
		act: func(s *attempt) {
			s.grace = 25 * time.Millisecond // it tells the owner, or learns what became of its commit
			s.timed(func() { s.note(s.b.putTo(s.ctx, "a", 0, faultSize, 3, "k0", "k1")) })
		},
		after: func(s *attempt) {
			s.w.pass(4 * time.Second) // a reservation whose end was not told ends by its deadline
			for _, r := range s.b.putTo(context.Background(), "a", 1, faultSize, 3, "k0", "k1") {
				require.Contains(s.w.t, []ports.Status{ports.Stored, ports.Exists}, r.Status, "%v", r.Err)
			}
			s.mustRead("k0", "k1")
		},
	},
	{
		name: "session with renewal",
		prepare: func(s *attempt) {
			s.a.putCut(faultSize, faultCuts, "k0", "k1")
			s.c.putCut(faultSize, faultCuts, "k2")
			var err error
			s.session, err = s.b.OpenRead(context.Background(), namespace)
			require.NoError(s.w.t, err)
		},
		act: func(s *attempt) {
			for group := range uint64(3) {
				s.get(stepsOf(8, group, group+1, 1, "k0", "k1", "k2")...)
				s.w.pass(60 * time.Millisecond) // more than half of the lease
			}
			s.rest()
		},
		after: func(s *attempt) {
			require.NoError(s.w.t, s.b.CloseRead(s.session))
			s.session = 0
			s.mustRead("k0", "k1", "k2")
		},
	},
}

// rest waits until nothing is under way.
func (s *attempt) rest() {
	s.calm <- struct{}{}
	s.w.settle()
	<-s.calm
}

// mustRead requires whole hits.
func (s *attempt) mustRead(keys ...string) {
	for i, r := range s.b.getWhole(faultSize, keys...) {
		require.Equal(s.w.t, ports.Hit, r.Status, "%q afterwards: %v", keys[i], r.Err)
	}
}

// try runs a scenario in a bubble, with a plan for one of the nodes.
func (sc scenario) try(t *testing.T, node int, plan func(s *attempt) faults.Plan, look func(s *attempt, before []int)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOver(t, false, &inproc.LinkModel{BytesPerSecond: 1e8, Delay: 100 * time.Microsecond})
		s := &attempt{w: w, calm: make(chan struct{}, 1)}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		defer s.cancel()
		quick := app.Config{PeerLease: 100 * time.Millisecond, BreakerMax: time.Second, Reservation: 3 * time.Second, SweepEvery: 250 * time.Millisecond}
		small := place{page: 1_024, pages: 64, get: 4 * kib, put: 4 * kib, Config: quick}
		s.a, s.c = w.node("a", small), w.node("c", small)
		small.get, small.put, small.Locality = orElse(sc.get, small.get), orElse(sc.put, small.put), sc.locality
		small.registered = sc.direct
		s.b = w.node("b", small)
		sc.prepare(s)
		w.settle()
		var before []int
		for _, n := range s.nodes() {
			before = append(before, len(n.faults.Calls()))
		}
		if plan != nil {
			s.nodes()[node].fail(plan(s))
		}
		sc.act(s)
		look(s, before)
		for _, n := range s.nodes() {
			n.fail()
			require.NoError(t, n.CheckForTesting(), "%s", n.id)
		}
		s.ctx = context.Background()
		s.sudden.Store(0)
		w.settle()
		w.pass(1100 * time.Millisecond) // breakers close
		sc.after(s)
		w.settle()
		for _, n := range s.nodes() {
			require.NoError(t, n.CheckForTesting(), "%s", n.id)
			require.NoError(t, n.CheckIdleForTesting(), "%s", n.id)
		}
	})
}

// place of a fault: a call of a node.
type faultPlace struct {
	node int
	call faults.Call
}

// record runs a scenario without faults and lists its calls.
func (sc scenario) record(t *testing.T) (at []faultPlace) {
	sc.try(t, 0, nil, func(s *attempt, before []int) {
		for _, st := range s.statuses {
			require.True(t, st.OK(), "without a fault: %v", st)
		}
		for i, n := range s.nodes() {
			for _, c := range n.faults.Calls()[before[i]:] {
				if c.Method != "Register" && c.Method != "Deregister" { // the test's own
					at = append(at, faultPlace{i, c})
				}
			}
		}
	})
	return at
}

// wrong is one thing that can go wrong at a call.
type wrong struct {
	name string
	v    faults.Verdict
}

var errOfPort = map[string]error{"Copier": ports.ErrBounds, "Link": ports.ErrReset}

// wrongsAt is what can go wrong at a call; what waits for a context's end only where there is one.
func wrongsAt(c faults.Call) []wrong {
	err, ok := errOfPort[c.Port]
	if !ok {
		err = ports.ErrPeer
	}
	all := []wrong{{"an error before", faults.Verdict{Err: err}}, {"an error after", faults.Verdict{Err: err, Effect: true}},
		{"late", faults.Verdict{Before: faults.For(700 * time.Millisecond)}}, {"its answer late", faults.Verdict{After: faults.For(700 * time.Millisecond)}}}
	name := c.Port + "." + c.Method
	if name == "Link.Op" || c.Port == "PeerResolver" || c.Port == "PeerWriter" || name == "Directory.Holders" {
		all = append(all, wrong{"never", faults.Verdict{Drop: true}}, wrong{"its answer never", faults.Verdict{Drop: true, Effect: true}}, wrong{"short", faults.Verdict{Short: true}})
	}
	if name == "Link.Op" {
		all = append(all, wrong{"a bit that turns over", faults.Verdict{Flip: true}})
	}
	if c.Port == "Copier" {
		all = append(all[:2], wrong{"short", faults.Verdict{Short: true}})
	}
	if holdsNothing(c) {
		all = all[:2]
	}
	return all
}

// holdsNothing is the calls that must not block, so that no delay holds them back.
func holdsNothing(c faults.Call) bool {
	return slices.Contains([]string{"Announce", "Withdraw", "Submit", "Cancel"}, c.Method)
}

// allowed is the failure table: what a key may say when one thing went wrong at a call, and nothing else.
func (sc scenario) allowed(c faults.Call) []ports.Status {
	if sc.puts {
		ok := []ports.Status{ports.Stored, ports.Exists, ports.PeerUnavailable}
		switch c.Port {
		case "Copier":
			return append(ok, ports.CopyFailed)
		case "Transport":
			return append(ok, ports.Refused, ports.TransferFailed)
		}
		return append(ok, ports.TransferFailed)
	}
	switch c.Port {
	case "Copier":
		return []ports.Status{ports.Hit, ports.CopyFailed}
	case "Link":
		return []ports.Status{ports.Hit, ports.PeerUnavailable, ports.TransferFailed, ports.Late, ports.Corrupt}
	}
	return []ports.Status{ports.Hit, ports.PeerUnavailable}
}

// TestAFaultAtAnyCallLeavesNothingBehind runs each scenario once for each port call that it makes and each thing that can go wrong
// there: with an error, late, never, short.
func TestAFaultAtAnyCallLeavesNothingBehind(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel() // with the other scenarios
			for _, at := range sc.record(t) {
				for _, wr := range wrongsAt(at.call) {
					t.Run(fmt.Sprintf("%v of node %d/%s", at.call, at.node, wr.name), func(t *testing.T) {
						sc.try(t, at.node, func(*attempt) faults.Plan { return faults.At(at.call, wr.v) }, func(s *attempt, _ []int) {
							for _, st := range append(s.statuses, s.beside...) {
								require.Contains(t, sc.allowed(at.call), st)
							}
							require.Less(t, s.longest, 5*time.Second, "one fault cost the whole of a call's time")
						})
					})
				}
			}
		})
	}
}

// TestACancellationAtAnyCallLeavesNothingBehind ends the caller's context at each port call and at each completion, and while each is
// waited for.
func TestACancellationAtAnyCallLeavesNothingBehind(t *testing.T) {
	moments := []struct {
		name  string
		waits bool
		v     func(end func()) faults.Verdict
	}{
		{"before it", false, func(end func()) faults.Verdict { return faults.Verdict{Before: faults.Do(end)} }},
		{"after it", false, func(end func()) faults.Verdict { return faults.Verdict{After: faults.Do(end)} }},
		{"while it is waited for", true, func(end func()) faults.Verdict {
			return faults.Verdict{Before: func(release func()) {
				time.AfterFunc(time.Millisecond, end)
				time.AfterFunc(20*time.Millisecond, release)
			}}
		}},
		{"while its answer is waited for", true, func(end func()) faults.Verdict {
			return faults.Verdict{After: func(release func()) {
				time.AfterFunc(time.Millisecond, end)
				time.AfterFunc(20*time.Millisecond, release)
			}}
		}},
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel() // with the other scenarios
			for _, at := range sc.record(t) {
				for _, mo := range moments {
					if mo.waits && (at.call.Port == "Copier" || holdsNothing(at.call)) {
						continue // it works while it is called, or returns at once
					}
					t.Run(fmt.Sprintf("%v of node %d/%s", at.call, at.node, mo.name), func(t *testing.T) {
						sc.try(t, at.node, func(s *attempt) faults.Plan {
							return faults.At(at.call, mo.v(func() {
								s.sudden.CompareAndSwap(0, int64(s.w.clock.Now()))
								s.cancel()
							}))
						}, func(s *attempt, _ []int) {
							for _, st := range s.statuses {
								require.Contains(t, append(sc.allowed(faults.Call{}), ports.Cancelled), st)
							}
							for _, st := range s.beside {
								require.Equal(t, ports.Hit, st, "who was not cancelled")
							}
							s.w.settle()
							require.NoError(t, s.a.CheckIdleForTesting(), "the owner was not told, and waits for the reservation's end")
						})
					})
				}
			}
		})
	}
}

// TestAnOwnerThatRestartsAtAnyCallLeavesNothingBehind ends the start of an owner, and begins the next one with an empty medium, at each
// call that the reader or writer makes.
func TestAnOwnerThatRestartsAtAnyCallLeavesNothingBehind(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel() // with the other scenarios
			for _, at := range sc.record(t) {
				if at.node != 1 || at.call.Port == "Copier" && at.call.Method == "Op" {
					continue // an op of a copy has no time of its own
				}
				t.Run(fmt.Sprint(at.call), func(t *testing.T) {
					restarted := make(chan struct{}, 1)
					sc.try(t, at.node, func(s *attempt) faults.Plan {
						restarted = make(chan struct{}, 1) // of the bubble
						return faults.At(at.call, faults.Verdict{Before: func(release func()) {
							go func() {
								defer release()
								s.calm <- struct{}{}
								s.a.restart()
								<-s.calm
								restarted <- struct{}{}
							}()
						}})
					}, func(s *attempt, _ []int) {
						select {
						case <-restarted:
						case <-time.After(time.Minute): // this run had fewer such calls
						}
						for _, st := range append(s.statuses, s.beside...) {
							require.Contains(t, []ports.Status{ports.Hit, ports.NotFound, ports.PeerUnavailable, ports.TransferFailed, ports.Late, ports.Stored}, st)
						}
						require.Less(t, s.longest, 5*time.Second, "one fault cost the whole of a call's time")
						if !sc.puts {
							s.a.putAs("k0", 0, faultSize)
							s.a.putAs("k1", 0, faultSize)
						}
					})
				})
			}
		})
	}
}
