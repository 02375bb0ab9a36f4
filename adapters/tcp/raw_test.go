//go:build linux

package tcp

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// patience bounds what comes at once, on a machine that is busy with something else.
const patience = 10 * time.Second

// rawLane is a lane of one connection that speaks bytes: what a peer that lies would have.
func rawLane(t testing.TB, from ports.Peer, owner *node) net.Conn {
	t.Helper()
	o := offer{features: ourFeatures, nonce: newNonce()}
	b, err := owner.Transport.Answer(context.Background(), from, o.encode())
	require.NoError(t, err)
	a, err := decodeAnswer(b)
	require.NoError(t, err)
	c, err := net.Dial("tcp", a.addresses[0])
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	require.NoError(t, introduce(c, newLinkKey(owner.cfg.Secret, o, a), laneHello{conns: 1, start: a.start, link: a.link}))
	return c
}

// frameOf is one request with its segments, and behind them what a test wants.
func frameOf(r request, token []byte, segs []segment, behind ...byte) []byte {
	r.count = len(segs)
	for _, s := range segs {
		r.bytes += s.len
	}
	b := make([]byte, requestBytes, 128)
	r.encode(b)
	b = append(b, token...)
	for _, s := range segs {
		var e [segmentBytes]byte
		s.encode(e[:])
		b = append(b, e[:]...)
	}
	return append(b, behind...)
}

func write(t testing.TB, c net.Conn, b []byte) {
	t.Helper()
	_, err := c.Write(b)
	require.NoError(t, err)
}

// hungUp fails unless the other end closes the connection.
func hungUp(t testing.TB, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	ne, timeout := err.(net.Error)
	require.False(t, timeout && ne.Timeout(), "the connection is open")
}

// ended waits until so many connections have ended for a reason.
func ended(t testing.TB, n *node, why Reason, times uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return n.tcp().Stats().Ended[why] == times }, patience, time.Millisecond,
		"ended as %v: %d, want %d", why, n.tcp().Stats().Ended[why], times)
}

const (
	testPage   = 4096
	testBuffer = 64 * testPage
)

// exposing is an owner of one buffer with content.
func exposing(t testing.TB, cfg Config) (*node, ports.HostRegion) {
	owner, mem := listen(t, "owner", cfg), heap(t, testBuffer)
	content.Fill(mem.Bytes(), 0, 0)
	require.NoError(t, owner.Transport.Expose(0, mem))
	return owner, mem
}

func grantPage(t testing.TB, owner *node, writer ports.Peer, page uint32) (ports.GrantID, ports.GrantToken) {
	t.Helper()
	id, token, err := owner.Transport.Grant(writer, testPage, []domain.PageRef{{Page: page}})
	require.NoError(t, err)
	return id, token
}

// works fails unless a new link of a peer reads right bytes.
func works(t testing.TB, asker, owner *node) {
	t.Helper()
	l, dst := dial(t, asker, owner), heap(t, 5000)
	require.NoError(t, readInto(t, l, dst, 77))
	require.Equal(t, -1, content.Check(dst.Bytes(), 0, 77))
}

// readInto reads from an offset on and returns the op's error.
func readInto(t testing.TB, l *Link, dst ports.HostRegion, off uint64) error {
	t.Helper()
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(&ports.Batch{Ops: []ports.Op{{Count: 1}}, Segments: []ports.Segment{{RemoteOff: off, Local: dst, Len: dst.Len()}}}, q))
	return take(t, q, 1)[0].Err
}

// take waits for n completions.
func take(t testing.TB, q *ports.Completions, n int) []ports.Completion {
	t.Helper()
	var done []ports.Completion
	for len(done) < n {
		held := len(done)
		var err error
		done, err = q.Take(context.Background(), patience, done)
		require.NoError(t, err)
		require.Greater(t, len(done), held, "%d of %d ops completed", held, n)
	}
	require.Len(t, done, n)
	return done
}
