package inproc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// networks are the kinds of network that every suite runs on.
var networks = map[string]Options{
	"link=none":     {},
	"link=timers":   {Link: &LinkModel{BytesPerSecond: 8e9, Delay: 20 * time.Microsecond}},
	"link=osthread": {Link: &LinkModel{BytesPerSecond: 8e9, Delay: 20 * time.Microsecond}, Driver: OSThread},
}

// forEachNetwork runs a suite on every kind.
func forEachNetwork(t *testing.T, suite func(t *testing.T, o Options)) {
	for name, o := range networks {
		t.Run(name, func(t *testing.T) { suite(t, o) })
	}
}

func newNetwork(t testing.TB, o Options) *Network {
	n := NewNetwork(o)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// startNode starts an endpoint with the next incarnation and returns what this start has.
func startNode(t testing.TB, n *Network, id ports.PeerID, inc domain.Incarnation, srv ports.PeerServer) *porttest.TransportEnd {
	e := n.Endpoint(id)
	end := &porttest.TransportEnd{Self: ports.Peer{ID: id, Incarnation: inc}, Transport: e.Transport()}
	require.NoError(t, e.Start(end.Self, srv))
	return end
}

// mute is a server that nobody calls.
type mute struct{ ports.PeerServer }

func openTransports(o Options) func(t testing.TB) *porttest.TransportHarness {
	return func(t testing.TB) *porttest.TransportHarness {
		n := newNetwork(t, o)
		h := &porttest.TransportHarness{
			Clock:  n.clock,
			Owner:  startNode(t, n, "owner", 11, mute{}),
			Asker:  startNode(t, n, "asker", 12, mute{}),
			Other:  startNode(t, n, "other", 13, mute{}),
			Memory: func(_ testing.TB, bytes int) ports.HostRegion { return ports.HostRegionOf(make([]byte, bytes)) },
			Restart: func(t testing.TB, e *porttest.TransportEnd) {
				n.Endpoint(e.Self.ID).Stop()
				*e = *startNode(t, n, e.Self.ID, e.Self.Incarnation+100, mute{})
			},
			Partition: func(_ testing.TB, on bool) { n.Partition("owner", "asker", on) },
		}
		return h
	}
}

func TestTransportSuite(t *testing.T) {
	forEachNetwork(t, func(t *testing.T, o Options) { porttest.RunTransport(t, openTransports(o)) })
}

// dial makes a link between two started ends.
func dial(t testing.TB, from, to *porttest.TransportEnd) *Link {
	p, err := from.Transport.Offer(context.Background(), to.Self.ID)
	require.NoError(t, err)
	answer, err := to.Transport.Answer(context.Background(), from.Self, p.Bytes())
	require.NoError(t, err)
	l, err := p.Link(context.Background(), answer)
	require.NoError(t, err)
	return l.(*Link)
}

func openPeers(o Options) func(t testing.TB, srv *porttest.FakeServer) *porttest.PeersHarness {
	return func(t testing.TB, srv *porttest.FakeServer) *porttest.PeersHarness {
		n := newNetwork(t, o)
		h := &porttest.PeersHarness{
			Asker:     startNode(t, n, "asker", 1, mute{}).Self,
			Owner:     startNode(t, n, "owner", 2, srv).Self,
			Stop:      func(testing.TB) { n.Endpoint("owner").Stop() },
			Partition: func(_ testing.TB, on bool) { n.Partition("owner", "asker", on) },
		}
		h.Resolver, h.Writer = n.Endpoint("asker").Resolver(), n.Endpoint("asker").Writer()
		h.Restart = func(t testing.TB) {
			h.Stop(t)
			h.Owner = startNode(t, n, "owner", h.Owner.Incarnation+1, srv).Self
		}
		return h
	}
}

func TestPeersSuite(t *testing.T) {
	forEachNetwork(t, func(t *testing.T, o Options) { porttest.RunPeers(t, openPeers(o)) })
}

func TestDirectorySuite(t *testing.T) {
	porttest.RunDirectory(t, func(t testing.TB) *porttest.DirectoryHarness {
		n := newNetwork(t, Options{})
		h := &porttest.DirectoryHarness{Nodes: map[ports.PeerID]ports.Directory{}}
		for _, id := range []ports.PeerID{"a", "b", "c", "d"} {
			h.Nodes[id] = n.Endpoint(id).Directory()
		}
		return h
	})
}
