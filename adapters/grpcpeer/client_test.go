package grpcpeer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/faults"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// manyPages answers resolves with rows of many pages, which name their row and the asker's key.
func manyPages(pagesEach int) porttest.Answers {
	return porttest.Answers{Resolve: func(_ context.Context, _ ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
		for i, k := range req.Keys {
			out.Status = append(out.Status, ports.KeyHere)
			out.Versions = append(out.Versions, domain.Version{Hi: uint64(k.Space), Lo: uint64(i)})
			out.Generations = append(out.Generations, domain.Generation{Incarnation: 2, Counter: uint64(i)})
			out.Sizes, out.LeaseNanos = append(out.Sizes, uint64(pagesEach)<<16), append(out.LeaseNanos, 5e8)
			for p := range uint32(pagesEach) {
				out.Pages = append(out.Pages, domain.PageRef{Buffer: uint32(i), Page: p})
			}
			out.PutLens = append(out.PutLens, uint64(pagesEach)<<16)
			out.PageEnd, out.LenEnd, out.SumEnd = append(out.PageEnd, uint32(len(out.Pages))), append(out.LenEnd, uint32(len(out.PutLens))), append(out.SumEnd, 0)
		}
		return nil
	}}
}

func resolveOf(keys int) *ports.ResolveRequest {
	req := &ports.ResolveRequest{Versions: make([]domain.Version, keys), Held: make([]domain.Generation, keys)}
	for i := range keys {
		req.Keys = append(req.Keys, ports.Key{Space: uint32(i), Name: fmt.Sprintf("a key of some common length %08d", i)})
	}
	return req
}

// TestObjectsOfManyPagesCross resolves 40 keys of 20,000 pages: 4 MB in one row's place after the other, cut in the middle of rows.
func TestObjectsOfManyPagesCross(t *testing.T) {
	const keys, pages = 40, 20_000
	srv := &porttest.FakeServer{}
	srv.Use(manyPages(pages))
	n := listen(t, "127.0.0.1:0", testConfig("owner", 2, testSecret), srv)
	c := newClient(t, testConfig("asker", 1, testSecret, Member{"owner", n.addr}))
	var out ports.ResolveReply
	require.NoError(t, c.Resolve(bounded(t), n.self, resolveOf(keys), &out))
	require.Len(t, out.Status, keys)
	require.Len(t, out.Pages, keys*pages)
	for i, p := range out.Pages {
		if p != (domain.PageRef{Buffer: uint32(i / pages), Page: uint32(i % pages)}) {
			require.Failf(t, "wrong page", "page %d is %v", i, p)
		}
	}
	require.Len(t, srv.TakeCalls(), 1)
}

func TestACallPastItsLimitIsRefusedByName(t *testing.T) {
	srv := &porttest.FakeServer{}
	srv.Use(manyPages(40_000))
	owner, asker := testConfig("owner", 2, nil), testConfig("asker", 1, nil)
	owner.MaxCallBytes, asker.MaxCallBytes = 3<<20, 3<<20
	n := listen(t, "127.0.0.1:0", owner, srv)
	asker.Peers = []Member{{"owner", n.addr}}
	c := newClient(t, asker)
	var out ports.ResolveReply
	require.NoError(t, c.Resolve(bounded(t), n.self, resolveOf(10), &out))

	err := c.Resolve(bounded(t), n.self, resolveOf(20), &out) // 4 MB of pages
	require.ErrorIs(t, err, ports.ErrRefused)
	require.ErrorContains(t, err, "limit 3145728")
	err = c.Resolve(bounded(t), n.self, resolveOf(domain.MaxCallKeys), &out) // 5 MB of keys
	require.ErrorIs(t, err, ports.ErrRefused)
	require.Len(t, srv.TakeCalls(), 2, "a request that is too long was sent")
	err = c.Resolve(bounded(t), n.self, resolveOf(domain.MaxCallKeys+1), &out)
	require.ErrorIs(t, err, domain.ErrInvalid)
	require.ErrorContains(t, err, "65537, limit 65536")

	long := newClient(t, testConfig("asker", 1, nil, Member{"owner", n.addr})) // whose own limit is higher
	err = long.Resolve(bounded(t), n.self, resolveOf(domain.MaxCallKeys), &out)
	require.ErrorIs(t, err, ports.ErrRefused)
	require.ErrorContains(t, err, "limit 3145728")
	require.Empty(t, srv.TakeCalls())
}

// TestRepliesThatContradictThemselvesDoNotCross has an owner whose columns are wrong, in every way in which it can be seen.
func TestRepliesThatContradictThemselvesDoNotCross(t *testing.T) {
	crossed := 0
	for _, lie := range faults.ResolveLies() {
		t.Run(lie.Name, func(t *testing.T) {
			srv := &porttest.FakeServer{}
			srv.Use(manyPages(3))
			liar := faults.New(faults.Every("PeerResolver", "Resolve", faults.Verdict{Edit: lie.Edit})).Server(srv)
			n := listen(t, "127.0.0.1:0", testConfig("owner", 2, nil), liar)
			c := newClient(t, testConfig("asker", 1, nil, Member{"owner", n.addr}))
			var out ports.ResolveReply
			switch err := c.Resolve(bounded(t), n.self, resolveOf(2), &out); {
			case err == nil: // well-formed, and the asker's to judge
				crossed++
				require.Len(t, out.PageEnd, len(out.Status))
				require.Len(t, out.Versions, len(out.Status))
			default:
				require.ErrorIs(t, err, ports.ErrPeer)
				require.NotErrorIs(t, err, domain.ErrInvalid, "as if the asker had been at fault")
			}
		})
	}
	require.Less(t, crossed, len(faults.ResolveLies()))
}

// rawOwner answers every resolve with the bytes of one message, whatever they are.
type rawOwner struct {
	peerv1.UnimplementedPeerServer
	reply []*peerv1.ResolveReply
}

func (o *rawOwner) Resolve(st grpc.BidiStreamingServer[peerv1.ResolveRequest, peerv1.ResolveReply]) error {
	for _, r := range o.reply {
		if err := st.Send(r); err != nil {
			return err
		}
	}
	return nil
}

func TestAReplyThatIsMalformedIsThePeersFault(t *testing.T) {
	good := must(resolveReplyOut(sampleResolved)).(*peerv1.ResolveReply)
	for name, reply := range map[string][]*peerv1.ResolveReply{
		"nothing":            nil,
		"a row too few":      {{Status: good.Status[1:], Versions: good.Versions}},
		"half of the parts":  {{Status: good.Status, Versions: good.Versions, Generations: good.Generations}},
		"the same twice":     {good, {Size: good.Size}},
		"pages of no row":    {good, {Pages: &peerv1.Pages{Buffer: []uint32{1}, Page: []uint32{1}}}},
		"counts that wrap":   {{Status: good.Status[:1], Pages: &peerv1.Pages{Count: []uint32{^uint32(0)}}}},
		"counts in no order": {{Status: good.Status[:2], Pages: &peerv1.Pages{Count: []uint32{^uint32(0), 2}, Buffer: []uint32{1}, Page: []uint32{1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			s := grpc.NewServer()
			peerv1.RegisterPeerServer(s, &rawOwner{reply: reply})
			done := make(chan error, 1)
			go func() { done <- s.Serve(l) }()
			t.Cleanup(func() { s.Stop(); require.NoError(t, <-done) })
			c := newClient(t, testConfig("asker", 1, nil, Member{"owner", l.Addr().String()}))
			err = c.Resolve(bounded(t), ports.Peer{ID: "owner", Incarnation: 2}, resolveOf(3), &ports.ResolveReply{})
			require.ErrorIs(t, err, ports.ErrPeer)
			require.NotErrorIs(t, err, domain.ErrInvalid)
		})
	}
}

// TestRequestsThatAreMalformedReachNobody sends what no Client sends.
func TestRequestsThatAreMalformedReachNobody(t *testing.T) {
	srv := &porttest.FakeServer{}
	n := listen(t, "127.0.0.1:0", testConfig("owner", 2, nil), srv)
	cc, err := grpc.NewClient(n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	ends := &peerv1.Ends{From: startOut(ports.Peer{ID: "asker", Incarnation: 1}), To: startOut(n.self)}
	keys := must(probeOut(ends, sampleKeys)).(*peerv1.ProbeRequest).Keys
	for name, parts := range map[string][]*peerv1.ResolveRequest{
		"nothing":               nil,
		"no ends":               {{Keys: keys}},
		"an asker without name": {{Ends: &peerv1.Ends{To: ends.To}}},
		"an asker of start 0":   {{Ends: &peerv1.Ends{From: &peerv1.Start{Id: "asker"}, To: ends.To}}},
		"no versions":           {{Ends: ends, Keys: keys, Held: generationsOut(sampleGenerations)}},
		"a generation too many": {{Ends: ends, Keys: keys, Versions: versionsOut(sampleVersions), Held: generationsOut(append(slices.Clone(sampleGenerations), domain.Generation{}))}},
		"names that are short":  {{Ends: ends, Keys: &peerv1.Keys{Space: []uint32{1}, NameLen: []uint32{2}, Names: [][]byte{{1}}}}},
		"names that are long":   {{Ends: ends, Keys: &peerv1.Keys{Space: []uint32{1}, NameLen: []uint32{1}, Names: [][]byte{{1, 2}}}}},
		"rows past the limit":   {{Ends: ends, Keys: &peerv1.Keys{Space: make([]uint32, domain.MaxCallKeys+1), NameLen: make([]uint32, domain.MaxCallKeys+1)}}},
		"a second part":         {{Ends: ends, Keys: keys, Versions: versionsOut(sampleVersions), Held: generationsOut(sampleGenerations)}, {Keys: keys}},
	} {
		st, err := peerv1.NewPeerClient(cc).Resolve(bounded(t))
		require.NoError(t, err)
		for _, p := range parts {
			_ = st.Send(p) // an error is told by Recv
		}
		require.NoError(t, st.CloseSend())
		_, err = st.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
		require.ErrorIs(t, fromStatus(err), domain.ErrInvalid, name)
	}
	require.Empty(t, srv.TakeCalls())
}

// TestGarbageEndsItsConnectionOnly has bytes of no protocol come in, and a call go on beside them.
func TestGarbageEndsItsConnectionOnly(t *testing.T) {
	for name, secret := range map[string][]byte{"secret=no": nil, "secret=yes": testSecret} {
		srv := &porttest.FakeServer{}
		n := listen(t, "127.0.0.1:0", testConfig("owner", 2, secret), srv)
		c := newClient(t, testConfig("asker", 1, secret, Member{"owner", n.addr}))
		for _, garbage := range []string{"", "GET / HTTP/1.1\r\n\r\n", "spanpool", "spanpool\xff\xff", "spanpool\x00\x04\xff\xff\xff\xff",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
			conn, err := net.Dial("tcp", n.addr)
			require.NoError(t, err)
			_, err = conn.Write([]byte(garbage))
			require.NoError(t, err)
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
			for r := bufio.NewReader(conn); err == nil; {
				_, err = r.ReadByte()
			}
			var timeout net.Error
			require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "%s: %q leaves its connection open", name, garbage)
			require.NoError(t, conn.Close())
			require.NoError(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}))
		}
	}
}

// ownAddress is free, and its port is below those that the kernel gives to whoever names none: it is still free for one who returns to it.
func ownAddress(t *testing.T) string {
	t.Helper()
	for range 1_000 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000)))
		if err == nil {
			require.NoError(t, l.Close())
			return l.Addr().String()
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
	require.FailNow(t, "no free port")
	return ""
}

// TestAPeerThatReturnsIsUsedAtOnce has one that was down for longer than the first back-offs.
func TestAPeerThatReturnsIsUsedAtOnce(t *testing.T) {
	for name, secret := range map[string][]byte{"secret=no": nil, "secret=yes": testSecret} {
		t.Run(name, func(t *testing.T) {
			srv := &porttest.FakeServer{}
			n := listen(t, ownAddress(t), testConfig("owner", 2, secret), srv)
			c := newClient(t, testConfig("asker", 1, secret, Member{"owner", n.addr}))
			require.NoError(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}))
			n.kill(t)
			for down := time.Now(); time.Since(down) < 500*time.Millisecond; {
				began := time.Now()
				require.ErrorIs(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}), ports.ErrPeer)
				require.Less(t, time.Since(began), time.Second)
				<-time.After(20 * time.Millisecond)
			}
			again := listen(t, n.addr, testConfig("owner", 3, secret), srv)
			back := time.Now()
			require.ErrorIs(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}), ports.ErrRestarted)
			require.NoError(t, c.Probe(bounded(t), again.self, aKey, &ports.ProbeReply{}))
			require.Less(t, time.Since(back), time.Second)
		})
	}
}

// TestAPeerThatSwallowsEverythingIsBoundedByTheContext has no connection yet, so the dial or the proof is what waits.
func TestAPeerThatSwallowsEverythingIsBoundedByTheContext(t *testing.T) {
	for name, secret := range map[string][]byte{"secret=no": nil, "secret=yes": testSecret} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0") // whose backlog takes connections that nobody serves
			require.NoError(t, err)
			defer l.Close()
			c := newClient(t, testConfig("asker", 1, secret, Member{"owner", l.Addr().String()}))
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				began := time.Now()
				err = c.Probe(ctx, ports.Peer{ID: "owner", Incarnation: 2}, aKey, &ports.ProbeReply{})
				cancel()
				require.ErrorIs(t, err, ports.ErrTimeout)
				require.Less(t, time.Since(began), 5*time.Second)
			}
			began := time.Now()
			err = c.Probe(bounded(t), ports.Peer{ID: "owner", Incarnation: 2}, aKey, &ports.ProbeReply{})
			require.ErrorIs(t, err, ports.ErrPeer, "the dial has a bound of its own")
			require.Less(t, time.Since(began), 5*time.Second)
		})
	}
}

// TestAWayThatBreaksGivesRightAnswersOrNone calls through one that resets its connections over and over.
func TestAWayThatBreaksGivesRightAnswersOrNone(t *testing.T) {
	const keys, pages = 8, 2_000
	srv := &porttest.FakeServer{}
	srv.Use(manyPages(pages))
	n := listen(t, "127.0.0.1:0", testConfig("owner", 2, testSecret), srv)
	p := proxy.New(t, n.addr, 1, proxy.Way{Piece: 16 << 10, Cut: 400 << 10})
	c := newClient(t, testConfig("asker", 1, testSecret, Member{"owner", p.Addr()}))
	var wg sync.WaitGroup
	var mu sync.Mutex
	good := 0
	for w := range 3 {
		wg.Go(func() {
			var out ports.ResolveReply
			for range 20 {
				err := c.Resolve(bounded(t), n.self, resolveOf(keys+w), &out)
				if err != nil {
					if !errors.Is(err, ports.ErrPeer) {
						t.Errorf("%v", err)
					}
					continue
				}
				mu.Lock()
				good++
				mu.Unlock()
				for i, page := range out.Pages {
					if page != (domain.PageRef{Buffer: uint32(i / pages), Page: uint32(i % pages)}) || len(out.Pages) != (keys+w)*pages {
						t.Errorf("page %d of %d is %v", i, len(out.Pages), page)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	require.NotZero(t, p.Cuts(), "nothing broke")
	require.Greater(t, good, 20, "of 60 calls")
}

func TestNamesAreResolved(t *testing.T) {
	srv := &porttest.FakeServer{}
	n := listen(t, "127.0.0.1:0", testConfig("owner", 2, nil), srv)
	_, port, err := net.SplitHostPort(n.addr)
	require.NoError(t, err)
	c := newClient(t, testConfig("asker", 1, nil, Member{"owner", "localhost:" + port}, Member{"lost", "no-such-host.invalid:1"}))
	require.NoError(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}))
	require.ErrorIs(t, c.Probe(bounded(t), ports.Peer{ID: "lost", Incarnation: 1}, aKey, &ports.ProbeReply{}), ports.ErrPeer)
}

func TestAClosedClientSaysSo(t *testing.T) {
	n := listen(t, "127.0.0.1:0", testConfig("owner", 2, nil), &porttest.FakeServer{})
	c := newClient(t, testConfig("asker", 1, nil, Member{"owner", n.addr}))
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}), ports.ErrClosed)
	require.NoError(t, c.Close())
}

func TestStopWaitsForCallsAndThenCutsThemOff(t *testing.T) {
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprintf("patient=%v", patient), func(t *testing.T) {
			srv := &porttest.FakeServer{}
			began, release := make(chan struct{}), make(chan struct{})
			srv.Use(porttest.Answers{Each: func(ctx context.Context, _ string) error {
				close(began)
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}})
			cfg := testConfig("owner", 2, testSecret)
			cfg.DialTimeout = time.Minute
			n := listen(t, "127.0.0.1:0", cfg, srv)
			if !patient {
				silent, err := net.Dial("tcp", n.addr) // never proves anything, and is not waited for
				require.NoError(t, err)
				defer silent.Close()
			}
			c := newClient(t, testConfig("asker", 1, testSecret, Member{"owner", n.addr}))
			answer := make(chan error, 1)
			go func() { answer <- c.Complain(bounded(t), n.self, nil) }()
			<-began
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				n.server.Stop(ctx)
			}()
			if patient {
				require.Eventually(t, func() bool {
					conn, err := net.Dial("tcp", n.addr)
					if err == nil {
						_ = conn.Close()
					}
					return err != nil
				}, 5*time.Second, time.Millisecond, "it goes on taking connections")
				close(release)
				require.NoError(t, <-answer)
			} else {
				cancel()
				require.ErrorIs(t, <-answer, ports.ErrPeer)
			}
			select {
			case <-stopped:
			case <-time.After(10 * time.Second):
				require.FailNow(t, "Stop does not end")
			}
		})
	}
}

func TestConnectionsPastTheLimitAreTurnedAway(t *testing.T) {
	srv := &porttest.FakeServer{}
	cfg := testConfig("owner", 2, nil)
	cfg.MaxConns = 2
	n := listen(t, "127.0.0.1:0", cfg, srv)
	var clients []*Client
	for range 2 {
		c := newClient(t, testConfig("asker", 1, nil, Member{"owner", n.addr}))
		require.NoError(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}))
		clients = append(clients, c)
	}
	third := newClient(t, testConfig("asker", 1, nil, Member{"owner", n.addr}))
	require.ErrorIs(t, third.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}), ports.ErrPeer)
	require.NotZero(t, n.server.Counts().Crowded)
	require.NoError(t, clients[0].Close())
	require.Eventually(t, func() bool { return third.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}) == nil }, 10*time.Second, 10*time.Millisecond)
}

func TestStaticHoldersAllocateNothing(t *testing.T) {
	d := NewStatic([]ports.PeerID{"a", "b", "c", "d", "e"}, "c")
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprint("key ", i)
	}
	var out ports.Holders
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := d.Holders(t.Context(), "ns", names, &out); err != nil {
			t.Error(err)
		}
	}))
}
