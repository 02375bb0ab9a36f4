//go:build linux

package tcp

import (
	"testing"
	"time"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// openTransports is a harness: the owner is behind a relay that holds everything when it is told to partition, and passes at most
// so many bytes at once (0: any number; negative: there is no relay).
func openTransports(cfg Config, piece int, wrap func(ports.Transport) ports.Transport) func(t testing.TB) *porttest.TransportHarness {
	return func(t testing.TB) *porttest.TransportHarness {
		c := cfg
		c.Clock = newClock()
		owner, asker, other := listen(t, "owner", c), listen(t, "asker", c), listen(t, "other", c)
		nodes := map[*porttest.TransportEnd]*node{&owner.TransportEnd: owner, &asker.TransportEnd: asker, &other.TransportEnd: other}
		var partition func(testing.TB, bool)
		if piece >= 0 {
			between := newRelay(t, owner.cfg.Listen[0])
			between.trickle(piece)
			owner.behind(t, between)
			partition = func(_ testing.TB, on bool) { between.hold(on) }
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
			Partition: partition,
		}
	}
}

func TestTransportSuite(t *testing.T) {
	delayed := faults.Every("Link", "Op", faults.Verdict{Before: faults.For(time.Millisecond), After: faults.For(time.Millisecond)})
	for _, tt := range []struct {
		name  string
		cfg   Config
		piece int
		wrap  func(ports.Transport) ports.Transport
	}{
		{name: "conns=4"},
		{name: "conns=1/secret", cfg: Config{Conns: 1, Secret: []byte("between us")}},
		{name: "ipv6", cfg: Config{Conns: 2, Listen: []string{"[::1]:0"}}},
		{name: "in pieces of 1000 bytes", piece: 1000},
		{name: "ops delayed by a wrapper", wrap: faults.New(delayed).Transport},
	} {
		t.Run(tt.name, func(t *testing.T) { porttest.RunTransport(t, openTransports(tt.cfg, tt.piece, tt.wrap)) })
	}
}
