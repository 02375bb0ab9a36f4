package grpcpeer

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxyOptions is what a way is like.
type proxyOptions struct {
	Block    int           // most bytes that go on at once
	Delay    time.Duration // before each block
	CutAfter int           // bytes of one direction after which a connection is reset; 0: never
}

// proxy is a way to target that can be slow, break, and swallow everything.
type proxy struct {
	o      proxyOptions
	target string
	l      net.Listener
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		open   map[net.Conn]struct{}
		closed bool
		gate   chan struct{} // closed: bytes go on
		cuts   int
	}
}

func newProxy(t testing.TB, target string, o proxyOptions) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{o: o, target: target, l: l}
	p.mu.open = map[net.Conn]struct{}{}
	p.mu.gate = make(chan struct{})
	close(p.mu.gate)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// hold makes it swallow everything, as a network does that is cut in two: what was sent comes later, or never.
func (p *proxy) hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
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

func (p *proxy) close() {
	p.hold(false)
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	_ = p.l.Close()
	p.reset()
	p.wg.Wait()
}

// reset ends every connection.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.mu.open {
		_ = c.Close()
	}
}

func (p *proxy) cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.cuts
}

func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		_ = c.Close()
		return false
	}
	p.mu.open[c] = struct{}{}
	return true
}

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		if !p.keep(in) {
			return
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		if !p.keep(out) {
			return
		}
		p.wg.Go(func() { p.pump(in, out) })
		p.wg.Go(func() { p.pump(out, in) })
	}
}

func (p *proxy) pump(from, to net.Conn) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.mu.Lock()
		delete(p.mu.open, from)
		p.mu.Unlock()
	}()
	block, moved := make([]byte, p.o.Block), 0
	for {
		n, err := from.Read(block)
		if err != nil {
			return
		}
		if p.o.Delay > 0 {
			<-time.After(p.o.Delay)
		}
		p.mu.Lock()
		gate := p.mu.gate
		p.mu.Unlock()
		<-gate
		if moved += n; p.o.CutAfter > 0 && moved > p.o.CutAfter {
			p.mu.Lock()
			p.mu.cuts++
			p.mu.Unlock()
			return
		}
		if _, err := to.Write(block[:n]); err != nil {
			return
		}
	}
}
