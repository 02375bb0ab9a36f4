package inject

import (
	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
)

// Parts is what a daemon opened, as its configuration says. A nil part is one that the node does without. They stay the caller's: it
// closes them after the node, transports first.
type Parts struct {
	Medium, GetArena, PutArena ports.Medium
	Transports                 []ports.Transport // in the order of preference
	Resolver                   ports.PeerResolver
	Writer                     ports.PeerWriter
	Directory                  ports.Directory
	Observer                   ports.Observer

	// Copier makes what stands in front of the node's own copier. nil: nothing does.
	Copier func(ports.Copier) ports.Copier
}

func copierOf(p Parts) ports.Copier {
	own := dram.NewCopier()
	if p.Copier == nil {
		return own
	}
	return p.Copier(own)
}

func joinParts(clock boottime.Clock, copier ports.Copier, p Parts) app.Ports {
	return app.Ports{
		Clock: clock, Medium: p.Medium, GetArena: p.GetArena, PutArena: p.PutArena, Copier: copier,
		Transports: p.Transports, Resolver: p.Resolver, Writer: p.Writer, Directory: p.Directory,
		Observer: p.Observer,
	}
}

func newNode(c app.Config, p app.Ports) (*app.Node, func(), error) {
	n, err := app.New(c, p)
	if err != nil {
		return nil, nil, err
	}
	return n, func() { _ = n.Close() }, nil
}
