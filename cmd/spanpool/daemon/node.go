package daemon

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"sync/atomic"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/inject"
	"github.com/spanpool/spanpool/ports"
)

// nodeModule draws the name of this start, which the control plane needs before there is a node, and makes the node.
func nodeModule() fx.Option {
	return fx.Module("node", fx.Provide(newSelf, newNode, func() *readiness { return &readiness{} }))
}

func newSelf(s *config.Settings) ports.Peer {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return ports.Peer{ID: s.ID, Incarnation: domain.Incarnation(binary.LittleEndian.Uint64(b[:]) | 1)}
}

// observed is who the node tells of its batches: nobody, when nobody can ask.
type observed struct {
	fx.In
	By *telemetry.Telemetry `optional:"true"`
}

func newNode(s *config.Settings, self ports.Peer, m *memory, t transports, c *control, o observed, l *slog.Logger, own *resources) (*app.Node, error) {
	cfg := s.Node
	cfg.Incarnation = self.Incarnation
	parts := inject.Parts{Medium: m.medium, GetArena: m.get, PutArena: m.put, Transports: t, Resolver: c.client, Writer: c.client, Directory: c.directory, Copier: m.device.instead()}
	parts.Observer = observers(l, o.By)
	n, stop, err := inject.Daemon(cfg, parts)
	if err != nil {
		return nil, partError("node", err)
	}
	own.opened("node", func() error { stop(); return nil })
	for _, r := range n.Unreached() {
		l.Info("a transport does not reach the pool: it brings bytes to the arena, and serves no peer", "transport", r.Kind, "reason", r.Reason)
	}
	return n, nil
}

// readiness is what /readyz says.
type readiness struct{ atomic.Bool }

// readyModule comes last: the node is ready when every way in is open, and is not any more before the first of them closes.
func readyModule() fx.Option { return fx.Module("ready", fx.Invoke(becomeReady)) }

// becomeReady also meets the peers, so that the first calls do not pay for that.
func becomeReady(lc fx.Lifecycle, n *app.Node, r *readiness, own *resources, l *slog.Logger) {
	ctx, cancel := context.WithCancel(context.Background())
	meet := func() error {
		if err := n.Meet(ctx); err != nil && ctx.Err() == nil {
			l.Warn("not every peer answers; it is dialled until it does", "error", err)
		}
		return nil
	}
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			r.Store(true)
			own.serve("peers", meet)
			return nil
		},
		OnStop: func(context.Context) error {
			r.Store(false)
			cancel()
			return nil
		},
	})
}
