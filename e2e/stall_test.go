package e2e_test

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// staller holds each connection up after some bytes to the owner, until it is let go.
type staller struct {
	after   int64
	held    atomic.Int64  // connections that stand still
	release chan struct{} // closed to let go
}

func (s *staller) pass(dst io.Writer, src io.Reader) {
	if n, _ := io.CopyN(dst, src, s.after); n == s.after {
		s.held.Add(1)
		<-s.release
		plainly(dst, src)
	}
}

// TestAWriterThatStandsStillInMidFragmentWritesNothingMore: the first bytes of a fragment are on their page, the others come when the
// page is another key's. Where a connection stands still is chosen: in the fifth piece of 256 KiB, whatever its headers take.
func TestAWriterThatStandsStillInMidFragmentWritesNothingMore(t *testing.T) {
	onLoopbackOnly(t, "what holds the connections up is on this host")
	p := layOut(t, []string{"owner", "writer"}, "--dram-bytes", "40MiB", "--reservation", "500ms", "--watermark-high", "0", "--watermark-low", "0",
		"--lease", "100ms")
	owner, writer := p.nodes["owner"], p.nodes["writer"]
	s := &staller{after: 4<<18 + 100_000, release: make(chan struct{})}
	owner.args = []string{"--data-advertise", startRelay(t, owner.data, s.pass, plainly)}
	letGo := sync.OnceFunc(func() { close(s.release) })
	t.Cleanup(letGo) // before the relay ends, which waits for it
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
	letGo()
	writer.signal(t, syscall.SIGCONT)
	got := <-answered
	require.NoError(t, got.err)
	require.NotEqual(t, stored, got.r.GetStatus())
	t.Logf("%d connections stood still; the writer's call ended with %v: %s", s.held.Load(), got.r.GetStatus(), got.r.GetReason())
	owner.mustGet(t, "other", other)
}
