package inproc

import (
	"testing"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// The wrappers that inject faults are fakes of the ports, too: while their plan says nothing they keep the contracts of what they wrap.

func noFaults() *faults.Injector {
	return faults.New(func(faults.Call) faults.Verdict { return faults.Verdict{} })
}

func TestAFaultlessTransportKeepsTheContract(t *testing.T) {
	porttest.RunTransport(t, func(t testing.TB) *porttest.TransportHarness {
		h := openTransports(Options{})(t)
		wrap := func(e *porttest.TransportEnd) { e.Transport = noFaults().Transport(e.Transport) }
		restart := h.Restart
		h.Restart = func(t testing.TB, e *porttest.TransportEnd) {
			restart(t, e)
			wrap(e)
		}
		for _, e := range []*porttest.TransportEnd{h.Owner, h.Asker, h.Other} {
			wrap(e)
		}
		return h
	})
}

func TestFaultlessPeersKeepTheContract(t *testing.T) {
	porttest.RunPeers(t, func(t testing.TB, srv *porttest.FakeServer) *porttest.PeersHarness {
		h := openPeers(Options{})(t, srv)
		h.Resolver, h.Writer = noFaults().Resolver(h.Resolver), noFaults().Writer(h.Writer)
		return h
	})
}

func TestAFaultlessDirectoryKeepsTheContract(t *testing.T) {
	porttest.RunDirectory(t, func(t testing.TB) *porttest.DirectoryHarness {
		n := newNetwork(t, Options{})
		h := &porttest.DirectoryHarness{Nodes: map[ports.PeerID]ports.Directory{}}
		for _, id := range []ports.PeerID{"a", "b", "c"} {
			h.Nodes[id] = noFaults().Directory(n.Endpoint(id).Directory())
		}
		return h
	})
}

func TestAFaultlessClockKeepsTheContract(t *testing.T) {
	porttest.RunClock(t, noFaults().Clock(newNetwork(t, Options{}).clock))
}
