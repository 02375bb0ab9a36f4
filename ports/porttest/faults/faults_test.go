package faults_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

var (
	errInjected = errors.New("injected")
	errCause    = errors.New("the caller left")
)

// wrapped is an injector and the fakes that it wraps.
type wrapped struct {
	inj       *faults.Injector
	peer      *fakePeer
	dir       *fakeDirectory
	transport *fakeTransport
}

func wrap(plan faults.Plan) wrapped {
	return wrapped{faults.New(plan), &fakePeer{}, &fakeDirectory{}, &fakeTransport{}}
}

// method is a call through a wrapper, as a test of all of them sees it.
type method struct {
	port, name string
	do         func(ctx context.Context, w wrapped) error
	seen       func(w wrapped) []string
	undone     string // what takes an effect back that the caller did not hear of
	noContext  bool
	closes     bool // happens in any case
}

func methods() []method {
	peer := func(w wrapped) []string { return w.peer.all() }
	dir := func(w wrapped) []string { return w.dir.all() }
	transport := func(w wrapped) []string { return w.transport.all() }
	p := ports.Peer{ID: "p", Incarnation: 1}
	r := func(name string, do func(ctx context.Context, s ports.PeerResolver) error) method {
		return method{port: "PeerResolver", name: name, seen: peer, do: func(ctx context.Context, w wrapped) error { return do(ctx, w.inj.Server(w.peer)) }}
	}
	wr := func(name string, do func(ctx context.Context, s ports.PeerWriter) error) method {
		return method{port: "PeerWriter", name: name, seen: peer, do: func(ctx context.Context, w wrapped) error { return do(ctx, w.inj.Server(w.peer)) }}
	}
	d := func(name string, do func(ctx context.Context, d ports.Directory) error) method {
		return method{port: "Directory", name: name, seen: dir, do: func(ctx context.Context, w wrapped) error { return do(ctx, w.inj.Directory(w.dir)) }}
	}
	tr := func(name string, m method, do func(ctx context.Context, t ports.Transport) error) method {
		m.port, m.name, m.seen = "Transport", name, transport
		m.do = func(ctx context.Context, w wrapped) error { return do(ctx, w.inj.Transport(w.transport)) }
		return m
	}
	return []method{
		r("Hello", func(ctx context.Context, s ports.PeerResolver) error {
			return s.Hello(ctx, p, &ports.Hello{}, &ports.HelloReply{})
		}),
		r("Probe", func(ctx context.Context, s ports.PeerResolver) error {
			return s.Probe(ctx, p, nil, &ports.ProbeReply{})
		}),
		r("Resolve", func(ctx context.Context, s ports.PeerResolver) error {
			return s.Resolve(ctx, p, &ports.ResolveRequest{}, &ports.ResolveReply{})
		}),
		r("Complain", func(ctx context.Context, s ports.PeerResolver) error { return s.Complain(ctx, p, nil) }),
		wr("Reserve", func(ctx context.Context, s ports.PeerWriter) error {
			return s.Reserve(ctx, p, &ports.ReserveRequest{}, &ports.ReserveReply{})
		}),
		wr("Commit", func(ctx context.Context, s ports.PeerWriter) error {
			return s.Commit(ctx, p, &ports.CommitRequest{}, &[]ports.CommitStatus{})
		}),
		wr("Abort", func(ctx context.Context, s ports.PeerWriter) error { return s.Abort(ctx, p, nil, nil, true) }),
		wr("Remove", func(ctx context.Context, s ports.PeerWriter) error {
			return s.Remove(ctx, p, nil, &[]ports.KeyStatus{})
		}),
		d("Members", func(ctx context.Context, d ports.Directory) error { _, err := d.Members(ctx); return err }),
		d("Holders", func(ctx context.Context, d ports.Directory) error { return d.Holders(ctx, "", nil, &ports.Holders{}) }),
		tr("Expose", method{noContext: true}, func(_ context.Context, t ports.Transport) error { return t.Expose(0, nil) }),
		tr("Register", method{noContext: true, undone: "Deregister"}, func(_ context.Context, t ports.Transport) error {
			_, err := t.Register(nil)
			return err
		}),
		tr("Deregister", method{noContext: true}, func(_ context.Context, t ports.Transport) error { return t.Deregister(3) }),
		tr("Grant", method{noContext: true, undone: "Revoke"}, func(_ context.Context, t ports.Transport) error {
			_, _, err := t.Grant(p, 1, nil)
			return err
		}),
		tr("Revoke", method{}, func(ctx context.Context, t ports.Transport) error { return t.Revoke(ctx, 4, false) }),
		tr("Offer", method{undone: "pending.Close"}, func(ctx context.Context, t ports.Transport) error { _, err := t.Offer(ctx, "p"); return err }),
		tr("Answer", method{}, func(ctx context.Context, t ports.Transport) error { _, err := t.Answer(ctx, p, nil); return err }),
		tr("Close", method{noContext: true, closes: true}, func(_ context.Context, t ports.Transport) error { return t.Close() }),
		{port: "Directory", name: "Close", seen: dir, noContext: true, closes: true,
			do: func(_ context.Context, w wrapped) error { return w.inj.Directory(w.dir).Close() }},
	}
}

func forEachMethod(t *testing.T, claim func(t *testing.T, m method)) {
	for _, m := range methods() {
		t.Run(m.port+"."+m.name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { claim(t, m) }) })
	}
}

func TestACallPassesAndIsListed(t *testing.T) {
	forEachMethod(t, func(t *testing.T, m method) {
		w := wrap(nil)
		for n := range uint64(3) {
			require.NoError(t, m.do(t.Context(), w))
			require.Equal(t, n+1, w.inj.Count(m.port, m.name))
		}
		require.Equal(t, []string{m.name, m.name, m.name}, m.seen(w))
		calls := w.inj.Calls()
		require.Len(t, calls, 3)
		require.Equal(t, fmt.Sprintf("%s.%s #2", m.port, m.name), calls[1].String())
	})
}

func TestAnErrorBeforeTheCallIsSeenByTheCallerOnly(t *testing.T) {
	forEachMethod(t, func(t *testing.T, m method) {
		w := wrap(faults.At(faults.Call{Port: m.port, Method: m.name, N: 2}, faults.Verdict{Err: errInjected}))
		require.NoError(t, m.do(t.Context(), w))
		require.ErrorIs(t, m.do(t.Context(), w), errInjected)
		require.NoError(t, m.do(t.Context(), w))
		if m.closes {
			require.Len(t, m.seen(w), 3)
			return
		}
		require.Equal(t, []string{m.name, m.name}, m.seen(w))
	})
}

func TestAnErrorAfterTheEffect(t *testing.T) {
	forEachMethod(t, func(t *testing.T, m method) {
		w := wrap(faults.Every(m.port, m.name, faults.Verdict{Err: errInjected, Effect: true}))
		require.ErrorIs(t, m.do(t.Context(), w), errInjected)
		due := []string{m.name}
		if m.undone != "" {
			due = append(due, m.undone)
		}
		require.Equal(t, due, m.seen(w))
	})
}

func TestADroppedCallWaitsForItsContext(t *testing.T) {
	forEachMethod(t, func(t *testing.T, m method) {
		for _, effect := range []bool{false, true} {
			w := wrap(faults.Every(m.port, m.name, faults.Verdict{Drop: true, Effect: effect}))
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCause)
			defer cancel()
			if m.closes {
				continue
			}
			if m.noContext {
				require.Panics(t, func() { _ = m.do(ctx, w) }, "a plan that cannot be carried out")
				continue
			}
			began := time.Now()
			require.ErrorIs(t, m.do(ctx, w), errCause)
			require.Equal(t, time.Second, time.Since(began))
			require.Equal(t, effect, len(m.seen(w)) > 0)
		}
	})
}

func TestDelaysTakeTheTestsTime(t *testing.T) {
	forEachMethod(t, func(t *testing.T, m method) {
		var saw time.Duration
		began := time.Now()
		w := wrap(faults.Every(m.port, m.name, faults.Verdict{
			Before: faults.For(time.Second),
			After:  func(release func()) { saw = time.Since(began); faults.For(2 * time.Second)(release) },
		}))
		require.NoError(t, m.do(t.Context(), w))
		require.Equal(t, []string{m.name}, m.seen(w))
		require.Equal(t, time.Second, saw)
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}

func TestADelayEndsWithTheContext(t *testing.T) {
	forEachMethod(t, func(t *testing.T, m method) {
		if m.noContext {
			return
		}
		for _, v := range []faults.Verdict{{Before: faults.For(time.Minute)}, {After: faults.For(time.Minute)}} {
			w := wrap(faults.Every(m.port, m.name, v))
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCause)
			defer cancel()
			began := time.Now()
			require.ErrorIs(t, m.do(ctx, w), errCause)
			require.Equal(t, time.Second, time.Since(began))
			require.Equal(t, v.After != nil, len(m.seen(w)) > 0, "the port sees a call whose answer is late, and none that is held")
		}
		time.Sleep(time.Hour) // what was released too late does nothing
	})
}

func TestAFaultCanBePutAtEveryCallOfARun(t *testing.T) {
	use := func(plan faults.Plan) (*faults.Injector, error) {
		w := wrap(plan)
		s, d := w.inj.Server(w.peer), w.inj.Directory(w.dir)
		err := errors.Join(
			d.Holders(t.Context(), "", nil, &ports.Holders{}),
			s.Resolve(t.Context(), ports.Peer{ID: "a"}, nil, &ports.ResolveReply{}),
			s.Resolve(t.Context(), ports.Peer{ID: "b"}, nil, &ports.ResolveReply{}),
			s.Complain(t.Context(), ports.Peer{ID: "b"}, nil),
		)
		return w.inj, err
	}
	inj, err := use(nil)
	require.NoError(t, err)
	require.Equal(t, []faults.Call{
		{Port: "Directory", Method: "Holders", N: 1},
		{Port: "PeerResolver", Method: "Resolve", N: 1, Peer: ports.Peer{ID: "a"}},
		{Port: "PeerResolver", Method: "Resolve", N: 2, Peer: ports.Peer{ID: "b"}},
		{Port: "PeerResolver", Method: "Complain", N: 1, Peer: ports.Peer{ID: "b"}},
	}, inj.Calls())
	for _, c := range inj.Calls() {
		at := fmt.Errorf("at %v", c)
		again, err := use(faults.First(faults.Every("Nobody", "Calls", faults.Verdict{Err: errInjected}), faults.At(c, faults.Verdict{Err: at})))
		require.EqualError(t, err, at.Error())
		require.Equal(t, inj.Calls(), again.Calls())
	}
}

func TestShortRepliesLackTheLastRowAndAreWhole(t *testing.T) {
	w := wrap(func(faults.Call) faults.Verdict { return faults.Verdict{Short: true} })
	s, ctx, p := w.inj.Server(w.peer), t.Context(), ports.Peer{}

	var res ports.ResolveReply
	require.NoError(t, s.Resolve(ctx, p, nil, &res))
	full := twoRows()
	require.Equal(t, ports.ResolveReply{
		Status: full.Status[:1], Versions: full.Versions[:1], Generations: full.Generations[:1], Sizes: full.Sizes[:1], LeaseNanos: full.LeaseNanos[:1],
		PageEnd: full.PageEnd[:1], Pages: full.Pages[:2], LenEnd: full.LenEnd[:1], PutLens: full.PutLens[:2], SumEnd: full.SumEnd[:1], Sums: full.Sums[:2],
	}, res)

	var rsv ports.ReserveReply
	require.NoError(t, s.Reserve(ctx, p, nil, &rsv))
	require.Len(t, rsv.Status, 1)
	require.Len(t, rsv.Tokens, 1)
	require.Len(t, rsv.EndNanos, 1)
	require.Equal(t, []uint32{1}, rsv.PageEnd)
	require.Len(t, rsv.Pages, 1)

	var probe ports.ProbeReply
	require.NoError(t, s.Probe(ctx, p, nil, &probe))
	require.Len(t, probe.Status, 1)
	require.Len(t, probe.Versions, 1)

	var hello ports.HelloReply
	require.NoError(t, s.Hello(ctx, p, nil, &hello))
	require.Len(t, hello.Answers, 1)

	var commits []ports.CommitStatus
	require.NoError(t, s.Commit(ctx, p, nil, &commits))
	require.Len(t, commits, 1)

	var removed []ports.KeyStatus
	require.NoError(t, s.Remove(ctx, p, nil, &removed))
	require.Len(t, removed, 1)

	d := w.inj.Directory(w.dir)
	members, err := d.Members(ctx)
	require.NoError(t, err)
	require.Equal(t, []ports.PeerID{"a"}, members)
	var holders ports.Holders
	require.NoError(t, d.Holders(ctx, "", nil, &holders))
	require.Equal(t, ports.Holders{End: []uint32{1}, Peers: []ports.PeerID{"a"}, Versions: make([]domain.Version, 1), Complete: true}, holders)
}

func TestEditChangesTheReply(t *testing.T) {
	w := wrap(faults.Every("PeerResolver", "Hello", faults.Verdict{Edit: func(reply any) { reply.(*ports.HelloReply).PageSize = 3 }}))
	var hello ports.HelloReply
	require.NoError(t, w.inj.Resolver(w.peer).Hello(t.Context(), ports.Peer{}, nil, &hello))
	require.EqualValues(t, 3, hello.PageSize)
}

func TestEachLieIsOneAndAnotherOne(t *testing.T) {
	resolve := func(t *testing.T, s ports.PeerServer) any {
		var reply ports.ResolveReply
		require.NoError(t, s.Resolve(t.Context(), ports.Peer{}, nil, &reply))
		return reply
	}
	reserve := func(t *testing.T, s ports.PeerServer) any {
		var reply ports.ReserveReply
		require.NoError(t, s.Reserve(t.Context(), ports.Peer{}, nil, &reply))
		return reply
	}
	for _, tt := range []struct {
		port, method string
		lies         []faults.Lie
		ask          func(*testing.T, ports.PeerServer) any
	}{
		{"PeerResolver", "Resolve", faults.ResolveLies(), resolve},
		{"PeerWriter", "Reserve", faults.ReserveLies(), reserve},
	} {
		told := []any{tt.ask(t, &fakePeer{})} // the truth
		names := map[string]bool{}
		for _, lie := range tt.lies {
			w := wrap(faults.Every(tt.port, tt.method, faults.Verdict{Edit: lie.Edit}))
			reply := tt.ask(t, w.inj.Server(w.peer))
			require.NotContains(t, told, reply, "%s: %s", tt.method, lie.Name)
			require.False(t, names[lie.Name], "%s: %s", tt.method, lie.Name)
			told, names[lie.Name] = append(told, reply), true
		}
	}
}

func TestAnEmptyReplyStaysOneWhenShort(t *testing.T) {
	inj := faults.New(faults.Every("PeerResolver", "Probe", faults.Verdict{Short: true, Edit: func(any) {}}))
	var reply ports.ProbeReply
	require.NoError(t, inj.Resolver(emptyPeer{}).Probe(t.Context(), ports.Peer{}, nil, &reply))
	require.Empty(t, reply.Status)
}

type emptyPeer struct{ ports.PeerResolver }

func (emptyPeer) Probe(context.Context, ports.Peer, []ports.Key, *ports.ProbeReply) error { return nil }

func TestAnnouncementsAreDropped(t *testing.T) {
	w := wrap(func(c faults.Call) faults.Verdict { return faults.Verdict{Drop: c.N == 1} })
	d := w.inj.Directory(w.dir)
	for range 2 {
		d.Announce("", "k", domain.Version{})
		d.Withdraw("", "k", domain.Version{})
	}
	require.Equal(t, []string{"Announce", "Withdraw"}, w.dir.all())
}

type fixedClock struct{}

func (fixedClock) Now() domain.Instant { return 1000 }

func TestSkewMovesWrappedClocksAhead(t *testing.T) {
	inj := faults.New(nil)
	c := inj.Clock(fixedClock{})
	require.EqualValues(t, 1000, c.Now())
	inj.Skew(5)
	inj.Skew(6)
	require.EqualValues(t, 1011, c.Now())
	require.EqualValues(t, 2, inj.Count("Clock", "Now"))
	require.Empty(t, inj.Calls())
	require.Panics(t, func() { inj.Skew(-1) })

	var jump *faults.Injector
	jump = faults.New(faults.At(faults.Call{Port: "Clock", Method: "Now", N: 2}, faults.Verdict{Before: faults.Do(func() { jump.Skew(time.Hour) })}))
	c = jump.Clock(fixedClock{})
	require.EqualValues(t, 1000, c.Now())
	require.EqualValues(t, 1000+time.Hour, c.Now())
}

func TestGatesAndReversal(t *testing.T) {
	var order []int
	push := func(i int) func() { return func() { order = append(order, i) } }
	var g faults.Gate
	for i := range 3 {
		g.Hold(push(i))
	}
	require.Empty(t, order)
	require.Equal(t, 3, g.Held())
	g.Open()
	g.Open()
	require.Equal(t, []int{0, 1, 2}, order)

	order = nil
	hold := faults.Reverse(3)
	for i := range 7 {
		hold(push(i))
	}
	require.Equal(t, []int{2, 1, 0, 5, 4, 3}, order)
}

// fakeCopier copies bytes.
type fakeCopier struct{ ops int }

func (f *fakeCopier) Copy(_ context.Context, ops []ports.CopyOp, errs []error) {
	for i, o := range ops {
		f.ops++
		copy(o.Dst.(ports.HostRegion).Bytes()[o.DstOff:][:o.Len], o.Src.(ports.HostRegion).Bytes()[o.SrcOff:][:o.Len])
		errs[i] = nil
	}
}

func TestFaultsOfACopy(t *testing.T) {
	at := func(v faults.Verdict) faults.Plan {
		return faults.At(faults.Call{Port: "Copier", Method: "Op", N: 2}, v)
	}
	batch := func(v faults.Verdict) faults.Plan { return faults.Every("Copier", "Copy", v) }
	for _, tt := range []struct {
		name string
		plan faults.Plan
		dst  string
		errs []error
	}{
		{"none", nil, "abcdefghijkl", []error{nil, nil, nil}},
		{"of an op, before", at(faults.Verdict{Err: errInjected}), "abcd....ijkl", []error{nil, errInjected, nil}},
		{"of an op, after", at(faults.Verdict{Err: errInjected, Effect: true}), "abcdefghijkl", []error{nil, errInjected, nil}},
		{"of an op, short", at(faults.Verdict{Short: true}), "abcdef..ijkl", []error{nil, faults.ErrShort, nil}},
		{"of the batch, before", batch(faults.Verdict{Err: errInjected}), "............", []error{errInjected, errInjected, errInjected}},
		{"of the batch, after", batch(faults.Verdict{Err: errInjected, Effect: true}), "abcdefghijkl", []error{errInjected, errInjected, errInjected}},
		{"of the batch, short", batch(faults.Verdict{Short: true}), "abcdefghij..", []error{nil, nil, faults.ErrShort}},
		{"of the batch, short with an error", batch(faults.Verdict{Short: true, Err: errInjected}), "abcdefghij..", []error{nil, nil, errInjected}},
		{"dropped", batch(faults.Verdict{Drop: true}), "............", []error{errCause, errCause, errCause}},
		{"dropped after", batch(faults.Verdict{Drop: true, Effect: true}), "abcdefghijkl", []error{errCause, errCause, errCause}},
		{"held too long", batch(faults.Verdict{Before: faults.For(time.Hour)}), "............", []error{errCause, errCause, errCause}},
		{"told late", batch(faults.Verdict{After: faults.For(time.Hour)}), "abcdefghijkl", []error{nil, nil, nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errCause)
				defer cancel()
				src, dst := ports.HostRegionOf([]byte("abcdefghijkl")), ports.HostRegionOf([]byte("............"))
				var ops []ports.CopyOp
				for off := uint64(0); off < 12; off += 4 {
					ops = append(ops, ports.CopyOp{Dst: dst, Src: src, DstOff: off, SrcOff: off, Len: 4})
				}
				errs := []error{errInjected, errInjected, errInjected}
				inj := faults.New(tt.plan)
				inj.Copier(&fakeCopier{}).Copy(ctx, ops, errs)
				require.Equal(t, tt.errs, errs)
				require.Equal(t, tt.dst, string(dst.Bytes()))
				require.EqualValues(t, 1, inj.Count("Copier", "Copy"))
				for _, c := range inj.Calls() {
					if c.Method == "Op" {
						require.Equal(t, ops[c.N-1], c.Copy)
					}
				}
			})
		})
	}
}
