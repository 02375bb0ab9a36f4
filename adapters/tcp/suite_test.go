package tcp

import (
	"testing"

	"github.com/spanpool/spanpool/ports/porttest"
)

// openTransports is a harness: the owner is behind a relay that holds everything when it is told to partition.
func openTransports(cfg Config) func(t testing.TB) *porttest.TransportHarness {
	return func(t testing.TB) *porttest.TransportHarness {
		c := cfg
		c.Clock = newClock()
		owner, asker, other := listen(t, "owner", c), listen(t, "asker", c), listen(t, "other", c)
		nodes := map[*porttest.TransportEnd]*node{&owner.TransportEnd: owner, &asker.TransportEnd: asker, &other.TransportEnd: other}
		between := newRelay(t, owner.cfg.Listen[0])
		owner.behind(t, between)
		return &porttest.TransportHarness{
			Clock: c.Clock, Owner: &owner.TransportEnd, Asker: &asker.TransportEnd, Other: &other.TransportEnd,
			Memory:    heap,
			Restart:   func(t testing.TB, e *porttest.TransportEnd) { nodes[e].restart(t) },
			Partition: func(_ testing.TB, on bool) { between.hold(on) },
		}
	}
}

func TestTransportSuite(t *testing.T) {
	for name, cfg := range map[string]Config{
		"conns=4":        {},
		"conns=1/secret": {Conns: 1, Secret: []byte("between us")},
		"ipv6":           {Conns: 2, Listen: []string{"[::1]:0"}},
	} {
		t.Run(name, func(t *testing.T) { porttest.RunTransport(t, openTransports(cfg)) })
	}
}
