package inproc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// LinkModel is what a link between two nodes can do.
type LinkModel struct {
	BytesPerSecond uint64        // per node pair and direction; zero: without limit
	Delay          time.Duration // once each way, also for control calls
}

// Driver says what waits for the instants of a modelled link.
type Driver uint8

// The drivers. Timers serve tests, in virtual time, too. OSThread serves benchmarks: one thread of the operating system paces
// and copies for all pairs, and sleeps more exactly than timers beside goroutines that keep the processors busy.
const (
	Timers Driver = iota
	OSThread
)

// Options of a network. The zero value is a network without a modelled link.
type Options struct {
	Link   *LinkModel // nil: transfers are as fast as the copying, control calls as the server
	Driver Driver     // of a modelled link
	// Clock tells deadlines and completions: the one that the nodes have. nil: a monotonic clock.
	Clock ports.Clock
	// Copier moves bytes where one side is device memory. nil: there is none, and it is refused. Background is the one for pulls;
	// nil: Copier.
	Copier, Background ports.Copier
}

// Network joins the endpoints of one process.
type Network struct {
	clock ports.Clock
	model LinkModel
	// copiers of device memory, by the purpose of the op; nil: none
	copiers [ports.NumPurposes]ports.Copier
	pacer   *pacer // of Driver OSThread; nil otherwise

	stop    context.Context // ends at Close: the context of servers' calls
	stopNow context.CancelFunc
	wg      sync.WaitGroup // drivers and servers' calls

	mu struct {
		sync.Mutex
		closed    bool
		endpoints map[ports.PeerID]*Endpoint
		pairs     map[pairKey]*pair
	}
}

// pairKey is two nodes, the lesser id first.
type pairKey struct{ a, b ports.PeerID }

func pairOf(x, y ports.PeerID) pairKey {
	if y < x {
		x, y = y, x
	}
	return pairKey{x, y}
}

// NewNetwork makes an empty network. Close ends it.
func NewNetwork(o Options) *Network {
	n := &Network{clock: o.Clock}
	if n.clock == nil {
		n.clock = monotonic{time.Now()}
	}
	n.stop, n.stopNow = context.WithCancel(context.Background())
	n.mu.endpoints = make(map[ports.PeerID]*Endpoint)
	n.mu.pairs = make(map[pairKey]*pair)
	if o.Background == nil {
		o.Background = o.Copier
	}
	n.copiers = [ports.NumPurposes]ports.Copier{ports.PurposeGet: o.Copier, ports.PurposePull: o.Background, ports.PurposePut: o.Copier}
	if o.Link != nil {
		n.model = *o.Link
		n.model.Delay = max(0, n.model.Delay)
		if o.Driver == OSThread {
			n.pacer = newPacer(n)
			n.wg.Go(n.pacer.run)
		}
	}
	return n
}

// monotonic is the clock of a network that was given none.
type monotonic struct{ origin time.Time }

func (m monotonic) Now() domain.Instant { return domain.Instant(time.Since(m.origin)) }

// Endpoint is the place of that node; there is one per id.
func (n *Network) Endpoint(id ports.PeerID) *Endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.mu.endpoints[id]
	if e == nil {
		e = newEndpoint(n, id)
		n.mu.endpoints[id] = e
	}
	return e
}

// Partition makes the way between two nodes a black hole, or heals it: control calls hang until their context ends, ops until
// their deadline. What was on its way is sent again after the healing.
func (n *Network) Partition(a, b ports.PeerID, on bool) {
	if p := n.pair(a, b); p != nil {
		p.cut(on)
	}
}

// Close stops every endpoint, and returns when nothing of the network runs any more: no copy, and no call of a server. Servers
// see their contexts end. Twice is allowed.
func (n *Network) Close() error {
	n.mu.Lock()
	n.mu.closed = true
	var endpoints []*Endpoint
	for _, e := range n.mu.endpoints {
		endpoints = append(endpoints, e)
	}
	n.mu.Unlock()
	for _, e := range endpoints {
		e.Stop()
	}
	n.stopNow()
	n.wg.Wait()
	return nil
}

// pair finds or makes what joins two nodes; nil after Close.
func (n *Network) pair(x, y ports.PeerID) *pair {
	key := pairOf(x, y)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return nil
	}
	if p := n.mu.pairs[key]; p != nil {
		return p
	}
	p := newPair(n, key)
	n.mu.pairs[key] = p
	if n.pacer != nil {
		n.pacer.add(p)
		return p
	}
	n.wg.Go(p.run)
	return p
}

func (n *Network) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.closed
}

// answering is the start of a node that answers now, or nil.
func (n *Network) answering(id ports.PeerID) *start {
	n.mu.Lock()
	e := n.mu.endpoints[id]
	n.mu.Unlock()
	if e == nil {
		return nil
	}
	s := e.current()
	if s.identity.Load() == nil {
		return nil
	}
	return s
}

// serve runs a server's call in a goroutine that Close waits for.
func (n *Network) serve(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return false
	}
	n.wg.Go(f)
	return true
}

var (
	errNotStarted = errors.New("this start does not answer yet")
	errOver       = errors.New("this start has ended")
)

// sleep is one delay of the modelled link, or shorter with the reason.
func (n *Network) sleep(ctx context.Context, s *start, p *pair) error {
	if n.model.Delay <= 0 {
		return nil
	}
	due := n.clock.Now().Add(n.model.Delay)
	var alarm <-chan time.Time
	if n.pacer != nil {
		alarm = n.pacer.alarm(due)
	} else {
		t := time.NewTimer(n.model.Delay)
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-alarm:
		p.noteLate(n.clock.Now().Sub(due))
		return nil
	case <-ctx.Done():
		return ended(ctx)
	case <-s.over.Done():
		return ports.ErrClosed
	}
}
