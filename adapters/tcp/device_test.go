//go:build linux

package tcp

import (
	"testing"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
)

func TestDeviceMemoryKeepsTheTransportsContract(t *testing.T) {
	for _, piece := range []int{0, 1000} {
		porttest.RunDeviceTransport(t, func(t testing.TB, c ports.Copier) *porttest.TransportHarness {
			return openTransports(Config{Copier: c, Conns: 2}, &proxy.Way{Piece: piece}, nil)(t)
		})
	}
}
