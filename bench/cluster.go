package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/inject"
	"github.com/spanpool/spanpool/ports"
)

// NodeSpec sizes a node of a Cluster.
type NodeSpec struct {
	MediumBytes uint64 // a multiple of PageBytes
	PageBytes   uint64
	GetArena    uint64 // 0: the route is off
	PutArena    uint64
}

// ClusterSpec is the nodes that a workload runs on.
type ClusterSpec struct {
	Nodes      []NodeSpec
	Transport  string // inproc
	Locality   domain.LocalityMode
	NoPrefetch bool
	Link       LinkSpec
}

// LinkSpec is the modelled link between nodes of one process. The zero value is none.
type LinkSpec struct {
	Gbps    float64 // 0: without limit
	DelayUs int     // once each way
}

// modelled reports whether there is anything to model.
func (l LinkSpec) modelled() bool { return l != LinkSpec{} }

// Node is a node as a workload sees it.
type Node struct {
	ID   ports.PeerID
	Pool ports.Pool
}

// Cluster is running nodes that know each other.
type Cluster struct {
	Nodes []Node
	// Closers end the nodes and then what they are plugged into, in this order.
	Closers []func() error
}

// Close ends the nodes; every call of theirs must have returned.
func (c *Cluster) Close() error {
	var errs []error
	for _, f := range c.Closers {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// OpenCluster starts nodes in this process. Workloads take it as a value, so that tests can run them over other pools.
type OpenCluster func(ctx context.Context, spec ClusterSpec) (*Cluster, error)

// OpenNodes is the OpenCluster of real nodes.
func OpenNodes(ctx context.Context, spec ClusterSpec) (*Cluster, error) {
	network := inproc.NewNetwork(networkOptions(spec.Link))
	c := &Cluster{}
	for i := range spec.Nodes {
		n, stop, err := openNode(network, fmt.Sprintf("node-%d", i), &spec, spec.Nodes[i])
		if err != nil {
			return nil, errors.Join(err, c.Close(), network.Close())
		}
		c.Nodes = append(c.Nodes, n)
		c.Closers = append(c.Closers, stop)
	}
	c.Closers = append(c.Closers, network.Close)
	return c, nil
}

func networkOptions(l LinkSpec) inproc.Options {
	o := inproc.Options{Clock: boottime.New()}
	if l.modelled() {
		o.Driver = inproc.OSThread
		o.Link = &inproc.LinkModel{BytesPerSecond: uint64(l.Gbps * 1e9 / 8), Delay: time.Duration(l.DelayUs) * time.Microsecond}
	}
	return o
}

func openNode(network *inproc.Network, id string, spec *ClusterSpec, size NodeSpec) (Node, func() error, error) {
	off := func(n uint64) uint64 {
		if n == 0 {
			return inject.Off
		}
		return n
	}
	n, stop, err := inject.Embedded(inject.Config{
		Node:          app.Config{ID: ports.PeerID(id), Locality: spec.Locality, NoRangedLocalityPrefetch: spec.NoPrefetch},
		MediumBytes:   size.MediumBytes,
		PageSize:      size.PageBytes,
		GetArenaBytes: off(size.GetArena),
		PutArenaBytes: off(size.PutArena),
		Endpoint:      network.Endpoint(ports.PeerID(id)),
	})
	if err != nil {
		return Node{}, nil, fmt.Errorf("node %s: %w", id, err)
	}
	return Node{ID: ports.PeerID(id), Pool: n}, func() error { stop(); return nil }, nil
}
