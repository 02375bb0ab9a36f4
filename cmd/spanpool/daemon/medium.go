package daemon

import (
	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// memory is what the node's bytes lie in, and what moves them. An arena that is off is nil.
type memory struct {
	medium, get, put ports.Medium
	device           device
}

// device is what moves bytes of device memory; nil where there is none.
type device struct{ copier, background ports.Copier }

// instead replaces the node's own copier, which knows host memory only.
func (d device) instead() func(own ports.Copier) ports.Copier {
	if d.copier == nil {
		return nil
	}
	return func(ports.Copier) ports.Copier { return d.copier }
}

func mediumModule(s *config.Settings) fx.Option {
	open := fx.Provide(openDRAM)
	if s.Medium == "hbm" {
		open = fx.Provide(openHBM)
	}
	all := fx.Module("medium", open, fx.Provide(openMemory))
	if s.UsesGPU() {
		return fx.Options(gpuModule(), all)
	}
	return all
}

// pages is the pool's own memory.
type pages struct{ ports.Medium }

func openMemory(s *config.Settings, p pages, on onGPU, own *resources) (*memory, error) {
	m := &memory{medium: p.Medium, device: on.GPU.device()}
	for _, arena := range []struct {
		into  *ports.Medium
		name  string
		bytes uint64
	}{{&m.get, "arena.get_bytes", s.GetArenaBytes}, {&m.put, "arena.put_bytes", s.PutArenaBytes}} {
		if arena.bytes == 0 {
			continue
		}
		a, err := dram.OpenArena(arena.bytes)
		if err != nil {
			return nil, partError(arena.name, err)
		}
		own.opened(arena.name, a.Close)
		*arena.into = a
	}
	return m, nil
}

func openDRAM(s *config.Settings, own *resources) (pages, error) {
	c := dram.Config{Bytes: s.MediumBytes, PageSize: s.PageBytes, HugePages: s.HugePages}
	if sharesMemory(s) {
		c.Backing = dram.Memfd
	}
	m, err := dram.Open(c)
	if err != nil {
		return pages{}, partError("medium", err)
	}
	own.opened("medium", m.Close)
	return pages{m}, nil
}
