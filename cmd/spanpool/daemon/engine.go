package daemon

import (
	"context"
	"log/slog"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// engineModule serves the node to its own host.
func engineModule() fx.Option {
	return fx.Module("engine socket", fx.Invoke(serveEngine))
}

func serveEngine(lc fx.Lifecycle, s *config.Settings, o Options, n *app.Node, pool ports.Pool, own *resources, at *Addresses, l *slog.Logger) error {
	server, err := engine.Listen(s.Socket, engine.Config{Pool: pool, Self: n.Self(), Version: o.Version, Warnings: s.Warnings()})
	if err != nil {
		return partError("socket", err)
	}
	at.Socket = s.Socket
	own.opened("engine socket", func() error { return server.Stop(context.Background()) })
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
	return nil
}
