package daemon

import (
	"context"
	"errors"
	"log/slog"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/shm"
	"github.com/spanpool/spanpool/adapters/tcp"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// transports is what moves bytes, in the order of preference: of each peer, reads go by the first that both have, and writes by the
// first of those that can write.
type transports []ports.Transport

func transportModule() fx.Option {
	return fx.Module("transport", fx.Provide(boottime.New, openTransports))
}

// opening is what the constructors of transports are made from.
type opening struct {
	fx.In
	Settings *config.Settings
	Clock    boottime.Clock
	Own      *resources
	At       *Addresses
	Memory   *memory // is there before them
	Log      *slog.Logger
	GPU      *gpu `optional:"true"`
}

// transportPart opens one transport. One that may be missing is left out where this build, this system or this node's memory has none.
type transportPart struct {
	kind       string
	mayMissing bool
	open       func(opening) (ports.Transport, error)
}

// transportsOf is what the setting stands for. tcp is always among them: it reaches every peer, and writes.
func transportsOf(s *config.Settings) []transportPart {
	all := []transportPart{
		{"shm", s.Transport == "auto", openSHM},
		{"rdma", s.Transport == "auto", openRDMA},
		{"tcp", false, openTCP},
	}
	var wanted []transportPart
	for _, p := range all {
		if s.Transport == "auto" || p.kind == s.Transport || p.kind == "tcp" {
			wanted = append(wanted, p)
		}
	}
	return wanted
}

func openTransports(o opening) (all transports, err error) {
	for _, p := range transportsOf(o.Settings) {
		t, err := p.open(o)
		switch {
		case err != nil && p.mayMissing:
			level := slog.LevelWarn
			if errors.Is(err, errors.ErrUnsupported) {
				level = slog.LevelDebug // most hosts have no rdma
			}
			o.Log.Log(context.Background(), level, "a transport is left out", "transport", p.kind, "reason", err)
			continue
		case err != nil:
			return nil, err
		}
		o.Own.opened("transport "+p.kind, t.Close)
		all = append(all, t)
	}
	return all, nil
}

func openTCP(o opening) (ports.Transport, error) {
	s := o.Settings
	c := tcp.Config{Clock: o.Clock, Copier: o.Memory.device.copier, Background: o.Memory.device.background, Listen: []string{s.DataListen},
		Secret: s.Secret, Conns: int(s.DataConnections), DialTimeout: s.Node.DialTimeout}
	if s.DataAdvertise != "" {
		c.Advertise = []string{s.DataAdvertise}
	}
	t, err := tcp.Listen(c)
	if err != nil {
		return nil, partError("data.listen", err)
	}
	o.At.Data = t.Addresses()[0]
	return t, nil
}

// sharesMemory says that the pool's memory is to be such that peers of this host can map it. Transparent huge pages are not to be had
// for that, only reserved ones: auto prefers those that were asked for.
func sharesMemory(s *config.Settings) bool {
	return s.Medium == "dram" && (s.Transport == "shm" || s.Transport == "auto" && !s.HugePages)
}

// errNotShared is why shm is left out.
var errNotShared = errors.Join(errors.New("the pool's memory cannot be mapped by peers: it was asked for on huge pages"), errors.ErrUnsupported)

func openSHM(o opening) (ports.Transport, error) {
	if !sharesMemory(o.Settings) && o.Settings.Medium != "hbm" { // of a pool there it serves nobody, and brings others' bytes to the arena
		return nil, partError("transport", errNotShared)
	}
	t, err := shm.Open(shm.Config{Clock: o.Clock, Copier: dram.NewCopier(), Secret: o.Settings.Secret, DialTimeout: o.Settings.Node.DialTimeout / 2}) // what is left of a hello's time is for the transport after it
	if err != nil {
		return nil, partError("transport", err)
	}
	return t, nil
}
