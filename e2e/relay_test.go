package e2e_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// relay passes connections on to a node. It ends with the test, when both of its ways have let go.
type relay struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

// pass carries what goes one way on a connection, until one of its ends is closed.
type pass func(dst io.Writer, src io.Reader)

func plainly(dst io.Writer, src io.Reader) { _, _ = io.Copy(dst, src) }

// startRelay relays to a node: forth is the way to it, back from it. It returns the address that peers are to dial.
func startRelay(t *testing.T, to string, forth, back pass) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{listener: l, to: to}
	r.wg.Go(func() { r.accept(forth, back) })
	t.Cleanup(r.end)
	return l.Addr().String()
}

func (r *relay) end() {
	_ = r.listener.Close()
	r.mu.Lock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *relay) accept(forth, back pass) {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		r.mu.Unlock()
		r.wg.Go(func() { defer out.Close(); forth(out, in) })
		r.wg.Go(func() { defer in.Close(); back(in, out) })
	}
}
