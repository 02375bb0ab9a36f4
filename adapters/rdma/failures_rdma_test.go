//go:build linux && cgo && rdma

package rdma

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// uverbs are the descriptors of open devices.
func uverbs(t testing.TB) (fds []int) {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range all {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); err == nil && strings.HasPrefix(to, "/dev/infiniband/uverbs") {
			fd, err := strconv.Atoi(f.Name())
			require.NoError(t, err)
			fds = append(fds, fd)
		}
	}
	return fds
}

// breakDevice has every call to the kernel for a node's device fail with EBADF, until it is mended: another file, that nobody can use, is
// put under its descriptor.
func (n *node) breakDevice(t testing.TB) (mend func()) {
	require.Len(t, n.fds, 1)
	kept, err := syscall.Dup(n.fds[0])
	require.NoError(t, err)
	const oPath = 0x200000
	none, err := syscall.Open("/", oPath|syscall.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, syscall.Dup3(none, n.fds[0], syscall.O_CLOEXEC))
	require.NoError(t, syscall.Close(none))
	mended := false
	mend = func() {
		if !mended {
			mended = true
			require.NoError(t, syscall.Dup3(kept, n.fds[0], syscall.O_CLOEXEC))
			require.NoError(t, syscall.Close(kept))
		}
	}
	t.Cleanup(mend)
	return mend
}

// only is the one link of a peer.
func (n *node) only(t testing.TB) *inbound {
	tr := n.rdma()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	require.Len(t, tr.mu.inbound, 1)
	for _, in := range tr.mu.inbound {
		return in
	}
	return nil
}

// lost has a read that is in a pair's ring and that the device knows nothing of, and the pair fail.
func (c *couple) lost(l *Link, q *ports.Completions) {
	b := c.op(1, ports.Read, ports.GrantToken{}, c.piece(3, 0, page))
	l.mu.Lock()
	defer l.mu.Unlock()
	now := c.asker.cfg.Clock.Now()
	l.admitLocked(b, &b.Ops[0], q, now)
	o := l.mu.queues[ports.Read].head
	l.dequeueLocked(o)
	o.at = 1
	l.pairs[0].noteLocked(o, page)
	l.pairs[0].failLocked(now)
	l.wakeLocked()
}

// TestAPairThatDoesNotFlushIsDestroyed, and what it held is read by its successor.
func TestAPairThatDoesNotFlushIsDestroyed(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	q := ports.NewCompletions()
	c.lost(l, q)
	require.NoError(t, take(t, q))
	require.Equal(t, -1, content.Check(c.local.Bytes()[:page], 0, 3))
	require.EqualValues(t, 1, c.asker.events(EventUnflushed))
	require.EqualValues(t, 1, c.asker.events(EventReadRetried))
	require.Zero(t, c.asker.events(EventUndestroyed))
}

// TestMemoryOfAPairThatCannotBeDestroyedIsNotGivenBack: the device may still write to it. That is counted each time, and warned of once.
func TestMemoryOfAPairThatCannotBeDestroyedIsNotGivenBack(t *testing.T) {
	warned := make(chan error, 8)
	cfg := slow()
	cfg.Warn = func(err error) { warned <- err }
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	mend := c.asker.breakDevice(t)
	q := ports.NewCompletions()
	c.lost(l, q)
	require.Eventually(t, func() bool { return c.asker.events(EventUndestroyed) >= 3 }, patience, 10*time.Millisecond)
	done, err := q.Take(t.Context(), time.Nanosecond, nil)
	require.NoError(t, err)
	require.Empty(t, done, "memory was given back that the device may write to")
	select {
	case <-l.Done():
		require.Fail(t, "the link is done with a request posted")
	default:
	}
	mend()
	require.Error(t, take(t, q)) // the link broke with its device
	<-l.Done()
	require.ErrorIs(t, <-warned, syscall.EBADF)
	require.Empty(t, warned, "once")
	require.EqualValues(t, 1, c.asker.events(EventCallFailed))
	require.EqualValues(t, 1, c.asker.events(EventUnflushed))
	c.readRight(t, dial(t, c.asker, c.owner))
}

// TestARevokeFailsWhilePairsOfTheWriterCannotBeDestroyed, a drop before it or not: a byte may still land. When they can, it is done.
func TestARevokeFailsWhilePairsOfTheWriterCannotBeDestroyed(t *testing.T) {
	for name, before := range map[string]func(*couple){"revoke": func(*couple) {}, "drop": func(c *couple) { c.owner.Transport.Drop(c.asker.Self) }} {
		t.Run(name, func(t *testing.T) {
			c := newCouple(t, slow())
			l := dial(t, c.asker, c.owner)
			id, token, err := c.owner.Transport.Grant(c.asker.Self, page, []domain.PageRef{{Page: 1}})
			require.NoError(t, err)
			require.NoError(t, do(t, l, c.op(1, ports.Write, token, c.piece(page, 0, page))))
			mend := c.owner.breakDevice(t)
			before(c)
			require.ErrorIs(t, c.owner.Transport.Revoke(t.Context(), id, false), syscall.EBADF)
			require.Positive(t, c.owner.events(EventUndestroyed))
			mend()
			require.NoError(t, c.owner.Transport.Revoke(t.Context(), id, false))
			require.NoError(t, c.owner.Transport.Revoke(t.Context(), id, false))
		})
	}
}

// TestControlOfPeersGoesOnWhenTheDeviceAnswersAgain: for a while it could not be asked to tell of completions.
func TestControlOfPeersGoesOnWhenTheDeviceAnswersAgain(t *testing.T) {
	cfg := slow()
	cfg.IdleTimeout, cfg.Keepalive = 2*time.Second, 100*time.Millisecond // it looks at the queue now and then
	c := newCouple(t, cfg)
	mend := c.owner.breakDevice(t)
	require.Eventually(t, func() bool { return c.owner.events(EventCallFailed) > 1 }, patience, 10*time.Millisecond)
	_, err := tryDial(t.Context(), c.asker, c.owner)
	require.ErrorIs(t, err, syscall.EBADF)
	require.EqualValues(t, 1, c.owner.events(EventUnanswered))
	mend()
	c.readRight(t, dial(t, c.asker, c.owner))
}

// TestPlacesInARingGoOnWhereTheirNumbersWrap, though the depth is no power of two.
func TestPlacesInARingGoOnWhereTheirNumbersWrap(t *testing.T) {
	cfg := slow()
	cfg.SendDepth, cfg.MaxSGE, cfg.ReadPairs = 48, 1, 1
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	l.mu.Lock()
	p := l.pairs[0]
	p.head, p.tail = ^uint32(7), ^uint32(7)
	l.mu.Unlock()
	content.Poison(c.local.Bytes())
	b := &ports.Batch{}
	for i := range uint64(200) { // the oldest are under way when those past the wrap are posted
		b.Segments = append(b.Segments, c.piece(i*page, i*page, page-1))
		b.Ops = append(b.Ops, ports.Op{Tag: i, First: uint32(i), Count: 1, Deadline: c.asker.cfg.Clock.Now().Add(patience)})
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(b, q))
	var done []ports.Completion
	for len(done) < len(b.Ops) {
		held := len(done)
		var err error
		done, err = q.Take(t.Context(), patience, done)
		require.NoError(t, err)
		require.Greater(t, len(done), held, "ops do not complete")
	}
	for _, d := range done {
		require.NoError(t, d.Err)
		require.Equal(t, -1, content.Check(c.local.Bytes()[d.Tag*page:][:page-1], 0, d.Tag*page), "op %d", d.Tag)
	}
}

// TestARefusedPostFailsTheOpThatItRefused: what was behind it in the chain is read by the pair's successor.
func TestARefusedPostFailsTheOpThatItRefused(t *testing.T) {
	cfg := slow()
	cfg.MaxSGE, cfg.ReadPairs = 1, 1
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	l.mu.Lock()
	l.t.cfg.MaxSGE = 2 // one more than the pair has
	l.mu.chain.Free()
	l.mu.chain = verbs.NewChain(cfg.withDefaults().SendDepth, 2)
	l.mu.Unlock()
	b := &ports.Batch{Segments: []ports.Segment{c.piece(0, 0, page), c.piece(page, page, 100), c.piece(page+100, 3*page, 100), c.piece(5*page, 5*page, page)},
		Ops: []ports.Op{{Tag: 0, Count: 1}, {Tag: 1, First: 1, Count: 2}, {Tag: 2, First: 3, Count: 1}}}
	for i := range b.Ops {
		b.Ops[i].Deadline = c.asker.cfg.Clock.Now().Add(patience)
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(b, q))
	errs := map[uint64]error{}
	for len(errs) < len(b.Ops) {
		done, err := q.Take(t.Context(), patience, nil)
		require.NoError(t, err)
		require.NotEmpty(t, done)
		for _, d := range done {
			errs[d.Tag] = d.Err
		}
	}
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], syscall.EINVAL)
	require.NoError(t, errs[2])
	require.Equal(t, -1, content.Check(c.local.Bytes()[5*page:][:page], 0, 5*page))
}

// TestADeadlineTakesDownThePairsThatCarryTheOp and no other. The owner's end of one pair is gone, so that nothing comes back by it.
func TestADeadlineTakesDownThePairsThatCarryTheOp(t *testing.T) {
	cfg := slow()
	cfg.Timeout = 18 // the device does not give up before the op does
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	in := c.owner.only(t)
	in.mu.Lock()
	require.NoError(t, ruin(&in.mu.pairs[0]))
	in.mu.Unlock()
	l.mu.Lock()
	l.pairs[1].state = pairReviving // the op is cut over the other alone
	l.mu.Unlock()
	b := c.op(1, ports.Read, ports.GrantToken{}, c.piece(0, 0, 8*page))
	b.Ops[0].Deadline = c.asker.cfg.Clock.Now().Add(200 * time.Millisecond)
	require.ErrorIs(t, do(t, l, b), ports.ErrTimeout)
	content.Poison(c.local.Bytes())
	require.EqualValues(t, 1, c.asker.events(EventDeadline))
	require.EqualValues(t, 1, c.asker.events(EventPairFailed))
	l.mu.Lock()
	l.pairs[1].state = pairUp
	l.mu.Unlock()
	c.readRight(t, l)
	require.Eventually(t, func() bool { return c.asker.events(EventPairRevived) == 1 }, patience, 10*time.Millisecond)
	c.readRight(t, l)
}

// TestAnOwnerThatRefusesASuccessorEndsTheLink: it knows no such pair.
func TestAnOwnerThatRefusesASuccessorEndsTheLink(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	in := c.owner.only(t)
	in.mu.Lock()
	for i := range in.mu.pairs {
		require.NoError(t, ruin(&in.mu.pairs[i]))
	}
	in.mu.pairs = nil
	in.mu.Unlock()
	l.mu.Lock()
	l.pairs[0].failLocked(c.asker.cfg.Clock.Now())
	l.mu.Unlock()
	<-l.Done()
	require.EqualValues(t, 1, c.asker.events(EventReviveRefused))
	require.Zero(t, c.asker.events(EventSilent)+c.asker.events(EventGarbage))
}

// TestAnOwnerThatAnswersNothingEndsTheLink: its device takes the messages, and it does not look at them.
func TestAnOwnerThatAnswersNothingEndsTheLink(t *testing.T) {
	cfg := slow()
	cfg.Keepalive = 100 * time.Millisecond
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	in := c.owner.only(t)
	l.mu.Lock()
	l.t.cfg.ControlTimeout = 200 * time.Millisecond
	l.mu.Unlock()
	in.mu.Lock()
	<-l.Done()
	in.mu.Unlock()
	s := c.asker.rdma().Stats()
	require.EqualValues(t, 1, s.Events[EventSilent])
	require.Zero(t, s.Completions)
}

// TestAnOwnerThatTakesNoMessagesEndsTheLink, by the receives that it does not post.
func TestAnOwnerThatTakesNoMessagesEndsTheLink(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	in := c.owner.only(t)
	in.mu.Lock()
	defer in.mu.Unlock()
	l.mu.Lock()
	for range controlRecv - 1 { // no more than may be on their way at once
		require.NoError(t, l.ctl.post(&message{kind: kindPing}, sendSlot))
	}
	l.mu.Unlock()
	for open := true; open; {
		l.mu.Lock()
		if open = l.mu.dead == nil; open {
			_ = l.ctl.post(&message{kind: kindPing}, sendSlot) // refused while the queue is full
		}
		l.mu.Unlock()
		select {
		case <-l.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	<-l.Done()
	require.EqualValues(t, 1, c.asker.rdma().Stats().Completions[StatusRNRRetryExc])
	require.Zero(t, c.asker.events(EventSilent))
}

// TestTheOwnersEndOfALinkIsCounted once, with its reason.
func TestTheOwnersEndOfALinkIsCounted(t *testing.T) {
	for e, end := range map[Event]func(*couple, *Link, *inbound){
		EventGoodbye: func(_ *couple, l *Link, _ *inbound) { _ = l.Close() },
		EventDropped: func(c *couple, _ *Link, _ *inbound) { c.owner.Transport.Drop(c.asker.Self) },
		EventGarbage: func(_ *couple, l *Link, _ *inbound) {
			l.mu.Lock()
			defer l.mu.Unlock()
			_ = l.ctl.post(&message{kind: kindFenced}, sendSlot)
		},
		EventControlFailed: func(_ *couple, _ *Link, in *inbound) {
			in.mu.Lock()
			defer in.mu.Unlock()
			_ = in.mu.ctl.Fail()
		},
	} {
		t.Run(e.String(), func(t *testing.T) {
			cfg := slow()
			cfg.Timeout = 12
			c := newCouple(t, cfg)
			l := dial(t, c.asker, c.owner)
			end(c, l, c.owner.only(t))
			require.Eventually(t, func() bool { return c.owner.rdma().Stats().Inbound == 0 }, patience, 10*time.Millisecond)
			require.NoError(t, l.Close())
			require.NoError(t, c.owner.Transport.Close())
			events := c.owner.rdma().Stats().Events
			require.EqualValues(t, 1, events[e])
			for _, other := range []Event{EventGoodbye, EventDropped, EventGarbage, EventControlFailed, EventForgotten} {
				require.True(t, other == e || events[other] == 0, "%v, counted as %v too", e, other)
			}
		})
	}
}

// TestAGoodbyeIsNotWrittenOverARequest that may be on its way.
func TestAGoodbyeIsNotWrittenOverARequest(t *testing.T) {
	n := start(t, "n", devices[0], slow())
	p, err := n.Transport.Offer(t.Context(), "owner")
	require.NoError(t, err)
	c := p.(*pendingLink).link.ctl
	slot := c.l.mem.b[sendSlot*messageBytes:][:messageBytes]
	content.Poison(slot)
	c.bye()
	require.Equal(t, -1, content.CheckPoison(slot))
	require.NoError(t, p.Close())
}

// TestMemoryThatTheDeviceDoesNotKnowFailsItsOp alone, by name.
func TestMemoryThatTheDeviceDoesNotKnowFailsItsOp(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	table := *c.asker.rdma().table.Load()
	i := slices.IndexFunc(table, func(r *region) bool { return r.len == c.local.Len() })
	good := table[i].local[0]
	bad := *good
	bad.LKey ^= 0xff00
	l.mu.Lock()
	table[i].local[0] = &bad
	l.mu.Unlock()
	err := do(t, l, c.op(1, ports.Read, ports.GrantToken{}, c.piece(0, 0, page)))
	l.mu.Lock()
	table[i].local[0] = good
	l.mu.Unlock()
	require.ErrorIs(t, err, statusLocalProtection)
	require.EqualValues(t, 1, c.asker.rdma().Stats().Completions[statusLocalProtection])
	c.readRight(t, l)
}

const (
	statusLocalProtection Status = 4
	statusRemInvalid      Status = 9
)
