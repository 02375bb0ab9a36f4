package daemon

import (
	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/shm"
	"github.com/spanpool/spanpool/adapters/tcp"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// transports is what moves bytes, in the order of preference.
type transports []ports.Transport

// transportModule opens what is named: auto is every transport that this build and this host have. What is named is preferred, and tcp
// reaches the peers that it does not.
func transportModule(s *config.Settings) fx.Option {
	var open any = openTCP
	switch s.Transport {
	case "auto":
		open = mayRDMA
	case "rdma":
		open = mustRDMA
	case "shm":
		open = only(func() (ports.Transport, error) { return shm.Open("") })
	}
	return fx.Module("transport", fx.Provide(boottime.New, open))
}

func openTCP(s *config.Settings, clock boottime.Clock, own *resources, at *Addresses, m *memory) (transports, error) {
	c := tcp.Config{Clock: clock, Copier: m.device.copier, Background: m.device.background, Listen: []string{s.DataListen}, Secret: s.Secret, Conns: int(s.DataConnections), DialTimeout: s.Node.DialTimeout}
	if s.DataAdvertise != "" {
		c.Advertise = []string{s.DataAdvertise}
	}
	t, err := tcp.Listen(c)
	if err != nil {
		return nil, partError("data.listen", err)
	}
	own.opened("transport tcp", t.Close)
	at.Data = t.Addresses()[0]
	return transports{t}, nil
}

// only is a transport without peers of another kind.
func only(open func() (ports.Transport, error)) func(*config.Settings, boottime.Clock, *resources, *Addresses, *memory) (transports, error) {
	return func(s *config.Settings, _ boottime.Clock, own *resources, _ *Addresses, _ *memory) (transports, error) {
		t, err := open()
		if err != nil {
			return nil, partError("transport", err)
		}
		own.opened("transport "+s.Transport, t.Close)
		return transports{t}, nil
	}
}
