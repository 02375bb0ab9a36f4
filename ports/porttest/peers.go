package porttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// PeersHarness is a node that asks and one that answers.
type PeersHarness struct {
	Asker    ports.Peer // the start that asks by Resolver and Writer
	Resolver ports.PeerResolver
	Writer   ports.PeerWriter
	Owner    ports.Peer // the start that answers now
	// Restart ends the owner's start and puts another in its place, with the same server; it writes Owner.
	Restart func(t testing.TB)
	// Stop ends the owner's start, as if its process had died.
	Stop func(t testing.TB)
	// Partition makes the way between them swallow everything, or heals it. nil: the cases that need it are left out, by name.
	Partition func(t testing.TB, on bool)
	// Cuts makes that way cut connections after some hundred KiB, or no longer. nil: the case that needs it is left out, by name.
	Cuts func(t testing.TB, on bool)
}

// RunPeers is the contract of ports.PeerResolver and ports.PeerWriter, and of what serves a ports.PeerServer to them. Each open
// is a harness of its own whose owner answers by srv.
func RunPeers(t *testing.T, open func(t testing.TB, srv *FakeServer) *PeersHarness) {
	for _, c := range []struct {
		name  string
		claim func(t *testing.T, p *peers)
	}{
		{"EveryColumnCrosses", everyColumnCrosses},
		{"TheLargestCallCrosses", theLargestCallCrosses},
		{"RequestsAreBorrowedForTheCallOnly", requestsAreBorrowedForTheCallOnly},
		{"RepliesAreTruncatedFirst", repliesAreTruncatedFirst},
		{"TheServerIsToldWhoAsks", theServerIsToldWhoAsks},
		{"ATraceGoesWithTheCall", aTraceGoesWithTheCall},
		{"ARestartIsNoticedByEveryMethod", aRestartIsNoticedByEveryMethod},
		{"HelloNeedNotNameAStart", helloNeedNotNameAStart},
		{"AnUnreachablePeerIsErrPeer", anUnreachablePeerIsErrPeer},
		{"APeerThatDiesInACallIsErrPeer", aPeerThatDiesInACallIsErrPeer},
		{"ErrorClassesCross", errorClassesCross},
		{"AContextBoundsEveryMethod", aContextBoundsEveryMethod},
		{"AnEndedContextAsksNothing", anEndedContextAsksNothing},
		{"ParallelCallsDoNotMix", parallelCallsDoNotMix},
		{"ABlackHoleLastsUntilTheContextEnds", aBlackHoleLastsUntilTheContextEnds},
		{"CallsOverALossyWayAreAnsweredRightOrFail", callsOverALossyWayAreAnsweredRightOrFail},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := &FakeServer{}
			c.claim(t, &peers{PeersHarness: open(t, srv), srv: srv})
		})
	}
}

// peers is one harness in use.
type peers struct {
	*PeersHarness
	srv *FakeServer
}

// method calls one of the eight with a small request.
type method struct {
	name string
	call func(ctx context.Context, p *peers, to ports.Peer) error
}

var oneKey = []ports.Key{{Space: 1, Name: "k"}}

var methods = []method{
	{"Hello", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Resolver.Hello(ctx, to, &ports.Hello{From: p.Asker}, &ports.HelloReply{})
	}},
	{"Probe", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Resolver.Probe(ctx, to, oneKey, &ports.ProbeReply{})
	}},
	{"Resolve", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Resolver.Resolve(ctx, to, &ports.ResolveRequest{Keys: oneKey, Versions: make([]domain.Version, 1),
			Held: make([]domain.Generation, 1)}, &ports.ResolveReply{})
	}},
	{"Complain", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Resolver.Complain(ctx, to, []domain.Generation{{Incarnation: to.Incarnation, Counter: 1}})
	}},
	{"Reserve", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Writer.Reserve(ctx, to, &ports.ReserveRequest{Via: "x", Keys: oneKey, Versions: make([]domain.Version, 1),
			Sizes: []uint64{1}}, &ports.ReserveReply{})
	}},
	{"Commit", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Writer.Commit(ctx, to, &ports.CommitRequest{Keys: oneKey, Versions: make([]domain.Version, 1),
			LenEnd: []uint32{0}, SumEnd: []uint32{0}}, new([]ports.CommitStatus))
	}},
	{"Abort", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Writer.Abort(ctx, to, oneKey, make([]domain.Version, 1), true)
	}},
	{"Remove", func(ctx context.Context, p *peers, to ports.Peer) error {
		return p.Writer.Remove(ctx, to, oneKey, new([]ports.KeyStatus))
	}},
}

// eachMethod runs a claim for every method, with a bounded context.
func (p *peers) eachMethod(t *testing.T, claim func(ctx context.Context, t *testing.T, m method)) {
	for _, m := range methods {
		t.Run(m.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			claim(ctx, t, m)
		})
	}
}

func everyColumnCrosses(t *testing.T, p *peers) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	for name, cross := range crossings {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) { cross(ctx, r, p) })
		})
	}
}

func theServerIsToldWhoAsks(t *testing.T, p *peers) {
	p.eachMethod(t, func(ctx context.Context, t *testing.T, m method) {
		require.NoError(t, m.call(ctx, p, p.Owner))
		require.Equal(t, []FakeCall{{m.name, p.Asker}}, p.srv.TakeCalls())
	})
}

func aTraceGoesWithTheCall(t *testing.T, p *peers) {
	seen := make(chan ports.Trace, 1)
	p.srv.Use(Answers{Each: func(ctx context.Context, _ string) error { seen <- ports.TraceOf(ctx); return nil }})
	trace := ports.Trace{ID: [16]byte{1, 15: 2}, Span: [8]byte{3, 7: 4}, Sampled: true}
	p.eachMethod(t, func(ctx context.Context, t *testing.T, m method) {
		require.NoError(t, m.call(ports.WithTrace(ctx, trace), p, p.Owner))
		require.Equal(t, trace, <-seen)
		require.NoError(t, m.call(ctx, p, p.Owner))
		require.Zero(t, <-seen, "a call of no trace has none")
	})
}

// theLargestCallCrosses has as many keys as a call may have; each lies on several pages.
func theLargestCallCrosses(t *testing.T, p *peers) {
	const keys, pagesEach = domain.MaxCallKeys, 4
	req := &ports.ResolveRequest{Versions: make([]domain.Version, keys), Held: make([]domain.Generation, keys)}
	reply := &ports.ResolveReply{LenEnd: make([]uint32, keys), SumEnd: make([]uint32, keys)}
	for i := range uint64(keys) {
		req.Keys = append(req.Keys, ports.Key{Space: 3, Name: fmt.Sprintf("a key of a common length, the last of which is %08d", i)})
		reply.Status = append(reply.Status, ports.KeyHere)
		reply.Versions = append(reply.Versions, domain.Version{Hi: i, Lo: ^i})
		reply.Generations = append(reply.Generations, domain.Generation{Incarnation: p.Owner.Incarnation, Counter: i + 1})
		reply.Sizes = append(reply.Sizes, pagesEach<<16)
		reply.LeaseNanos = append(reply.LeaseNanos, 5e8)
		for k := range uint32(pagesEach) {
			reply.Pages = append(reply.Pages, domain.PageRef{Buffer: k, Page: uint32(i)})
		}
		reply.PageEnd = append(reply.PageEnd, uint32(len(reply.Pages)))
	}
	var seen int
	p.srv.Use(Answers{Resolve: func(_ context.Context, _ ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
		seen = len(req.Keys)
		*out = *reply
		return nil
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	got := &ports.ResolveReply{}
	require.NoError(t, p.Resolver.Resolve(ctx, p.Owner, req, got))
	require.Equal(t, keys, seen)
	require.True(t, sameResolve(reply, got), "a column is not as it was sent")
}

// requestsAreBorrowedForTheCallOnly has a server that still reads its request when the asker has left and reused it.
func requestsAreBorrowedForTheCallOnly(t *testing.T, p *peers) {
	began, goOn, saw := make(chan struct{}), make(chan struct{}), make(chan ports.ResolveRequest, 1)
	p.srv.Use(Answers{Resolve: func(_ context.Context, _ ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
		close(began)
		<-goOn
		saw <- *req
		out.Status = append(out.Status, ports.KeyHere) // into memory that is not the asker's any more
		return nil
	}})
	req := &ports.ResolveRequest{Keys: []ports.Key{{Space: 1, Name: "asked"}}, Versions: []domain.Version{{Hi: 1}}, Held: make([]domain.Generation, 1)}
	out := &ports.ResolveReply{Status: make([]ports.KeyStatus, 0, 4)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	require.Error(t, p.Resolver.Resolve(ctx, p.Owner, req, out))
	req.Keys[0], req.Versions[0] = ports.Key{Space: 2, Name: "reused"}, domain.Version{Hi: 2}
	out.Status = append(out.Status, ports.KeyRefused)
	close(goOn)
	select {
	case r := <-saw:
		require.Equal(t, ports.Key{Space: 1, Name: "asked"}, r.Keys[0])
		require.Equal(t, domain.Version{Hi: 1}, r.Versions[0])
	case <-time.After(patience):
		require.FailNow(t, "the server did not go on")
	}
	require.Equal(t, []ports.KeyStatus{ports.KeyRefused}, out.Status)
}

// repliesAreTruncatedFirst reuses replies that are full of something else.
func repliesAreTruncatedFirst(t *testing.T, p *peers) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p.srv.Use(Answers{
		Hello: func(_ context.Context, _ ports.Peer, _ *ports.Hello, out *ports.HelloReply) error {
			out.Buffers = append(out.Buffers, 7)
			return nil
		},
		Probe: func(_ context.Context, _ ports.Peer, _ []ports.Key, out *ports.ProbeReply) error {
			out.Status, out.Versions = append(out.Status, ports.KeyHere), append(out.Versions, domain.Version{Hi: 1})
			return nil
		},
		Commit: func(_ context.Context, _ ports.Peer, _ *ports.CommitRequest, out *[]ports.CommitStatus) error {
			*out = append(*out, ports.CommitExists)
			return nil
		},
		Remove: func(_ context.Context, _ ports.Peer, _ []ports.Key, out *[]ports.KeyStatus) error {
			*out = append(*out, ports.KeyHere)
			return nil
		},
	})
	hello := &ports.HelloReply{Buffers: []uint64{1, 2}, Answers: []ports.Offer{{Kind: "old"}}, Refused: []ports.Refusal{{Kind: "old"}}, PageSize: 5}
	require.NoError(t, p.Resolver.Hello(ctx, p.Owner, &ports.Hello{From: p.Asker}, hello))
	require.Equal(t, []uint64{7}, hello.Buffers)
	require.Empty(t, hello.Answers)
	require.Empty(t, hello.Refused)
	require.Zero(t, hello.PageSize)

	probe := &ports.ProbeReply{Status: make([]ports.KeyStatus, 3), Versions: make([]domain.Version, 3)}
	require.NoError(t, p.Resolver.Probe(ctx, p.Owner, oneKey, probe))
	require.Equal(t, &ports.ProbeReply{Status: []ports.KeyStatus{ports.KeyHere}, Versions: []domain.Version{{Hi: 1}}}, probe)

	commit := []ports.CommitStatus{ports.CommitRefused, ports.CommitRefused}
	require.NoError(t, p.Writer.Commit(ctx, p.Owner, &ports.CommitRequest{Keys: oneKey, Versions: make([]domain.Version, 1),
		LenEnd: []uint32{0}, SumEnd: []uint32{0}}, &commit))
	require.Equal(t, []ports.CommitStatus{ports.CommitExists}, commit)
	removed := []ports.KeyStatus{ports.KeyRefused, ports.KeyRefused}
	require.NoError(t, p.Writer.Remove(ctx, p.Owner, oneKey, &removed))
	require.Equal(t, []ports.KeyStatus{ports.KeyHere}, removed)

	resolve := &ports.ResolveReply{Status: make([]ports.KeyStatus, 2), Pages: make([]domain.PageRef, 2), PageEnd: make([]uint32, 2),
		PutLens: make([]uint64, 2), LenEnd: make([]uint32, 2), Sums: make([]uint32, 2), SumEnd: make([]uint32, 2), Sizes: make([]uint64, 2),
		Versions: make([]domain.Version, 2), Generations: make([]domain.Generation, 2), LeaseNanos: make([]int64, 2)}
	require.NoError(t, p.Resolver.Resolve(ctx, p.Owner, &ports.ResolveRequest{}, resolve))
	require.True(t, sameResolve(&ports.ResolveReply{}, resolve), "%+v", resolve)
	reserve := &ports.ReserveReply{Status: make([]ports.ReserveStatus, 2), Tokens: make([]ports.GrantToken, 2), EndNanos: make([]int64, 2),
		PageEnd: make([]uint32, 2), Pages: make([]domain.PageRef, 2)}
	require.NoError(t, p.Writer.Reserve(ctx, p.Owner, &ports.ReserveRequest{Via: "x"}, reserve))
	require.True(t, sameReserve(&ports.ReserveReply{}, reserve), "%+v", reserve)
}

func aRestartIsNoticedByEveryMethod(t *testing.T, p *peers) {
	old := p.Owner
	p.Restart(t)
	require.NotEqual(t, old.Incarnation, p.Owner.Incarnation)
	p.eachMethod(t, func(ctx context.Context, t *testing.T, m method) {
		require.ErrorIs(t, m.call(ctx, p, old), ports.ErrRestarted)
		require.Empty(t, p.srv.TakeCalls(), "a call that names another start reached the server")
		require.NoError(t, m.call(ctx, p, p.Owner))
		require.Len(t, p.srv.TakeCalls(), 1)
	})
}

func helloNeedNotNameAStart(t *testing.T, p *peers) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p.srv.Use(Answers{Hello: func(_ context.Context, _ ports.Peer, _ *ports.Hello, out *ports.HelloReply) error {
		out.From = p.Owner
		return nil
	}})
	anyStart := ports.Peer{ID: p.Owner.ID}
	for range 2 {
		var reply ports.HelloReply
		require.NoError(t, p.Resolver.Hello(ctx, anyStart, &ports.Hello{From: p.Asker}, &reply))
		require.Equal(t, p.Owner, reply.From)
		p.Restart(t)
	}
	p.srv.TakeCalls()
	for _, m := range methods[1:] {
		require.ErrorIs(t, m.call(ctx, p, anyStart), ports.ErrRestarted, m.name)
	}
	require.Empty(t, p.srv.TakeCalls())
}

func anUnreachablePeerIsErrPeer(t *testing.T, p *peers) {
	p.Stop(t)
	p.eachMethod(t, func(ctx context.Context, t *testing.T, m method) {
		require.ErrorIs(t, m.call(ctx, p, p.Owner), ports.ErrPeer)
		require.ErrorIs(t, m.call(ctx, p, ports.Peer{ID: "nobody", Incarnation: 1}), ports.ErrPeer)
	})
	require.Empty(t, p.srv.TakeCalls())
}

func aPeerThatDiesInACallIsErrPeer(t *testing.T, p *peers) {
	p.eachMethod(t, func(ctx context.Context, t *testing.T, m method) {
		began, release := make(chan struct{}), make(chan struct{})
		defer close(release)
		p.srv.Use(Answers{Each: func(ctx context.Context, _ string) error {
			close(began)
			select {
			case <-release: // a server that does not look at its context
			case <-time.After(patience):
			}
			return nil
		}})
		answer := make(chan error, 1)
		go func() { answer <- m.call(ctx, p, p.Owner) }()
		closedSoon(t, began, "the server was not called")
		p.Restart(t)
		select {
		case err := <-answer:
			errorIsOneOf(t, err, ports.ErrPeer, ports.ErrRestarted)
		case <-time.After(patience):
			require.FailNow(t, "the call outlives its peer")
		}
	})
}

// classes are what a server may answer with; a caller acts on them.
var classes = []error{ports.ErrNotFound, ports.ErrStale, ports.ErrNoSpace, ports.ErrBusy, ports.ErrClosed, ports.ErrReset, ports.ErrRevoked,
	ports.ErrTimeout, ports.ErrCancelled, ports.ErrRestarted, ports.ErrRefused, ports.ErrPeer, ports.ErrBounds, domain.ErrInvalid, errors.ErrUnsupported}

func errorClassesCross(t *testing.T, p *peers) {
	p.eachMethod(t, func(ctx context.Context, t *testing.T, m method) {
		for _, class := range classes {
			p.srv.Use(Answers{Each: func(context.Context, string) error { return fmt.Errorf("row 7 of 9: %w", class) }})
			err := m.call(ctx, p, p.Owner)
			for _, other := range classes {
				require.Equal(t, other == class, errors.Is(err, other), "%v, sent as %v, is %v", err, class, other)
			}
		}
		p.srv.Use(Answers{Each: func(context.Context, string) error { return errors.New("of no class") }})
		require.Error(t, m.call(ctx, p, p.Owner))
	})
}

// aContextBoundsEveryMethod has a server that does not answer before it is let go.
func aContextBoundsEveryMethod(t *testing.T, p *peers) {
	for _, m := range methods {
		t.Run(m.name, func(t *testing.T) {
			began, release := make(chan struct{}, 2), make(chan struct{})
			var started, left atomic.Int32
			p.srv.Use(Answers{Each: func(ctx context.Context, _ string) error {
				started.Add(1)
				began <- struct{}{}
				<-ctx.Done() // the asker's leaving reaches the server
				left.Add(1)
				<-release
				return nil
			}})
			boom := errors.New("boom")
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-began
				cancel(boom)
			}()
			err := m.call(ctx, p, p.Owner)
			require.ErrorIs(t, err, boom)

			deadline, cancelDeadline := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancelDeadline()
			errorIsOneOf(t, m.call(deadline, p, p.Owner), ports.ErrTimeout, context.DeadlineExceeded)
			require.Error(t, deadline.Err(), "it gave up early")
			// The second call may end before it reaches the server.
			require.Eventually(t, func() bool { return left.Load() == started.Load() }, patience, time.Millisecond, "the server's context goes on")
			close(release)
		})
	}
}

func anEndedContextAsksNothing(t *testing.T, p *peers) {
	last, began := ports.Trace{ID: [16]byte{7}, Span: [8]byte{7}}, make(chan struct{})
	p.srv.Use(Answers{Each: func(ctx context.Context, _ string) error {
		if ports.TraceOf(ctx) == last {
			close(began)
		}
		<-ctx.Done()
		return nil
	}})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, m := range methods {
		require.ErrorIs(t, m.call(ended, p, p.Owner), context.Canceled, m.name)
	}
	// One that does ask: when it has come the server has seen whatever the others sent.
	ctx, leave := context.WithTimeout(ports.WithTrace(t.Context(), last), patience)
	defer leave()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		select {
		case <-began:
			leave()
		case <-ctx.Done():
		}
	})
	require.Error(t, methods[0].call(ctx, p, p.Owner))
	require.Len(t, p.srv.TakeCalls(), 1)
}

// parallelCallsDoNotMix has each call carry its own number there and back, while another one blocks.
func parallelCallsDoNotMix(t *testing.T, p *peers) {
	release := make(chan struct{})
	p.srv.Use(Answers{
		Complain: func(context.Context, ports.Peer, []domain.Generation) error {
			<-release
			return nil
		},
		Probe: func(_ context.Context, _ ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
			for _, k := range keys {
				out.Status = append(out.Status, ports.KeyHere)
				out.Versions = append(out.Versions, domain.Version{Hi: uint64(k.Space), Lo: uint64(len(k.Name))})
			}
			return nil
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	blocked := make(chan error, 1)
	go func() { blocked <- p.Resolver.Complain(ctx, p.Owner, nil) }()
	var wg sync.WaitGroup
	for i := range uint32(16) {
		wg.Go(func() {
			var out ports.ProbeReply
			for round := range 50 {
				keys := make([]ports.Key, 1+(int(i)+round)%7)
				for k := range keys {
					keys[k] = ports.Key{Space: i, Name: fmt.Sprintf("%0*d", 1+k, 0)}
				}
				if err := p.Resolver.Probe(ctx, p.Owner, keys, &out); err != nil {
					t.Errorf("caller %d: %v", i, err)
					return
				}
				for k, v := range out.Versions {
					if want := (domain.Version{Hi: uint64(i), Lo: uint64(1 + k)}); v != want || len(out.Versions) != len(keys) {
						t.Errorf("caller %d got %d rows, row %d is %v, want %d rows and %v", i, len(out.Versions), k, v, len(keys), want)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(release)
	require.NoError(t, <-blocked)
}

func aBlackHoleLastsUntilTheContextEnds(t *testing.T, p *peers) {
	if p.Partition == nil {
		t.Skip("the harness has no Partition")
	}
	p.eachMethod(t, func(_ context.Context, t *testing.T, m method) {
		p.Partition(t, true)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		err := m.call(ctx, p, p.Owner)
		errorIsOneOf(t, err, ports.ErrTimeout, context.DeadlineExceeded, ports.ErrPeer)
		p.Partition(t, false)
		again, cancelAgain := context.WithTimeout(t.Context(), patience)
		defer cancelAgain()
		require.NoError(t, m.call(again, p, p.Owner))
	})
}

// callsOverALossyWayAreAnsweredRightOrFail has parallel calls of some ten KiB each way, whose answers tell what was asked.
func callsOverALossyWayAreAnsweredRightOrFail(t *testing.T, p *peers) {
	if p.Cuts == nil {
		t.Skip("the harness has no Cuts")
	}
	p.srv.Use(Answers{Probe: func(_ context.Context, _ ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
		for _, k := range keys {
			out.Status = append(out.Status, ports.KeyHere)
			out.Versions = append(out.Versions, domain.Version{Hi: uint64(k.Space), Lo: uint64(len(k.Name))})
		}
		return nil
	}})
	const callers, rounds, rows = 4, 25, 1000
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	probe := func(space uint32) error {
		var keys []ports.Key
		for i := range uint32(rows) {
			keys = append(keys, ports.Key{Space: space + i, Name: strings.Repeat("k", int(1+(space+i)%50))})
		}
		var out ports.ProbeReply
		if err := p.Resolver.Probe(ctx, p.Owner, keys, &out); err != nil {
			return err
		}
		if len(out.Versions) != rows {
			t.Errorf("%d rows, want %d", len(out.Versions), rows)
			return nil
		}
		for i, v := range out.Versions {
			if want := (domain.Version{Hi: uint64(space) + uint64(i), Lo: uint64(len(keys[i].Name))}); v != want {
				t.Errorf("row %d is %v, want %v", i, v, want)
				break
			}
		}
		return nil
	}
	var good atomic.Int32
	var wg sync.WaitGroup
	p.Cuts(t, true)
	for c := range uint32(callers) {
		wg.Go(func() {
			for round := range uint32(rounds) {
				switch err := probe(c<<16 + round); {
				case err == nil:
					good.Add(1)
				case !errors.Is(err, ports.ErrPeer) && !errors.Is(err, ports.ErrTimeout):
					t.Errorf("caller %d: %v", c, err)
				}
			}
		})
	}
	wg.Wait()
	p.Cuts(t, false)
	require.NotZero(t, good.Load(), "of %d calls", callers*rounds)
	require.Eventually(t, func() bool { return probe(7) == nil }, patience, time.Millisecond, "it is not used again")
}
