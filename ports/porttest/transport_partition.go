package porttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

var transportPartitionCases = []transportCase{
	{name: "DeadlinesHoldInABlackHole", claim: deadlinesHoldInABlackHole},
	{name: "CancelReachesABlackHole", claim: cancelReachesABlackHole},
	{name: "CloseReturnsInABlackHole", claim: closeReturnsInABlackHole},
	{name: "SubmitDoesNotWaitForABlackHole", claim: submitDoesNotWaitForABlackHole},
	{name: "WritesIntoABlackHoleAreRevocable", claim: writesIntoABlackHoleAreRevocable, lacks: (*exchange).lacksPartitionOrWrites},
}

// sink is a link that has swallowed a load with that deadline.
func sink(t *testing.T, x *exchange, deadline time.Duration) (ports.Link, load, *ports.Completions) {
	l, work, q := x.link(t), newLoad(t, x), ports.NewCompletions()
	x.Partition(t, true)
	end := x.Clock.Now().Add(deadline)
	for i := range work.batch.Ops {
		work.batch.Ops[i].Deadline = end
	}
	require.NoError(t, l.Submit(work.batch, q))
	return l, work, q
}

// allFail says that no op of a black hole was a success.
func allFail(t testing.TB, done []ports.Completion) {
	t.Helper()
	for _, c := range done {
		require.Error(t, c.Err, "op %d", c.Tag)
	}
}

func deadlinesHoldInABlackHole(t *testing.T, x *exchange) {
	const deadline = 100 * time.Millisecond
	begin := x.Clock.Now()
	_, work, q := sink(t, x, deadline)
	done := takeAll(t, q, loadOps)
	for _, c := range done {
		require.GreaterOrEqual(t, c.At.Sub(begin), deadline, "op %d gave up early", c.Tag)
	}
	allFail(t, done)
	quiet := work.check(t, done, ports.ErrTimeout)
	x.Partition(t, false)
	x.roundTrip(t)
	quiet()
}

// cancelReachesABlackHole lets a transport keep a cancelled op until its deadline: it may be unable to take it back.
func cancelReachesABlackHole(t *testing.T, x *exchange) {
	l, work, q := sink(t, x, time.Second)
	var tags []uint64
	for i := range uint64(loadOps) {
		tags = append(tags, i)
	}
	l.Cancel(q, tags)
	done := takeAll(t, q, loadOps)
	allFail(t, done)
	quiet := work.check(t, done, ports.ErrCancelled, ports.ErrTimeout, ports.ErrReset)
	x.Partition(t, false)
	x.roundTrip(t)
	quiet()
}

func closeReturnsInABlackHole(t *testing.T, x *exchange) {
	l, work, q := sink(t, x, time.Minute)
	require.NoError(t, l.Close())
	require.Equal(t, loadOps, q.Len(), "completions when Close returned")
	done := takeAll(t, q, loadOps)
	allFail(t, done)
	quiet := work.check(t, done, ports.ErrReset)
	x.Partition(t, false)
	x.roundTrip(t)
	quiet()
}

func submitDoesNotWaitForABlackHole(t *testing.T, x *exchange) {
	l, _, _ := sink(t, x, time.Minute)
	begin := time.Now()
	for range 8 { // more than any socket buffers
		if err := l.Submit(newLoad(t, x).batch, ports.NewCompletions()); err != nil {
			require.ErrorIs(t, err, ports.ErrReset) // it may have found out by now
			break
		}
	}
	require.Less(t, time.Since(begin), patience)
	require.NoError(t, l.Close())
}

// writesIntoABlackHoleAreRevocable refills the pages of a writer that cannot be reached, and lets it go on.
func writesIntoABlackHoleAreRevocable(t *testing.T, x *exchange) {
	const pages = 32
	l, src := x.link(t), x.source(t, pages*exchangePage)
	refs := make([]domain.PageRef, pages)
	for i := range refs {
		refs[i] = domain.PageRef{Buffer: 0, Page: uint32(i)}
	}
	id, token := x.grant(t, x.Asker, refs...)
	var all [][]ports.Segment
	for range loadOps {
		all = append(all, []ports.Segment{piece(0, 0, src, 0, pages*exchangePage)})
	}
	x.Partition(t, true)
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(x.writes(token, all...), q))
	require.NoError(t, x.Owner.Transport.Revoke(t.Context(), id, false))
	x.refill()
	x.Partition(t, false)
	for _, c := range takeAll(t, q, loadOps) {
		errorIsOneOf(t, c.Err, ports.ErrRevoked, ports.ErrReset, ports.ErrTimeout)
	}
	x.intact(t)
}
