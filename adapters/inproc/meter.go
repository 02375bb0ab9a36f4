package inproc

import (
	"cmp"
	"slices"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// meter measures what a direction of a pair reached.
type meter struct {
	bytes    uint64
	busy     time.Duration
	lastDone domain.Instant
	n        uint64
	sum, max time.Duration
}

// carried counts a turn whose copy ended at now. The direction was busy from when the turn was due to begin, or from the copy
// before, whichever was later: over a busy period that is all of the time from its first due beginning to its last copy.
func (m *meter) carried(t Turn, now domain.Instant) {
	m.bytes += t.Len
	m.busy += max(0, now.Sub(max(t.Start, m.lastDone)))
	m.lastDone = now
}

// late counts something that was due and came so much later.
func (m *meter) late(by time.Duration) {
	m.n++
	m.sum += by
	m.max = max(m.max, by)
}

// noteLate counts a control message among what its direction delayed.
func (p *pair) noteLate(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.pipes[0].meter.late(by)
}

// DirectionReport is what one direction between two nodes reached.
type DirectionReport struct {
	From, To       ports.PeerID
	Bytes          uint64        // copied
	Busy           time.Duration // while there was something to copy
	BytesPerSecond float64       // Bytes over Busy: the rate reached
	Delayed        uint64        // completions and control messages that waited for the link's delay
	MeanLate       time.Duration // by which they came later than the model says
	MaxLate        time.Duration
}

// LinkReport is what every direction has reached since the last ResetReport, in the order of the nodes' ids. Control messages
// of both directions count with the first.
func (n *Network) LinkReport() []DirectionReport {
	var out []DirectionReport
	for _, p := range n.allPairs() {
		p.mu.Lock()
		for i := range p.mu.pipes {
			m := p.mu.pipes[i].meter
			r := DirectionReport{From: p.key.a, To: p.key.b, Bytes: m.bytes, Busy: m.busy, Delayed: m.n, MaxLate: m.max}
			if i == 1 {
				r.From, r.To = r.To, r.From
			}
			if m.busy > 0 {
				r.BytesPerSecond = float64(m.bytes) / m.busy.Seconds()
			}
			if m.n > 0 {
				r.MeanLate = m.sum / time.Duration(m.n)
			}
			out = append(out, r)
		}
		p.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b DirectionReport) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return out
}

// ResetReport begins LinkReport anew.
func (n *Network) ResetReport() {
	for _, p := range n.allPairs() {
		p.mu.Lock()
		for i := range p.mu.pipes {
			p.mu.pipes[i].meter = meter{lastDone: p.mu.pipes[i].meter.lastDone}
		}
		p.mu.Unlock()
	}
}

func (n *Network) allPairs() []*pair {
	n.mu.Lock()
	defer n.mu.Unlock()
	pairs := make([]*pair, 0, len(n.mu.pairs))
	for _, p := range n.mu.pairs {
		pairs = append(pairs, p)
	}
	return pairs
}
