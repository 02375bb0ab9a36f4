package bench

import (
	"context"
	"fmt"
	"sync"

	"github.com/spanpool/spanpool/adapters/shm"
	"github.com/spanpool/spanpool/adapters/tcp"
	"github.com/spanpool/spanpool/ports"
)

// kernelMiss is how far what we count may be from what the kernel counts (rules.md section 7), and helloBytes is room for what
// connections say before their first frame, which nobody counts as framing.
const (
	kernelMiss = 0.01
	helloBytes = 4 << 10
)

// meteredTransport remembers the links that are made through it, so that their sockets can be asked what they carried.
type meteredTransport struct {
	ports.Transport
	mu struct {
		sync.Mutex
		links []wired
	}
}

// wired is a link over sockets.
type wired interface{ Wire() tcp.Wire }

var _ wired = (*tcp.Link)(nil)

// Offer is the transport's; the link that comes of it is remembered.
func (t *meteredTransport) Offer(ctx context.Context, to ports.PeerID) (ports.PendingLink, error) {
	p, err := t.Transport.Offer(ctx, to)
	if err != nil {
		return nil, err
	}
	return meteredPending{p, t}, nil
}

type meteredPending struct {
	ports.PendingLink
	t *meteredTransport
}

func (p meteredPending) Link(ctx context.Context, answer []byte) (ports.Link, error) {
	l, err := p.PendingLink.Link(ctx, answer)
	if w, ok := l.(wired); ok && err == nil {
		p.t.mu.Lock()
		defer p.t.mu.Unlock()
		p.t.mu.links = append(p.t.mu.links, w)
	}
	return l, err
}

// Payload is what the kernel received on all links so far, less their framing.
func (t *meteredTransport) Payload() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var n uint64
	for _, l := range t.mu.links {
		w := l.Wire()
		n += w.Kernel.Received - min(w.Framing, w.Kernel.Received)
	}
	return n
}

// checkKernel fails a run whose bytes are not those that the kernel saw; by shm, one of whose reads it saw any. No read may be under
// way.
func (r *restoreRow) checkKernel() error {
	if r.o.Transport == TransportSHM {
		return readsOver(r.reader().Stats().Peers, shm.Kind)
	}
	if r.cluster.Sockets == nil {
		return nil
	}
	wire := r.reader().Stats().Wire
	return compareKernel(wire[ports.PurposeGet]+wire[ports.PurposePull], r.cluster.Sockets())
}

// readsOver fails when a byte was read by another transport than this.
func readsOver(peers []ports.PeerStats, kind ports.TransportKind) error {
	for _, p := range peers {
		for _, t := range p.Transports {
			if n := t.Wire[ports.PurposeGet] + t.Wire[ports.PurposePull]; n > 0 && t.Kind != kind {
				return fmt.Errorf("%w: %d bytes from %s were read by %s, want all by %s", ErrFailed, n, p.Peer.ID, t.Kind, kind)
			}
		}
	}
	return nil
}

func compareKernel(counted, kernel uint64) error {
	miss := max(counted, kernel) - min(counted, kernel)
	if float64(miss) <= kernelMiss*float64(kernel)+helloBytes {
		return nil
	}
	return fmt.Errorf("%w: %d bytes counted as read, and the kernel received %d besides framing: more than %.0f %% apart",
		ErrFailed, counted, kernel, 100*kernelMiss)
}
