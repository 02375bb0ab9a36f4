package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/grpcpeer"
	"github.com/spanpool/spanpool/adapters/shm"
	"github.com/spanpool/spanpool/adapters/tcp"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/inject"
	"github.com/spanpool/spanpool/ports"
)

// The transports that a workload runs over.
const (
	TransportInproc = "inproc"
	TransportTCP    = "tcp"
	TransportSHM    = "shm" // for reads; writes go over tcp
)

// Remote is a process that serves a node, which a workload uses in place of one of its own.
type Remote struct {
	ID   ports.PeerID
	Addr string // of its control plane
}

// checkTransport refuses what a transport cannot do.
func checkTransport(transport string, link LinkSpec, remotes []Remote) error {
	if err := CheckAvailable("--transport", transport, []string{TransportInproc, TransportTCP, TransportSHM, TransportRDMA}, "auto"); err != nil {
		return err
	}
	if transport != TransportInproc && link.modelled() {
		return badOption("--transport", transport, "--link-gbps and --link-delay-us model the link of inproc")
	}
	if transport == TransportInproc && len(remotes) > 0 {
		return badOption("--peer", remotes[0].ID, "nodes of other processes are reached by --transport tcp or shm")
	}
	return nil
}

// host is a node of this process that others reach by tcp, and by shm besides, in the order in which its parts are opened.
type host struct {
	id      ports.PeerID
	self    ports.Peer
	memory  [3]ports.Medium // the medium and the arenas; nil: none
	data    *meteredTransport
	near    *shm.Transport // nil: everything goes over data
	asks    bool           // it only asks: nobody reaches it
	bare    bool           // it has no node of its own: the comparison stands in for it
	listen  net.Listener   // nil: it only asks
	client  *grpcpeer.Client
	server  *grpcpeer.Server
	serving chan error
	stop    func()
	node    *app.Node
}

// openTCP is OpenNodes over sockets of loopback, or with the nodes of other processes.
func openTCP(ctx context.Context, spec *ClusterSpec) (*Cluster, error) {
	c := &Cluster{}
	local := spec.Nodes
	if len(spec.Remotes) > 0 {
		local = spec.Nodes[:1] // the others are theirs
	}
	var hosts []*host
	members := members(spec.Remotes)
	for i := range local {
		h := &host{id: nodeID(i), bare: i == 0 && spec.compares()}
		h.asks = h.bare || len(spec.Remotes) > 0
		if len(spec.Remotes) > 0 {
			h.id = ports.PeerID(fmt.Sprintf("bench-%08x", rand.Uint32())) // two benches may run at once
		}
		hosts = append(hosts, h)
		c.Closers = append([]func() error{h.close}, c.Closers...)
		err := context.Cause(ctx) // GiB of memory take seconds to get
		if err == nil {
			err = h.open(spec, local[i])
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", h.id, err), c.Close())
		}
		if h.listen != nil {
			members = append(members, grpcpeer.Member{ID: h.id, Addr: h.listen.Addr().String()})
		}
	}
	for _, h := range hosts {
		if err := h.start(spec, members); err != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", h.id, err), c.Close())
		}
		if !h.bare {
			c.Nodes = append(c.Nodes, Node{ID: h.id, Pool: h.node})
		}
	}
	for _, h := range hosts {
		if h.bare {
			continue
		}
		if err := h.node.Meet(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", h.id, err), c.Close())
		}
	}
	switch spec.Transport {
	case TransportSHM:
		if err := readsByShm(c.Nodes); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	case TransportTCP: // only its bytes pass the kernel, which counts them
		c.Sockets = hosts[0].data.Payload
	}
	if hosts[0].bare {
		if err := c.compare(ctx, hosts[0].way(), spec); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if len(spec.Remotes) > 0 {
		c.stand(spec)
	}
	return c, nil
}

// readsByShm fails when a node reads from another by something else.
func readsByShm(nodes []Node) error {
	for _, n := range nodes {
		for _, p := range n.Pool.Stats().Peers {
			if p.Transport != shm.Kind {
				return fmt.Errorf("%w: %s reads from %s by %q and not by shm: %v", ErrFailed, n.ID, p.Peer.ID, p.Transport, p.Refused)
			}
		}
	}
	return nil
}

// transports are those that were opened, in the order of preference.
func (h *host) transports() (all []ports.Transport) {
	if h.near != nil {
		all = append(all, h.near)
	}
	if h.data != nil {
		all = append(all, h.data)
	}
	return all
}

func members(remotes []Remote) (out []grpcpeer.Member) {
	for _, r := range remotes {
		out = append(out, grpcpeer.Member{ID: r.ID, Addr: r.Addr})
	}
	return out
}

// way is how the comparison asks in the host's name.
func (h *host) way() way {
	return way{self: h.self, transport: h.data, resolver: h.client, writer: h.client}
}

// open takes memory and addresses, which the others have to know before anyone starts.
func (h *host) open(spec *ClusterSpec, size NodeSpec) (err error) {
	if h.bare {
		size = NodeSpec{} // the comparison has memory of its own
	}
	medium := dram.Config{Bytes: size.MediumBytes, PageSize: size.PageBytes}
	if spec.Transport == TransportSHM {
		medium.Backing = dram.Memfd
		near := shm.Config{Clock: boottime.New(), Secret: spec.Secret, Copier: dram.NewCopier()}
		if spec.Copier != nil {
			near.Copier = spec.Copier(near.Copier) // its copies count among all that run at once
		}
		if h.near, err = shm.Open(near); err != nil {
			return err
		}
	}
	for i, c := range []dram.Config{medium, {Bytes: size.GetArena, PageSize: size.GetArena},
		{Bytes: size.PutArena, PageSize: size.PutArena}} {
		if c.Bytes == 0 {
			continue
		}
		if i == 0 && spec.Transport != TransportSHM {
			h.memory[i], err = spec.GPU.medium(c.Bytes, c.PageSize)
		} else {
			h.memory[i], err = dram.Open(c)
		}
		if err != nil {
			h.memory[i] = nil // a typed nil otherwise
			return err
		}
	}
	t := tcp.Config{Clock: boottime.New(), Secret: spec.Secret}
	t.Copier, t.Background = spec.GPU.copiers()
	if !h.asks {
		t.Listen = []string{"127.0.0.1:0"}
		if h.listen, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	data, err := openData(spec.Transport, t)
	if err == nil {
		h.data = &meteredTransport{Transport: data}
	}
	return err
}

func openData(transport string, c tcp.Config) (ports.Transport, error) {
	if transport == TransportRDMA {
		return openRDMA()
	}
	return tcp.Listen(c)
}

func (h *host) start(spec *ClusterSpec, members []grpcpeer.Member) (err error) {
	h.self = ports.Peer{ID: h.id, Incarnation: domain.Incarnation(rand.Uint64() | 1)}
	control := grpcpeer.Config{Self: h.self, Peers: members, Secret: spec.Secret, Insecure: len(spec.Secret) == 0}
	if h.client, err = grpcpeer.NewClient(control); err != nil || h.bare {
		return err
	}
	var ids []ports.PeerID
	for _, m := range members {
		ids = append(ids, m.ID)
	}
	parts := inject.Parts{Transports: h.transports(), Resolver: h.client, Writer: h.client,
		Directory: grpcpeer.NewStatic(ids, h.id), Copier: spec.GPU.copier(spec.Copier)}
	for i, into := range []*ports.Medium{&parts.Medium, &parts.GetArena, &parts.PutArena} {
		if h.memory[i] != nil {
			*into = h.memory[i]
		}
	}
	h.node, h.stop, err = inject.Daemon(patient(spec.Transport, app.Config{ID: h.id, Incarnation: h.self.Incarnation, PeerLease: spec.Lease, Locality: spec.Locality,
		NoRangedLocalityPrefetch: spec.NoPrefetch, NoChecksums: spec.NoChecksums}), parts)
	if err != nil || h.listen == nil {
		return err
	}
	if h.server, err = grpcpeer.NewServer(control, h.node.PeerServer()); err != nil {
		return err
	}
	h.serving = make(chan error, 1) // it may end before anyone asks
	go func() { h.serving <- h.server.Serve(h.listen) }()
	return nil
}

// stopBound is how long calls of peers may still take when a node closes; the workload has ended by then.
const stopBound = time.Second

// close ends what was opened, from the outside in. Memory stays when a transport does not let go of it.
func (h *host) close() error {
	var errs []error
	if h.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopBound)
		h.server.Stop(ctx)
		cancel()
		errs = append(errs, <-h.serving)
	} else if h.listen != nil {
		errs = append(errs, h.listen.Close())
	}
	if h.stop != nil {
		h.stop()
	}
	if h.client != nil {
		errs = append(errs, h.client.Close())
	}
	for _, t := range h.transports() {
		if err := t.Close(); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	for _, m := range h.memory {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
