package daemon

import (
	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
)

// gpuModule opens the vendor's runtime. What lies on its devices is closed before it.
func gpuModule() fx.Option { return fx.Module("gpu", fx.Provide(openGPU)) }

func openGPU(s *config.Settings, own *resources) (*hip.Runtime, error) {
	r, err := hip.Open(hip.Config{Vendor: hip.Vendor(s.GPURuntime), Library: s.GPULibrary, Deadline: s.GPUDeadline, Host: dram.NewCopier()})
	if err != nil {
		return nil, partError("gpu", err)
	}
	own.opened("gpu", r.Close)
	return r, nil
}

func openHBM(s *config.Settings, r *hip.Runtime, own *resources) (pages, error) {
	m, err := r.OpenMedium(hip.MediumConfig{Bytes: s.MediumBytes, PageSize: s.PageBytes, Ordinals: s.GPUDevices, Reserve: s.GPUReserve})
	if err != nil {
		return pages{}, partError("medium", err)
	}
	own.opened("medium", m.Close)
	return pages{Medium: m, device: device{r.Copier(), r.Background()}}, nil
}
