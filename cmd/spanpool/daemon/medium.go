package daemon

import (
	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// memory is what the node's bytes lie in. An arena that is off is nil.
type memory struct{ medium, get, put ports.Medium }

func mediumModule() fx.Option {
	return fx.Module("medium", fx.Provide(openMemory))
}

func openMemory(s *config.Settings, own *resources) (*memory, error) {
	m := &memory{}
	medium, err := openMedium(s)
	if err != nil {
		return nil, partError("medium", err)
	}
	own.opened("medium", medium.Close)
	m.medium = medium
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

func openMedium(s *config.Settings) (ports.Medium, error) {
	if s.Medium == "hbm" {
		return hip.OpenMedium(0, s.MediumBytes, s.PageBytes)
	}
	return dram.Open(dram.Config{Bytes: s.MediumBytes, PageSize: s.PageBytes, HugePages: s.HugePages})
}
