package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	words "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// The bounds of these tests' waits: none is slept through. soon is far above what any of them takes on a quiet machine.
const (
	soon  = 20 * time.Second
	often = 2 * time.Millisecond
)

// pool is serve processes on loopback that have each other in their static lists.
type pool struct {
	t     *testing.T
	dir   string
	args  []string
	nodes map[string]*node
	ids   []string
}

// node is one serve process over all of its starts, at the same addresses.
type node struct {
	id                  string
	place               *place
	socket              string // as this host reaches it, like http
	control, data, http string
	relayed             string // where peers reach control; empty: there
	socketThere         string // as its own host has it, like httpThere
	httpThere           string
	args                []string // of this node alone

	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process of this start has ended
	log    *log
	engine enginev1.EngineClient
	conn   *grpc.ClientConn
}

// log is what a process wrote.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(b) }
func (l *log) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

// newPool starts nodes of 16 MiB over tcp with these arguments, which win over what they have otherwise, and waits until all see each other.
func newPool(t *testing.T, ids []string, args ...string) *pool {
	t.Helper()
	p := layOut(t, ids, args...)
	for _, id := range ids {
		p.start(id)
	}
	p.together(ids...)
	return p
}

// layOut gives nodes their addresses and starts none.
func layOut(t *testing.T, ids []string, args ...string) *pool {
	t.Helper()
	p := &pool{t: t, dir: t.TempDir(), args: args, nodes: make(map[string]*node), ids: ids}
	free := func(address string) string { return freeAddress(t, address) }
	for i, id := range ids {
		at := places[i%len(places)]
		n := &node{id: id, place: at, socket: filepath.Join(p.dir, id), http: free("127.0.0.1")}
		n.socketThere, n.httpThere = n.socket, n.http
		if at.ssh == "" {
			n.control, n.data = free(at.address), free(at.address)
		} else {
			n.control, n.data = net.JoinHostPort(at.address, somePort()), net.JoinHostPort(at.address, somePort())
			n.socketThere, n.httpThere = at.dir+"/"+id+somePort(), "127.0.0.1:"+somePort()
		}
		p.nodes[id] = n
	}
	for _, n := range p.nodes {
		if n.place.ssh != "" {
			n.tunnel(t)
		}
	}
	t.Cleanup(p.end)
	return p
}

// nextPort starts somewhere in half of the range, so that two runs at once rarely ask for the same port.
var nextPort = func() *atomic.Int64 {
	var n atomic.Int64
	n.Store(10_000 + rand.Int64N(10_000))
	return &n
}()

// freeAddress is one that nobody listens at. Its port is below those that the kernel gives to connections and to listeners that
// name none, so that it is still free when the node starts.
func freeAddress(t *testing.T, address string) string {
	t.Helper()
	for range 1_000 {
		l, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(nextPort.Add(1))))
		if err == nil {
			require.NoError(t, l.Close())
			return l.Addr().String()
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
	require.FailNow(t, "no free port", "at %s, up to %d", address, nextPort.Load())
	return ""
}

func (p *pool) peers() string {
	var list []string
	for _, id := range p.ids {
		list = append(list, id+"="+cmp.Or(p.nodes[id].relayed, p.nodes[id].control))
	}
	return strings.Join(list, ",")
}

// start runs a node and waits until it is ready.
func (p *pool) start(id string) *node {
	p.t.Helper()
	n := p.nodes[id]
	n.log, n.ended = &log{}, make(chan struct{})
	args := append([]string{"serve", "--node-id", id, "--listen", n.control, "--data-listen", n.data, "--http", n.httpThere,
		"--socket", n.socketThere, "--peers", p.peers(), "--dram-bytes", "16MiB", "--arena-get-bytes", "4MiB", "--arena-put-bytes", "4MiB",
		"--secret-file", n.place.secretFile}, overRDMA(p.ids, id)...)
	args = append(args, p.args...)
	n.cmd = n.place.command(append(args, n.args...)...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	require.NoError(p.t, n.cmd.Start())
	go func(c *exec.Cmd, ended chan struct{}) { _ = c.Wait(); close(ended) }(n.cmd, n.ended)
	p.eventually(func() bool { return readyz(n.http) || n.hasEnded() }, "%s is not ready", id)
	require.False(p.t, n.hasEnded(), "%s ended: %s", id, n.log)
	conn, err := grpc.NewClient("unix:"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(p.t, err)
	n.conn, n.engine = conn, enginev1.NewEngineClient(conn)
	return n
}

func readyz(at string) bool {
	c := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get("http://" + at + "/readyz")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// together waits until each of these nodes has a transport to each other one.
func (p *pool) together(ids ...string) {
	p.t.Helper()
	for _, a := range ids {
		for _, b := range ids {
			if a != b {
				p.eventually(func() bool { return p.nodes[a].peer(p.t, b).GetTransport() != "" }, "%s has no way to %s", a, b)
			}
		}
	}
}

// eventually polls until it is so.
func (p *pool) eventually(so func() bool, what string, args ...any) {
	p.t.Helper()
	limit := soon
	if len(rdmaDevices()) > 0 {
		limit *= 4 // their processor may be emulated, on a busy machine
	}
	within(p.t, limit, so, what, args...)
}

func within(t *testing.T, limit time.Duration, so func() bool, what string, args ...any) {
	t.Helper()
	tick := time.NewTicker(often)
	defer tick.Stop()
	for end := time.Now().Add(limit); !so(); <-tick.C {
		if time.Now().After(end) {
			require.FailNow(t, fmt.Sprintf(what, args...), "after %v", limit)
		}
	}
}

func (n *node) hasEnded() bool {
	select {
	case <-n.ended:
		return true
	default:
		return false
	}
}

// kill is kill -9, and waits until the process is gone.
func (n *node) kill(t *testing.T) {
	t.Helper()
	n.signal(t, syscall.SIGKILL)
	<-n.ended
	_ = n.conn.Close()
}

// end stops what still runs, and shows the logs of a test that failed.
func (p *pool) end() {
	for _, id := range p.ids {
		n := p.nodes[id]
		if n.cmd == nil {
			continue
		}
		if !n.hasEnded() {
			n.signal(p.t, syscall.SIGKILL) // a stopped process too
		}
		<-n.ended
		if n.conn != nil {
			_ = n.conn.Close()
		}
		if p.t.Failed() {
			p.t.Logf("%s:\n%s", id, n.log)
		}
		require.NotContains(p.t, n.log.String(), "goroutine ", "%s panicked", id)
	}
}

// counts is what a node counted.
func (n *node) counts(t *testing.T) map[string]uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	r, err := n.engine.Status(ctx, &enginev1.StatusRequest{})
	require.NoError(t, err)
	return r.GetCounts()
}

// peer is how a node stands with another.
func (n *node) peer(t *testing.T, id string) *enginev1.PeerState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	r, err := n.engine.Peers(ctx, &enginev1.PeersRequest{})
	require.NoError(t, err)
	for _, p := range r.GetPeers() {
		if p.GetNode() == id {
			return p
		}
	}
	return nil
}

// ctl runs a ctl command against a node.
func (n *node) ctl(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return spanpool(t, append([]string{"ctl", "--socket", n.socket}, args...)...)
}

// content is an object's bytes: each 8-byte word says which object and which place it is of.
func content(key string, salt uint64, size int) []byte {
	h := salt
	for _, b := range []byte(key) {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	out := make([]byte, (size+7)/8*8)
	for i := 0; i < len(out); i += 8 {
		x := h + uint64(i)*0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		words.LittleEndian.PutUint64(out[i:], x^x>>31)
	}
	return out[:size]
}

// put stores bytes by the node's socket, on the node to when it is not empty.
func (n *node) put(ctx context.Context, key string, b []byte, to string) (*enginev1.Result, error) {
	s, err := n.engine.Put(ctx)
	if err != nil {
		return nil, err
	}
	m := &enginev1.PutRequest{Header: &enginev1.PutHeader{Key: []byte(key), Size: uint64(len(b)), To: to}}
	for len(b) > 0 || m.GetHeader() != nil {
		c := min(len(b), 1<<20)
		m.Data = b[:c]
		if s.Send(m) != nil {
			break // the answer says why
		}
		b, m = b[c:], &enginev1.PutRequest{}
	}
	r, err := s.CloseAndRecv()
	return r.GetResult(), err
}

func (n *node) mustPut(t *testing.T, key string, b []byte) {
	t.Helper()
	r, err := n.put(t.Context(), key, b, "")
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_STORED, r.GetStatus(), "put %s: %s", key, r.GetReason())
}

// errHalf is an answer that ended in its middle.
var errHalf = errors.New("half of an answer")

// get reads ranges, or all.
func (n *node) get(ctx context.Context, key string, ranges ...*enginev1.Range) (*enginev1.Result, []byte, error) {
	s, err := n.engine.Get(ctx, &enginev1.GetRequest{Key: []byte(key), Ranges: ranges})
	if err != nil {
		return nil, nil, err
	}
	var r *enginev1.Result
	var b []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return r, b, nil
		}
		if err != nil && r != nil {
			err = fmt.Errorf("%w: %w", errHalf, err)
		}
		if err != nil {
			return nil, nil, err
		}
		if m.GetResult() != nil {
			r = m.GetResult()
		}
		b = append(b, m.GetData()...)
	}
}

func span(off, n int) *enginev1.Range {
	return &enginev1.Range{Off: uint64(off), Len: uint64(n)}
}

// mustGet reads and compares.
func (n *node) mustGet(t *testing.T, key string, want []byte, ranges ...*enginev1.Range) *enginev1.Result {
	t.Helper()
	r, got, err := n.get(t.Context(), key, ranges...)
	require.NoError(t, err)
	require.Equal(t, hit, r.GetStatus(), "get %s at %s: %s", key, n.id, r.GetReason())
	requireBytes(t, pick(want, ranges...), got)
	return r
}

// pick is the bytes that ranges name, one behind the other.
func pick(b []byte, ranges ...*enginev1.Range) []byte {
	if len(ranges) == 0 {
		return b
	}
	var out []byte
	for _, r := range ranges {
		out = append(out, b[r.GetOff():r.GetOff()+r.GetLen()]...)
	}
	return out
}

// requireBytes does not print megabytes.
func requireBytes(t *testing.T, want, got []byte) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if want[i] != got[i] {
			require.FailNow(t, "wrong bytes", "from %d of %d on", i, len(want))
		}
	}
}

const (
	hit    = enginev1.KeyStatus_KEY_STATUS_HIT
	stored = enginev1.KeyStatus_KEY_STATUS_STORED
)

func unavailable(err error) bool { return status.Code(err) == codes.Unavailable }

func write(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}
