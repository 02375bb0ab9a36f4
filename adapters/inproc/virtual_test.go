package inproc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

// The modelled link of these tests sends a byte a nanosecond, so that a turn takes TurnBytes ns.
const delay = 700 * time.Microsecond

// wires is two nodes with memory, joined by that link in virtual time.
type wires struct {
	net  *Network
	a, b *porttest.TransportEnd
	mem  ports.HostRegion
}

// inVirtualTime runs a claim in a bubble of its own, once the nodes are there.
func inVirtualTime(t *testing.T, claim func(t *testing.T, w *wires)) {
	synctest.Test(t, func(t *testing.T) {
		w := &wires{net: NewNetwork(Options{Link: &LinkModel{BytesPerSecond: 1e9, Delay: delay}}), mem: ports.HostRegionOf(make([]byte, 64*TurnBytes))}
		defer func() { require.NoError(t, w.net.Close()) }()
		w.a, w.b = startNode(t, w.net, "a", 1, mute{}), startNode(t, w.net, "b", 2, &porttest.FakeServer{})
		require.NoError(t, w.a.Transport.Expose(0, w.mem))
		require.NoError(t, w.b.Transport.Expose(0, w.mem))
		claim(t, w)
	})
}

// transfer is a batch of ops of so many bytes each.
func (w *wires) transfer(dir ports.Direction, bytes ...uint64) *ports.Batch {
	b := &ports.Batch{}
	local := ports.HostRegionOf(make([]byte, 64*TurnBytes))
	for i, n := range bytes {
		b.Ops = append(b.Ops, ports.Op{Tag: uint64(i), First: uint32(i), Count: 1, Dir: dir})
		b.Segments = append(b.Segments, ports.Segment{Local: local, Len: n})
	}
	return b
}

// call is a submitted batch and its queue.
type call struct {
	begin domain.Instant
	n     int
	q     *ports.Completions
}

func (w *wires) submit(t *testing.T, l *Link, b *ports.Batch) call {
	c := call{w.net.clock.Now(), len(b.Ops), ports.NewCompletions()}
	require.NoError(t, l.Submit(b, c.q))
	return c
}

// after returns how long each op took, by tag.
func (c call) after(t *testing.T) []time.Duration {
	took := make([]time.Duration, c.n)
	for _, done := range c.take(t) {
		require.NoError(t, done.Err)
		took[done.Tag] = done.At.Sub(c.begin)
	}
	return took
}

func (c call) take(t *testing.T) (done []ports.Completion) {
	for len(done) < c.n {
		var err error
		done, err = c.q.Take(context.Background(), time.Hour, done)
		require.NoError(t, err)
		require.NotEmpty(t, done)
	}
	return done
}

// ns is how long so many bytes take.
func ns(bytes uint64) time.Duration { return time.Duration(bytes) }

func TestAReadTakesTwoDelaysAndItsBytes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		for _, n := range []uint64{0, 1, 1728, TurnBytes, 10*TurnBytes + 3} {
			require.Equal(t, []time.Duration{2*delay + ns(n)}, w.submit(t, l, w.transfer(ports.Read, n)).after(t))
		}
	})
}

func TestAWriteTakesTwoDelaysAndItsBytes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		_, token, err := w.b.Transport.Grant(w.a.Self, w.mem.Len(), []domain.PageRef{{}})
		require.NoError(t, err)
		for _, n := range []uint64{1, TurnBytes, 10*TurnBytes + 3} {
			b := w.transfer(ports.Write, n)
			b.Ops[0].Grant = token
			require.Equal(t, []time.Duration{2*delay + ns(n)}, w.submit(t, l, b).after(t))
		}
	})
}

func TestControlCallsTakeTwoDelays(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		begin := time.Now()
		require.NoError(t, w.net.Endpoint("a").Resolver().Complain(context.Background(), w.b.Self, nil))
		require.Equal(t, 2*delay, time.Since(begin))
		dial(t, w.a, w.b)
		require.Equal(t, 4*delay, time.Since(begin))
		stranger := ports.Peer{ID: "b", Incarnation: 77}
		require.ErrorIs(t, w.net.Endpoint("a").Resolver().Complain(context.Background(), stranger, nil), ports.ErrRestarted)
		require.Equal(t, 5*delay, time.Since(begin), "the request's way, after which nobody answers")
	})
}

func TestOpsOfACallComeOneAfterTheOther(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		took := w.submit(t, l, w.transfer(ports.Read, 3*TurnBytes, 1000, 2*TurnBytes)).after(t)
		require.Equal(t, []time.Duration{2*delay + ns(3*TurnBytes), 2*delay + ns(3*TurnBytes+1000), 2*delay + ns(5*TurnBytes+1000)}, took)
	})
}

func TestCallsShareThePipeInTurns(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l, other := dial(t, w.a, w.b), dial(t, w.a, w.b)
		long := w.submit(t, l, w.transfer(ports.Read, 10*TurnBytes))
		time.Sleep(ns(TurnBytes / 2))
		short := w.submit(t, other, w.transfer(ports.Read, TurnBytes))
		require.Equal(t, []time.Duration{2*delay + ns(TurnBytes/2) + ns(TurnBytes)}, short.after(t), "the rest of a turn, then its own")
		require.Equal(t, []time.Duration{2*delay + ns(11*TurnBytes)}, long.after(t))
	})
}

func TestDirectionsDoNotShare(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		there, back := dial(t, w.a, w.b), dial(t, w.b, w.a)
		x, y := w.submit(t, there, w.transfer(ports.Read, 20*TurnBytes)), w.submit(t, back, w.transfer(ports.Read, 20*TurnBytes))
		require.Equal(t, x.after(t), y.after(t))
		_, token, err := w.b.Transport.Grant(w.a.Self, w.mem.Len(), []domain.PageRef{{}})
		require.NoError(t, err)
		put := w.transfer(ports.Write, 20*TurnBytes)
		put.Ops[0].Grant = token
		x, y = w.submit(t, there, put), w.submit(t, back, w.transfer(ports.Read, 20*TurnBytes))
		require.Greater(t, max(x.after(t)[0], y.after(t)[0]), 2*delay+ns(25*TurnBytes), "a's writes and b's reads go the same way")
	})
}

// TestNoLinkIsFasterThanItsModel submits calls of any shape at any time: each op takes its two delays and its bytes at least,
// and all of them together no longer than the bytes of each direction one after the other.
func TestNoLinkIsFasterThanItsModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		sizes := rapid.SliceOfN(rapid.SliceOfN(rapid.Uint64Range(0, 3*TurnBytes), 1, 4), 1, 5).Draw(r, "calls")
		gaps := rapid.SliceOfN(rapid.Int64Range(0, 400_000), len(sizes), len(sizes)).Draw(r, "gaps")
		inVirtualTime(t, func(t *testing.T, w *wires) {
			l := dial(t, w.a, w.b)
			begin, total := w.net.clock.Now(), ns(0)
			var calls []call
			for i, bytes := range sizes {
				time.Sleep(time.Duration(gaps[i]))
				total += time.Duration(gaps[i])
				calls = append(calls, w.submit(t, l, w.transfer(ports.Read, bytes...)))
			}
			var last domain.Instant
			for i, c := range calls {
				for k, took := range c.after(t) {
					require.GreaterOrEqual(t, took, 2*delay+ns(sizes[i][k]))
					last = max(last, c.begin.Add(took))
					total += ns(sizes[i][k])
				}
			}
			require.LessOrEqual(t, last.Sub(begin), 2*delay+total)
		})
	})
}

func TestADeadlineEndsAnOpThatIsStillOnItsWay(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		for _, in := range []time.Duration{delay / 2, delay + 1, 2*delay + 5*TurnBytes, 2*delay + 10*TurnBytes - 1} {
			b := w.transfer(ports.Read, 10*TurnBytes)
			b.Ops[0].Deadline = w.net.clock.Now().Add(in)
			c := w.submit(t, l, b)
			done := c.take(t)
			require.ErrorIs(t, done[0].Err, ports.ErrTimeout, "deadline after %v", in)
			require.Equal(t, in, done[0].At.Sub(c.begin))
			time.Sleep(time.Second)
		}
		b := w.transfer(ports.Read, 10*TurnBytes)
		b.Ops[0].Deadline = w.net.clock.Now().Add(2*delay + 10*TurnBytes + 1)
		w.submit(t, l, b).after(t)
	})
}

func TestCancelGivesThePipeToOthers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		gone := w.submit(t, l, w.transfer(ports.Read, 40*TurnBytes))
		time.Sleep(delay + ns(TurnBytes/2))
		next := w.submit(t, l, w.transfer(ports.Read, TurnBytes))
		l.Cancel(gone.q, []uint64{0})
		require.ErrorIs(t, gone.take(t)[0].Err, ports.ErrCancelled)
		require.Equal(t, []time.Duration{2*delay + ns(TurnBytes)}, next.after(t))
		require.LessOrEqual(t, l.Counts().Bytes[ports.PurposeGet], uint64(2*TurnBytes))
	})
}

func TestWhatHasLandedIsNotCancelled(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		c := w.submit(t, l, w.transfer(ports.Read, TurnBytes))
		time.Sleep(delay + ns(TurnBytes) + delay/2)
		l.Cancel(c.q, []uint64{0})
		require.Equal(t, []time.Duration{2*delay + ns(TurnBytes)}, c.after(t))
	})
}

func TestAHealedLinkSendsAgainWhatTheCutSwallowed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		c := w.submit(t, l, w.transfer(ports.Read, 10*TurnBytes, 10*TurnBytes))
		landed := w.submit(t, l, w.transfer(ports.Read, 1))
		time.Sleep(delay + ns(5*TurnBytes))
		w.net.Partition("a", "b", true)
		time.Sleep(time.Second)
		require.Zero(t, c.q.Len()+landed.q.Len(), "something came out of a black hole")
		require.LessOrEqual(t, l.Counts().Bytes[ports.PurposeGet], uint64(6*TurnBytes), "something went into it")
		w.net.Partition("b", "a", false)
		for _, took := range c.after(t) {
			require.Greater(t, took, time.Second)
		}
		landed.after(t)
		require.EqualValues(t, 20*TurnBytes+1, l.Counts().Bytes[ports.PurposeGet])
	})
}

// TestCloseWaitsForServers has a server that goes on for an hour when nobody waits for it any more.
func TestCloseWaitsForServers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		slow := &porttest.FakeServer{}
		slow.Use(porttest.Answers{Each: func(ctx context.Context, _ string) error {
			<-ctx.Done()
			time.Sleep(time.Hour)
			return nil
		}})
		c := startNode(t, w.net, "c", 3, slow)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		require.ErrorIs(t, w.net.Endpoint("a").Resolver().Complain(ctx, c.Self, nil), ports.ErrTimeout)
		require.Equal(t, time.Second, time.Since(begin))
		require.NoError(t, w.net.Close())
		require.Equal(t, time.Second+time.Hour, time.Since(begin))
	})
}

func TestTheReportSaysWhatWasReached(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *wires) {
		l := dial(t, w.a, w.b)
		w.net.ResetReport()
		for range 3 {
			w.submit(t, l, w.transfer(ports.Read, 10*TurnBytes)).after(t)
			time.Sleep(time.Second)
		}
		report := w.net.LinkReport()
		require.InEpsilon(t, 1e9, report[1].BytesPerSecond, 1e-9)
		report[1].BytesPerSecond = 0 // compared
		require.Equal(t, []DirectionReport{
			{From: "a", To: "b"},
			{From: "b", To: "a", Bytes: 30 * TurnBytes, Busy: 30 * TurnBytes, Delayed: 3},
		}, report)
	})
}
