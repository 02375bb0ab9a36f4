// Package proxy is a lossy, slow way between two ends of TCP, for tests: it delays, throttles, splits what is written in random places,
// stalls, swallows everything, and cuts connections.
//
// TCP repairs what a network loses, so those who speak it see a loss as one of two things: everything behind it comes later (Delay, Stall,
// Hold), or the connection ends and what was on its way never comes (Cut, CutAfter). A proxy does these two, drops no byte out of the
// middle of a stream, and changes none.
//
// What is drawn comes from a seed: the n-th connection has the same course in each run, as far as its bytes come in the same pieces. A
// proxy owns its goroutines and connections, and ends them with its test.
package proxy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Direction is where bytes go.
type Direction int

// The directions.
const (
	ToTarget Direction = iota
	ToDialler
)

// Way is what bytes meet. The zero Way passes everything at once.
type Way struct {
	Piece      int           // most bytes that go on at once; default and limit 64 KiB
	Split      bool          // each piece has a drawn length, from one byte to Piece
	Delay      time.Duration // before each piece; drawn, from none to this
	Stall      time.Duration // before one piece in StallOneIn, drawn; StallOneIn 0: never
	StallOneIn int
	Rate       int // bytes a second, of each direction of a connection; 0: any number
	Cut        int // bytes of a direction after which a connection is cut; drawn, from half of this to one and a half; 0: never
}

const (
	maxPiece = 64 << 10
	maxConns = 256 // at once; arbitrary, and far above what a test makes: further ones are cut
)

// Proxy listens at Addr and passes on to its target.
type Proxy struct {
	target string
	seed   uint64
	l      net.Listener
	over   chan struct{}
	wg     sync.WaitGroup
	mu     struct { // serialises short steps; bytes move without it
		sync.Mutex
		way    Way
		conns  map[*net.TCPConn]struct{}
		gate   chan struct{} // closed: bytes go on
		budget [2]int64      // bytes of all connections until each is cut that has more; negative: any number
		hold   [2]int64      // bytes of all connections until everything is held; negative: any number
		pairs  uint64
		cuts   int
		closed bool
	}
}

// New makes a proxy before target, on a loopback address. It ends with the test.
func New(t testing.TB, target string, seed uint64, w Way) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{target: target, seed: seed, l: l, over: make(chan struct{})}
	p.mu.way = w
	p.mu.conns = map[*net.TCPConn]struct{}{}
	p.mu.gate = make(chan struct{})
	close(p.mu.gate)
	p.mu.budget = [2]int64{-1, -1}
	p.mu.hold = [2]int64{-1, -1}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Set changes the way, for connections that are there too.
func (p *Proxy) Set(w Way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.way = w
}

// Hold makes it pass nothing, as a network does that is cut in two, or go on with what came meanwhile.
func (p *Proxy) Hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.hold = [2]int64{-1, -1}
	p.setHeld(on)
}

// HoldAfter holds everything once so many bytes of that direction have passed, over all connections, from now on; pieces that
// are on their way pass whole, one of each connection. Hold takes it back.
func (p *Proxy) HoldAfter(d Direction, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.hold[d] = bytes
}

// setHeld is called under p.mu.
func (p *Proxy) setHeld(on bool) {
	select {
	case <-p.mu.gate:
		if on {
			p.mu.gate = make(chan struct{})
		}
	default:
		if !on {
			close(p.mu.gate)
		}
	}
}

// CutAfter cuts each connection that moves a byte in a direction once all of them have moved so many there. Negative: none.
func (p *Proxy) CutAfter(d Direction, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.budget[d] = bytes
}

// Cuts is how many connections were cut.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.cuts
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.mu.closed = true
	close(p.over)
	for c := range p.mu.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	_ = p.l.Close()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		if n, ok := p.adopt(c.(*net.TCPConn)); ok {
			p.wg.Go(func() { p.serve(n, c.(*net.TCPConn)) })
		}
	}
}

// adopt takes a connection in, and numbers it; one too many is cut.
func (p *Proxy) adopt(c *net.TCPConn) (uint64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed || len(p.mu.conns) >= 2*maxConns {
		reset(c)
		return 0, false
	}
	p.mu.conns[c] = struct{}{}
	p.mu.pairs++
	return p.mu.pairs, true
}

// serve is one connection, from its other half's dial to the end of both directions.
func (p *Proxy) serve(n uint64, in *net.TCPConn) {
	defer p.forget(in)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.wg.Go(func() {
		select {
		case <-p.over:
			cancel()
		case <-ctx.Done():
		}
	})
	c, err := new(net.Dialer).DialContext(ctx, "tcp", p.target)
	if err != nil {
		reset(in)
		return
	}
	out := c.(*net.TCPConn)
	if _, ok := p.adopt(out); !ok {
		reset(in)
		return
	}
	defer p.forget(out)
	var both sync.WaitGroup
	both.Go(func() { p.pass(ToTarget, newCourse(p.seed, n, ToTarget), in, out) })
	both.Go(func() { p.pass(ToDialler, newCourse(p.seed, n, ToDialler), out, in) })
	both.Wait()
}

func (p *Proxy) forget(c *net.TCPConn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.conns, c)
}

// pass carries one direction to its end: an orderly one is passed on, any other ends both directions.
func (p *Proxy) pass(d Direction, c *course, from, to *net.TCPConn) {
	b := make([]byte, maxPiece)
	for {
		n, err := from.Read(b[:c.piece(p.current())])
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
			return
		}
		if err == nil && p.pause(c.wait(p.current(), n, time.Now())) {
			var cut bool
			if n, cut = p.spend(d, c, n); n > 0 {
				_, err = to.Write(b[:n])
			}
			if err == nil && !cut {
				continue
			}
		}
		reset(from)
		reset(to)
		return
	}
}

func (p *Proxy) current() Way {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.way
}

// pause waits, and then until nothing is held. It reports false when the proxy is closed.
func (p *Proxy) pause(d time.Duration) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.over:
			return false
		}
	}
	p.mu.Lock()
	gate := p.mu.gate
	p.mu.Unlock()
	select {
	case <-gate:
		return true
	case <-p.over:
		return false
	}
}

// spend says how many of n bytes still pass, and whether the connection is cut behind them.
func (p *Proxy) spend(d Direction, c *course, n int) (passes int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	passes, cut = c.spend(p.mu.way, n)
	if left := &p.mu.budget[d]; *left >= 0 {
		passes = int(min(int64(passes), *left))
		*left -= int64(passes)
		cut = cut || *left == 0
	}
	if cut {
		p.mu.cuts++
	}
	if left := &p.mu.hold[d]; *left >= 0 {
		if *left -= int64(passes); *left <= 0 {
			*left = -1
			p.setHeld(true)
		}
	}
	return passes, cut
}

// reset ends a connection at once; what the kernel still has of it is gone.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// course is what becomes of one direction of one connection.
type course struct {
	draws *rand.Rand
	moved int64
	cutAt int64 // 0: not drawn yet
	due   time.Time
}

func newCourse(seed, conn uint64, d Direction) *course {
	return &course{draws: rand.New(rand.NewPCG(seed, 2*conn+uint64(d)))}
}

// piece is how many bytes may go on next.
func (c *course) piece(w Way) int {
	most := maxPiece
	if w.Piece > 0 {
		most = min(w.Piece, maxPiece)
	}
	if w.Split {
		return 1 + c.draws.IntN(most)
	}
	return most
}

// wait is the time before n bytes go on.
func (c *course) wait(w Way, n int, now time.Time) (d time.Duration) {
	if w.Delay > 0 {
		d = time.Duration(c.draws.Int64N(int64(w.Delay) + 1))
	}
	if w.StallOneIn > 0 && c.draws.IntN(w.StallOneIn) == 0 {
		d += w.Stall
	}
	if w.Rate > 0 {
		if c.due.Before(now) {
			c.due = now
		}
		c.due = c.due.Add(time.Duration(n) * time.Second / time.Duration(w.Rate))
		d = max(d, c.due.Sub(now))
	}
	return d
}

// spend counts n bytes, of which those behind the cut do not pass.
func (c *course) spend(w Way, n int) (passes int, cut bool) {
	if w.Cut <= 0 {
		c.moved, c.cutAt = 0, 0
		return n, false
	}
	if c.cutAt == 0 {
		c.cutAt = 1 + int64(w.Cut)/2 + c.draws.Int64N(int64(w.Cut))
	}
	left := c.cutAt - c.moved
	c.moved += int64(n)
	return int(min(int64(n), left)), int64(n) >= left
}
