//go:build linux

package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/faults"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
)

// openTransports is a harness: the owner is behind a proxy that holds everything when it is told to partition, cuts connections when it is
// told to, and is such a way otherwise (nil: there is no proxy).
func openTransports(cfg Config, way *proxy.Way, wrap func(ports.Transport) ports.Transport) func(t testing.TB) *porttest.TransportHarness {
	return func(t testing.TB) *porttest.TransportHarness {
		c := cfg
		c.Clock = newClock()
		owner, asker, other := listen(t, "owner", c), listen(t, "asker", c), listen(t, "other", c)
		nodes := map[*porttest.TransportEnd]*node{&owner.TransportEnd: owner, &asker.TransportEnd: asker, &other.TransportEnd: other}
		var partition, cuts func(testing.TB, bool)
		if way != nil {
			between := proxy.New(t, owner.cfg.Listen[0], 1, *way)
			owner.behind(t, between)
			partition = func(_ testing.TB, on bool) { between.Hold(on) }
			cuts = func(t testing.TB, on bool) { makeLossy(t, between, *way, on) }
		}
		for _, n := range nodes {
			if wrap != nil {
				n.wrap = wrap
				n.Transport = wrap(n.inner)
			}
		}
		return &porttest.TransportHarness{
			Clock: c.Clock, Owner: &owner.TransportEnd, Asker: &asker.TransportEnd, Other: &other.TransportEnd,
			Memory:    heap,
			Restart:   func(t testing.TB, e *porttest.TransportEnd) { nodes[e].restart(t) },
			Partition: partition, Cuts: cuts,
		}
	}
}

// makeLossy makes a way lossy, and requires at the end that it was.
func makeLossy(t testing.TB, between *proxy.Proxy, way proxy.Way, on bool) {
	if on {
		way.Cut = 1 << 20
	} else {
		require.NotZero(t, between.Cuts(), "nothing was cut")
	}
	between.Set(way)
}

// slow is a way that splits in random places, waits now and then, and is no faster than a good line.
var slow = proxy.Way{Piece: 32 << 10, Split: true, Stall: 3 * time.Millisecond, StallOneIn: 100, Rate: 128 << 20}

func TestTransportSuite(t *testing.T) {
	delayed := faults.Every("Link", "Op", faults.Verdict{Before: faults.For(time.Millisecond), After: faults.For(time.Millisecond)})
	for _, tt := range []struct {
		name string
		cfg  Config
		way  proxy.Way
		wrap func(ports.Transport) ports.Transport
	}{
		{name: "conns=4"},
		{name: "conns=1/secret", cfg: Config{Conns: 1, Secret: []byte("between us")}},
		{name: "ipv6", cfg: Config{Conns: 2, Listen: []string{"[::1]:0"}}},
		{name: "in pieces of 1000 bytes", way: proxy.Way{Piece: 1000}},
		{name: "slow", way: slow},
		{name: "ops delayed by a wrapper", wrap: faults.New(delayed).Transport},
		{name: "slow, and ops delayed by a wrapper", cfg: Config{Conns: 1, Secret: []byte("between us")}, way: slow, wrap: faults.New(delayed).Transport},
	} {
		t.Run(tt.name, func(t *testing.T) { porttest.RunTransport(t, openTransports(tt.cfg, &tt.way, tt.wrap)) })
	}
}
