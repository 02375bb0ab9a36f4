package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// openRDMA opens the device that the settings name, or the first that is up. Peers that it does not reach are reached by what comes after
// it.
func openRDMA(s *config.Settings, clock boottime.Clock, own *resources, l *slog.Logger) (ports.Transport, error) {
	t, err := rdma.Open(rdma.Config{Clock: clock, Device: s.RDMADevice, GID: s.RDMAGID, ReadPairs: int(s.RDMAReadPairs), WritePairs: int(s.RDMAWritePairs),
		SendDepth: int(s.RDMADepth), MaxSGE: int(s.RDMAScatter), MaxReads: int(s.RDMAReads),
		DialTimeout: s.Node.DialTimeout / 2, // what is left of a hello's time is for the transport after it
	})
	if err != nil {
		return nil, err
	}
	own.opened("transport rdma", t.Close)
	l.Info("rdma", "device", t.Device())
	for _, c := range t.Clamps() {
		l.Warn("the rdma device can do less than was asked for", "what", c.What, "asked", c.Asked, "got", c.Got)
	}
	return t, nil
}

// mustRDMA is for a node that is told to use it: it does not start without.
func mustRDMA(s *config.Settings, clock boottime.Clock, own *resources, at *Addresses, m *memory, l *slog.Logger) (transports, error) {
	t, err := openRDMA(s, clock, own, l)
	if err != nil {
		return nil, partError("transport", err)
	}
	rest, err := openTCP(s, clock, own, at, m)
	return append(transports{t}, rest...), err
}

// mayRDMA uses it where it is, and says why where it is not.
func mayRDMA(s *config.Settings, clock boottime.Clock, own *resources, at *Addresses, m *memory, l *slog.Logger) (transports, error) {
	t, err := openRDMA(s, clock, own, l)
	if err == nil {
		rest, err := openTCP(s, clock, own, at, m)
		return append(transports{t}, rest...), err
	}
	level := slog.LevelWarn
	if errors.Is(err, errors.ErrUnsupported) {
		level = slog.LevelDebug // most hosts have none
	}
	l.Log(context.Background(), level, "rdma is not used", "reason", err)
	return openTCP(s, clock, own, at, m)
}

func rdmaFamilies(t *rdma.Transport) []telemetry.Family {
	gauge := func(name, unit, help string, value func(rdma.Stats) uint64) telemetry.Family {
		return telemetry.Family{Name: name, Unit: unit, Kind: telemetry.Gauge, Help: help,
			Read: func(_ *ports.Stats, emit telemetry.Emit) { emit(value(t.Stats())) }}
	}
	return []telemetry.Family{
		{Name: "rdma.events", Labels: []string{"event"}, Help: "What happened to queue pairs, registrations and links over rdma, and should be rare.",
			Read: func(_ *ports.Stats, emit telemetry.Emit) {
				for i, v := range t.Stats().Events {
					emit(v, rdma.Event(i).String())
				}
			}},
		{Name: "rdma.completions.failed", Labels: []string{"status"}, Help: "Completions of this node's requests that were no success.",
			Read: func(_ *ports.Stats, emit telemetry.Emit) {
				for i, v := range t.Stats().Completions {
					if i > 0 && rdma.Status(i).Known() {
						emit(v, strings.ReplaceAll(rdma.Status(i).String(), " ", "_"))
					}
				}
			}},
		gauge("rdma.registered", telemetry.Bytes, "Bytes that are registered with the device, each registration counted.", func(s rdma.Stats) uint64 { return s.Registered }),
		gauge("rdma.registrations", "", "Registrations with the device.", func(s rdma.Stats) uint64 { return s.Regions }),
		gauge("rdma.links.inbound", "", "Links of peers into this node's memory.", func(s rdma.Stats) uint64 { return uint64(s.Inbound) }),
	}
}
