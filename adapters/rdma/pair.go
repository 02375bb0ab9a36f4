//go:build linux && cgo && rdma

package rdma

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// pair is a queue pair of a link that carries ops, over its successors. Guarded by Link.mu.
//
//	up --a request failed, a deadline passed, the owner fenced it--> failing --flushed or given up--> down --asked--> reviving --> up
type pair struct {
	l      *Link
	index  int
	writes bool
	qp     *verbs.QP // nil: down
	psn    uint32
	epoch  uint32 // of its successors, so that a completion of one before is known as such
	state  pairState
	since  domain.Instant // when it failed
	born   uint64         // Link.mu.stamp: what was opened before it came up is to be opened again
	depth  int            // requests that may be posted
	ring   []request      // of a power of two, so that places go on where their numbers wrap
	head   uint32         // the next one to post
	tail   uint32         // requests before it are retired
}

// request is what a slot of a ring stands for.
type request struct {
	op    *op
	bytes uint32
}

type pairState uint8

const (
	pairUp pairState = iota
	pairFailing
	pairDown
	pairReviving
)

func newPair(l *Link, index int) *pair {
	depth := l.t.cfg.SendDepth
	return &pair{l: l, index: index, writes: index >= l.t.cfg.ReadPairs, depth: depth, ring: make([]request, 1<<bits.Len(uint(depth-1)))}
}

// open makes the queue pair; it is connected later.
func (p *pair) open() (err error) {
	t := p.l.t
	if p.qp, err = t.createQP(p.l.events, p.depth, 1, t.cfg.MaxSGE); err != nil {
		return err
	}
	p.psn = newPSN()
	return p.qp.ToInit(t.port, 0)
}

// createQP says which sizes a device refused.
func (t *Transport) createQP(e *events, sends, recvs, sges int) (*verbs.QP, error) {
	q, err := t.pd.CreateQP(e.cq, e.cq, sends, recvs, sges)
	if err != nil {
		return nil, fmt.Errorf("queue pair of %d sends of %d scatter entries and %d receives: %w", sends, sges, recvs, err)
	}
	return q, nil
}

// destroy leaves a queue pair that cannot be destroyed where it is.
func destroy(q **verbs.QP) error {
	if *q == nil {
		return nil
	}
	err := (*q).Close()
	if err == nil {
		*q = nil
	}
	return err
}

func (p *pair) room() int { return p.depth - int(p.head-p.tail) }

// A request is named by its pair, the pair's epoch and its place in the ring.
func (p *pair) wr() uint64 {
	return uint64(p.index)<<56 | uint64(p.epoch&(1<<24-1))<<32 | uint64(p.head)
}

func (p *pair) at(pos uint32) *request { return &p.ring[pos&uint32(len(p.ring)-1)] }

// carries reports whether a request of an op is posted.
func (p *pair) carries(o *op) bool {
	for pos := p.tail; pos != p.head; pos++ {
		if p.at(pos).op == o {
			return true
		}
	}
	return false
}

// postLocked posts as much of the queues as there is room for, and has the next thing asked for.
func (l *Link) postLocked(now domain.Instant) {
	if l.mu.dead != nil {
		return
	}
	for l.postReadsLocked(now) || l.postWritesLocked(now) {
	}
	l.ctl.kickLocked(now)
}

// postReadsLocked posts one chain to the pair with the most room, and reports whether there may be more to post.
func (l *Link) postReadsLocked(now domain.Instant) bool {
	q := &l.mu.queues[ports.Read]
	p := l.roomiest(false)
	if q.head == nil || p == nil || p.room() == 0 {
		return false
	}
	l.mu.chain.Reset()
	for budget := 2 * l.t.cfg.MaxRequest; q.head != nil && p.room() > 0 && budget > 0; {
		o := q.head
		n, err := p.fillLocked(o, budget, 0)
		if err != nil {
			l.failLocked(o, now, err, true)
			continue
		}
		budget -= min(budget, n)
		if o.at == len(o.segs) {
			l.mu.chain.Signal()
			l.dequeueLocked(o)
		}
	}
	p.sendLocked(now)
	return q.head != nil
}

// postWritesLocked is the same for writes. An op stays on one pair, since the word that is read behind it says that it has landed.
func (l *Link) postWritesLocked(now domain.Instant) bool {
	q := &l.mu.queues[ports.Write]
	o := q.head
	if o == nil {
		return false
	}
	p := o.pair
	if p == nil {
		p = l.roomiest(true)
	}
	if p == nil || p.state != pairUp || p.room() < 2 {
		return false
	}
	if o.grant.asked <= p.born { // the pair was revived since: the pages may be another key's
		l.dequeueLocked(o)
		o.grant = nil
		l.askLocked(o)
		return true
	}
	o.pair = p
	l.mu.chain.Reset()
	if _, err := p.fillLocked(o, ^uint64(0), 1); err != nil {
		l.failLocked(o, now, err, true)
	} else if o.at == len(o.segs) {
		p.readBehindLocked(o)
		l.dequeueLocked(o)
	}
	p.sendLocked(now)
	return q.head != nil
}

// roomiest is the pair of a kind that is up and has the most room, or nil.
func (l *Link) roomiest(writes bool) (best *pair) {
	for _, p := range l.pairs {
		if p.writes == writes && p.state == pairUp && (best == nil || p.room() > best.room()) {
			best = p
		}
	}
	return best
}

// fillLocked adds requests of an op to the chain until its end, or until there is no room but that many or no budget. It says how many
// bytes they carry.
func (p *pair) fillLocked(o *op, budget uint64, keep int) (total uint64, err error) {
	for o.at < len(o.segs) && p.room() > keep && total < budget {
		if o.segs[o.at].Len == o.off {
			o.at, o.off = o.at+1, 0
			continue
		}
		n, err := p.addLocked(o)
		if err != nil {
			return total, err
		}
		total += n
	}
	for o.at < len(o.segs) && o.segs[o.at].Len == o.off {
		o.at, o.off = o.at+1, 0
	}
	return total, nil
}

// addLocked adds one request: what is contiguous at the owner under one key, as far as its scatter entries go.
func (p *pair) addLocked(o *op) (total uint64, err error) {
	l := p.l
	table := *l.t.table.Load()
	first := &o.segs[o.at]
	b := l.remote[first.Remote]
	off := first.RemoteOff + o.off
	key, until, ok := o.keyFor(b, off)
	if !ok {
		return 0, fmt.Errorf("remote offset %d of buffer %d: %w", off, first.Remote, ports.ErrBounds)
	}
	most := min(l.t.cfg.MaxRequest, until-off)
	l.mu.chain.Begin(p.wr(), []verbs.Opcode{verbs.Read, verbs.Write}[o.dir], b.base+off, key, false)
	for sges := 0; sges < l.t.cfg.MaxSGE && total < most && o.at < len(o.segs); sges++ {
		s := &o.segs[o.at]
		if s.Remote != first.Remote || s.RemoteOff+o.off != off+total {
			break
		}
		left := s.Len - o.off
		addr, device := addrOf(s.Local)
		addr += s.LocalOff + o.off
		r := table.find(addr, left, device)
		if left == 0 || r == nil { // an empty segment; or one that Deregister did not wait for, which is a bug
			if left != 0 {
				panic("rdma: memory of an op under way was deregistered")
			}
			o.at, o.off = o.at+1, 0
			continue
		}
		lkey, n := r.at(addr)
		n = min(n, left, most-total)
		l.mu.chain.Local(addr, uint32(n), lkey)
		total += n
		if o.off += n; o.off == s.Len {
			o.at, o.off = o.at+1, 0
		}
	}
	p.noteLocked(o, uint32(total))
	return total, nil
}

// keyFor is the key for a byte of the peer's, and where it ends.
func (o *op) keyFor(b *buffer, off uint64) (key uint32, until uint64, ok bool) {
	if o.dir == ports.Write {
		return keyIn(o.grant.runs, b.id, off)
	}
	key, until = b.at(off)
	return key, until, true
}

// noteLocked gives the request that was added to the chain its place in the ring.
func (p *pair) noteLocked(o *op, bytes uint32) {
	*p.at(p.head) = request{o, bytes}
	p.head++
	o.flying++
}

// readBehindLocked reads the last byte that an op wrote, behind it: when that is here, the writes are where readers see them.
func (p *pair) readBehindLocked(o *op) {
	l := p.l
	for i := len(o.segs) - 1; i >= 0; i-- {
		s := &o.segs[i]
		if s.Len == 0 {
			continue
		}
		b, off := l.remote[s.Remote], s.RemoteOff+s.Len-1
		key, _, _ := o.keyFor(b, off) // it was written by that key
		l.mu.chain.Begin(p.wr(), verbs.Read, b.base+off, key, true)
		l.mu.chain.Local(l.mem.addr+uint64(wordSlot*messageBytes+p.index), 1, l.mem.mr.LKey)
		p.noteLocked(o, 0)
		return
	}
}

// sendLocked gives the chain to the device. Its last request always tells, so everything before it is retired by that.
func (p *pair) sendLocked(now domain.Instant) {
	n := p.l.mu.chain.Len()
	if n == 0 {
		return
	}
	p.l.mu.chain.Signal()
	taken, err := p.l.mu.chain.Post(p.qp)
	if err == nil {
		return
	}
	refused := p.at(p.head - uint32(n-taken)).op
	var behind []*op
	for range n - taken {
		p.head--
		o := p.at(p.head).op
		o.flying--
		if o != refused && !slices.Contains(behind, o) {
			behind = append(behind, o)
		}
	}
	p.failLocked(now)
	p.l.failLocked(refused, now, err, true)
	for _, o := range behind {
		p.l.failLocked(o, now, StatusFlushed, false)
	}
}

// failLocked moves the pair to the state of error. What is posted is flushed; nothing else is posted.
func (p *pair) failLocked(now domain.Instant) {
	if p.state != pairUp || p.qp == nil {
		return
	}
	p.state, p.since = pairFailing, now
	p.l.t.counts.note(EventPairFailed)
	_ = p.qp.Fail() // if it does not flush, it is destroyed
	if p.head == p.tail {
		p.downLocked(now)
	}
}

// downLocked destroys the pair, so that the device works on nothing of it, flushed or not, and has a successor asked for. One that cannot be
// destroyed stays as it is and is tried again: the device may still write to what its requests name, which is not given back.
func (p *pair) downLocked(now domain.Instant) {
	if err := destroy(&p.qp); err != nil {
		p.since = now
		p.l.t.undestroyed(err)
		return
	}
	p.epoch++
	p.state = pairDown
	if p.tail != p.head {
		p.l.t.counts.note(EventUnflushed)
	}
	for p.tail != p.head {
		p.retireLocked(now, StatusFlushed)
	}
	if !p.writes {
		p.l.ctl.kickLocked(now)
		return
	}
	for _, o := range p.l.mu.ops {
		if o.live && o.queued && o.pair == p { // the part that was posted has completed
			p.l.failLocked(o, now, StatusFlushed, false)
		}
	}
	p.l.ctl.kickLocked(now)
}

// completedLocked retires what a completion speaks for.
func (l *Link) completedLocked(w *verbs.WC, now domain.Instant) {
	index := int(w.ID >> 56)
	if index == controlIndex {
		l.ctl.completedLocked(w, now)
		return
	}
	p := l.pairs[index]
	pos := uint32(w.ID)
	if uint32(w.ID>>32)&(1<<24-1) != p.epoch&(1<<24-1) || pos-p.tail >= p.head-p.tail {
		return // of a predecessor
	}
	for p.tail != pos {
		p.retireLocked(now, 0) // what is not signalled tells only when it fails
	}
	if w.Status != 0 {
		l.t.counts.completions[Status(w.Status).row()].Add(1)
		p.failLocked(now)
	}
	p.retireLocked(now, Status(w.Status))
	if p.state == pairFailing && p.head == p.tail {
		p.downLocked(now)
	}
}

// retireLocked takes the oldest request off the ring.
func (p *pair) retireLocked(now domain.Instant, s Status) {
	r := p.at(p.tail)
	o := r.op
	r.op = nil
	p.tail++
	o.flying--
	if s != 0 {
		p.l.failLocked(o, now, s, !s.blameless())
		return
	}
	p.l.bytes[o.why].Add(uint64(r.bytes))
	o.moved += uint64(r.bytes)
	p.l.settleLocked(o, now)
}
