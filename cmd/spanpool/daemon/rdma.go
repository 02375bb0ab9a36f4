package daemon

import (
	"strings"

	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/ports"
)

// openRDMA opens the device that the settings name, or the first that is up. Peers that it does not reach are reached by what comes after
// it. The GPU's memory it reaches where gpu.nic says so and the device takes it; the node goes by its arenas else.
func openRDMA(o opening) (ports.Transport, error) {
	s := o.Settings
	c := rdma.Config{Clock: o.Clock, Device: s.RDMADevice, GID: s.RDMAGID, ReadPairs: int(s.RDMAReadPairs), WritePairs: int(s.RDMAWritePairs),
		SendDepth: int(s.RDMADepth), MaxSGE: int(s.RDMAScatter), MaxReads: int(s.RDMAReads),
		DialTimeout: s.Node.DialTimeout / 2, // what is left of a hello's time is for the transport after it
		Warn: func(err error) {
			o.Log.Warn("a queue pair of the rdma device cannot be destroyed; memory that it may write to stays in use", "error", err)
		},
	}
	if o.GPU != nil && s.GPUNIC {
		c.DMABuf = o.GPU.dmaBuf
	}
	t, err := rdma.Open(c)
	if err != nil {
		return nil, partError("transport", err)
	}
	o.Log.Info("rdma", "device", t.Device(), "locked_memory", rdma.LockedMemoryLimit())
	if o.GPU != nil {
		o.GPU.TryOn(t.TryDMABuf) // whether it is used or not
		o.GPU.keptOff = !s.GPUNIC
	}
	for _, c := range t.Clamps() {
		o.Log.Warn("the rdma device can do less than was asked for", "what", c.What, "asked", c.Asked, "got", c.Got)
	}
	return t, nil
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
