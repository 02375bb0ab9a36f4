package daemon

import (
	"context"
	"net"
	"time"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/adapters/grpcpeer"
	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// control is the asking half of the control plane.
type control struct {
	config    grpcpeer.Config
	client    *grpcpeer.Client
	directory *engine.Journal
}

// peersModule is the control plane between nodes: the asking half before there is a node, the answering half over it.
func peersModule() fx.Option {
	return fx.Module("peers", fx.Provide(newControl, listenControl, newServer), fx.Invoke(servePeers))
}

func newControl(s *config.Settings, self ports.Peer, own *resources) (*control, error) {
	c := grpcpeer.Config{Self: self, Secret: s.Secret, Insecure: len(s.Secret) == 0, DialTimeout: s.Node.DialTimeout}
	var ids []ports.PeerID
	for _, p := range s.Peers {
		ids = append(ids, p.ID)
		c.Peers = append(c.Peers, grpcpeer.Member{ID: p.ID, Addr: p.Addr})
	}
	client, err := grpcpeer.NewClient(c)
	if err != nil {
		return nil, partError("peers", err)
	}
	own.opened("peers' client", client.Close)
	return &control{config: c, client: client, directory: engine.NewJournal(grpcpeer.NewStatic(ids, self.ID))}, nil
}

func listenControl(s *config.Settings, own *resources, at *Addresses) (net.Listener, error) {
	l, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return nil, partError("listen", err)
	}
	own.opened("control listener", func() error { _ = l.Close(); return nil }) // most often the server has closed it
	at.Control = l.Addr().String()
	return l, nil
}

func newServer(c *control, n *app.Node, t *telemetry.Tracing, own *resources) (*grpcpeer.Server, error) {
	server, err := grpcpeer.NewServer(c.config, t.PeerServer(n.PeerServer()))
	if err != nil {
		return nil, partError("listen", err)
	}
	own.opened("peers' server", func() error { stopServer(server, 0); return nil }) // of a start that did not come to its hooks
	return server, nil
}

func servePeers(lc fx.Lifecycle, s *config.Settings, l net.Listener, server *grpcpeer.Server, own *resources) {
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			own.serve("listen", func() error { return server.Serve(l) })
			server.SetServing(true)
			return nil
		},
		OnStop: func(ctx context.Context) error {
			server.SetServing(false)
			stopServer(server, s.Drain)
			// Until its last lease ends a peer, in our list or not, may still read what it was told of: its transfers end well.
			return wait(ctx, min(s.Node.PeerLease, s.Drain))
		},
	})
}

// stopServer waits for peers' calls for as long as drain.
func stopServer(server *grpcpeer.Server, drain time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	server.Stop(ctx)
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
