package app

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// linkOrder is what calls read from one start of a peer: what is on its links, and what waits for room there, in the order of
// domain.LinkOrder. The lock order is Node.mu, linkOrder.mu, links; whoever takes bytes off calls pump afterwards, so that what
// waits goes on as long as anything is under way.
type linkOrder struct {
	onLink atomic.Uint64 // bytes
	mu     struct {
		sync.Mutex
		waiting domain.LinkOrder[*getBatch]
	}
}

// getBatch is what one step of a call reads from one peer. Its ops go on a link one after the other, in parts. When it waits, the
// fields below Batch are guarded by linkOrder.mu.
type getBatch struct {
	linkBatch
	q     *ports.Completions
	turn  domain.LinkTurn
	bytes []uint64      // of each op; withdrawn: it goes nowhere
	next  int           // ops before it are sent, or withdrawn
	parts []ports.Batch // that were sent: each at the place of its first op
	ways  []*lane       // that parts were sent by
	into  reach         // who reaches all the memory that it reads into
}

const withdrawn = math.MaxUint64

// errWithdrawn is an op that was taken back before it was on a link.
var errWithdrawn = fmt.Errorf("withdrawn before it was sent: %w", ports.ErrCancelled)

// reset forgets what the batch was and keeps its columns' room. All of its ops have completed; but the call that submitted the last of
// them, which may be another's, may not have returned from that.
func (b *getBatch) reset() {
	b.conn.order.mu.Lock()
	defer b.conn.order.mu.Unlock()
	clear(b.Segments)
	clear(b.parts)
	clear(b.ways)
	b.conn, b.Ops, b.Segments = nil, b.Ops[:0], b.Segments[:0]
	b.bytes, b.next, b.parts, b.ways = b.bytes[:0], 0, b.parts[:0], b.ways[:0]
}

// add lets a batch wait for its turn. Its columns are borrowed until the last of its ops has completed.
func (o *linkOrder) add(b *getBatch) {
	b.parts = slices.Grow(b.parts, len(b.Ops))[:len(b.Ops)]
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.waiting.Add(b, b.turn)
}

// pump puts on a link what there is room for. It must be called without Node.mu.
func (c *conn) pump() {
	o := &c.order
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.waiting.Len() == 0 {
		return
	}
	now := c.peer.n.now()
	for {
		b, ok := o.mu.waiting.Next(now)
		if !ok || !c.sendPart(b, now) {
			return
		}
		if b.next == len(b.Ops) {
			o.mu.waiting.Remove(b)
		}
	}
}

// sendPart sends as many of a batch's ops as there is room for, and reports whether that was any. An op's time begins now.
// Precondition: linkOrder.mu is held, and not all ops are sent.
func (c *conn) sendPart(b *getBatch, now domain.Instant) bool {
	for b.next < len(b.Ops) && b.bytes[b.next] == withdrawn {
		b.next++
	}
	first, sum, on := b.next, uint64(0), c.order.onLink.Load()
	for ; b.next < len(b.Ops); b.next++ {
		n := b.bytes[b.next]
		if n == withdrawn || !domain.LinkRoom(on+sum, n, c.peer.n.linkBytes) {
			break
		}
		sum += n
		b.Ops[b.next].Deadline = now.Add(c.peer.n.cfg.TransferTimeout)
	}
	if b.next == first {
		return first == len(b.Ops)
	}
	c.order.onLink.Add(sum)
	part := &b.parts[first]
	*part = ports.Batch{Ops: b.Ops[first:b.next], Segments: b.Segments}
	way := c.way(ports.Read, b.into)
	if way != nil && !slices.Contains(b.ways, way) {
		b.ways = append(b.ways, way)
	}
	submit(part, way, b.q)
	return true
}

// landed takes an op that completed off the links.
func (o *linkOrder) landed(bytes uint64, done error) {
	if done != nil && errors.Is(done, errWithdrawn) {
		return
	}
	o.onLink.Add(^(bytes - 1))
}

// refill takes what has completed off the links, and puts on them what waits: before the call does anything with it, for the links
// go on meanwhile.
func (c *getCall) refill() {
	for _, done := range c.taken {
		if done.Tag&tagKind != tagOp {
			continue
		}
		o := &c.ops[done.Tag&^tagKind]
		to := o.view.conn
		to.order.landed(o.bytes, done.Err)
		if !slices.Contains(c.pumps, to) {
			c.pumps = append(c.pumps, to)
		}
	}
	for _, to := range c.pumps {
		to.pump()
	}
	clear(c.pumps)
	c.pumps = c.pumps[:0]
}

// cancel takes back those of the named ops that were not sent, and asks the links to let go of the others. Every op completes. tags
// are in the order of the ops.
func (b *getBatch) cancel(tags []uint64) {
	o := &b.conn.order
	o.mu.Lock()
	left := tags
	for i := 0; i < len(b.Ops) && len(left) > 0; i++ {
		if b.Ops[i].Tag != left[0] {
			continue
		}
		left = left[1:]
		if i >= b.next {
			b.bytes[i] = withdrawn
			b.q.Post(ports.Completion{Tag: b.Ops[i].Tag, Err: errWithdrawn})
		}
	}
	if !slices.ContainsFunc(b.bytes[b.next:], func(n uint64) bool { return n != withdrawn }) {
		b.next = len(b.Ops)
		o.mu.waiting.Remove(b)
	}
	ways := slices.Clone(b.ways)
	o.mu.Unlock()
	for _, way := range ways {
		way.link.Cancel(b.q, tags)
	}
}
