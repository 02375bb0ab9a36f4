package inproc

import (
	"context"
	"fmt"

	"github.com/spanpool/spanpool/adapters/internal/grants"
	"github.com/spanpool/spanpool/ports"
)

// pendingLink is an offer that waits for its answer.
type pendingLink struct {
	transport *Transport
	to        ports.PeerID
	offer     []byte
}

func (p *pendingLink) Bytes() []byte { return p.offer }

// Close has nothing to free.
func (p *pendingLink) Close() error { return nil }

// Link opens the way that the answer described. The answer is refused (ErrRestarted) by any start but the one that gave it, and
// is good for one link.
func (p *pendingLink) Link(ctx context.Context, answer []byte) (ports.Link, error) {
	l, err := p.link(ctx, answer)
	if err != nil {
		return nil, p.transport.fail("link", p.to, err)
	}
	return l, nil
}

func (p *pendingLink) link(ctx context.Context, answer []byte) (*Link, error) {
	d, err := decodeDescriptor(answer)
	if err != nil {
		return nil, err
	}
	t, n := p.transport, p.transport.start.ep.net
	self := t.start.self()
	pair := n.pair(self.ID, p.to)
	if pair == nil {
		return nil, ports.ErrClosed
	}
	if err := pair.roundTrip(ctx, t.start); err != nil {
		return nil, err
	}
	peer := n.answering(p.to)
	if peer == nil {
		return nil, ports.ErrPeer
	}
	l := newLink(pair, self, t, peer.transport)
	if err := peer.transport.letIn(l, d); err != nil {
		return nil, err
	}
	if !t.keep(l) {
		_ = l.Close() // nil, always
		return nil, ports.ErrClosed
	}
	return l, nil
}

// Link reaches the memory of one start from another. Its state is its pair's: open, then dead (no new ops; those under way
// complete with ErrReset), then done (all have).
type Link struct {
	pair   *pair
	from   ports.Peer // who submits
	ours   *Transport // of from
	theirs *Transport // whose memory is reached
	up     int        // the pair's pipe for what is written; what is read comes by the other one
	done   chan struct{}

	// guarded by pair.mu
	dead  error // why there are no new ops; nil: open
	live  int   // ops that are not complete
	stats ports.LinkStats
}

var _ ports.Link = (*Link)(nil)

func newLink(p *pair, from ports.Peer, ours, theirs *Transport) *Link {
	l := &Link{pair: p, from: from, ours: ours, theirs: theirs, done: make(chan struct{})}
	if from.ID != p.key.a {
		l.up = 1
	}
	return l
}

// Submit checks every op and queues the good ones; the others complete at once. After the end of the link it is refused with
// ErrReset, or ErrClosed if Close ended it.
func (l *Link) Submit(b *ports.Batch, q *ports.Completions) error {
	if err := b.Check(); err != nil {
		return l.ours.fail("submit", l.theirs.start.ep.id, err)
	}
	return l.pair.submit(l, b, q)
}

// check says whether an op may be carried out, and returns its length, and its grant if it is a write. Nothing of a refused op
// is carried out.
func (l *Link) check(op *ports.Op, segs []ports.Segment) (bytes uint64, g *grants.Grant, err error) {
	for i := range segs {
		if err := l.checkSegment(&segs[i]); err != nil {
			return 0, nil, fmt.Errorf("segment %d: %w", i, err)
		}
		bytes += segs[i].Len // no overflow: each is within memory that is there
	}
	if op.Dir == ports.Read {
		return bytes, nil, nil
	}
	if g = l.theirs.grants.Find(&op.Grant, l.from); g == nil {
		return 0, nil, ports.ErrRevoked
	}
	for i := range segs {
		if !g.Covers(segs[i].Remote, segs[i].RemoteOff, segs[i].Len) {
			return 0, nil, fmt.Errorf("segment %d: pages that were not granted: %w", i, ports.ErrBounds)
		}
	}
	return bytes, g, nil
}

func (l *Link) checkSegment(s *ports.Segment) error {
	if err := l.ours.reaches(s.Local); err != nil {
		return fmt.Errorf("local: %w", err)
	}
	if !within(s.LocalOff, s.Len, s.Local.Len()) {
		return fmt.Errorf("local offset %d, length %d, of %d bytes: %w", s.LocalOff, s.Len, s.Local.Len(), ports.ErrBounds)
	}
	remote, ok := l.theirs.mu.exposed[s.Remote]
	if !ok {
		return fmt.Errorf("buffer %d was not exposed: %w", s.Remote, ports.ErrBounds)
	}
	if !within(s.RemoteOff, s.Len, remote.Len()) {
		return fmt.Errorf("remote offset %d, length %d, of buffer %d with %d bytes: %w",
			s.RemoteOff, s.Len, s.Remote, remote.Len(), ports.ErrBounds)
	}
	return nil
}

// within reports whether n bytes at off end at size or before; no sum can overflow.
func within(off, n, size uint64) bool { return off <= size && n <= size-off }

// Cancel lets go of the memory of ops that have not arrived; they complete with ErrCancelled. Ops that have arrived, and wait
// only for the link's delay, complete as they would have.
func (l *Link) Cancel(q *ports.Completions, tags []uint64) { l.pair.cancel(l, q, tags) }

// Counts is what arrived (reads) or was applied (writes) by purpose, bytes of ops that failed later included.
func (l *Link) Counts() ports.LinkStats {
	l.pair.mu.Lock()
	defer l.pair.mu.Unlock()
	return l.stats
}

// Done is closed by the link when it is dead and its last op has completed.
func (l *Link) Done() <-chan struct{} { return l.done }

// Close resets what is under way and returns when that is quiet. Twice is allowed.
func (l *Link) Close() error {
	l.pair.end(l, ports.ErrClosed)
	<-l.done
	return nil
}
