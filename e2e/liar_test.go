package e2e_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// liar stands between a node and the peer that it asks, passes everything on, and edits the answers.
type liar struct {
	peerv1.UnimplementedPeerServer
	to   *grpc.ClientConn
	edit atomic.Pointer[func(proto.Message)]
	told atomic.Uint64 // lies
}

// startLiar answers in the place of whoever listens at address.
func startLiar(t *testing.T, address string) (*liar, string) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	l := &liar{to: conn}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.UnknownServiceHandler(l.pass))
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-done); _ = conn.Close() })
	return l, listener.Addr().String()
}

func (l *liar) tell(edit func(proto.Message)) { l.edit.Store(&edit) }

// replies is an empty answer of each call.
var replies = map[string]func() proto.Message{
	peerv1.Peer_Hello_FullMethodName:   func() proto.Message { return &peerv1.HelloReply{} },
	peerv1.Peer_Probe_FullMethodName:   func() proto.Message { return &peerv1.ProbeReply{} },
	peerv1.Peer_Resolve_FullMethodName: func() proto.Message { return &peerv1.ResolveReply{} },
	peerv1.Peer_Reserve_FullMethodName: func() proto.Message { return &peerv1.ReserveReply{} },
	peerv1.Peer_Commit_FullMethodName:  func() proto.Message { return &peerv1.CommitReply{} },
	peerv1.Peer_Abort_FullMethodName:   func() proto.Message { return &peerv1.AbortReply{} },
	peerv1.Peer_Remove_FullMethodName:  func() proto.Message { return &peerv1.RemoveReply{} },
}

// pass carries one call. Requests are not looked at: a message that nobody knows keeps its bytes.
func (l *liar) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	newReply, ok := replies[method]
	if !ok {
		return errors.New("no such call: " + method)
	}
	out, err := l.to.NewStream(in.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	for {
		m := &peerv1.AbortReply{} // any message will do
		if err := in.RecvMsg(m); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return err
		}
		if err := out.SendMsg(m); err != nil {
			break // the answer says why
		}
	}
	_ = out.CloseSend()
	for {
		m := newReply()
		if err := out.RecvMsg(m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if edit := l.edit.Load(); edit != nil {
			before := proto.Clone(m)
			if (*edit)(m); !proto.Equal(before, m) {
				l.told.Add(1)
			}
		}
		if err := in.SendMsg(m); err != nil {
			return err
		}
	}
}

// TestAPeerThatLiesHarmsNobody: about sizes, pages, versions, leases and the shape of its answers. A read of its keys fails or is
// right, a key of another peer is read meanwhile, and with the truth told again everything is as before.
func TestAPeerThatLiesHarmsNobody(t *testing.T) {
	onLoopbackOnly(t, "the proxy knows no secret")
	p := layOut(t, []string{"a", "b", "c"}, "--locality", "off")
	b := p.nodes["b"]
	honest := b.control
	l, at := startLiar(t, honest)
	peers := "a=" + p.nodes["a"].control + ",b=" + at + ",c=" + p.nodes["c"].control
	p.nodes["a"].args = []string{"--peers", peers}
	for _, id := range p.ids {
		p.start(id)
	}
	p.together("a", "b")
	p.together("a", "c")
	a, c := p.nodes["a"], p.nodes["c"]
	object := content("k", 0, 300_000)
	b.mustPut(t, "of b", object)
	c.mustPut(t, "of c", object)
	a.mustGet(t, "of b", object)

	resolve := func(lie func(*peerv1.ResolveReply)) func(proto.Message) {
		return func(m proto.Message) {
			if r, ok := m.(*peerv1.ResolveReply); ok && len(r.GetPages().GetPage()) > 1 {
				lie(r)
			}
		}
	}
	for name, lie := range map[string]func(proto.Message){
		"a size that its pages do not hold": resolve(func(r *peerv1.ResolveReply) { r.Size[0] *= 2 }),
		"a smaller size":                    resolve(func(r *peerv1.ResolveReply) { r.Size[0] = 1 }),
		"size 0":                            resolve(func(r *peerv1.ResolveReply) { r.Size[0] = 0 }),
		"a size near 2^64":                  resolve(func(r *peerv1.ResolveReply) { r.Size[0] = 1<<64 - 1 }),
		"a page past the buffer":            resolve(func(r *peerv1.ResolveReply) { r.Pages.Page[0] = 1<<32 - 1 }),
		"a buffer that is not there":        resolve(func(r *peerv1.ResolveReply) { r.Pages.Buffer[0] = 7 }),
		"a page too few": resolve(func(r *peerv1.ResolveReply) {
			r.Pages.Page, r.Pages.Buffer, r.Pages.Count[0] = r.Pages.Page[1:], r.Pages.Buffer[1:], r.Pages.Count[0]-1
		}),
		"columns of different length": resolve(func(r *peerv1.ResolveReply) { r.Status = append(r.Status, r.Status[0]) }),
		"an answer of no row":         resolve(func(r *peerv1.ResolveReply) { proto.Reset(r) }),
		"another version":             resolve(func(r *peerv1.ResolveReply) { r.Versions.Hi[0]++ }),
		"no version":                  resolve(func(r *peerv1.ResolveReply) { r.Versions.Hi[0], r.Versions.Lo[0] = 0, 0 }),
		"a lease that has ended":      resolve(func(r *peerv1.ResolveReply) { r.LeaseNanos[0] = -1 }),
		"no lease":                    resolve(func(r *peerv1.ResolveReply) { r.LeaseNanos[0] = 0 }),
		"a lease for ever":            resolve(func(r *peerv1.ResolveReply) { r.LeaseNanos[0] = 1<<63 - 1 }),
		"a status of the future":      resolve(func(r *peerv1.ResolveReply) { r.Status[0] = 99 }),
		"probes that find everything": func(m proto.Message) {
			if r, ok := m.(*peerv1.ProbeReply); ok {
				r.Status = append(r.Status, r.Status...)
			}
		},
		"a reservation of pages that are not there": func(m proto.Message) {
			if r, ok := m.(*peerv1.ReserveReply); ok && len(r.GetPages().GetPage()) > 0 {
				r.Pages.Page[0] = 1 << 30
			}
		},
		"a reservation with a token of its own": func(m proto.Message) {
			if r, ok := m.(*peerv1.ReserveReply); ok && len(r.GetTokens()) > 0 {
				r.Tokens[0] = bytes.Repeat([]byte{7}, len(r.Tokens[0]))
			}
		},
	} {
		key := "of b: " + name // a's view of another one is kept, and would hide the lie
		b.mustPut(t, key, object)
		told := l.told.Load()
		l.tell(lie)
		began := time.Now()
		r, got, err := a.get(t.Context(), key, span(10, 200_000))
		require.NoError(t, err, name)
		if r.GetStatus() == hit {
			requireBytes(t, pick(object, span(10, 200_000)), got)
		}
		a.mustGet(t, "of c", object)
		put, err := a.put(t.Context(), "new "+name, object, "b")
		require.NoError(t, err, name)
		require.Less(t, time.Since(began), 10*time.Second, name)
		require.Greater(t, l.told.Load(), told, "%s: it was not told", name)
		l.tell(func(proto.Message) {})
		t.Logf("%s: get %v (%s), put %v", name, r.GetStatus(), r.GetReason(), put.GetStatus())
		p.eventually(func() bool {
			r, got, err := a.get(t.Context(), key)
			require.NoError(t, err)
			if r.GetStatus() == hit {
				requireBytes(t, object, got)
			}
			return r.GetStatus() == hit
		}, "%s: the truth is not believed again", name)
		if put.GetStatus() == stored {
			b.mustGet(t, "new "+name, object)
		}
	}
	require.False(t, a.hasEnded())
	require.False(t, b.hasEnded())
}

// TestTheSocketIsClosedToOtherUsers: the mode can be changed, and who calls is looked at all the same.
func TestTheSocketIsClosedToOtherUsers(t *testing.T) {
	onLoopbackOnly(t, "a socket has no place but its host")
	if syscall.Geteuid() != 0 {
		t.Skip("only root can call as another user")
	}
	p := newPool(t, []string{"a"})
	a := p.nodes["a"]
	require.NoError(t, exec.Command("chmod", "777", filepath.Dir(p.dir), p.dir, a.socket).Run())
	require.NoError(t, exec.Command("chmod", "755", filepath.Dir(binary)).Run())
	as := func(uid uint32) (string, error) {
		c := exec.Command(binary, "ctl", "--socket", a.socket, "--timeout", "5s", "status")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	out, err := as(0)
	require.NoError(t, err, out)
	const nobody = 65534
	out, err = as(nobody)
	require.Error(t, err)
	require.Contains(t, out, "unavailable", "it cannot even say hello")
	require.NotContains(t, out, "permission denied", "it was the mode that kept it away")
	require.Equal(t, "a", nodeStatus(t, a).GetNode(), "and the others go on")
	require.Positive(t, nodeStatus(t, a).GetCounts()["engine.refused.user"])
}

func nodeStatus(t *testing.T, n *node) *enginev1.StatusReply {
	t.Helper()
	r, err := n.engine.Status(t.Context(), &enginev1.StatusRequest{})
	require.NoError(t, err)
	return r
}
