package daemon

import (
	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
)

// gpuModule opens the vendor's runtime. What lies on its devices is closed before it.
func gpuModule() fx.Option { return fx.Module("gpu", fx.Provide(openGPU)) }

// gpu is a runtime, and the memory that clients lend on its devices.
type gpu struct {
	*hip.Runtime
	lent *hip.Imports
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
	return g.Notes()
}

func openGPU(s *config.Settings, own *resources) (*gpu, error) {
	r, err := hip.Open(hip.Config{Vendor: hip.Vendor(s.GPURuntime), Library: s.GPULibrary, Deadline: s.GPUDeadline, Host: dram.NewCopier()})
	if err != nil {
		return nil, partError("gpu", err)
	}
	own.opened("gpu", r.Close)
	g := &gpu{r, r.Imports()}
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
