package app

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/spanpool/spanpool/ports"
)

// lane is one link to a start of a peer.
type lane struct {
	kind   ports.TransportKind
	caps   ports.Caps
	at     reach
	link   ports.Link
	closed atomic.Bool
}

func (l *lane) alive() bool {
	select {
	case <-l.link.Done():
		return false
	default:
		return true
	}
}

// reach is a set of the node's transports, by their place: those that can touch some memory of this node.
type reach uint64

// anywhere is the reach of memory that every transport can touch: of arenas.
const anywhere = ^reach(0)

func reachOf(place int) reach { return 1 << place }

// linkCounts is what a transport's links to one peer have done.
type linkCounts struct {
	wire, thrown [ports.NumPurposes]uint64
	lost         uint64 // links that ended while the connection went on by another
}

func (p *peer) newConn() *conn {
	c := &conn{peer: p, to: ports.Peer{ID: p.id}}
	c.lanes.Store(&[]*lane{})
	return c
}

// way is the link that bytes take to or from memory of this node that only some transports may reach: of those that can carry them, the
// first in the order of preference that is alive. nil: none.
func (c *conn) way(d ports.Direction, memory reach) *lane {
	for _, l := range *c.lanes.Load() {
		if (d == ports.Read || l.caps.Write) && l.at&memory != 0 && l.alive() {
			return l
		}
	}
	return nil
}

// over is the link that reads take, as a reach; with none alive every one, since then the ops complete as reset and are planned again.
func (c *conn) over() reach {
	if l := c.way(ports.Read, anywhere); l != nil {
		return l.at
	}
	return anywhere
}

func (c *conn) kind(d ports.Direction) ports.TransportKind {
	if l := c.way(d, anywhere); l != nil {
		return l.kind
	}
	return ""
}

// alive says that there is a link; every link can read.
func (c *conn) alive() bool { return !c.dead.Load() && c.way(ports.Read, anywhere) != nil }

func (c *conn) isAlive() bool { return c != nil && c.alive() }

// fill returns the links that c should have: one for reads, one for writes and one that reaches the pool, each the first to be had in the
// order of preference, and what else is alive (a link of lesser rank stays, to fall back on). What c lacks is asked of open, which may say nil.
func (c *conn) fill(open func(t ports.Transport, at reach) *lane) (lanes []*lane) {
	has := *c.lanes.Load()
	n := c.peer.n
	reads, writes, pool := false, false, false
	for i, t := range n.p.Transports {
		reaches := n.pool&reachOf(i) != 0
		var l *lane
		if at := slices.IndexFunc(has, func(l *lane) bool { return l.kind == t.Kind() && l.alive() }); at >= 0 {
			l = has[at]
		} else if !reads || !writes && t.Caps().Write || !pool && reaches {
			l = open(t, reachOf(i))
		}
		if l != nil {
			lanes = append(lanes, l)
			reads, writes, pool = true, writes || l.caps.Write, pool || reaches
		}
	}
	return lanes
}

// lacksLink says that there is a transport that would be preferred to what c has.
func (c *conn) lacksLink() bool {
	lacks := false
	c.fill(func(ports.Transport, reach) *lane {
		lacks = true
		return nil
	})
	return lacks
}

// take gives c its links, and retires those of before that have died.
func (c *conn) take(lanes []*lane) error {
	p := c.peer
	p.mu.Lock()
	old := *c.lanes.Load()
	dead := c.dead.Load()
	for _, l := range lanes {
		if !slices.Contains(old, l) {
			p.mu.open = append(p.mu.open, l)
		}
	}
	if !dead {
		c.lanes.Store(&lanes)
	}
	p.mu.Unlock()
	if dead { // dropped during its hello; what it had then is retired already, each link once
		p.end(lanes)
		return fmt.Errorf("peer %s: dropped during its hello: %w", p.id, ports.ErrReset)
	}
	lost := slices.DeleteFunc(slices.Clone(old), func(l *lane) bool { return slices.Contains(lanes, l) })
	p.lost(lost)
	p.end(lost)
	return nil
}

// lost counts links that ended while others of their connection live.
func (p *peer) lost(lanes []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range lanes {
		p.pastLocked(l.kind).lost++
		p.n.counters.downgrade(ports.DowngradeLinkLost)
	}
}

// retire ends the links of a connection, once.
func (p *peer) retire(c *conn) {
	if c.dead.Swap(true) {
		return
	}
	p.mu.Lock()
	lanes := *c.lanes.Load()
	p.mu.Unlock()
	p.end(lanes)
}

// end closes links, each once, and keeps their counts, which stay visible while that takes: a sum of bytes never falls.
func (p *peer) end(lanes []*lane) {
	for _, l := range lanes {
		if l.closed.Swap(true) {
			continue
		}
		_ = l.link.Close() // its ops complete, whatever it says
		counts := l.link.Counts()
		p.mu.Lock()
		p.mu.open = slices.DeleteFunc(p.mu.open, func(o *lane) bool { return o == l })
		p.pastLocked(l.kind).add(counts)
		p.mu.Unlock()
	}
}

func (p *peer) pastLocked(kind ports.TransportKind) *linkCounts {
	c := p.mu.past[kind]
	if c == nil {
		c = &linkCounts{}
		p.mu.past[kind] = c
	}
	return c
}

// countsLocked is what the links of a transport have done, those that are open included.
func (p *peer) countsLocked(kind ports.TransportKind) linkCounts {
	c := *p.pastLocked(kind)
	for _, l := range p.mu.open {
		if l.kind == kind {
			c.add(l.link.Counts())
		}
	}
	return c
}

func (c *linkCounts) add(s ports.LinkStats) {
	for i, b := range s.Bytes {
		c.wire[i] += b
		c.thrown[i] += s.Thrown[i]
	}
}

// linkBatch is what a step submits to one link; its columns are borrowed by the link until the last op completed.
type linkBatch struct {
	ports.Batch
	conn *conn
	by   *lane // since it was submitted; nil: there was none
}

// submit sends the batch by a link.
func (b *linkBatch) submit(by *lane, q *ports.Completions) {
	b.by = by
	submit(&b.Batch, by, q)
}

// submit sends a batch by a link. Without one, or when it takes nothing, the ops complete at once, as reset.
func submit(b *ports.Batch, by *lane, q *ports.Completions) {
	err := errNoLink
	if by != nil {
		err = by.link.Submit(b, q)
	}
	if err == nil {
		return
	}
	for _, op := range b.Ops {
		q.Post(ports.Completion{Tag: op.Tag, Err: fmt.Errorf("submit: %w: %w", ports.ErrReset, err)})
	}
}

var errNoLink = fmt.Errorf("no link is alive: %w", ports.ErrPeer)

// cancel asks the link to let go of ops.
func (b *linkBatch) cancel(q *ports.Completions, tags []uint64) {
	if b.by != nil {
		b.by.link.Cancel(q, tags)
	}
}
