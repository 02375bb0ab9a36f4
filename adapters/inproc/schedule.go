package inproc

import (
	"math/bits"
	"time"

	"github.com/spanpool/spanpool/domain"
)

// TurnBytes is the most that an op puts on a pipe before the next call has its turn.
const TurnBytes = 64 << 10

// Turn is what a Pipe carried in one go: Len bytes of an op, from its byte Off on.
type Turn struct {
	Op         uint32
	Off, Len   uint64
	Start, End domain.Instant
	Last       bool // the op has no more turns, and its number is free
}

// Pipe is the schedule of one direction between two nodes: when which op's bytes are on the wire. It is a value without clock,
// goroutine or lock, and moves no bytes itself.
//
// Ops belong to flows (a flow is a call). Flows that have something to send take turns of at most TurnBytes, round robin;
// within a flow an op is sent whole before the next one. The pipe never idles while an op is there, and never sends faster than
// its rate: the end of a turn is computed from the start of the busy period, so that rounding does not add up.
//
// The schedule depends on what was added and for when, not on when it is looked at: a driver that comes late gets the turns
// that it missed, with the instants at which they were due. Only a pipe without a rate sends as fast as turns are taken; its
// turns begin when they are taken.
type Pipe struct {
	rate uint64 // bytes per second; zero: without limit

	ops      []pipeOp // by op number
	flows    []flow
	free     []uint32 // flows that are not in use
	lastFlow uint32   // the flow of the last op that came: mostly that of the next one, too
	ring     fifo[uint32]
	arrivals []arrival // a heap by (at, seq)
	seq      uint64

	sending bool
	cur     Turn
	curFlow uint32
	last    domain.Instant // when the last turn ended
	base    domain.Instant // start of the busy period
	sent    uint64         // bytes of the busy period, those of the turn under way included
}

type pipeOp struct{ off, left uint64 }

type flow struct {
	key    uint64
	active bool // it is in the ring, or has the turn under way
	ops    fifo[uint32]
}

type arrival struct {
	at   domain.Instant
	seq  uint64
	op   uint32
	flow uint64
}

// NewPipe makes an idle pipe of so many bytes per second; zero is no limit.
func NewPipe(bytesPerSecond uint64) *Pipe { return &Pipe{rate: bytesPerSecond} }

// Add queues an op of some bytes (zero is allowed) in a flow, to be sent at the given instant or later. Ops are numbered by the
// caller, densely from zero; a number may be used again after its Last turn was taken. Precondition: at is not before the
// latest instant given to Take.
func (p *Pipe) Add(op uint32, flow uint64, bytes uint64, at domain.Instant) {
	for int(op) >= len(p.ops) {
		p.ops = append(p.ops, pipeOp{})
	}
	p.ops[op] = pipeOp{left: bytes}
	p.arrivals = append(p.arrivals, arrival{at: at, seq: p.seq, op: op, flow: flow})
	p.seq++
	p.up(len(p.arrivals) - 1)
}

// Drop forgets the bytes of an op that are in no turn yet. If its turn is not under way, a last one without bytes will come.
func (p *Pipe) Drop(op uint32) { p.ops[op].left = 0 }

// Next is when the turn that comes next ends, as things are now: an op that is added may end one earlier.
func (p *Pipe) Next() (domain.Instant, bool) {
	switch {
	case p.sending:
		return p.cur.End, true
	case p.ring.len() > 0:
		op := *p.flows[*p.ring.front()].ops.front()
		return p.endOf(p.last, p.turnLen(op)), true
	case len(p.arrivals) > 0:
		a := p.arrivals[0]
		return p.endOf(max(p.last, a.at), p.turnLen(a.op)), true
	}
	return 0, false
}

// Take returns the next turn that has ended at now.
func (p *Pipe) Take(now domain.Instant) (Turn, bool) {
	if !p.sending && !p.begin(now) {
		return Turn{}, false
	}
	if p.cur.End > now {
		return Turn{}, false
	}
	t := p.cur
	p.end()
	return Turn{Op: t.Op, Off: t.Off, Len: t.Len, Start: t.Start, End: t.End, Last: p.ops[t.Op].left == 0}, true
}

// begin starts the next turn, at the earliest instant at which the pipe and an op are there, if that is not past now.
func (p *Pipe) begin(now domain.Instant) bool {
	start := p.last
	if p.rate == 0 {
		start = now
	}
	p.admit(start)
	if p.ring.len() == 0 {
		if len(p.arrivals) == 0 || p.arrivals[0].at > now {
			return false
		}
		start = max(start, p.arrivals[0].at)
		p.admit(start)
	}
	f := p.ring.pop()
	op := *p.flows[f].ops.front()
	n := p.turnLen(op)
	end := p.endOf(start, n)
	if start > p.last {
		p.base, p.sent = start, 0
	}
	p.sent += n
	p.cur = Turn{Op: op, Off: p.ops[op].off, Len: n, Start: start, End: end}
	p.ops[op].off += n
	p.ops[op].left -= n
	p.sending, p.curFlow = true, f
	return true
}

// end lets the turn under way go, and puts its flow behind the others.
func (p *Pipe) end() {
	p.sending, p.last = false, p.cur.End
	f := &p.flows[p.curFlow]
	if p.ops[p.cur.Op].left == 0 {
		f.ops.pop()
	}
	if f.ops.len() > 0 {
		p.admit(p.last) // who came during the turn goes before
		p.ring.push(p.curFlow)
		return
	}
	f.active = false
	p.free = append(p.free, p.curFlow)
}

func (p *Pipe) turnLen(op uint32) uint64 { return min(p.ops[op].left, TurnBytes) }

// endOf is when n bytes that begin at start are sent.
func (p *Pipe) endOf(start domain.Instant, n uint64) domain.Instant {
	if p.rate == 0 {
		return start
	}
	if start > p.last {
		return start.Add(p.sendTime(n))
	}
	return p.base.Add(p.sendTime(p.sent + n))
}

// sendTime rounds up: the rate is never exceeded. What would take more than a century takes a century.
func (p *Pipe) sendTime(n uint64) time.Duration {
	hi, lo := bits.Mul64(n, 1e9)
	lo, carry := bits.Add64(lo, p.rate-1, 0)
	const century = 1 << 62
	if hi+carry >= p.rate {
		return century
	}
	q, _ := bits.Div64(hi+carry, lo, p.rate)
	return time.Duration(min(q, century))
}

// admit moves what has arrived at now to its flow.
func (p *Pipe) admit(now domain.Instant) {
	for len(p.arrivals) > 0 && p.arrivals[0].at <= now {
		a := p.arrivals[0]
		p.removeFirst()
		i := p.flowOf(a.flow)
		f := &p.flows[i]
		f.ops.push(a.op)
		if !f.active {
			f.active = true
			p.ring.push(i)
		}
	}
}

// flowOf finds the active flow of that key, or takes a free one for it. The search is linear in the calls under way, and
// mostly ends at the flow of the op before.
func (p *Pipe) flowOf(key uint64) uint32 {
	if int(p.lastFlow) < len(p.flows) && p.flows[p.lastFlow].active && p.flows[p.lastFlow].key == key {
		return p.lastFlow
	}
	for i := range p.flows {
		if p.flows[i].active && p.flows[i].key == key {
			p.lastFlow = uint32(i)
			return p.lastFlow
		}
	}
	if n := len(p.free); n > 0 {
		p.lastFlow = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		p.lastFlow = uint32(len(p.flows))
		p.flows = append(p.flows, flow{})
	}
	p.flows[p.lastFlow].key = key
	return p.lastFlow
}

func (p *Pipe) before(i, j int) bool {
	a, b := &p.arrivals[i], &p.arrivals[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (p *Pipe) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !p.before(i, parent) {
			return
		}
		p.arrivals[i], p.arrivals[parent] = p.arrivals[parent], p.arrivals[i]
		i = parent
	}
}

func (p *Pipe) removeFirst() {
	n := len(p.arrivals) - 1
	p.arrivals[0] = p.arrivals[n]
	p.arrivals = p.arrivals[:n]
	for i := 0; ; {
		child := 2*i + 1
		if child >= n {
			return
		}
		if child+1 < n && p.before(child+1, child) {
			child++
		}
		if !p.before(child, i) {
			return
		}
		p.arrivals[i], p.arrivals[child] = p.arrivals[child], p.arrivals[i]
		i = child
	}
}
