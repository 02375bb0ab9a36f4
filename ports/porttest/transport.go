package porttest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// TransportEnd is the present start of one node.
type TransportEnd struct {
	Self      ports.Peer
	Transport ports.Transport
}

// TransportHarness is three nodes that reach each other. The suite exposes, and closes what it opens; the harness cleans up
// after it, and bears transports that are closed already.
type TransportHarness struct {
	Clock               ports.Clock // what the transports tell instants in
	Owner, Asker, Other *TransportEnd
	// Memory makes bytes that these transports can expose and name in ops; they live as long as the test.
	Memory func(t testing.TB, bytes int) ports.HostRegion
	// Restart kills a node's start without a word to anyone and puts another in its place, which it writes into e.
	Restart func(t testing.TB, e *TransportEnd)
	// Partition makes the way between Owner and Asker swallow everything, or heals it. nil: cases that need it are left out,
	// by name.
	Partition func(t testing.TB, on bool)
	// Cuts makes the way between Owner and Asker cut connections after about a MiB of a direction, or no longer. nil: cases that
	// need it are left out, by name.
	Cuts func(t testing.TB, on bool)
}

// RunTransport is the contract of ports.Transport. Each open is a harness of its own. Cases about writes are left out, by
// name, of a transport whose Caps say that it has none.
func RunTransport(t *testing.T, open func(t testing.TB) *TransportHarness) {
	run := func(c transportCase) {
		t.Run(c.name, func(t *testing.T) {
			x := newExchange(t, open(t))
			if c.lacks != nil {
				if why := c.lacks(x); why != "" {
					t.Skip(why)
				}
			}
			c.claim(t, x)
		})
	}
	for _, c := range []transportCase{
		{name: "ReadsScatterAndGather", claim: readsScatterAndGather},
		{name: "AnyReadIsTheBytesItNames", claim: anyReadIsTheBytesItNames},
		{name: "SumsAreOfTheBytesThatLanded", lacks: (*exchange).lacksSums, claim: sumsAreOfTheBytesThatLanded},
		{name: "ASumIsNeverOfASecondLookAtTheSource", lacks: (*exchange).lacksSums, claim: aSumIsNeverOfASecondLookAtTheSource},
		{name: "OnlyWhatAskedAndCompletedWellIsSummed", claim: onlyWhatAskedAndCompletedWellIsSummed},
		{name: "AnOpWithoutSegmentsCompletes", claim: anOpWithoutSegmentsCompletes},
		{name: "OutOfBoundsMovesNothing", claim: outOfBoundsMovesNothing},
		{name: "AnErrorBelongsToItsOp", claim: anErrorBelongsToItsOp},
		{name: "ABatchThatContradictsItselfIsRefused", claim: aBatchThatContradictsItselfIsRefused},
		{name: "DeviceMemoryIsRefusedWhereCapsSaySo", claim: deviceMemoryIsRefusedWhereCapsSaySo},
		{name: "ParallelSubmitsCompleteExactlyOnce", claim: parallelSubmitsCompleteExactlyOnce},
		{name: "ColumnsAreFreeAfterTheLastCompletion", claim: columnsAreFreeAfterTheLastCompletion},
		{name: "BytesAreCountedByPurpose", claim: bytesAreCountedByPurpose},
		{name: "BothEndsReadAtOnce", claim: bothEndsReadAtOnce},
		{name: "LinksOfOnePeerAreIndependent", claim: linksOfOnePeerAreIndependent},
		{name: "ADeadlineThatHasPassedMovesNothing", claim: aDeadlineThatHasPassedMovesNothing},
		{name: "CancelledOpsCompleteOnceAndAreQuiet", claim: cancelledOpsCompleteOnceAndAreQuiet},
		{name: "CancelNamesOpsByQueueAndTag", claim: cancelNamesOpsByQueueAndTag},
		{name: "CloseCompletesEverythingAndIsQuiet", claim: closeCompletesEverythingAndIsQuiet},
		{name: "TransportCloseEndsItsLinks", claim: transportCloseEndsItsLinks},
		{name: "TheOwnersCloseResetsLinks", claim: theOwnersCloseResetsLinks},
		{name: "DropEndsLinksOfThatPeerOnly", claim: dropEndsLinksOfThatPeerOnly},
		{name: "AnotherStartOfTheAskerEndsTheOneBefore", claim: anotherStartOfTheAskerEndsTheOneBefore},
		{name: "ARestartedOwnerResetsLinks", claim: aRestartedOwnerResetsLinks},
		{name: "AnAnswerOfAnEarlierStartIsRefused", claim: anAnswerOfAnEarlierStartIsRefused},
		{name: "AnAnswerIsForItsAskerOnly", claim: anAnswerIsForItsAskerOnly},
		{name: "GarbageIsRefused", claim: garbageIsRefused},
		{name: "ExposeIsOnceAndBeforeTheFirstAnswer", claim: exposeIsOnceAndBeforeTheFirstAnswer},
		{name: "DeregisterReturnsWhenMemoryIsQuiet", claim: deregisterReturnsWhenMemoryIsQuiet},
		{name: "DeregisterOfWhatIsNotRegisteredIsAnError", claim: deregisterOfWhatIsNotRegisteredIsAnError},
	} {
		run(c)
	}
	for _, c := range transportWriteCases {
		c.lacks = (*exchange).lacksWrites
		run(c)
	}
	run(transportCase{name: "WritesAreRefusedWhereCapsSaySo", claim: writesAreRefusedWhereCapsSaySo, lacks: (*exchange).hasWrites})
	for _, c := range transportLossyCases {
		run(c)
	}
	for _, c := range transportPartitionCases {
		if c.lacks == nil {
			c.lacks = (*exchange).lacksPartition
		}
		run(c)
	}
}

// transportCase is one promise. Where the harness lacks what it needs, it is left out, with the reason.
type transportCase struct {
	name  string
	claim func(t *testing.T, x *exchange)
	lacks func(x *exchange) string
}

func (x *exchange) lacksWrites() string {
	if !x.Owner.Transport.Caps().Write {
		return "Caps.Write is false"
	}
	return ""
}

func (x *exchange) hasWrites() string {
	if x.Owner.Transport.Caps().Write {
		return "Caps.Write is true"
	}
	return ""
}

func (x *exchange) lacksPartitionOrWrites() string {
	if why := x.lacksWrites(); why != "" {
		return why
	}
	return x.lacksPartition()
}

func (x *exchange) lacksSums() string {
	if !x.Asker.Transport.Caps().Sums {
		return "Caps.Sums is false"
	}
	return ""
}

func (x *exchange) lacksPartition() string {
	if x.Partition == nil {
		return "the harness has no Partition"
	}
	return ""
}

// The owner of an exchange exposes two buffers of whole pages.
const (
	exchangePage = 4096
	bufferPages  = 64
	bufferBytes  = bufferPages * exchangePage
	patience     = 10 * time.Second // for what comes at once, on a machine that is busy with something else
)

// exchange is one harness in use: the owner's buffers are exposed and hold position-unique content.
type exchange struct {
	*TransportHarness
	mem [2]ports.HostRegion
}

func newExchange(t testing.TB, h *TransportHarness) *exchange {
	x := &exchange{TransportHarness: h}
	for i := range x.mem {
		x.mem[i] = h.Memory(t, bufferBytes)
	}
	x.refill()
	x.expose(t, h.Owner)
	return x
}

func (x *exchange) expose(t testing.TB, e *TransportEnd) {
	for i := range x.mem {
		require.NoError(t, e.Transport.Expose(uint32(i), x.mem[i]))
	}
}

// refill gives each buffer its content.
func (x *exchange) refill() {
	for i := range x.mem {
		content.Fill(x.mem[i].Bytes(), uint64(i), 0)
	}
}

// intact fails if a byte of the buffers outside of the given pieces is not what refill wrote.
func (x *exchange) intact(t testing.TB, but ...ports.Segment) {
	t.Helper()
	for i := range x.mem {
		b := append([]byte(nil), x.mem[i].Bytes()...)
		for _, s := range but {
			if s.Remote == uint32(i) {
				content.Fill(b[s.RemoteOff:s.RemoteOff+s.Len], uint64(i), s.RemoteOff)
			}
		}
		require.Equal(t, -1, content.Check(b, uint64(i), 0), "first byte of buffer %d that was overwritten", i)
	}
}

// local makes poisoned memory of the asker's.
func (x *exchange) local(t testing.TB, bytes int) ports.HostRegion {
	r := x.Memory(t, bytes)
	content.Poison(r.Bytes())
	if x.Asker.Transport.Caps().NeedsRegister {
		for _, e := range []*TransportEnd{x.Asker, x.Owner, x.Other} {
			if _, err := e.Transport.Register(r); !errors.Is(err, ports.ErrClosed) { // a case may have closed an end
				require.NoError(t, err)
			}
		}
	}
	return r
}

// dial makes a link as the peers' hello would.
func (x *exchange) dial(t testing.TB, from, to *TransportEnd) ports.Link {
	t.Helper()
	l, err := x.tryDial(t, from, to)
	require.NoError(t, err)
	return l
}

func (x *exchange) tryDial(t testing.TB, from, to *TransportEnd) (ports.Link, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := from.Transport.Offer(ctx, to.Self.ID)
	if err != nil {
		return nil, err
	}
	answer, err := to.Transport.Answer(ctx, from.Self, p.Bytes())
	if err != nil {
		require.NoError(t, p.Close())
		return nil, err
	}
	l, err := p.Link(ctx, answer)
	if err == nil {
		t.Cleanup(func() { _ = l.Close() })
	}
	return l, err
}

func (x *exchange) link(t testing.TB) ports.Link { return x.dial(t, x.Asker, x.Owner) }

// soon is a deadline that nothing here should meet.
func (x *exchange) soon() domain.Instant { return x.Clock.Now().Add(patience) }

// batch of ops with the given segments each; tags count from 0, deadlines are far.
func (x *exchange) batch(dir ports.Direction, why ports.Purpose, token ports.GrantToken, ops ...[]ports.Segment) *ports.Batch {
	b := &ports.Batch{}
	for i, segs := range ops {
		b.Ops = append(b.Ops, ports.Op{Tag: uint64(i), First: uint32(len(b.Segments)), Count: uint32(len(segs)),
			Dir: dir, Purpose: why, Grant: token, Deadline: x.soon()})
		b.Segments = append(b.Segments, segs...)
	}
	return b
}

func (x *exchange) reads(ops ...[]ports.Segment) *ports.Batch {
	return x.batch(ports.Read, ports.PurposeGet, ports.GrantToken{}, ops...)
}

// submit submits and returns the errors by tag, once every op completed, and each exactly once.
func (x *exchange) submit(t testing.TB, l ports.Link, b *ports.Batch) []error {
	t.Helper()
	errs := make([]error, len(b.Ops))
	for _, c := range x.complete(t, l, b) {
		errs[c.Tag] = c.Err
	}
	return errs
}

// complete submits and returns the completions, once every op completed, and each exactly once.
func (x *exchange) complete(t testing.TB, l ports.Link, b *ports.Batch) []ports.Completion {
	t.Helper()
	q := ports.NewCompletions()
	before := x.Clock.Now()
	require.NoError(t, l.Submit(b, q))
	done := takeAll(t, q, len(b.Ops))
	for _, c := range done {
		require.GreaterOrEqual(t, c.At, before, "op %d was complete before it was submitted", c.Tag)
		require.LessOrEqual(t, c.At, x.Clock.Now(), "op %d is complete in the future", c.Tag)
	}
	return done
}

// takeAll waits for n completions of tags below n, each once.
func takeAll(t testing.TB, q *ports.Completions, n int) []ports.Completion {
	t.Helper()
	var done []ports.Completion
	seen := make([]bool, n)
	for len(done) < n {
		held := len(done)
		var err error
		done, err = q.Take(t.Context(), patience, done)
		require.NoError(t, err)
		require.Greater(t, len(done), held, "%d of %d ops completed", held, n)
		for _, c := range done[held:] {
			require.Less(t, c.Tag, uint64(n), "a completion of no op")
			require.False(t, seen[c.Tag], "op %d completed twice", c.Tag)
			seen[c.Tag] = true
		}
	}
	require.Zero(t, q.Len(), "more completions than ops")
	return done
}

// piece names n bytes on both sides.
func piece(remote uint32, remoteOff uint64, local ports.Region, localOff, n uint64) ports.Segment {
	return ports.Segment{Remote: remote, RemoteOff: remoteOff, Local: local, LocalOff: localOff, Len: n}
}

// readRight fails unless dst is poison but for what the segments read from the buffers' content.
func readRight(t testing.TB, dst ports.HostRegion, segs ...ports.Segment) {
	t.Helper()
	due := make([]byte, dst.Len())
	content.Poison(due)
	for _, s := range segs {
		content.Fill(due[s.LocalOff:s.LocalOff+s.Len], uint64(s.Remote), s.RemoteOff)
	}
	for i, b := range dst.Bytes() {
		if b != due[i] {
			require.Failf(t, "wrong byte", "byte %d of the destination is %#x, due %#x", i, b, due[i])
		}
	}
}

// closedSoon waits for a channel to be closed.
func closedSoon(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, what)
	}
}

func noErrors(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		require.NoError(t, err, "op %d of %d", i, len(errs))
	}
}

// errorIsOneOf fails unless err is of one of the classes.
func errorIsOneOf(t testing.TB, err error, classes ...error) {
	t.Helper()
	for _, c := range classes {
		if isClass(err, c) {
			return
		}
	}
	require.Failf(t, "another error", "%v is none of %v", err, classes)
}
