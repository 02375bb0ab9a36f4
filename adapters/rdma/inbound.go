//go:build linux && cgo && rdma

package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// inbound is one link of a peer, as its owner sees it. Bytes pass by it: it answers control messages and holds the queue pairs, whose
// destruction is what ends a peer's access.
type inbound struct {
	t     *Transport
	id    uint64
	from  ports.Peer
	path  verbs.Path
	reads int // the first of pairs carry reads, the others writes
	mem   *mapped
	seen  atomic.Uint64 // instant of the last message

	// mu is held while queue pairs are posted to, made or destroyed; another link's go on beside it.
	mu struct {
		sync.Mutex
		gone  bool
		ctl   *verbs.QP
		pairs []*verbs.QP // nil: fenced, or never made
		busy  uint32      // send slots whose completion was not seen
	}
}

var past = time.Unix(1, 0)

// Answer lets one link of that start of a peer in. Another start of the same peer ends what was made for the one before.
func (t *Transport) Answer(_ context.Context, from ports.Peer, offered []byte) ([]byte, error) {
	o, err := decodeOffer(offered)
	if err != nil {
		return nil, fail("answer", from.ID, err)
	}
	theirs, ours, ok := nearest(o.gids, t.gids)
	if !ok {
		return nil, fail("answer", from.ID, fmt.Errorf("no GID of the family of %s among ours: %w", gidText(o.gids[0]), errors.ErrUnsupported))
	}
	t.dropOtherStarts(from)
	in := &inbound{t: t, from: from, reads: int(o.reads), path: t.pathTo(t.gids[ours].index, o.gids[theirs], o.at)}
	in.saw()
	if err := t.letIn(in); err != nil {
		return nil, fail("answer", from.ID, err)
	}
	a := answer{nonce: o.nonce, start: t.start, at: t.portAddr(), chosen: uint8(theirs), gid: t.gids[ours].raw}
	if a.pairs, err = in.open(o.pairs); err != nil {
		t.forget(in)
		return nil, fail("answer", from.ID, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, r := range t.mu.exposed {
		a.buffers = append(a.buffers, r.told(id))
	}
	return a.encode(), nil
}

func (t *Transport) dropOtherStarts(from ports.Peer) {
	t.mu.Lock()
	old := make(map[ports.Peer]struct{})
	for _, in := range t.mu.inbound {
		if in.from.ID == from.ID && in.from != from {
			old[in.from] = struct{}{}
		}
	}
	for _, g := range t.mu.grants {
		if g.writer.ID == from.ID && g.writer != from {
			old[g.writer] = struct{}{}
		}
	}
	t.mu.Unlock()
	for p := range old {
		t.Drop(p)
	}
}

func (t *Transport) letIn(in *inbound) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return ports.ErrClosed
	}
	if len(t.mu.inbound) >= t.cfg.MaxLinks {
		t.counts.note(EventTooMany)
		limit := domain.LimitError{What: "links of peers", Value: uint64(t.cfg.MaxLinks) + 1, Limit: uint64(t.cfg.MaxLinks)}
		return fmt.Errorf("%w: %w", &limit, ports.ErrRefused)
	}
	t.mu.answered = true
	t.mu.lastIn++
	in.id = t.mu.lastIn
	t.mu.inbound[in.id] = in
	return nil
}

func (in *inbound) saw() { in.seen.Store(uint64(in.t.cfg.Clock.Now())) }

// open makes and connects the pairs, and says where they are. What fails leaves what close frees.
func (in *inbound) open(to []end) (ours []end, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.gone {
		return nil, ports.ErrClosed
	}
	if in.mem, err = mapMemory(in.t.pd, (controlRecv+controlSend)*messageBytes, verbs.LocalWrite); err != nil {
		return nil, err
	}
	if in.mu.ctl, err = in.t.pd.CreateQP(in.t.inbox.cq, in.t.inbox.cq, controlSend, controlRecv, 1); err != nil {
		return nil, err
	}
	if err := in.mu.ctl.ToInit(in.t.port, 0); err != nil {
		return nil, err
	}
	for slot := range controlRecv {
		if err := in.listenLocked(slot); err != nil {
			return nil, err
		}
	}
	psn := newPSN()
	if err := connectPair(in.path, in.mu.ctl, psn, to[0]); err != nil {
		return nil, err
	}
	ours = append(ours, end{in.mu.ctl.Num, psn})
	in.mu.pairs = make([]*verbs.QP, len(to)-1)
	for i, e := range to[1:] {
		made, err := in.connectLocked(i, e)
		if err != nil {
			return nil, err
		}
		ours = append(ours, made)
	}
	return ours, nil
}

// connectLocked makes a pair that answers the peer's. Nothing is ever posted to it.
func (in *inbound) connectLocked(i int, to end) (end, error) {
	access := verbs.RemoteRead
	if i >= in.reads {
		access |= verbs.RemoteWrite
	}
	qp, err := in.t.pd.CreateQP(in.t.inbox.cq, in.t.inbox.cq, 1, 1, 1)
	if err != nil {
		return end{}, err
	}
	in.mu.pairs[i] = qp
	psn := newPSN()
	if err := qp.ToInit(in.t.port, access); err != nil {
		return end{}, err
	}
	return end{qp.Num, psn}, connectPair(in.path, qp, psn, to)
}

// A work request of an inbound link is named by the link and a slot of its memory; the sends' come after the receives'.
func (in *inbound) wr(slot int) uint64     { return in.id<<8 | uint64(slot) }
func (in *inbound) slot(slot int) []byte   { return in.mem.b[slot*messageBytes:][:messageBytes] }
func (in *inbound) addrOf(slot int) uint64 { return in.mem.addr + uint64(slot*messageBytes) }
func (in *inbound) listenLocked(slot int) error {
	return in.mu.ctl.PostRecv(in.wr(slot), in.addrOf(slot), messageBytes, in.mem.mr.LKey)
}

// fence returns when no byte of this link's writes can land any more.
func (in *inbound) fence() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.gone {
		return nil
	}
	destroyed := false
	for i, q := range in.mu.pairs[in.reads:] {
		if q == nil {
			continue
		}
		_ = q.Fail() // destroying it is what counts
		if err := q.Close(); err != nil {
			return fmt.Errorf("fence link %d: %w", in.id, err)
		}
		in.mu.pairs[in.reads+i] = nil
		destroyed = true
	}
	if destroyed {
		in.t.counts.note(EventFenced)
		_ = in.sendLocked(&message{kind: kindFenced}) // without it the writer finds out by its retries
	}
	return nil
}

// sendLocked copies a message into a free slot and sends it.
func (in *inbound) sendLocked(m *message) error {
	i := bits.TrailingZeros32(^in.mu.busy)
	if i >= controlSend {
		return fmt.Errorf("%d messages are on their way already: %w", controlSend, ports.ErrBusy)
	}
	slot := controlRecv + i
	b := m.append(in.slot(slot)[:0])
	c := in.t.chain()
	defer c.Free()
	c.Begin(in.wr(slot), verbs.Send, 0, 0, true)
	c.Local(in.addrOf(slot), uint32(len(b)), in.mem.mr.LKey)
	if _, err := c.Post(in.mu.ctl); err != nil {
		return err
	}
	in.mu.busy |= 1 << i
	return nil
}

// chain makes room for one message. Control is rare enough to allocate.
func (t *Transport) chain() *verbs.Chain { return verbs.NewChain(1, 1) }

// forget ends a link of a peer: when it returns, the peer reaches nothing by it. Twice is allowed.
func (t *Transport) forget(in *inbound) {
	in.mu.Lock()
	if !in.mu.gone {
		in.mu.gone = true
		for _, q := range append(in.mu.pairs, in.mu.ctl) {
			if q != nil {
				_ = q.Fail()
				_ = q.Close() // one that stays keeps the protection domain, of which Close tells
			}
		}
		if in.mem != nil {
			_ = in.mem.close() // likewise
		}
	}
	in.mu.Unlock()
	t.mu.Lock() // after that: who does not find it in the table takes it for quiet
	delete(t.mu.inbound, in.id)
	t.mu.Unlock()
}

// serve answers control messages and forgets links that are silent, until the transport is closed.
func (t *Transport) serve() {
	wcs := make([]verbs.WC, pollBatch)
	sweep := time.Now()
	for {
		n := t.take(wcs)
		if now := time.Now(); now.After(sweep) {
			t.sweep()
			sweep = now.Add(t.cfg.IdleTimeout / 4)
		}
		if n > 0 {
			continue
		}
		if t.inbox.cq.Arm() != nil {
			return
		}
		t.inbox.until(sweep)
		select {
		case <-t.stop:
			return
		default:
		}
		if t.take(wcs) == 0 {
			t.inbox.wait()
		}
	}
}

func (t *Transport) take(wcs []verbs.WC) int {
	n, err := t.inbox.cq.Poll(wcs)
	if err != nil {
		return 0
	}
	for i := range wcs[:n] {
		w := &wcs[i]
		t.mu.Lock()
		in := t.mu.inbound[w.ID>>8]
		t.mu.Unlock()
		if in == nil {
			continue
		}
		if w.Status != 0 || !in.completed(int(w.ID&0xff), w.Len) {
			t.forget(in)
		}
	}
	return n
}

func (t *Transport) sweep() {
	now := t.cfg.Clock.Now()
	t.mu.Lock()
	var silent []*inbound
	for _, in := range t.mu.inbound {
		if now.Sub(domain.Instant(in.seen.Load())) > t.cfg.IdleTimeout {
			silent = append(silent, in)
		}
	}
	t.mu.Unlock()
	for _, in := range silent {
		t.counts.note(EventForgotten)
		t.forget(in)
	}
}

// completed handles a slot's completion; false ends the link.
func (in *inbound) completed(slot int, n uint32) bool {
	if slot >= controlRecv {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.mu.busy &^= 1 << (slot - controlRecv)
		return true
	}
	in.saw()
	m, err := in.receive(slot, n)
	if err != nil {
		in.t.counts.note(EventGarbage)
		return false
	}
	var reply *message
	switch m.kind {
	case kindPing:
		reply = &message{kind: kindPing, seq: m.seq, start: in.t.start}
	case kindOpen:
		reply = in.t.openGrant(in, &m)
	case kindRevive:
		reply = in.revive(&m)
	}
	if reply == nil { // bye, or what only owners say
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.mu.gone && in.sendLocked(reply) == nil
}

// receive takes a message out of its slot and gives the slot back.
func (in *inbound) receive(slot int, n uint32) (m message, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.gone || n > messageBytes {
		return m, errFormat
	}
	if m, err = decodeMessage(in.slot(slot)[:n]); err != nil {
		return m, err
	}
	return m, in.listenLocked(slot)
}

// openGrant tells the holder of a live grant what it may write, and notes that it was told.
func (t *Transport) openGrant(in *inbound, m *message) *message {
	reply := &message{kind: kindOpen, seq: m.seq, refused: true}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.mu.grants[grantIn(&m.token)]
	if g == nil || !g.isFor(&m.token, in.from) || m.from > uint32(len(g.runs)) {
		return reply
	}
	g.by[in.id] = struct{}{}
	reply.refused, reply.from, reply.total, reply.runs = false, m.from, uint32(len(g.runs)), g.runs[m.from:]
	return reply
}

// revive puts another pair in the place of one that failed.
func (in *inbound) revive(m *message) *message {
	reply := &message{kind: kindRevive, seq: m.seq, pair: m.pair, refused: true}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.gone || int(m.pair) >= len(in.mu.pairs) {
		return reply
	}
	if q := in.mu.pairs[m.pair]; q != nil {
		_ = q.Fail()
		if q.Close() != nil {
			return reply
		}
		in.mu.pairs[m.pair] = nil
	}
	made, err := in.connectLocked(int(m.pair), m.end)
	if err != nil {
		return reply
	}
	reply.refused, reply.end = false, made
	return reply
}
