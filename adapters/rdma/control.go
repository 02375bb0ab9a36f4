//go:build linux && cgo && rdma

package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// control is the asker's end of a link's control pair. One request at a time is on its way. Guarded by Link.mu.
type control struct {
	l       *Link
	qp      *verbs.QP
	psn     uint32
	seq     uint32
	busy    kind // of the request that was not answered yet; zero: none
	reviver *pair
	sent    domain.Instant
	heard   domain.Instant
	ping    bool // one is due
	greeted chan struct{}
	silent  bool // the owner did not answer: it is not told that the link ends
	wrong   bool // the owner is another start
}

// controlIndex marks a request of the control pair where those of others have their pair's.
const controlIndex = 0xff

// Slots of a link's memory behind those for receives. The goodbye has one of its own, since a request may still be on its way.
const (
	sendSlot = controlRecv + iota
	wordSlot // for the last word that is read after writes, by pair
	byeSlot
	numSlots
)

var errNoAnswer = errors.New("control request was not answered")

func (c *control) open() (err error) {
	t := c.l.t
	if c.qp, err = t.createQP(c.l.events, controlSend, controlRecv, 1); err != nil {
		return err
	}
	c.psn, c.greeted = newPSN(), make(chan struct{})
	if err := c.qp.ToInit(t.port, 0); err != nil {
		return err
	}
	for slot := range controlRecv {
		if err := c.listen(slot); err != nil {
			return err
		}
	}
	return nil
}

func (c *control) listen(slot int) error {
	m := c.l.mem
	return c.qp.PostRecv(controlIndex<<56|uint64(slot), m.addr+uint64(slot*messageBytes), messageBytes, m.mr.LKey)
}

// greet waits for the owner's first answer.
func (c *control) greet(ctx context.Context) error {
	l := c.l
	l.mu.Lock()
	now := l.t.cfg.Clock.Now()
	c.heard, c.ping = now, true
	c.kickLocked(now)
	l.mu.Unlock()
	select {
	case <-c.greeted:
		return nil
	case <-l.done:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.wrong {
		return ports.ErrRestarted
	}
	return fmt.Errorf("no answer over the device (from GID %s): %w: %w", gidText(l.path.DGID), errNoAnswer, ports.ErrPeer)
}

func (l *Link) greet(ctx context.Context) error { return l.ctl.greet(ctx) }

// askLocked has a write's grant opened, by the next kick. Ops of one batch that name one grant share that.
func (l *Link) askLocked(o *op) {
	for _, w := range l.mu.waiting {
		if w.asked == 0 && w.token == *o.token {
			w.ops = append(w.ops, o)
			return
		}
	}
	l.mu.waiting = append(l.mu.waiting, &opening{token: *o.token, ops: []*op{o}})
}

// kickLocked sends the next request, if there is one and none is on its way. What makes ops go on comes first.
func (c *control) kickLocked(now domain.Instant) {
	l := c.l
	if c.busy != 0 || l.mu.dead != nil || c.qp == nil {
		return
	}
	for _, p := range l.pairs {
		if p.state == pairDown {
			c.reviveLocked(p, now)
			return
		}
	}
	for len(l.mu.waiting) > 0 && len(l.mu.waiting[0].ops) == 0 {
		l.mu.waiting = l.mu.waiting[1:] // who asked has left
	}
	if len(l.mu.waiting) > 0 {
		w := l.mu.waiting[0]
		if w.asked == 0 {
			l.mu.stamp++
			w.asked = l.mu.stamp
		}
		c.askLocked(&message{kind: kindOpen, token: w.token, from: uint32(len(w.runs))}, now)
		return
	}
	if c.ping {
		c.ping = false
		c.askLocked(&message{kind: kindPing}, now)
	}
}

func (c *control) reviveLocked(p *pair, now domain.Instant) {
	p.state = pairReviving
	if err := p.open(); err != nil {
		c.l.brokenLocked(now)
		return
	}
	c.reviver = p
	c.askLocked(&message{kind: kindRevive, pair: uint8(p.index), end: end{p.qp.Num, p.psn}}, now)
}

func (c *control) askLocked(m *message, now domain.Instant) {
	c.seq++
	m.seq = c.seq
	if err := c.post(m, sendSlot); err != nil {
		c.l.brokenLocked(now)
		return
	}
	c.busy, c.sent = m.kind, now
}

func (c *control) post(m *message, slot int) error {
	mem := c.l.mem
	b := m.append(mem.b[slot*messageBytes:][:0])
	chain := c.l.t.chain()
	defer chain.Free()
	chain.Begin(controlIndex<<56|uint64(slot), verbs.Send, 0, 0, true)
	chain.Local(mem.addr+uint64(slot*messageBytes), uint32(len(b)), mem.mr.LKey)
	_, err := chain.Post(c.qp)
	return err
}

// tickLocked ends a link whose owner is silent, asks one that was not heard for long, and says when to look again.
func (c *control) tickLocked(now domain.Instant) domain.Instant {
	cfg := &c.l.t.cfg
	if c.busy == 0 && now >= c.heard.Add(cfg.Keepalive) {
		c.ping = true
		c.kickLocked(now)
	}
	if c.busy == 0 {
		return c.heard.Add(cfg.Keepalive)
	}
	until := c.sent.Add(cfg.ControlTimeout)
	if now >= until {
		c.l.t.counts.note(EventSilent)
		c.silent = true
		c.l.endLocked(now, ports.ErrReset)
	}
	return until
}

// completedLocked takes what came; a control pair that fails ends its link.
func (c *control) completedLocked(w *verbs.WC, now domain.Instant) {
	l := c.l
	if l.mu.dead != nil {
		return
	}
	slot := int(w.ID & 0xff)
	if w.Status != 0 {
		l.t.counts.completions[Status(w.Status).row()].Add(1)
		c.silent = true
		l.endLocked(now, ports.ErrReset)
		return
	}
	if slot == sendSlot {
		return
	}
	m, err := decodeMessage(l.mem.b[slot*messageBytes:][:min(w.Len, messageBytes)])
	if err == nil && c.listen(slot) != nil {
		l.brokenLocked(now)
		return
	}
	if err == nil {
		err = c.heardLocked(&m, now)
	}
	if err != nil {
		l.t.counts.note(EventGarbage)
		l.endLocked(now, ports.ErrReset)
		return
	}
	c.kickLocked(now)
}

// heardLocked acts on a message of the owner's.
func (c *control) heardLocked(m *message, now domain.Instant) error {
	l := c.l
	if m.kind == kindFenced {
		for _, p := range l.pairs {
			if p.writes {
				p.failLocked(now)
			}
		}
		return nil
	}
	if m.kind != c.busy || m.seq != c.seq {
		return fmt.Errorf("answer %d of kind %d to request %d of kind %d: %w", m.seq, m.kind, c.seq, c.busy, errFormat)
	}
	c.busy, c.heard = 0, now
	switch m.kind {
	case kindPing:
		return c.pongLocked(m)
	case kindRevive:
		return c.revivedLocked(m, now)
	}
	return l.openedLocked(m, now)
}

func (c *control) pongLocked(m *message) error {
	if m.start != c.l.start {
		c.wrong = true
		return fmt.Errorf("start %d answers for start %d: %w", m.start, c.l.start, ports.ErrRestarted)
	}
	select {
	case <-c.greeted:
	default:
		close(c.greeted)
	}
	return nil
}

func (c *control) revivedLocked(m *message, now domain.Instant) error {
	p := c.reviver
	if m.refused {
		c.l.t.counts.note(EventReviveRefused)
		c.l.endLocked(now, ports.ErrReset)
		return nil
	}
	if c.l.connect(p.qp, p.psn, m.end) != nil {
		c.l.brokenLocked(now)
		return nil
	}
	p.state = pairUp
	c.l.mu.stamp++
	p.born = c.l.mu.stamp
	c.l.t.counts.note(EventPairRevived)
	return nil
}

// openedLocked lets the ops go on that waited for a grant, or asks for more of its pages.
func (l *Link) openedLocked(m *message, now domain.Instant) error {
	w := l.mu.waiting[0]
	if m.refused {
		l.mu.waiting = l.mu.waiting[1:]
		for _, o := range w.ops {
			l.failLocked(o, now, ports.ErrRevoked, true)
		}
		return nil
	}
	if m.from != uint32(len(w.runs)) || !l.soundRuns(m.runs) || len(m.runs) == 0 && m.from < m.total {
		return fmt.Errorf("a grant with runs %d to %d of %d: %w", m.from, int(m.from)+len(m.runs), m.total, errFormat)
	}
	w.runs = append(w.runs, m.runs...)
	if uint32(len(w.runs)) < m.total {
		return nil // it is still the first that waits
	}
	l.mu.waiting = l.mu.waiting[1:]
	for _, o := range w.ops {
		if i := o.outside(w.runs); i >= 0 {
			s := &o.segs[i]
			l.failLocked(o, now, fmt.Errorf("segment %d: offset %d, length %d of buffer %d are not granted: %w", i, s.RemoteOff, s.Len, s.Remote, ports.ErrBounds), true)
			continue
		}
		o.grant = w
		l.enqueueLocked(o)
	}
	w.ops = nil
	return nil
}

// outside is the first segment that leaves the granted pages, or -1.
func (o *op) outside(runs []run) int {
	for i := range o.segs {
		if s := &o.segs[i]; !covers(runs, s.Remote, s.RemoteOff, s.Len) {
			return i
		}
	}
	return -1
}

// soundRuns reports whether granted memory lies in the peer's buffers.
func (l *Link) soundRuns(runs []run) bool {
	for _, r := range runs {
		b := l.remote[r.buffer]
		if b == nil || r.len == 0 || r.off > b.len || r.len > b.len-r.off {
			return false
		}
	}
	return true
}

// byeBound is how long the end of a link waits for its last message to be taken; the owner forgets a silent link by itself.
const byeBound = 50 * time.Millisecond

// bye tells the owner that the link ends, so that it does not keep its half.
func (c *control) bye() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.silent || c.post(&message{kind: kindBye}, byeSlot) != nil {
		return
	}
	var one [1]verbs.WC
	for end := time.Now().Add(byeBound); time.Now().Before(end); {
		if n, err := c.l.events.cq.Poll(one[:]); err != nil || n == 1 && one[0].ID == controlIndex<<56|byeSlot {
			return
		} else if n == 0 && c.l.events.cq.Arm() == nil {
			if n, _ = c.l.events.cq.Poll(one[:]); n == 1 {
				continue
			}
			c.l.events.until(end)
			c.l.events.wait()
		}
	}
}
