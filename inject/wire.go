//go:build wireinject

package inject

import (
	"github.com/google/wire"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/app"
)

// Embedded makes and starts a node inside of this program: host memory, and peers in the same process. The function that it
// returns stops the node and gives the memory back; no region of the node may be touched after it. An error names what could
// not be had, and leaves nothing behind.
func Embedded(c Config) (*app.Node, func(), error) {
	panic(wire.Build(
		settle, wire.FieldsOf(new(settings), "Node"),
		boottime.New, newCopier, openMemory, placeOf, newPorts, startNode,
	))
}

// Daemon makes a node of parts that are open already. Nothing calls in yet: who serves its PeerServer and its Pool is the caller's
// affair. The function that it returns stops the node and leaves the parts open; the transports have to be closed before the memory.
func Daemon(c app.Config, p Parts) (*app.Node, func(), error) {
	panic(wire.Build(boottime.New, copierOf, joinParts, newNode))
}
