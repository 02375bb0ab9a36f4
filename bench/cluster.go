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
	Transport  string // TransportInproc, TransportTCP, TransportSHM or TransportRDMA
	Locality   domain.LocalityMode
	NoPrefetch bool
	// NoChecksums has no node of this process make sums or verify by them.
	NoChecksums bool
	Link        LinkSpec
	// Remotes are nodes of other processes that stand in for all nodes but the first; not over inproc.
	Remotes []Remote
	Secret  []byte // that they share; nil: none
	// Copier makes what stands in front of every node's copier: a Limiter's. nil: nothing does.
	Copier func(ports.Copier) ports.Copier

	// Lease is of what nodes let others read; 0: the default.
	Lease time.Duration
	// GPU is where media lie, if not in host memory. nil: there.
	GPU *GPU

	// Fetch is how node 0 gets and puts what the others hold. The comparisons want exactly two nodes.
	Fetch FetchMode
	// SharedArena has the comparison use one arena and one lock for both directions.
	SharedArena bool
}

// FetchMode is how the reader fetches.
type FetchMode uint8

// FetchRanged is a node of this repository. FetchWhole is the comparison (see whole).
const (
	FetchRanged FetchMode = iota
	FetchWhole
)

// ParseFetch reads the value of --fetch.
func ParseFetch(text string) (FetchMode, error) {
	if text == "whole" {
		return FetchWhole, nil
	}
	return FetchRanged, CheckAvailable("--fetch", text, []string{"ranged", "whole"})
}

// LinkSpec is the modelled link between nodes of one process. The zero value is none.
type LinkSpec struct {
	Gbps    float64 // 0: without limit
	DelayUs int     // once each way
}

// modelled reports whether there is anything to model.
func (l LinkSpec) modelled() bool { return l != LinkSpec{} }

// check refuses a rate that nothing can have. The delay's bounds are the options'.
func (l LinkSpec) check() error {
	if g := l.Gbps; g != 0 && !(g >= minGbps && g <= maxGbps) { // a NaN fails both
		return badOption("--link-gbps", g, "want %v to %v, or 0 for no limit", minGbps, maxGbps)
	}
	return nil
}

// Node is a node as a workload sees it.
type Node struct {
	ID   ports.PeerID
	Pool ports.Pool
}

// Cluster is running nodes that know each other.
type Cluster struct {
	Nodes []Node
	Link  LinkMeter // nil: nothing measures it
	// Sockets tells what the kernel received for node 0, less framing; nil: it has no sockets.
	Sockets func() uint64
	// Closers end the nodes and then what they are plugged into, in this order.
	Closers []func() error
}

// LinkMeter tells what the modelled link reached.
type LinkMeter interface {
	LinkReport() []inproc.DirectionReport
	ResetReport()
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
	if spec.Transport != TransportInproc && spec.Transport != "" {
		return openTCP(ctx, &spec)
	}
	network := inproc.NewNetwork(networkOptions(spec.Link, spec.GPU))
	c := &Cluster{Link: network}
	first := 0
	if spec.compares() {
		first = 1 // the comparison stands in for node 0, and needs its peer to be there
	}
	for i := first; i < len(spec.Nodes); i++ {
		n, stop, err := openNode(ctx, network, nodeID(i), &spec, spec.Nodes[i])
		if err != nil {
			return nil, errors.Join(err, c.Close(), network.Close())
		}
		c.Nodes = append(c.Nodes, n)
		c.Closers = append(c.Closers, stop)
	}
	if first > 0 {
		to, leave, err := inprocWay(network, nodeID(0))
		if err == nil {
			c.Closers = append([]func() error{leave}, c.Closers...)
			err = c.compare(ctx, to, &spec)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close(), network.Close())
		}
	}
	c.Closers = append(c.Closers, network.Close)
	return c, nil
}

// compares reports whether the comparison stands in for node 0.
func (s *ClusterSpec) compares() bool { return s.Fetch == FetchWhole && len(s.Nodes) == 2 }

// compare puts the comparison before the node that it asks.
func (c *Cluster) compare(ctx context.Context, to way, spec *ClusterSpec) error {
	w, err := openWhole(ctx, to, spec, c.Nodes[0].ID)
	if err != nil {
		return err
	}
	c.Nodes = append([]Node{{ID: nodeID(0), Pool: w}}, c.Nodes...)
	c.Closers = append([]func() error{w.Close}, c.Closers...)
	return nil
}

func nodeID(i int) ports.PeerID { return ports.PeerID(fmt.Sprintf("node-%d", i)) }

func networkOptions(l LinkSpec, g *GPU) inproc.Options {
	o := inproc.Options{Clock: boottime.New()}
	o.Copier, o.Background = g.copiers()
	if l.modelled() {
		o.Driver = inproc.OSThread
		o.Link = &inproc.LinkModel{BytesPerSecond: uint64(l.Gbps * 1e9 / 8), Delay: time.Duration(l.DelayUs) * time.Microsecond}
	}
	return o
}

func openNode(ctx context.Context, network *inproc.Network, id ports.PeerID, spec *ClusterSpec, size NodeSpec) (Node, func() error, error) {
	if ctx.Err() != nil { // GiB of memory take seconds to get
		return Node{}, nil, context.Cause(ctx)
	}
	off := func(n uint64) uint64 {
		if n == 0 {
			return inject.Off
		}
		return n
	}
	config := inject.Config{
		Node:          app.Config{ID: id, Locality: spec.Locality, NoRangedLocalityPrefetch: spec.NoPrefetch, NoChecksums: spec.NoChecksums, PeerLease: spec.Lease},
		MediumBytes:   size.MediumBytes,
		PageSize:      size.PageBytes,
		GetArenaBytes: off(size.GetArena),
		PutArenaBytes: off(size.PutArena),
		Copier:        spec.GPU.copier(spec.Copier),
	}
	closeMedium := func() error { return nil }
	if spec.GPU.onGPU() {
		m, err := spec.GPU.medium(size.MediumBytes, size.PageBytes)
		if err != nil {
			return Node{}, nil, fmt.Errorf("node %s: %w", id, err)
		}
		config.Medium, closeMedium = m, m.Close
	}
	if network != nil {
		config.Endpoint = network.Endpoint(id)
	}
	n, stop, err := inject.Embedded(config)
	if err != nil {
		return Node{}, nil, errors.Join(fmt.Errorf("node %s: %w", id, err), closeMedium())
	}
	return Node{ID: id, Pool: n}, func() error { stop(); return closeMedium() }, nil
}
