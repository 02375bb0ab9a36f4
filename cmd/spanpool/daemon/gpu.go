package daemon

import (
	"os"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// gpuModule opens the vendor's runtime. What lies on its devices is closed before it.
func gpuModule() fx.Option { return fx.Module("gpu", fx.Provide(openGPU)) }

// gpu is a runtime, and the memory that clients lend on its devices.
type gpu struct {
	*hip.Runtime
	lent    *hip.Imports
	keptOff bool // there is a NIC, and it is not to reach GPU memory
}

// device is what moves its bytes.
func (g *gpu) device() device {
	if g == nil {
		return device{}
	}
	return device{g.Copier(), g.Background()}
}

// devices is where clients lend memory; nil where they cannot.
func (g *gpu) devices() engine.Devices {
	if g == nil {
		return nil
	}
	return g.lent
}

// notes is what ctl status shows of it.
func (g *gpu) notes() []string {
	if g == nil {
		return nil
	}
	out := g.Notes()
	if g.keptOff {
		out = append(out, "gpu: the NIC is kept off GPU memory, whatever it takes (gpu.nic: false): its bytes go by the arenas")
	}
	return out
}

// dmaBuf names GPU memory for the NIC, unless its device's was seen not to be taken.
func (g *gpu) dmaBuf(r ports.DeviceRegion) (*os.File, uint64, error) {
	if v := g.ImportVerdict(r.Ordinal()); v.Tried && v.Err != nil {
		return nil, 0, v.Err
	}
	return g.DMABuf(r)
}

func openGPU(s *config.Settings, own *resources) (*gpu, error) {
	r, err := hip.Open(hip.Config{Vendor: hip.Vendor(s.GPURuntime), Library: s.GPULibrary, Deadline: s.GPUDeadline, Host: dram.NewCopier()})
	if err != nil {
		return nil, partError("gpu", err)
	}
	own.opened("gpu", r.Close)
	g := &gpu{Runtime: r, lent: r.Imports()}
	own.opened("gpu.clients", g.lent.Close)
	return g, nil
}

func openHBM(s *config.Settings, g *gpu, own *resources) (pages, error) {
	m, err := g.OpenMedium(hip.MediumConfig{Bytes: s.MediumBytes, PageSize: s.PageBytes, Ordinals: s.GPUDevices, Reserve: s.GPUReserve})
	if err != nil {
		return pages{}, partError("medium", err)
	}
	own.opened("medium", m.Close)
	return pages{m}, nil
}

// onGPU is the runtime of a node that uses one.
type onGPU struct {
	fx.In
	GPU *gpu `optional:"true"`
}
