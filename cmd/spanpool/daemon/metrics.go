package daemon

import (
	"strconv"
	"strings"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/adapters/grpcpeer"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/adapters/shm"
	"github.com/spanpool/spanpool/adapters/tcp"
	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// newTelemetry comes before the node, which tells it of its batches.
func newTelemetry(s *config.Settings, o Options, own *resources) (*telemetry.Telemetry, error) {
	t, err := telemetry.New(telemetry.Config{Node: s.ID, Version: o.Version})
	if err != nil {
		return nil, partError("metrics", err)
	}
	own.opened("metrics", t.Close)
	return t, nil
}

// around are the parts that not every node has.
type around struct {
	fx.In
	Engine *engine.Server `optional:"true"`
	GPU    *gpu           `optional:"true"`
}

// watch shows what the node counts, and what the parts around it do that the node does not see.
func watch(shown *telemetry.Telemetry, n *app.Node, m *memory, all transports, server *grpcpeer.Server, tracing *telemetry.Tracing, held *heldBack, a around) error {
	more := append(memoryFamilies(m), controlFamily(server), tracing.Family(), held.family())
	if a.Engine != nil {
		more = append(more, engineFamilies(a.Engine)...)
	}
	if a.GPU != nil {
		more = append(more, gpuFamilies(a.GPU.Runtime)...)
	}
	for _, t := range all {
		switch t := t.(type) {
		case *tcp.Transport:
			more = append(more, tcpFamilies(t)...)
		case *rdma.Transport:
			more = append(more, rdmaFamilies(t)...)
		case *shm.Transport:
			more = append(more, shmFamilies(t)...)
		}
	}
	return partError("metrics", shown.Watch(counted{n, m}, more...))
}

// counted is the node's counts with what only its memory knows.
type counted struct {
	node   *app.Node
	memory *memory
}

// Stats adds the buffers that wanted huge pages and lie on others.
func (c counted) Stats() ports.Stats {
	s := c.node.Stats()
	c.memory.each(func(_ string, d dram.Stats) { s.Downgrades[ports.DowngradeHugePages] += d.HugePageFallbacks })
	return s
}

// each is called with the memory that is the host's, by what it is for. What is off has no bytes.
func (m *memory) each(emit func(part string, s dram.Stats)) {
	for _, p := range []struct {
		name string
		of   ports.Medium
	}{{"medium", m.medium}, {"arena_get", m.get}, {"arena_put", m.put}} {
		var s dram.Stats
		if d, ok := p.of.(*dram.Medium); ok {
			s = d.Stats()
		}
		emit(p.name, s)
	}
}

func memoryFamilies(m *memory) []telemetry.Family {
	read := func(value func(dram.Stats) uint64) func(*ports.Stats, telemetry.Emit) {
		return func(_ *ports.Stats, emit telemetry.Emit) {
			m.each(func(part string, s dram.Stats) { emit(value(s), part) })
		}
	}
	return []telemetry.Family{
		{Name: "memory", Unit: telemetry.Bytes, Kind: telemetry.Gauge, Labels: []string{"part"}, Help: "Bytes of host memory that the node took.",
			Read: read(func(s dram.Stats) uint64 { return s.Bytes })},
		{Name: "memory.huge", Unit: telemetry.Bytes, Kind: telemetry.Gauge, Labels: []string{"part"}, Help: "Bytes of that memory that lie on huge pages.",
			Read: read(func(s dram.Stats) uint64 { return s.HugeBytes })},
	}
}

func controlFamily(server *grpcpeer.Server) telemetry.Family {
	return telemetry.Family{Name: "control.refused", Labels: []string{"reason"},
		Help: "Connections of nodes and calls on them that were refused: the secret was not proven, the names were wrong, there were too many.",
		Read: func(_ *ports.Stats, emit telemetry.Emit) {
			c := server.Counts()
			emit(c.Unproven, "unproven")
			emit(c.Strangers, "stranger")
			emit(c.Crowded, "crowded")
		}}
}

func engineFamilies(server *engine.Server) []telemetry.Family {
	by := func(name, label, help string, value func(engine.Counts) map[string]uint64) telemetry.Family {
		return telemetry.Family{Name: name, Labels: []string{label}, Help: help,
			Read: func(_ *ports.Stats, emit telemetry.Emit) {
				for label, v := range value(server.Counts()) {
					emit(v, label)
				}
			}}
	}
	gauge := func(name, unit, help string, value func(engine.Counts) uint64) telemetry.Family {
		return telemetry.Family{Name: name, Unit: unit, Kind: telemetry.Gauge, Help: help,
			Read: func(_ *ports.Stats, emit telemetry.Emit) { emit(value(server.Counts())) }}
	}
	return []telemetry.Family{
		by("engine.refused", "reason", "Calls over the socket, and packets beside it, that were refused as a whole.", func(c engine.Counts) map[string]uint64 { return c.Refused }),
		by("engine.ended", "reason", "Clients of the socket that were let go.", func(c engine.Counts) map[string]uint64 { return c.Ended }),
		by("engine.events", "event", "What else clients of the socket met with, as `spanpool ctl status` names it.", func(c engine.Counts) map[string]uint64 { return c.Events }),
		gauge("engine.clients", "", "Clients of the socket.", func(c engine.Counts) uint64 { return c.Clients }),
		gauge("engine.region", telemetry.Bytes, "Bytes of memory that clients have registered.", func(c engine.Counts) uint64 { return c.RegionBytes }),
	}
}

func gpuFamilies(r *hip.Runtime) []telemetry.Family {
	by := func(name, unit, help string, kind telemetry.Kind, value func(hip.DeviceReport) uint64) telemetry.Family {
		return telemetry.Family{Name: name, Unit: unit, Kind: kind, Labels: []string{"device"}, Help: help,
			Read: func(_ *ports.Stats, emit telemetry.Emit) {
				for _, d := range r.Counts() {
					emit(value(d), strconv.Itoa(d.Ordinal))
				}
			}}
	}
	return []telemetry.Family{
		by("gpu.copied", telemetry.Bytes, "Bytes that a device's thread copied.", telemetry.Counter, func(d hip.DeviceReport) uint64 { return d.Stats.Bytes }),
		by("gpu.timeouts", "", "Steps of a device that were past their deadline.", telemetry.Counter, func(d hip.DeviceReport) uint64 { return d.Stats.Timeouts }),
		by("gpu.refused", "", "Copies that were asked of a device which is lost or closed.", telemetry.Counter, func(d hip.DeviceReport) uint64 { return d.Stats.Refused }),
		by("gpu.errors", "", "Copies that a device refused.", telemetry.Counter, func(d hip.DeviceReport) uint64 { return d.Stats.Errors }),
		by("gpu.lost", "", "1 when a device does not answer any more.", telemetry.Gauge, func(d hip.DeviceReport) uint64 {
			if d.Lost {
				return 1
			}
			return 0
		}),
	}
}

func tcpFamilies(t *tcp.Transport) []telemetry.Family {
	one := func(value func(tcp.Stats) uint64) func(*ports.Stats, telemetry.Emit) {
		return func(_ *ports.Stats, emit telemetry.Emit) { emit(value(t.Stats())) }
	}
	return []telemetry.Family{
		{Name: "tcp.connections.ended", Labels: []string{"reason"}, Help: "Data connections, of either side, that ended and should not have.",
			Read: func(_ *ports.Stats, emit telemetry.Emit) {
				for i, v := range t.Stats().Ended {
					emit(v, strings.ReplaceAll(tcp.Reason(i).String(), " ", "_"))
				}
			}},
		{Name: "tcp.connections.inbound", Kind: telemetry.Gauge, Help: "Data connections that peers opened.",
			Read: one(func(s tcp.Stats) uint64 { return uint64(s.Inbound) })},
		{Name: "tcp.served", Unit: telemetry.Bytes, Help: "Bytes that peers read from this node.", Read: one(func(s tcp.Stats) uint64 { return s.ServedBytes })},
		{Name: "tcp.applied", Unit: telemetry.Bytes, Help: "Bytes that peers wrote to this node.", Read: one(func(s tcp.Stats) uint64 { return s.AppliedBytes })},
	}
}

func shmFamilies(t *shm.Transport) []telemetry.Family {
	gauge := func(name, help string, value func(shm.Stats) uint64) telemetry.Family {
		return telemetry.Family{Name: name, Kind: telemetry.Gauge, Help: help,
			Read: func(_ *ports.Stats, emit telemetry.Emit) { emit(value(t.Stats())) }}
	}
	mapped := gauge("shm.mapped", "Bytes of peers' memory that this node has mapped.", func(s shm.Stats) uint64 { return s.Mapped })
	mapped.Unit = telemetry.Bytes
	return []telemetry.Family{
		{Name: "shm.refused", Labels: []string{"reason"}, Help: "Connections of peers of this host that ended and should not have, and copies that met memory that is not there.",
			Read: func(_ *ports.Stats, emit telemetry.Emit) {
				for i, v := range t.Stats().Refused {
					emit(v, shm.Reason(i).String())
				}
			}},
		gauge("shm.links.inbound", "Peers that have this node's memory mapped.", func(s shm.Stats) uint64 { return uint64(s.Inbound) }),
		gauge("shm.links.outbound", "Peers whose memory this node has mapped.", func(s shm.Stats) uint64 { return uint64(s.Outbound) }),
		mapped,
	}
}
