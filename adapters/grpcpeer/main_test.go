package grpcpeer

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/faults"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
)

// seen is what the tests saw servers count.
var seen porttest.Moved

func TestMain(m *testing.M) { seen.VerifyTestMain(m, nil) }

var testSecret = []byte("a secret of thirty-two bytes, ok")

// node is a start of a node that serves, on an address that it keeps over its starts.
type node struct {
	self   ports.Peer
	addr   string
	server *Server
	done   chan error
}

// listen serves on addr; a port of 0 is drawn.
func listen(t testing.TB, addr string, cfg Config, srv ports.PeerServer) *node {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	s, err := NewServer(cfg, srv)
	require.NoError(t, err)
	done := make(chan error, 1)
	n := &node{self: cfg.Self, addr: l.Addr().String(), server: s, done: done}
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		n.kill(t)
		c := s.Counts()
		for name, v := range map[string]uint64{"unproven": c.Unproven, "strangers": c.Strangers, "crowded": c.Crowded} {
			seen.Note(name, v)
		}
	})
	return n
}

// kill ends it as the death of its process does.
func (n *node) kill(t testing.TB) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	n.server.Stop(ended)
	if done := n.done; done != nil {
		n.done = nil
		require.NoError(t, <-done)
	}
}

// configs of two nodes that know each other's address.
func testConfig(id ports.PeerID, inc domain.Incarnation, secret []byte, peers ...Member) Config {
	return Config{Self: ports.Peer{ID: id, Incarnation: inc}, Peers: peers, Secret: secret, Insecure: secret == nil}
}

func newClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	c, err := NewClient(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// network is a kind of way between two nodes that the suites run on.
type network struct {
	host    string
	secret  []byte
	through *proxy.Way // nil: no proxy
	faults  bool       // through the wrappers, which let everything pass
}

var networks = map[string]network{
	"ip=4/secret=no":         {host: "127.0.0.1"},
	"ip=4/secret=yes":        {host: "127.0.0.1", secret: testSecret},
	"ip=6/secret=yes":        {host: "::1", secret: testSecret},
	"proxy=slow/secret=no":   {host: "127.0.0.1", through: &proxy.Way{Piece: 4096, Delay: 50 * time.Microsecond}},
	"proxy=slow/secret=yes":  {host: "127.0.0.1", secret: testSecret, through: &proxy.Way{Piece: 16 << 10, Split: true, Stall: 3 * time.Millisecond, StallOneIn: 20, Rate: 64 << 20}, faults: true},
	"proxy=clean/secret=yes": {host: "127.0.0.1", secret: testSecret, through: &proxy.Way{Piece: 64 << 10}, faults: true},
}

func openPeers(n network) func(t testing.TB, srv *porttest.FakeServer) *porttest.PeersHarness {
	return func(tb testing.TB, srv *porttest.FakeServer) *porttest.PeersHarness {
		i := faults.New(nil)
		i.Time = wallClock{}
		var served ports.PeerServer = srv
		if n.faults {
			served = i.Server(srv)
		}
		owner := listen(tb, net.JoinHostPort(n.host, "0"), testConfig("owner", 2, n.secret), served)
		h := &porttest.PeersHarness{
			Asker: ports.Peer{ID: "asker", Incarnation: 1},
			Owner: owner.self,
			Stop:  func(t testing.TB) { owner.kill(t) },
		}
		addr := owner.addr
		if n.through != nil {
			p := proxy.New(tb, addr, 1, *n.through)
			addr = p.Addr()
			h.Partition = func(_ testing.TB, on bool) { p.Hold(on) }
			h.Cuts = func(t testing.TB, on bool) { makeLossy(t, p, *n.through, on) }
		}
		c := newClient(tb, testConfig("asker", 1, n.secret, Member{"owner", addr}))
		// The suite gives some calls 30 ms, which on a busy machine is no time for a dial too.
		require.NoError(tb, c.Probe(bounded(tb), owner.self, nil, &ports.ProbeReply{}))
		srv.TakeCalls()
		h.Resolver, h.Writer = c, c
		if n.faults {
			h.Resolver, h.Writer = i.Resolver(c), i.Writer(c)
		}
		h.Restart = func(t testing.TB) {
			h.Stop(t)
			h.Owner.Incarnation++
			owner = listen(tb, owner.addr, testConfig("owner", h.Owner.Incarnation, n.secret), served)
		}
		return h
	}
}

// makeLossy makes a way lossy, and requires at the end that it was.
func makeLossy(t testing.TB, p *proxy.Proxy, way proxy.Way, on bool) {
	if on {
		way.Cut = 200 << 10
	} else {
		require.NotZero(t, p.Cuts(), "nothing was cut")
	}
	p.Set(way)
}

type wallClock struct{}

func (wallClock) Now() domain.Instant { return domain.Instant(time.Now().UnixNano()) }

func TestPeersSuite(t *testing.T) {
	for name, n := range networks {
		t.Run(name, func(t *testing.T) {
			if n.host == "::1" {
				skipWithoutIPv6(t)
			}
			porttest.RunPeers(t, openPeers(n))
		})
	}
}

// skipWithoutIPv6 leaves a test out where the machine has no IPv6 loopback.
func skipWithoutIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback here: %v", err)
	}
	require.NoError(t, l.Close())
}

func TestDirectorySuite(t *testing.T) {
	porttest.RunDirectory(t, func(testing.TB) *porttest.DirectoryHarness {
		h := &porttest.DirectoryHarness{Nodes: map[ports.PeerID]ports.Directory{}}
		ids := []ports.PeerID{"d", "a", "c", "b", "a"}
		for _, id := range ids {
			h.Nodes[id] = NewStatic(ids, id)
		}
		return h
	})
}
