package porttest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// load is a batch of reads that takes a while: op i reads a quarter of a buffer into its own piece of dst.
type load struct {
	dst   ports.HostRegion
	batch *ports.Batch
}

const (
	loadOps   = 64
	loadBytes = bufferBytes / 4
)

func newLoad(t testing.TB, x *exchange) load {
	dst := x.local(t, loadOps*loadBytes)
	var all [][]ports.Segment
	for i := range uint64(loadOps) {
		all = append(all, []ports.Segment{piece(uint32(i%2), i*509%(bufferBytes-loadBytes), dst, i*loadBytes, loadBytes)})
	}
	return load{dst, x.reads(all...)}
}

// check looks at what completed: nil means right bytes, anything else is one of the classes. It then poisons everything, and
// returns what fails when a byte landed after that.
func (l load) check(t testing.TB, done []ports.Completion, classes ...error) (quiet func()) {
	t.Helper()
	for _, c := range done {
		errorIsOneOf(t, c.Err, append(classes, nil)...)
		if s := l.batch.Segments[c.Tag]; c.Err == nil {
			require.Equal(t, -1, content.Check(l.dst.Bytes()[s.LocalOff:][:s.Len], uint64(s.Remote), s.RemoteOff), "op %d", c.Tag)
		}
	}
	content.Poison(l.dst.Bytes())
	return func() {
		t.Helper()
		require.Equal(t, -1, content.CheckPoison(l.dst.Bytes()), "first byte that landed after its op had completed")
	}
}

// roundTrip reads something over a new link, so that what was under way before is likely to have landed.
func (x *exchange) roundTrip(t testing.TB) {
	t.Helper()
	dst := x.local(t, scatterBytes)
	segs := scatter(dst)
	noErrors(t, x.submit(t, x.link(t), x.reads(segs)))
	readRight(t, dst, segs...)
}

func cancelledOpsCompleteOnceAndAreQuiet(t *testing.T, x *exchange) {
	l := x.link(t)
	var good uint64
	for range 4 {
		work, q := newLoad(t, x), ports.NewCompletions()
		require.NoError(t, l.Submit(work.batch, q))
		var tags []uint64
		for i := range uint64(loadOps) {
			tags = append(tags, i)
		}
		l.Cancel(q, tags)
		l.Cancel(q, tags) // twice changes nothing
		done := takeAll(t, q, loadOps)
		quiet := work.check(t, done, ports.ErrCancelled)
		x.roundTrip(t)
		noErrors(t, x.submit(t, l, x.reads([]ports.Segment{piece(0, 0, x.local(t, 8), 0, 8)})))
		quiet()
		good += 8 + goodBytes(work.batch, done)
	}
	require.NoError(t, l.Close())
	requireNeeded(t, l, good)
}

// goodBytes is what the ops of a batch moved that completed well.
func goodBytes(b *ports.Batch, done []ports.Completion) (sum uint64) {
	for _, c := range done {
		if c.Err == nil {
			op := b.Ops[c.Tag]
			for _, s := range b.Segments[op.First : op.First+op.Count] {
				sum += s.Len
			}
		}
	}
	return sum
}

// requireNeeded wants that all that crossed a link which is closed was for ops that completed well, or is counted as thrown away.
func requireNeeded(t *testing.T, l ports.Link, good uint64) {
	t.Helper()
	s := l.Counts()
	var bytes, thrown uint64
	for i := range s.Bytes {
		bytes, thrown = bytes+s.Bytes[i], thrown+s.Thrown[i]
	}
	require.Equal(t, bytes, good+thrown, "bytes that crossed = those of ops that completed well + thrown away (%d)", thrown)
}

func cancelNamesOpsByQueueAndTag(t *testing.T, x *exchange) {
	l := x.link(t)
	kept, gone := newLoad(t, x), newLoad(t, x)
	keptQ, goneQ := ports.NewCompletions(), ports.NewCompletions()
	require.NoError(t, l.Submit(gone.batch, goneQ))
	require.NoError(t, l.Submit(kept.batch, keptQ))
	l.Cancel(goneQ, []uint64{1, 3, loadOps + 5})
	for _, c := range takeAll(t, keptQ, loadOps) {
		require.NoError(t, c.Err, "op %d of a queue that was not named", c.Tag)
	}
	done := takeAll(t, goneQ, loadOps)
	for _, c := range done {
		if c.Tag != 1 && c.Tag != 3 {
			require.NoError(t, c.Err, "op %d, which was not named", c.Tag)
		}
	}
	gone.check(t, done, ports.ErrCancelled)
}

func closeCompletesEverythingAndIsQuiet(t *testing.T, x *exchange) {
	for range 4 {
		l, work, q := x.link(t), newLoad(t, x), ports.NewCompletions()
		require.NoError(t, l.Submit(work.batch, q))
		require.NoError(t, l.Close())
		require.Equal(t, loadOps, q.Len(), "completions when Close returned")
		done := takeAll(t, q, loadOps)
		quiet := work.check(t, done, ports.ErrReset)
		requireNeeded(t, l, goodBytes(work.batch, done))
		closedSoon(t, l.Done(), "Done is open after Close")
		x.roundTrip(t)
		quiet()
		errorIsOneOf(t, l.Submit(work.batch, q), ports.ErrClosed, ports.ErrReset)
		require.Zero(t, q.Len(), "an error means that nothing was submitted")
	}
}

// transportCloseEndsItsLinks closes in the middle of a load, and touches the memory as soon as Close returned.
func transportCloseEndsItsLinks(t *testing.T, x *exchange) {
	for range 8 {
		l, work, q := x.link(t), newLoad(t, x), ports.NewCompletions()
		require.NoError(t, l.Submit(work.batch, q))
		first, err := q.Take(t.Context(), patience, nil)
		require.NoError(t, err)
		require.NoError(t, x.Asker.Transport.Close())
		content.Poison(work.dst.Bytes())
		for len(first) < loadOps {
			held := len(first)
			first, err = q.Take(t.Context(), patience, first)
			require.NoError(t, err)
			require.Greater(t, len(first), held, "%d of %d ops completed", held, loadOps)
		}
		for _, c := range first {
			errorIsOneOf(t, c.Err, nil, ports.ErrReset)
		}
		closedSoon(t, l.Done(), "Done is open after the transport's Close")
		_, err = x.Asker.Transport.Offer(t.Context(), x.Owner.Self.ID)
		require.Error(t, err)
		other := x.local(t, 64)
		good := piece(0, 0, other, 0, 32)
		noErrors(t, x.submit(t, x.dial(t, x.Other, x.Owner), x.reads([]ports.Segment{good})))
		readRight(t, other, good)
		require.Equal(t, -1, content.CheckPoison(work.dst.Bytes()), "first byte that landed after Close returned")
		x.Restart(t, x.Asker)
	}
}

// theOwnersCloseResetsLinks overwrites the exposed memory as soon as Close returned: no read may see that.
func theOwnersCloseResetsLinks(t *testing.T, x *exchange) {
	l, work, q := x.link(t), newLoad(t, x), ports.NewCompletions()
	require.NoError(t, l.Submit(work.batch, q))
	require.NoError(t, x.Owner.Transport.Close())
	for i := range x.mem {
		content.Poison(x.mem[i].Bytes())
	}
	quiet := work.check(t, takeAll(t, q, loadOps), ports.ErrReset)
	closedSoon(t, l.Done(), "Done is open after the owner's Close")
	require.ErrorIs(t, l.Submit(work.batch, q), ports.ErrReset)
	require.Zero(t, q.Len(), "an error means that nothing was submitted")
	quiet()
}

func dropEndsLinksOfThatPeerOnly(t *testing.T, x *exchange) {
	dropped, kept := x.link(t), x.dial(t, x.Other, x.Owner)
	stranger := x.Asker.Self
	stranger.Incarnation++
	x.Owner.Transport.Drop(stranger)
	dst := x.local(t, 64)
	good := piece(1, 77, dst, 7, 32)
	noErrors(t, x.submit(t, dropped, x.reads([]ports.Segment{good})))

	work, q := newLoad(t, x), ports.NewCompletions()
	require.NoError(t, dropped.Submit(work.batch, q))
	x.Owner.Transport.Drop(x.Asker.Self)
	quiet := work.check(t, takeAll(t, q, loadOps), ports.ErrReset)
	closedSoon(t, dropped.Done(), "Done is open after Drop")
	noErrors(t, x.submit(t, kept, x.reads([]ports.Segment{good})))
	readRight(t, dst, good)
	x.roundTrip(t) // the dropped peer may come again
	quiet()
	x.Owner.Transport.Drop(ports.Peer{ID: "nobody", Incarnation: 1})
}

func anotherStartOfTheAskerEndsTheOneBefore(t *testing.T, x *exchange) {
	old := x.link(t)
	x.Restart(t, x.Asker)
	closedSoon(t, old.Done(), "Done is open after the end of its start")
	require.Error(t, old.Submit(x.reads(), ports.NewCompletions()))
	x.roundTrip(t)
	x.intact(t)
}

func aRestartedOwnerResetsLinks(t *testing.T, x *exchange) {
	l, work, q := x.link(t), newLoad(t, x), ports.NewCompletions()
	require.NoError(t, l.Submit(work.batch, q))
	x.Restart(t, x.Owner)
	quiet := work.check(t, takeAll(t, q, loadOps), ports.ErrReset)
	closedSoon(t, l.Done(), "Done is open after the end of the peer's start")
	require.ErrorIs(t, l.Submit(work.batch, q), ports.ErrReset)
	x.expose(t, x.Owner)
	x.roundTrip(t)
	quiet()
}

func anAnswerOfAnEarlierStartIsRefused(t *testing.T, x *exchange) {
	offer := func() ports.PendingLink {
		p, err := x.Asker.Transport.Offer(t.Context(), x.Owner.Self.ID)
		require.NoError(t, err)
		return p
	}
	before := offer()
	old, err := x.Owner.Transport.Answer(t.Context(), x.Asker.Self, before.Bytes())
	require.NoError(t, err)
	x.Restart(t, x.Owner)
	x.expose(t, x.Owner)
	_, err = before.Link(t.Context(), old)
	errorIsOneOf(t, err, ports.ErrRestarted, ports.ErrPeer)

	again := offer()
	_, err = x.Owner.Transport.Answer(t.Context(), x.Asker.Self, again.Bytes())
	require.NoError(t, err)
	_, err = again.Link(t.Context(), old)
	errorIsOneOf(t, err, ports.ErrRestarted, ports.ErrPeer)
	x.roundTrip(t)
}

// anAnswerIsForItsAskerOnly has two askers that exchange what they were answered.
func anAnswerIsForItsAskerOnly(t *testing.T, x *exchange) {
	pending := make([]ports.PendingLink, 2)
	answers := make([][]byte, 2)
	for i, e := range []*TransportEnd{x.Asker, x.Other} {
		var err error
		pending[i], err = e.Transport.Offer(t.Context(), x.Owner.Self.ID)
		require.NoError(t, err)
		answers[i], err = x.Owner.Transport.Answer(t.Context(), e.Self, pending[i].Bytes())
		require.NoError(t, err)
	}
	require.NotEqual(t, answers[0], answers[1])
	for i := range pending {
		_, err := pending[i].Link(t.Context(), answers[1-i])
		errorIsOneOf(t, err, ports.ErrRestarted, ports.ErrPeer)
	}
	x.roundTrip(t)
}

// garbageIsRefused cuts, flips and replaces real offers and answers. What is refused leaves the way open for what is right.
func garbageIsRefused(t *testing.T, x *exchange) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := x.Asker.Transport.Offer(ctx, x.Owner.Self.ID)
	require.NoError(t, err)
	good := append([]byte(nil), p.Bytes()...)
	require.NotEmpty(t, good)
	for _, bad := range [][]byte{nil, {}, {0}, good[:len(good)-1], append(append([]byte(nil), good...), 0), make([]byte, 4096)} {
		_, err := x.Owner.Transport.Answer(ctx, x.Asker.Self, bad)
		require.Error(t, err, "offer %x", bad)
	}
	answer, err := x.Owner.Transport.Answer(ctx, x.Asker.Self, good)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	for _, bad := range [][]byte{nil, {}, {0}, answer[:len(answer)-1], append(append([]byte(nil), answer...), 0), make([]byte, 4096)} {
		p, err := x.Asker.Transport.Offer(ctx, x.Owner.Self.ID)
		require.NoError(t, err)
		_, err = p.Link(ctx, bad)
		require.Error(t, err, "answer %x", bad)
	}
	x.roundTrip(t)
}
