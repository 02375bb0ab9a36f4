package inproc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

func TestSteadyTransfersAllocateNothing(t *testing.T) {
	forEachNetwork(t, func(t *testing.T, o Options) {
		n := newNetwork(t, o)
		a, b := startNode(t, n, "a", 1, mute{}), startNode(t, n, "b", 2, mute{})
		mem := ports.HostRegionOf(make([]byte, 1<<20))
		require.NoError(t, b.Transport.Expose(0, mem))
		l := dial(t, a, b)
		_, token, err := b.Transport.Grant(a.Self, 1<<20, []domain.PageRef{{}})
		require.NoError(t, err)
		const ops = 32
		local := ports.HostRegionOf(make([]byte, ops*8448))
		batch := &ports.Batch{}
		for i := range uint64(ops) {
			batch.Ops = append(batch.Ops, ports.Op{Tag: i, First: uint32(3 * i), Count: 3, Dir: ports.Direction(i % 2), Grant: token})
			for k := range uint64(3) {
				batch.Segments = append(batch.Segments, ports.Segment{RemoteOff: (i*3 + k) * 8448, Local: local, LocalOff: i * 8448, Len: 1728})
			}
		}
		q := ports.NewCompletions()
		done := make([]ports.Completion, 0, 2*ops)
		round := func() {
			for i := range batch.Ops {
				batch.Ops[i].Deadline = n.clock.Now().Add(10 * time.Second)
			}
			_ = l.Submit(batch, q)
			for done = done[:0]; len(done) < ops; {
				done, _ = q.Take(context.Background(), time.Second, done)
			}
		}
		round()
		require.Zero(t, testing.AllocsPerRun(100, round))
	})
}

func TestStartIsOnceAndUnderAnIncarnationOfItsOwn(t *testing.T) {
	n := newNetwork(t, Options{})
	e := n.Endpoint("a")
	require.Same(t, e, n.Endpoint("a"))
	for name, self := range map[string]ports.Peer{"another id": {ID: "b", Incarnation: 1}, "no incarnation": {ID: "a"}} {
		require.ErrorIs(t, e.Start(self, mute{}), domain.ErrInvalid, name)
	}
	require.ErrorIs(t, e.Start(ports.Peer{ID: "a", Incarnation: 1}, nil), domain.ErrInvalid)
	require.NoError(t, e.Start(ports.Peer{ID: "a", Incarnation: 1}, mute{}))
	require.ErrorIs(t, e.Start(ports.Peer{ID: "a", Incarnation: 2}, mute{}), domain.ErrInvalid, "without Stop")
	first := e.Transport()
	e.Stop()
	require.NotSame(t, first, e.Transport(), "a transport belongs to one start")
	require.ErrorIs(t, e.Start(ports.Peer{ID: "a", Incarnation: 1}, mute{}), domain.ErrInvalid, "used before")
	require.NoError(t, e.Start(ports.Peer{ID: "a", Incarnation: 2}, mute{}))
}

func TestWhatBelongsToAnEndedStartIsClosed(t *testing.T) {
	n := newNetwork(t, Options{})
	e := n.Endpoint("a")
	b := startNode(t, n, "b", 9, &porttest.FakeServer{})
	tr, res := e.Transport(), e.Resolver()
	require.ErrorIs(t, res.Complain(t.Context(), b.Self, nil), ports.ErrPeer, "before Start")
	_, err := tr.Offer(t.Context(), "b")
	require.Error(t, err, "before Start")
	startNode(t, n, "a", 1, mute{})
	require.NoError(t, res.Complain(t.Context(), b.Self, nil))
	e.Stop()
	startNode(t, n, "a", 2, mute{})
	require.ErrorIs(t, res.Complain(t.Context(), b.Self, nil), ports.ErrClosed)
	_, err = tr.Offer(t.Context(), "b")
	require.ErrorIs(t, err, ports.ErrClosed)
	require.NoError(t, e.Resolver().Complain(t.Context(), b.Self, nil))
	require.NoError(t, tr.Close(), "twice")
}

func TestANetworkThatIsClosedRefuses(t *testing.T) {
	n := newNetwork(t, Options{})
	a, b := startNode(t, n, "a", 1, mute{}), startNode(t, n, "b", 2, &porttest.FakeServer{})
	require.NoError(t, b.Transport.Expose(0, ports.HostRegionOf(make([]byte, 8))))
	l, res := dial(t, a, b), n.Endpoint("a").Resolver()
	require.NoError(t, n.Close())
	<-l.Done()
	require.Error(t, l.Submit(&ports.Batch{}, ports.NewCompletions()))
	require.ErrorIs(t, res.Complain(t.Context(), b.Self, nil), ports.ErrClosed)
	require.ErrorIs(t, n.Endpoint("c").Start(ports.Peer{ID: "c", Incarnation: 1}, mute{}), ports.ErrClosed)
	n.Partition("a", "b", true)
	require.NoError(t, n.Close(), "twice")
}

// TestAnAnswerToANewerStartEndsTheOneBefore has a start that is still there when the next one says hello: a node that hangs
// while its successor starts.
func TestAnAnswerToANewerStartEndsTheOneBefore(t *testing.T) {
	n := newNetwork(t, Options{})
	a, b := startNode(t, n, "a", 1, mute{}), startNode(t, n, "b", 2, mute{})
	mem := ports.HostRegionOf(make([]byte, 64))
	require.NoError(t, b.Transport.Expose(0, mem))
	_, token, err := b.Transport.Grant(a.Self, 64, []domain.PageRef{{}})
	require.NoError(t, err)
	old, again := dial(t, a, b), dial(t, a, b)
	require.NoError(t, old.Submit(&ports.Batch{}, ports.NewCompletions()), "two links of one start")
	newer := ports.Peer{ID: "a", Incarnation: 3}
	_, err = b.Transport.Answer(t.Context(), newer, descriptor{3, 4}.encode())
	require.NoError(t, err)
	for _, l := range []*Link{old, again} {
		<-l.Done()
		require.ErrorIs(t, l.Submit(&ports.Batch{}, ports.NewCompletions()), ports.ErrReset)
	}
	require.Nil(t, b.Transport.(*Transport).grants.Find(&token, a.Self))
	_, err = b.Transport.Answer(t.Context(), newer, descriptor{1, 4}.encode())
	require.ErrorIs(t, err, ports.ErrRestarted, "an offer of another start than the asker's")
}

func TestAnAnswerIsGoodForOneLink(t *testing.T) {
	n := newNetwork(t, Options{})
	a, b := startNode(t, n, "a", 1, mute{}), startNode(t, n, "b", 2, mute{})
	p, err := a.Transport.Offer(t.Context(), "b")
	require.NoError(t, err)
	answer, err := b.Transport.Answer(t.Context(), a.Self, p.Bytes())
	require.NoError(t, err)
	forged := append([]byte(nil), answer...)
	forged[len(forged)-1] ^= 1
	_, err = p.Link(t.Context(), forged)
	require.ErrorIs(t, err, ports.ErrRestarted)
	_, err = p.Link(t.Context(), answer)
	require.NoError(t, err)
	_, err = p.Link(t.Context(), answer)
	require.ErrorIs(t, err, ports.ErrRestarted)
}

func TestANodeMayReadItself(t *testing.T) {
	n := newNetwork(t, Options{Link: &LinkModel{BytesPerSecond: 1e9}})
	a := startNode(t, n, "a", 1, mute{})
	mem := ports.HostRegionOf([]byte("abcdefgh"))
	require.NoError(t, a.Transport.Expose(0, mem))
	l, q := dial(t, a, a), ports.NewCompletions()
	dst := ports.HostRegionOf(make([]byte, 4))
	require.NoError(t, l.Submit(&ports.Batch{Ops: []ports.Op{{Count: 1}}, Segments: []ports.Segment{{RemoteOff: 2, Local: dst, Len: 4}}}, q))
	done, err := q.Take(t.Context(), 10*time.Second, nil)
	require.NoError(t, err)
	require.Len(t, done, 1)
	require.Equal(t, "cdef", string(dst.Bytes()))
}

func FuzzDescriptor(f *testing.F) {
	f.Add(descriptor{1, 2}.encode())
	f.Add([]byte{})
	f.Add(make([]byte, descriptorBytes+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeDescriptor(b)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrInvalid)
			return
		}
		require.Equal(t, b, d.encode())
	})
}
