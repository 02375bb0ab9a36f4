package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// engineModule serves the node to its own host.
func engineModule() fx.Option {
	return fx.Module("engine socket", fx.Provide(newEngine), fx.Invoke(serveEngine))
}

// leftForClients is what the container's limit leaves beside the node's own memory: all clients' regions together have to fit there, or
// the kernel ends whoever touches the last page. 0 when no limit is known.
func leftForClients(s *config.Settings) uint64 {
	limit, _ := dram.Limit()
	own := s.GetArenaBytes + s.PutArenaBytes
	if s.Medium != "hbm" {
		own += s.MediumBytes
	}
	if limit == 0 {
		return 0
	}
	return max(limit-min(limit, own), 1)
}

func newEngine(s *config.Settings, o Options, on onGPU, n *app.Node, pool ports.Pool, c *control, own *resources, at *Addresses) (*engine.Server, error) {
	server, err := engine.Listen(s.Socket, engine.Config{Pool: pool, Self: n.Self(), Version: o.Version, Warnings: s.Warnings(),
		Checksums: !s.Node.NoChecksums, Devices: on.GPU.devices(), Notes: on.GPU.notes, MaxRegionBytes: leftForClients(s), Journal: c.directory,
		MaxClients: s.Clients, MaxClientBytes: s.ClientBytes, MaxRegions: s.ClientRegions, MaxSessions: s.ClientSessions})
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w (--socket names another place)", err)
	}
	if err != nil {
		return nil, partError("socket", err)
	}
	at.Socket = s.Socket
	own.opened("engine socket", func() error { return server.Stop(context.Background()) })
	return server, nil
}

func serveEngine(lc fx.Lifecycle, s *config.Settings, server *engine.Server, own *resources, l *slog.Logger) {
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			own.serve("socket", server.Serve)
			return nil
		},
		OnStop: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, s.Drain)
			defer cancel()
			if err := server.Stop(ctx); err != nil {
				l.Warn("calls over the socket were broken off", "drain", s.Drain)
			}
			return nil
		},
	})
}
