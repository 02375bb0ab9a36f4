package app

import (
	"errors"

	"github.com/spanpool/spanpool/ports"
)

// Node is one node of the pool: a ports.Pool for its callers and, by PeerServer, the owner of its pages for its peers.
type Node struct{ ports.Pool }

// New builds and starts a node over its ports. Close stops it; the ports are the caller's to close, after the node.
func New(cfg Config, p Ports) (*Node, error) { return nil, errors.New("todo") }

// PeerServer is what the node's peers call.
func (n *Node) PeerServer() ports.PeerServer { return nil }

// Self names this start of the node.
func (n *Node) Self() ports.Peer { return ports.Peer{} }
