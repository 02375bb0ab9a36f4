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
	if err := t.enter(); err != nil {
		return nil, fail("answer", from.ID, err)
	}
	defer t.wg.Done()
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
		t.forget(in, EventUnanswered)
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
		t.drop(p)
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
	if in.mu.ctl, err = in.t.createQP(in.t.inbox, controlSend, controlRecv, 1); err != nil {
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
	qp, err := in.t.createQP(in.t.inbox, 1, 1, 1)
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
	destroyed := false
	for i := in.reads; i < len(in.mu.pairs); i++ { // none where Answer has not come so far
		q := &in.mu.pairs[i]
		destroyed = destroyed || *q != nil
		if err := ruin(q); err != nil {
			in.t.undestroyed(err)
			return fmt.Errorf("fence link %d: %w", in.id, err)
		}
	}
	if destroyed && !in.mu.gone {
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

// forget ends a link of a peer: when it returns nil, the peer reaches nothing by it. One that cannot be destroyed stays in the table, so
// that no revoke takes it for quiet, and is tried again by sweep. Twice is allowed; the first time is counted.
func (t *Transport) forget(in *inbound, why Event) error {
	in.mu.Lock()
	if !in.mu.gone {
		in.mu.gone = true
		t.counts.note(why)
	}
	err := in.ruinLocked()
	in.mu.Unlock()
	if err != nil {
		t.undestroyed(err)
		return err
	}
	t.mu.Lock() // after that: who does not find it in the table takes it for quiet
	delete(t.mu.inbound, in.id)
	t.mu.Unlock()
	return nil
}

func (in *inbound) ruinLocked() error {
	errs := []error{ruin(&in.mu.ctl)}
	for i := range in.mu.pairs {
		errs = append(errs, ruin(&in.mu.pairs[i]))
	}
	err := errors.Join(errs...)
	if err == nil && in.mem != nil {
		_ = in.mem.close() // what stays keeps the protection domain, of which Close tells
		in.mem = nil
	}
	return err
}

// ruin has a queue pair answer nothing, and destroys it.
func ruin(q **verbs.QP) error {
	if *q != nil {
		_ = (*q).Fail() // destroying it is what counts
	}
	return destroy(q)
}

// serve answers control messages and forgets links that are silent, until the transport is closed.
func (t *Transport) serve() {
	wcs := make([]verbs.WC, pollBatch)
	sweep := time.Now()
	for {
		n, err := t.take(wcs)
		if now := time.Now(); now.After(sweep) {
			t.sweep()
			sweep = now.Add(t.cfg.IdleTimeout / 4)
		}
		if n > 0 {
			continue
		}
		until := sweep
		if err = errors.Join(err, t.inbox.cq.Arm()); err != nil {
			t.counts.note(EventCallFailed)
			until = time.Now().Add(deafPause)
		}
		t.inbox.until(until)
		select {
		case <-t.stop:
			return
		default:
		}
		if n, _ := t.take(wcs); n == 0 {
			t.inbox.wait()
		}
	}
}

// deafPause is when completions are looked for again where the device could not be asked to tell of them. Askers wait longer.
const deafPause = 100 * time.Millisecond

func (t *Transport) take(wcs []verbs.WC) (int, error) {
	n, err := t.inbox.cq.Poll(wcs)
	for i := range wcs[:n] {
		w := &wcs[i]
		t.mu.Lock()
		in := t.mu.inbound[w.ID>>8]
		t.mu.Unlock()
		if in == nil {
			continue
		}
		why, over := EventControlFailed, true
		if w.Status == 0 {
			why, over = in.completed(int(w.ID&0xff), w.Len)
		}
		if over {
			_ = t.forget(in, why) // it is tried again
		}
	}
	return n, err
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
		_ = t.forget(in, EventForgotten) // likewise
	}
}

// completed handles a slot's completion, and says whether that ends the link, and why.
func (in *inbound) completed(slot int, n uint32) (why Event, over bool) {
	if slot >= controlRecv {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.mu.busy &^= 1 << (slot - controlRecv)
		return 0, false
	}
	in.saw()
	m, err := in.receive(slot, n)
	if errors.Is(err, errFormat) {
		return EventGarbage, true
	}
	if err != nil {
		return EventControlFailed, true
	}
	var reply *message
	switch m.kind {
	case kindPing:
		reply = &message{kind: kindPing, seq: m.seq, start: in.t.start}
	case kindOpen:
		reply = in.t.openGrant(in, &m)
	case kindRevive:
		reply = in.revive(&m)
	case kindBye:
		return EventGoodbye, true
	default: // what only owners say
		return EventGarbage, true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return EventControlFailed, in.mu.gone || in.sendLocked(reply) != nil
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
	if err := ruin(&in.mu.pairs[m.pair]); err != nil {
		in.t.undestroyed(err)
		return reply
	}
	made, err := in.connectLocked(int(m.pair), m.end)
	if err != nil {
		return reply
	}
	reply.refused, reply.end = false, made
	return reply
}
