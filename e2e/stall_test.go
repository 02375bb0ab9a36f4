package e2e_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// staller passes connections on, and holds each of them up after some bytes to the owner, until it is let go.
type staller struct {
	listener net.Listener
	to       string
	after    int64
	held     atomic.Int64  // connections that stand still
	release  chan struct{} // closed to let go
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

func startStaller(t *testing.T, to string, after int64) *staller {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &staller{listener: l, to: to, after: after, release: make(chan struct{})}
	s.wg.Go(s.accept)
	t.Cleanup(func() {
		_ = l.Close()
		s.letGo()
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

func (s *staller) letGo() {
	select {
	case <-s.release:
	default:
		close(s.release)
	}
}

func (s *staller) accept() {
	for {
		in, err := s.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", s.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		s.mu.Lock()
		s.conns = append(s.conns, in, out)
		s.mu.Unlock()
		s.wg.Go(func() {
			defer out.Close()
			if n, _ := io.CopyN(out, in, s.after); n == s.after {
				s.held.Add(1)
				<-s.release
				_, _ = io.Copy(out, in)
			}
		})
		s.wg.Go(func() {
			defer in.Close()
			_, _ = io.Copy(in, out)
		})
	}
}

// TestAWriterThatStandsStillInMidFragmentWritesNothingMore: the first bytes of a fragment are on their page, the others come when the
// page is another key's. Where a connection stands still is chosen: in the fifth piece of 256 KiB, whatever its headers take.
func TestAWriterThatStandsStillInMidFragmentWritesNothingMore(t *testing.T) {
	onLoopbackOnly(t, "what holds the connections up is on this host")
	p := layOut(t, []string{"owner", "writer"}, "--dram-bytes", "40MiB", "--reservation", "500ms", "--watermark-high", "0", "--watermark-low", "0",
		"--lease", "100ms")
	owner, writer := p.nodes["owner"], p.nodes["writer"]
	s := startStaller(t, owner.data, 4<<18+100_000)
	owner.args = []string{"--data-advertise", s.listener.Addr().String()}
	for _, id := range p.ids {
		p.start(id)
	}
	p.together("writer", "owner")
	const size = 32 << 20
	type answer struct {
		r   *enginev1.Result
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		r, err := writer.put(t.Context(), "late", content("late", 0, size), "owner")
		answered <- answer{r, err}
	}()
	p.eventually(func() bool { return s.held.Load() > 0 && owner.counts(t)["now.slots.pending"] > 0 }, "nothing stands still")
	writer.signal(t, syscall.SIGSTOP)
	p.eventually(func() bool {
		c := owner.counts(t)
		return c["doomed.deadline"] > 0 && c["now.revokes_pending"] == 0 && c["now.slots.doomed"] == 0
	}, "the reservation does not end in bounded time")
	other := content("other", 0, size)
	owner.mustPut(t, "other", other) // 32 of 40 MiB: on pages that the writer was told
	s.letGo()
	writer.signal(t, syscall.SIGCONT)
	got := <-answered
	require.NoError(t, got.err)
	require.NotEqual(t, stored, got.r.GetStatus())
	t.Logf("%d connections stood still; the writer's call ended with %v: %s", s.held.Load(), got.r.GetStatus(), got.r.GetReason())
	owner.mustGet(t, "other", other)
}
