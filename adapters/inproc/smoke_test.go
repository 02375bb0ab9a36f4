package inproc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type helloServer struct{ ports.PeerServer }

func TestSmoke(t *testing.T) {
	for _, o := range []Options{{}, {Link: &LinkModel{BytesPerSecond: 2e9, Delay: 50 * time.Microsecond}},
		{Link: &LinkModel{BytesPerSecond: 2e9, Delay: 50 * time.Microsecond}, Driver: OSThread}} {
		n := NewNetwork(o)
		a, b := n.Endpoint("a"), n.Endpoint("b")
		ta, tb := a.Transport(), b.Transport()
		mem := make([]byte, 1<<20)
		content.Fill(mem, 1, 0)
		require.NoError(t, tb.Expose(0, ports.HostRegionOf(mem)))
		require.NoError(t, a.Start(ports.Peer{ID: "a", Incarnation: 1}, helloServer{}))
		require.NoError(t, b.Start(ports.Peer{ID: "b", Incarnation: 2}, helloServer{}))
		ctx := context.Background()
		p, err := ta.Offer(ctx, "b")
		require.NoError(t, err)
		ans, err := tb.Answer(ctx, ports.Peer{ID: "a", Incarnation: 1}, p.Bytes())
		require.NoError(t, err)
		l, err := p.Link(ctx, ans)
		require.NoError(t, err)
		dst := make([]byte, 1<<20)
		q := ports.NewCompletions()
		require.NoError(t, l.Submit(&ports.Batch{Ops: []ports.Op{{Tag: 7, Count: 1}}, Segments: []ports.Segment{{Local: ports.HostRegionOf(dst), Len: 1 << 20}}}, q))
		c, err := q.Take(ctx, time.Second, nil)
		require.NoError(t, err)
		require.Len(t, c, 1)
		require.NoError(t, c[0].Err)
		require.Equal(t, -1, content.Check(dst, 1, 0))
		id, tok, err := tb.Grant(ports.Peer{ID: "a", Incarnation: 1}, 4096, []domain.PageRef{{Page: 1}})
		require.NoError(t, err)
		w := &ports.Batch{Ops: []ports.Op{{Tag: 8, Count: 1, Dir: ports.Write, Purpose: ports.PurposePut, Grant: tok}}, Segments: []ports.Segment{{RemoteOff: 4096, Local: ports.HostRegionOf(dst), Len: 4096}}}
		require.NoError(t, l.Submit(w, q))
		c, err = q.Take(ctx, time.Second, c[:0])
		require.NoError(t, err)
		require.NoError(t, c[0].Err)
		require.Equal(t, -1, content.Check(mem[4096:8192], 1, 0))
		require.NoError(t, tb.Revoke(ctx, id, false))
		require.NoError(t, l.Submit(w, q))
		c, _ = q.Take(ctx, time.Second, c[:0])
		require.ErrorIs(t, c[0].Err, ports.ErrRevoked)
		t.Logf("%+v", n.LinkReport())
		require.NoError(t, n.Close())
		<-l.Done()
	}
}
