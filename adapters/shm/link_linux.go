package shm

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/ports"
)

// Link reads the memory of one start of a peer. States: live -> ended (by Close, or because the connection ended: no new ops, those
// that are not copied complete with ErrReset) -> unmapped, when no op is outstanding -> done.
//
// INVARIANT: mapped is there while an op is outstanding.
type Link struct {
	t       *Transport
	to      ports.PeerID
	conn    *net.UnixConn
	mapped  *mapping
	bytes   [ports.NumPurposes]atomic.Uint64
	thrown  [ports.NumPurposes]atomic.Uint64 // those of them that were of ops which failed
	ended   atomic.Bool
	done    chan struct{}
	closing sync.Once

	ops struct { // outstanding; guarded by copies.mu
		n     int
		quiet chan struct{} // closed when the link has ended and n is 0
	}
}

var _ ports.Link = (*Link)(nil)

func newLink(t *Transport, to ports.PeerID, c *net.UnixConn, m *mapping) *Link {
	l := &Link{t: t, to: to, conn: c, mapped: m, done: make(chan struct{})}
	l.ops.quiet = make(chan struct{})
	return l
}

// watch waits for the end of the connection, and then lets go of everything. The owner takes our hanging up for the word that we did.
func (l *Link) watch() {
	_, _ = l.conn.Read(make([]byte, 1)) // whatever comes, the protocol has nothing more to say
	l.t.copies.end(l)
	<-l.ops.quiet
	_ = l.mapped.unmap() // an error leaves it mapped, and there is nobody to tell
	_ = l.conn.Close()
	l.t.forget(l)
	close(l.done)
}

// Submit checks every op and queues the good ones; the others complete at once. After the end of the link it is refused with
// ErrReset.
func (l *Link) Submit(b *ports.Batch, q *ports.Completions) error {
	if err := b.Check(); err != nil {
		return fail("submit", l.to, err)
	}
	if err := l.t.copies.submit(l, b, q); err != nil {
		return fail("submit", l.to, err)
	}
	return nil
}

// check says whether an op can be carried out. Precondition: the link has not ended.
func (l *Link) check(op *ports.Op, segs []ports.Segment) error {
	if op.Dir == ports.Write {
		return errNoWrites
	}
	for i := range segs {
		s := &segs[i]
		r, ok := s.Local.(ports.HostRegion)
		if !ok {
			return fmt.Errorf("segment %d: local region of type %T: %w", i, s.Local, errors.ErrUnsupported)
		}
		if !inside(s.LocalOff, s.Len, r.Len()) {
			return fmt.Errorf("segment %d: local offset %d, length %d, of %d bytes: %w", i, s.LocalOff, s.Len, r.Len(), ports.ErrBounds)
		}
		if uint64(s.Remote) >= uint64(len(l.mapped.buffers)) || !inside(s.RemoteOff, s.Len, uint64(len(l.mapped.buffers[s.Remote]))) {
			return fmt.Errorf("segment %d: remote buffer %d, offset %d, length %d: %w", i, s.Remote, s.RemoteOff, s.Len, ports.ErrBounds)
		}
	}
	return nil
}

// inside says that [off, off+n) lies in [0, size), and no sum overflows.
func inside(off, n, size uint64) bool { return off <= size && n <= size-off }

// Cancel has ops that are not copied yet complete soon, with ErrCancelled.
func (l *Link) Cancel(q *ports.Completions, tags []uint64) { l.t.copies.cancel(l, q, tags) }

// Counts is by purpose, and readable after Close. Bytes of ops that were cancelled while they were copied count too.
func (l *Link) Counts() ports.LinkStats {
	var s ports.LinkStats
	for i := range s.Bytes {
		s.Thrown[i] = l.thrown[i].Load() // first: it is never more than the other
		s.Bytes[i] = l.bytes[i].Load()
	}
	return s
}

// Done is closed when the link is dead, every op has completed and nothing of the peer is mapped any more.
func (l *Link) Done() <-chan struct{} { return l.done }

// Close ends the link: what is not copied completes with ErrReset. Twice is allowed.
func (l *Link) Close() error {
	l.closing.Do(func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }) // watch does the rest
	<-l.done
	return nil
}
