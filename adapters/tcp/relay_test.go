//go:build linux

package tcp

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// relay is a proxy between askers and an owner, which can hold what passes, cut it off, or forget it.
type relay struct {
	to string
	l  net.Listener
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		conns  map[net.Conn]struct{}
		open   chan struct{} // closed while bytes pass
		over   bool
		budget [2]int64 // bytes that may pass in a direction before everything is cut; negative: no limit
		piece  int      // the most that passes at once; 0: no limit
	}
}

const (
	toOwner = 0
	toAsker = 1
)

func newRelay(t testing.TB, to string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{to: to, l: l}
	r.mu.conns = map[net.Conn]struct{}{}
	r.mu.open = make(chan struct{})
	close(r.mu.open)
	r.mu.budget = [2]int64{-1, -1}
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *relay) address() string { return r.l.Addr().String() }

func (r *relay) accept() {
	for {
		c, err := r.l.Accept()
		if err != nil {
			return
		}
		o, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = c.Close()
			continue
		}
		if !r.adopt(c, o) {
			return
		}
		r.wg.Go(func() { r.pass(toOwner, c, o) })
		r.wg.Go(func() { r.pass(toAsker, o, c) })
	}
}

func (r *relay) adopt(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.mu.over {
			_ = c.Close()
		}
		r.mu.conns[c] = struct{}{}
	}
	return !r.mu.over
}

// pass carries one direction until it ends, and then ends both, as a reset would.
func (r *relay) pass(way int, from, to net.Conn) {
	defer func() {
		_ = from.(*net.TCPConn).SetLinger(0)
		_ = to.(*net.TCPConn).SetLinger(0)
		_ = from.Close()
		_ = to.Close()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b[:r.most(len(b))])
		if err != nil {
			return
		}
		r.wait()
		n, last := r.spend(way, n)
		if _, err := to.Write(b[:n]); err != nil || last {
			return
		}
	}
}

func (r *relay) most(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.piece > 0 {
		return min(n, r.mu.piece)
	}
	return n
}

func (r *relay) wait() {
	r.mu.Lock()
	open := r.mu.open
	r.mu.Unlock()
	<-open
}

// spend says how much of n bytes may still pass, and whether that was the last.
func (r *relay) spend(way, n int) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := &r.mu.budget[way]
	if *left < 0 {
		return n, false
	}
	k := min(int64(n), *left)
	*left -= k
	return int(k), *left == 0
}

// hold makes the relay swallow nothing and pass nothing, or lets it go on.
func (r *relay) hold(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.mu.open:
		if on {
			r.mu.open = make(chan struct{})
		}
	default:
		if !on {
			close(r.mu.open)
		}
	}
}

// cutAfter ends each connection once so many bytes went that way, over all of them.
func (r *relay) cutAfter(way int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.budget[way] = bytes
}

// trickle passes at most so many bytes at once.
func (r *relay) trickle(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.piece = bytes
}

func (r *relay) close() {
	r.hold(false)
	r.mu.Lock()
	r.mu.over = true
	for c := range r.mu.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	_ = r.l.Close()
	r.wg.Wait()
}
