package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// bubbleClock is the bubble's time.
type bubbleClock struct{}

func (bubbleClock) Now() domain.Instant { return domain.Instant(time.Now().UnixNano()) }

// rig is a wrapped link in a bubble, and the inner one.
type rig struct {
	t     *testing.T
	inj   *faults.Injector
	tr    ports.Transport
	inner *fakeLink
	ports.Link
	q *ports.Completions
}

// inBubble ends the link after the claim. A bubble is left only when every goroutine in it has ended.
func inBubble(t *testing.T, plan faults.Plan, claim func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, inj: faults.New(plan), q: ports.NewCompletions()}
		r.inj.Time = bubbleClock{}
		tr := &fakeTransport{}
		r.tr = r.inj.Transport(tr)
		pending, err := r.tr.Offer(t.Context(), "peer")
		require.NoError(t, err)
		require.Equal(t, []byte("offer"), pending.Bytes())
		r.Link, err = pending.Link(t.Context(), nil)
		require.NoError(t, err)
		r.inner = tr.link
		claim(t, r)
		require.NoError(t, r.Close())
		r.isDone()
		require.Empty(t, r.take(), "a completion that the claim did not expect, or one op's second")
	})
}

// isDone does not wait.
func (r *rig) isDone() {
	r.t.Helper()
	select {
	case <-r.Done():
	default:
		require.Fail(r.t, "Done is open")
	}
}

// submit makes ops of one segment each, or of several.
func (r *rig) submit(tags ...uint64) {
	r.t.Helper()
	b := &ports.Batch{}
	for _, tag := range tags {
		b.Ops = append(b.Ops, ports.Op{Tag: tag, First: uint32(len(b.Segments)), Count: 1})
		b.Segments = append(b.Segments, ports.Segment{})
	}
	require.NoError(r.t, r.Submit(b, r.q))
}

// take is what has come once nothing moves any more.
func (r *rig) take() []ports.Completion {
	synctest.Wait()
	got, _ := r.q.Take(context.Background(), 0, nil)
	return got
}

func (r *rig) land(err error) {
	r.inner.land(err)
	synctest.Wait()
}

func tags(cs []ports.Completion) []uint64 {
	out := []uint64{}
	for _, c := range cs {
		out = append(out, c.Tag)
	}
	return out
}

func opN(n uint64, v faults.Verdict) faults.Plan {
	return faults.At(faults.Call{Port: "Link", Method: "Op", N: n}, v)
}

func TestALinkPassesOpsOnAsOneBatch(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.submit(5, 6)
		require.Equal(t, 2, r.inner.inFlight())
		require.Empty(t, r.take())
		r.land(nil)
		require.Equal(t, []ports.Completion{{Tag: 5, At: 77}, {Tag: 6, At: 77}}, r.take())
		r.submit(5)
		r.land(ports.ErrRevoked)
		require.Equal(t, []ports.Completion{{Tag: 5, At: 77, Err: ports.ErrRevoked}}, r.take())
		require.Equal(t, r.inner.Counts(), r.Counts())
		require.EqualValues(t, 2, r.inj.Count("Link", "Submit"))
		require.EqualValues(t, 3, r.inj.Count("Link", "Op"))
		last := r.inj.Calls()[len(r.inj.Calls())-1]
		require.Equal(t, faults.Call{Port: "Link", Method: "Op", N: 3, Peer: ports.Peer{ID: "peer"}, Op: ports.Op{Tag: 5, Count: 1}}, last)
	})
}

func TestEqualTagsOfTwoQueuesAreTwoOps(t *testing.T) {
	inBubble(t, opN(2, faults.Verdict{Err: errInjected}), func(t *testing.T, r *rig) {
		other := ports.NewCompletions()
		r.submit(1)
		require.NoError(t, r.Submit(&ports.Batch{Ops: []ports.Op{{Tag: 1}}}, other))
		r.land(nil)
		require.Equal(t, []ports.Completion{{Tag: 1, At: 77}}, r.take())
		got, err := other.Take(t.Context(), 0, nil)
		require.NoError(t, err)
		require.Equal(t, []uint64{1}, tags(got))
		require.ErrorIs(t, got[0].Err, errInjected)
	})
}

func TestASubmitThatIsRefusedSubmitsNothing(t *testing.T) {
	refused := faults.At(faults.Call{Port: "Link", Method: "Submit", N: 1}, faults.Verdict{Err: errInjected})
	inBubble(t, refused, func(t *testing.T, r *rig) {
		require.ErrorIs(t, r.Submit(&ports.Batch{Ops: []ports.Op{{Tag: 1}}}, r.q), errInjected)
		require.Zero(t, r.inner.inFlight())
		require.Zero(t, r.inj.Count("Link", "Op"))
	})
	inBubble(t, opN(1, faults.Verdict{Err: errInjected}), func(t *testing.T, r *rig) {
		r.inner.refuse = ports.ErrBusy
		require.ErrorIs(t, r.Submit(&ports.Batch{Ops: []ports.Op{{Tag: 1}, {Tag: 2}}}, r.q), ports.ErrBusy)
		require.Empty(t, r.take())
	})
}

func TestABatchThatContradictsItselfIsTheInnerLinksToRefuse(t *testing.T) {
	var never faults.Gate
	inBubble(t, faults.Every("Link", "Op", faults.Verdict{Before: never.Hold}), func(t *testing.T, r *rig) {
		r.inner.refuse = errInjected
		for _, o := range []ports.Op{{First: 1}, {Count: 1}, {First: 1<<32 - 1, Count: 1}, {Purpose: ports.NumPurposes}, {Dir: ports.Write + 1}} {
			require.ErrorIs(t, r.Submit(&ports.Batch{Ops: []ports.Op{{}, o}}, r.q), errInjected)
		}
		require.Zero(t, never.Held())
	})
}

func TestAnOpFailsBeforeOrAfterItsEffect(t *testing.T) {
	for _, effect := range []bool{false, true} {
		inBubble(t, opN(2, faults.Verdict{Err: errInjected, Effect: effect}), func(t *testing.T, r *rig) {
			remote, local := r.remote(64)
			r.submitReads(local, 16, 4)
			r.land(nil)
			got := map[uint64]error{}
			for _, c := range r.take() {
				got[c.Tag] = c.Err
				require.NotZero(t, c.At)
			}
			require.Equal(t, map[uint64]error{0: nil, 1: errInjected, 2: nil, 3: nil}, got)
			require.Equal(t, remote[:16], local[:16])
			require.Equal(t, effect, string(remote[16:32]) == string(local[16:32]))
			if !effect {
				require.Equal(t, -1, content.CheckPoison(local[16:32]))
			}
			require.Equal(t, remote[32:], local[32:])
		})
	}
}

// remote gives the inner link n bytes to read, and the test a poisoned place for them.
func (r *rig) remote(n int) (remote, local []byte) {
	remote, local = make([]byte, n), make([]byte, n)
	content.Fill(remote, 1, 0)
	content.Poison(local)
	r.inner.remote = remote
	return remote, local
}

// submitReads submits ops 0, 1, ... of segments of 4 bytes that read all of local, perOp bytes each.
func (r *rig) submitReads(local []byte, perOp, ops int) {
	b := &ports.Batch{}
	region := ports.HostRegionOf(local)
	for op := range ops {
		b.Ops = append(b.Ops, ports.Op{Tag: uint64(op), First: uint32(len(b.Segments)), Count: uint32(perOp / 4)})
		for off := op * perOp; off < (op+1)*perOp; off += 4 {
			b.Segments = append(b.Segments, ports.Segment{RemoteOff: uint64(off), Local: region, LocalOff: uint64(off), Len: 4})
		}
	}
	require.NoError(r.t, r.Submit(b, r.q))
}

func TestAShortOpMovesHalfAndFails(t *testing.T) {
	inBubble(t, opN(1, faults.Verdict{Short: true}), func(t *testing.T, r *rig) {
		remote, local := r.remote(32)
		r.submitReads(local, 16, 2)
		r.land(nil)
		require.Equal(t, []ports.Completion{{Tag: 0, At: 77, Err: ports.ErrReset}, {Tag: 1, At: 77}}, r.take())
		require.Equal(t, remote[:8], local[:8])
		require.Equal(t, -1, content.CheckPoison(local[8:16]))
		require.Equal(t, remote[16:], local[16:])
	})
	inBubble(t, opN(1, faults.Verdict{Short: true, Err: errInjected}), func(t *testing.T, r *rig) {
		r.submit(3) // half of one segment is none
		require.Zero(t, r.inner.inFlight())
		require.ErrorIs(t, r.take()[0].Err, errInjected)
	})
}

// TestAFlippedReadArrivesChangedAndAFlippedWriteLeavesItsSourceAsItWas: one byte differs, and the op went well.
func TestAFlippedReadArrivesChangedAndAFlippedWriteLeavesItsSourceAsItWas(t *testing.T) {
	for dir, during := range map[ports.Direction]byte{ports.Read: 0, ports.Write: 0x10} {
		inBubble(t, faults.Every("Link", "Op", faults.Verdict{Flip: true}), func(t *testing.T, r *rig) {
			mem := make([]byte, 9)
			b := &ports.Batch{Ops: []ports.Op{{Tag: 5, Count: 1, Dir: dir}}, Segments: []ports.Segment{{Local: ports.HostRegionOf(mem), LocalOff: 2, Len: 5}}}
			r.inner.refuse = ports.ErrClosed
			require.Error(t, r.Submit(b, r.q))
			require.Equal(t, make([]byte, 9), mem, "nothing was submitted")
			r.inner.refuse = nil
			require.NoError(t, r.Submit(b, r.q))
			require.Equal(t, []byte{0, 0, 0, 0, during, 0, 0, 0, 0}, mem, "under way")
			r.land(nil)
			require.Equal(t, []ports.Completion{{Tag: 5, At: 77}}, r.take())
			require.Equal(t, []byte{0, 0, 0, 0, 0x10 - during, 0, 0, 0, 0}, mem, "landed")
		})
	}
}

func TestAnOpIsHeldBeforeItIsSubmitted(t *testing.T) {
	inBubble(t, opN(2, faults.Verdict{Before: faults.For(time.Second)}), func(t *testing.T, r *rig) {
		r.submit(1, 2, 3)
		require.Equal(t, 2, r.inner.inFlight())
		r.land(nil)
		require.Equal(t, []uint64{1, 3}, tags(r.take()))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 1, r.inner.inFlight())
		r.land(nil)
		require.Equal(t, []ports.Completion{{Tag: 2, At: 77}}, r.take())
	})
}

func TestAHeldOpThatTheLinkRefusesCompletes(t *testing.T) {
	var g faults.Gate
	inBubble(t, opN(1, faults.Verdict{Before: g.Hold}), func(t *testing.T, r *rig) {
		r.submit(1)
		r.inner.refuse = ports.ErrBusy
		g.Open()
		got := r.take()
		require.Equal(t, []uint64{1}, tags(got))
		require.ErrorIs(t, got[0].Err, ports.ErrBusy)
	})
}

func TestACompletionIsHeldBackWithItsInstant(t *testing.T) {
	inBubble(t, opN(1, faults.Verdict{After: faults.For(time.Second)}), func(t *testing.T, r *rig) {
		r.submit(1, 2)
		r.land(nil)
		require.Equal(t, []uint64{2}, tags(r.take()))
		time.Sleep(time.Second)
		require.Equal(t, []ports.Completion{{Tag: 1, At: 77}}, r.take())
	})
}

func TestCompletionsComeReversed(t *testing.T) {
	inBubble(t, faults.Every("Link", "Op", faults.Verdict{After: faults.Reverse(3)}), func(t *testing.T, r *rig) {
		r.submit(1, 2, 3, 4, 5, 6)
		r.land(nil)
		require.Equal(t, []uint64{3, 2, 1, 6, 5, 4}, tags(r.take()))
	})
}

func TestAReleaseTwiceCompletesOnce(t *testing.T) {
	twice := func(release func()) { release(); release(); time.AfterFunc(time.Second, release) }
	inBubble(t, faults.Every("Link", "Op", faults.Verdict{Before: twice, After: twice}), func(t *testing.T, r *rig) {
		r.submit(1)
		require.Equal(t, 1, r.inner.inFlight())
		r.land(nil)
		require.Equal(t, []uint64{1}, tags(r.take()))
		time.Sleep(2 * time.Second)
	})
}

func TestADroppedOpEndsByCancel(t *testing.T) {
	for _, effect := range []bool{false, true} {
		inBubble(t, opN(2, faults.Verdict{Drop: true, Effect: effect}), func(t *testing.T, r *rig) {
			r.submit(1, 2)
			r.land(nil)
			require.Equal(t, []uint64{1}, tags(r.take()))
			time.Sleep(time.Hour)
			require.Empty(t, r.take())
			r.Cancel(ports.NewCompletions(), []uint64{2})
			r.Cancel(r.q, []uint64{1})
			require.Empty(t, r.take(), "neither another queue's nor another tag")
			r.Cancel(r.q, []uint64{2})
			r.Cancel(r.q, []uint64{2})
			got := r.take()
			require.Equal(t, []uint64{2}, tags(got))
			require.ErrorIs(t, got[0].Err, ports.ErrCancelled)
		})
	}
}

func TestADroppedOpEndsAtItsDeadlineAndTheLinkWithIt(t *testing.T) {
	inBubble(t, opN(1, faults.Verdict{Drop: true}), func(t *testing.T, r *rig) {
		deadline := bubbleClock{}.Now().Add(2 * time.Second)
		began := time.Now()
		require.NoError(t, r.Submit(&ports.Batch{Ops: []ports.Op{{Tag: 1, Deadline: deadline}, {Tag: 2}}}, r.q))
		<-r.Done()
		require.Equal(t, 2*time.Second, time.Since(began))
		got := r.take()
		slices.SortFunc(got, func(a, b ports.Completion) int { return int(a.Tag) - int(b.Tag) })
		require.Equal(t, []ports.Completion{{Tag: 1, At: deadline, Err: ports.ErrTimeout}, {Tag: 2, At: 77, Err: ports.ErrReset}}, got)
		require.Contains(t, r.inner.all(), "link.Close")
		require.ErrorIs(t, r.Submit(&ports.Batch{Ops: []ports.Op{{Tag: 3}}}, r.q), ports.ErrClosed)
	})
}

// TestTheNearestDeadlineIsWatched submits it last, so that the wait for the other one must be cut short.
func TestTheNearestDeadlineIsWatched(t *testing.T) {
	inBubble(t, faults.Every("Link", "Op", faults.Verdict{Drop: true}), func(t *testing.T, r *rig) {
		began := time.Now()
		for tag, after := range []time.Duration{time.Hour, time.Second} {
			synctest.Wait()
			op := ports.Op{Tag: uint64(tag), Deadline: bubbleClock{}.Now().Add(after)}
			require.NoError(t, r.Submit(&ports.Batch{Ops: []ports.Op{op}}, r.q))
		}
		<-r.Done()
		require.Equal(t, time.Second, time.Since(began))
		require.Len(t, r.take(), 2)
	})
}

func TestCancelGoesOnToWhatIsInFlight(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.submit(1)
		r.Cancel(r.q, []uint64{1})
		require.Equal(t, []ports.Completion{{Tag: 1, At: 77, Err: ports.ErrCancelled}}, r.take())
	})
	unheard := faults.Every("Link", "Cancel", faults.Verdict{Drop: true})
	inBubble(t, unheard, func(t *testing.T, r *rig) {
		r.submit(1)
		r.Cancel(r.q, []uint64{1})
		require.Empty(t, r.take())
		require.NotContains(t, r.inner.all(), "Cancel")
		r.land(nil)
		require.Equal(t, []ports.Completion{{Tag: 1, At: 77}}, r.take())
	})
}

func TestCancelTakesBackWhatIsHeldAndLeavesWhatHasLanded(t *testing.T) {
	var before, after faults.Gate
	plan := faults.First(opN(1, faults.Verdict{Before: before.Hold}), opN(2, faults.Verdict{After: after.Hold}))
	inBubble(t, plan, func(t *testing.T, r *rig) {
		r.submit(1, 2)
		r.land(nil)
		r.Cancel(r.q, []uint64{1, 2})
		got := r.take()
		require.Equal(t, []uint64{1}, tags(got))
		require.ErrorIs(t, got[0].Err, ports.ErrCancelled)
		before.Open()
		require.Zero(t, r.inner.inFlight(), "its memory was reported quiet")
		after.Open()
		require.Equal(t, []ports.Completion{{Tag: 2, At: 77}}, r.take())
	})
}

// TestTheEndOfALinkCompletesEverything: by Close, and by the death of the link inside.
func TestTheEndOfALinkCompletesEverything(t *testing.T) {
	var never faults.Gate
	plan := faults.First(
		opN(1, faults.Verdict{Before: never.Hold}), opN(2, faults.Verdict{After: never.Hold}),
		opN(3, faults.Verdict{Drop: true}), opN(4, faults.Verdict{Drop: true, Effect: true}),
	)
	for _, tt := range []struct {
		name    string
		end     func(*rig)
		refusal error
	}{
		{"close", func(r *rig) { require.NoError(r.t, r.Close()) }, ports.ErrClosed},
		{"death", func(r *rig) { r.inner.die(ports.ErrReset); <-r.Done() }, ports.ErrReset},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, plan, func(t *testing.T, r *rig) {
				r.submit(1, 2, 3, 4)
				r.land(nil)
				r.submit(5)
				require.Empty(t, r.take())
				tt.end(r)
				r.isDone()
				got := map[uint64]error{}
				all, err := r.q.Take(t.Context(), 0, nil)
				require.NoError(t, err)
				for _, c := range all {
					got[c.Tag] = c.Err
				}
				reset := ports.ErrReset
				require.Equal(t, map[uint64]error{1: reset, 2: nil, 3: reset, 4: reset, 5: reset}, got)
				require.ErrorIs(t, r.Submit(&ports.Batch{Ops: []ports.Op{{Tag: 6}}}, r.q), tt.refusal)
				never.Open()
				require.Zero(t, r.inner.inFlight())
			})
		})
	}
}

// TestALinkThatDiesDuringASubmitCompletesAllOfIt before it says that it is done.
func TestALinkThatDiesDuringASubmitCompletesAllOfIt(t *testing.T) {
	var never faults.Gate
	inBubble(t, opN(2, faults.Verdict{Before: never.Hold}), func(t *testing.T, r *rig) {
		r.inner.within = func() {
			r.inner.die(ports.ErrReset)
			synctest.Wait()
			select {
			case <-r.Done():
				t.Error("done, with a submission under way")
			default:
			}
		}
		r.submit(1, 2)
		<-r.Done()
		got, err := r.q.Take(t.Context(), 0, nil)
		require.NoError(t, err)
		require.ElementsMatch(t, []uint64{1, 2}, tags(got))
		require.ErrorIs(t, got[0].Err, ports.ErrReset)
		require.ErrorIs(t, got[1].Err, ports.ErrReset)
	})
}

func TestCloseOfALinkClosesWhateverItSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wrap(faults.Every("Link", "Close", faults.Verdict{Err: errInjected}))
		p, err := w.inj.Transport(w.transport).Offer(t.Context(), "p")
		require.NoError(t, err)
		l, err := p.Link(t.Context(), nil)
		require.NoError(t, err)
		require.ErrorIs(t, l.Close(), errInjected)
		require.ErrorIs(t, l.Close(), errInjected)
		<-l.Done()
		require.Equal(t, []string{"Offer", "Link", "link.Close"}, w.transport.all())
	})
}

func TestAHeldOpOfALinkThatWasClosedIsReset(t *testing.T) {
	var g faults.Gate
	inBubble(t, opN(1, faults.Verdict{Before: g.Hold}), func(t *testing.T, r *rig) {
		r.submit(1)
		r.inner.refuse = ports.ErrClosed // and Done comes later
		g.Open()
		require.ErrorIs(t, r.take()[0].Err, ports.ErrReset)
	})
}

func TestDeregisteredMemoryIsQuietThoughOpsWereHeld(t *testing.T) {
	var g faults.Gate
	inBubble(t, faults.Every("Link", "Op", faults.Verdict{Before: g.Hold}), func(t *testing.T, r *rig) {
		ours, other := ports.HostRegionOf(make([]byte, 8)), ports.HostRegionOf(make([]byte, 8))
		device := ports.DeviceRegionOf(0, ports.DevAddrOf(1), 8)
		reg, err := r.tr.Register(ours)
		require.NoError(t, err)
		b := &ports.Batch{}
		for tag, region := range []ports.Region{ours, other, device} {
			b.Ops = append(b.Ops, ports.Op{Tag: uint64(tag), First: uint32(tag), Count: 1})
			b.Segments = append(b.Segments, ports.Segment{Local: region, Len: 8})
		}
		require.NoError(t, r.Submit(b, r.q))
		require.NoError(t, r.tr.Deregister(reg))
		got := r.take()
		require.Equal(t, []uint64{0}, tags(got))
		require.ErrorIs(t, got[0].Err, ports.ErrCancelled)
		g.Open()
		require.Equal(t, 2, r.inner.inFlight())
		r.land(nil)
		require.Equal(t, []uint64{1, 2}, tags(r.take()))
	})
}

// TestAPendingLinkEndsWhateverBecomesOfIt: the caller has no second call.
func TestAPendingLinkEndsWhateverBecomesOfIt(t *testing.T) {
	for _, tt := range []struct {
		v    faults.Verdict
		seen []string
	}{
		{faults.Verdict{Err: errInjected}, []string{"Offer", "pending.Close"}},
		{faults.Verdict{Err: errInjected, Effect: true}, []string{"Offer", "Link", "link.Close"}},
		{faults.Verdict{Drop: true}, []string{"Offer", "pending.Close"}},
		{faults.Verdict{Before: faults.For(time.Hour)}, []string{"Offer", "pending.Close"}},
		{faults.Verdict{After: faults.For(time.Hour)}, []string{"Offer", "Link", "link.Close"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := wrap(faults.Every("PendingLink", "Link", tt.v))
			p, err := w.inj.Transport(w.transport).Offer(t.Context(), "p")
			require.NoError(t, err)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errCause)
			defer cancel()
			_, err = p.Link(ctx, nil)
			require.Error(t, err)
			require.Equal(t, tt.seen, w.transport.all())
		})
	}
	w := wrap(faults.Every("PendingLink", "Close", faults.Verdict{Err: errInjected}))
	p, err := w.inj.Transport(w.transport).Offer(t.Context(), "p")
	require.NoError(t, err)
	require.ErrorIs(t, p.Close(), errInjected)
	require.Equal(t, []string{"Offer", "pending.Close"}, w.transport.all())
}

func TestATransportSaysWhatItIs(t *testing.T) {
	w := wrap(nil)
	tr := w.inj.Transport(w.transport)
	require.EqualValues(t, "fake", tr.Kind())
	require.Equal(t, ports.Caps{Write: true}, tr.Caps())
	tr.Drop(ports.Peer{ID: "p", Incarnation: 3})
	require.Equal(t, []faults.Call{{Port: "Transport", Method: "Drop", N: 1, Peer: ports.Peer{ID: "p", Incarnation: 3}}}, w.inj.Calls())
	require.Equal(t, []string{"Drop"}, w.transport.all())
}

// TestEveryOpCompletesOnceUnderAnyFaults draws verdicts for many submitters, cancels at random, and ends the link under them.
// What a submitter was told is quiet, it reuses at once.
func TestEveryOpCompletesOnceUnderAnyFaults(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { anyFaults(t, seed) }) })
	}
}

func anyFaults(t *testing.T, seed uint64) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 0))
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	delay := func() faults.Delay {
		if draw(3) > 0 {
			return nil
		}
		return faults.For(time.Duration(draw(5)) * time.Millisecond)
	}
	inj := faults.New(func(c faults.Call) faults.Verdict {
		if c.Method != "Op" {
			return faults.Verdict{}
		}
		v := faults.Verdict{Before: delay(), After: delay(), Effect: draw(2) == 0, Drop: draw(8) == 0, Short: draw(8) == 0}
		if draw(5) == 0 {
			v.Err = errInjected
		}
		return v
	})
	inj.Time = bubbleClock{}
	tr := &fakeTransport{}
	pending, err := inj.Transport(tr).Offer(t.Context(), "p")
	require.NoError(t, err)
	l, err := pending.Link(t.Context(), nil)
	require.NoError(t, err)
	tr.link.remote, tr.link.auto = make([]byte, 64), true

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { submitter(t, l, draw) })
	}
	time.Sleep(time.Duration(20+draw(60)) * time.Millisecond)
	require.NoError(t, l.Close())
	wg.Wait()
}

// submitter goes on until the link is closed.
func submitter(t *testing.T, l ports.Link, draw func(int) int) {
	q := ports.NewCompletions()
	local := make([]byte, 64)
	for tag := uint64(1); ; tag += 4 {
		b := &ports.Batch{}
		for j := range uint64(4) {
			b.Ops = append(b.Ops, ports.Op{Tag: tag + j, First: uint32(2 * j), Count: 2, Deadline: bubbleClock{}.Now().Add(time.Second)})
			for range 2 {
				b.Segments = append(b.Segments, ports.Segment{Local: ports.HostRegionOf(local), LocalOff: 16 * j, Len: 8})
			}
		}
		if err := l.Submit(b, q); err != nil {
			if err != ports.ErrClosed {
				t.Error(err)
			}
			return
		}
		came := map[uint64]int{}
		for waited := 0; len(came) < 4; waited++ {
			got, _ := q.Take(context.Background(), time.Duration(1+draw(10))*time.Millisecond, nil)
			for _, c := range got {
				came[c.Tag]++
			}
			l.Cancel(q, []uint64{tag + uint64(draw(4))})
			if waited > 1000 {
				t.Errorf("ops %d to %d: only %v came", tag, tag+3, came)
				return
			}
		}
		for j := range uint64(4) {
			if came[tag+j] != 1 || len(came) != 4 {
				t.Errorf("ops %d to %d: came %v", tag, tag+3, came)
				return
			}
		}
		clear(local) // the race detector sees who is not quiet
	}
}
