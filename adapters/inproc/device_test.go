package inproc

import (
	"testing"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

func TestDeviceMemoryKeepsTheTransportsContract(t *testing.T) {
	porttest.RunDeviceTransport(t, func(t testing.TB, c ports.Copier) *porttest.TransportHarness {
		n := newNetwork(t, Options{Copier: c})
		ends := map[ports.PeerID]*porttest.TransportEnd{}
		for i, id := range []ports.PeerID{"owner", "asker", "other"} {
			p := startNode(t, n, id, domain.Incarnation(i+1), mute{})
			ends[id] = &porttest.TransportEnd{Self: p.Self, Transport: p.Transport}
		}
		return &porttest.TransportHarness{Clock: n.clock, Owner: ends["owner"], Asker: ends["asker"], Other: ends["other"],
			Memory: func(_ testing.TB, bytes int) ports.HostRegion { return ports.HostRegionOf(make([]byte, bytes)) }}
	})
}
