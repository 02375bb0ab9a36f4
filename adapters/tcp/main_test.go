//go:build linux

package tcp

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
)

// counts is what the tests saw transports count.
var counts porttest.Moved

func TestMain(m *testing.M) { counts.VerifyTestMain(m, nil) }

// noted has what a transport counts noted when the test ends.
func noted(t testing.TB, tr *Transport) {
	t.Cleanup(func() {
		s := tr.Stats()
		for r, n := range s.Ended {
			counts.Note("ended: "+Reason(r).String(), n)
		}
		counts.Note("served", s.ServedBytes)
		counts.Note("applied", s.AppliedBytes)
	})
}

// clock counts from its making, on the monotonic clock.
type clock struct{ since time.Time }

func newClock() clock { return clock{time.Now().Add(-time.Hour)} }

func (c clock) Now() domain.Instant { return domain.Instant(time.Since(c.since)) }

// node is one end, behind a relay if it has one.
type node struct {
	porttest.TransportEnd
	cfg   Config
	inner *Transport
	relay *proxy.Proxy
	wrap  func(ports.Transport) ports.Transport // nil: none
}

// listen starts a node at a loopback address.
func listen(t testing.TB, id ports.PeerID, cfg Config) *node {
	n := &node{cfg: cfg}
	n.Self = ports.Peer{ID: id, Incarnation: 100}
	if n.cfg.Listen == nil {
		n.cfg.Listen = []string{"127.0.0.1:0"}
	}
	if n.cfg.Clock == nil {
		n.cfg.Clock = newClock()
	}
	if n.cfg.DialTimeout == 0 {
		n.cfg.DialTimeout = patience
	}
	n.start(t)
	n.cfg.Listen = []string{n.tcp().listeners[0].Addr().String()} // a restart comes back there
	t.Cleanup(func() { require.NoError(t, n.Transport.Close()) })
	return n
}

func (n *node) tcp() *Transport { return n.inner }

func (n *node) start(t testing.TB) {
	tr, err := Listen(n.cfg)
	require.NoError(t, err)
	noted(t, tr)
	n.inner, n.Transport = tr, tr
	if n.wrap != nil {
		n.Transport = n.wrap(tr)
	}
}

// behind puts a relay before a node, which advertises it from now on.
func (n *node) behind(t testing.TB, r *proxy.Proxy) *node {
	n.relay = r
	n.tcp().addresses = []string{r.Addr()}
	n.cfg.Advertise = n.tcp().addresses
	return n
}

func (n *node) restart(t testing.TB) {
	require.NoError(t, n.Transport.Close())
	n.Self.Incarnation++
	n.start(t)
}

func heap(_ testing.TB, bytes int) ports.HostRegion { return ports.HostRegionOf(make([]byte, bytes)) }

// tryDial makes a link as the peers' hello would.
func tryDial(ctx context.Context, from, to *node) (*Link, error) {
	p, err := from.Transport.Offer(ctx, to.Self.ID)
	if err != nil {
		return nil, err
	}
	answer, err := to.Transport.Answer(ctx, from.Self, p.Bytes())
	if err != nil {
		return nil, err
	}
	l, err := p.Link(ctx, answer)
	if err != nil {
		return nil, err
	}
	return l.(*Link), nil
}

func dial(t testing.TB, from, to *node) *Link {
	t.Helper()
	l, err := tryDial(t.Context(), from, to)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}
