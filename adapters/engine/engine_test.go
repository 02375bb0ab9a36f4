package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// seen is what the tests saw servers count.
var seen porttest.Moved

func TestMain(m *testing.M) {
	seen.VerifyTestMain(m, map[string]string{
		"refused: user": "e2e's TestTheSocketIsClosedToOtherUsers: it takes another user",
	})
}

// pool is a map, with a gate that holds calls in progress.
type pool struct {
	ports.Pool // what is not below is not called
	mu         sync.Mutex
	objects    map[string][]byte
	err        error         // of every call
	entered    chan struct{} // a token for each get in progress; nil: none is held
	gate       chan struct{}
	asked      time.Duration // the hold
}

func (p *pool) BatchPutRanges(_ context.Context, b *ports.PutBatch, out []ports.Result) error {
	if p.err != nil {
		return p.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	object := make([]byte, b.Sizes[0])
	for _, r := range b.Ranges {
		copy(object[r.Off:r.Off+r.Len], b.Regions[r.Region].Region.(ports.HostRegion).Bytes()[r.RegionOff:])
	}
	p.objects[b.Namespace+"/"+b.Keys[0]] = object
	out[0] = ports.Result{Status: ports.Stored, Size: b.Sizes[0]}
	return nil
}

func (p *pool) BatchGetRanges(_ context.Context, b *ports.GetBatch, out []ports.Result) error {
	if p.entered != nil {
		p.entered <- struct{}{}
		<-p.gate
	}
	if p.err != nil {
		return p.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	object := p.objects[b.Namespace+"/"+b.Keys[0]]
	for _, r := range b.Ranges {
		if r.Len == 0 || r.Off+r.Len > uint64(len(object)) {
			out[0] = ports.Result{Status: ports.Invalid, Err: fmt.Errorf("range at %d: %w", r.Off, domain.ErrInvalid)}
			return nil
		}
		copy(b.Regions[r.Region].Region.(ports.HostRegion).Bytes()[r.RegionOff:r.RegionOff+r.Len], object[r.Off:])
	}
	out[0] = ports.Result{Status: ports.Hit, Source: ports.FromArena, Size: uint64(len(object)), Fetched: 3}
	return nil
}

func (p *pool) Get(_ context.Context, namespace, name string, b ports.HostRegion) ports.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	object := p.objects[namespace+"/"+name]
	if uint64(len(object)) > b.Len() {
		return ports.Result{Status: ports.TooLarge, Size: uint64(len(object))}
	}
	copy(b.Bytes(), object)
	return ports.Result{Status: ports.Hit, Source: ports.FromLocal, Size: uint64(len(object))}
}

func (p *pool) Size(_ context.Context, namespace, name string) (uint64, error) {
	if p.err != nil {
		return 0, p.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	object, ok := p.objects[namespace+"/"+name]
	if !ok {
		return 0, fmt.Errorf("size of %q: %w", name, ports.ErrNotFound)
	}
	if name == "grows" { // replaced between Size and Get
		p.objects[namespace+"/"+name] = append(object, 'x')
	}
	return uint64(len(object)), nil
}

func (p *pool) BatchExists(_ context.Context, namespace string, names []string, hold time.Duration, found []bool) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = hold
	for i, n := range names {
		_, found[i] = p.objects[namespace+"/"+n]
	}
	return max(slices.Index(found, false), 0), p.err
}

func (p *pool) Remove(_ context.Context, namespace string, names []string, out []ports.Removal) error {
	for i, n := range names {
		_, ok := p.objects[namespace+"/"+n]
		out[i] = ports.Removal{Found: ok, Unanswered: []ports.PeerID{"silent"}}
	}
	return p.err
}

func (p *pool) Stats() ports.Stats {
	s := ports.Stats{GetCalls: 5, Peers: []ports.PeerStats{{Peer: ports.Peer{ID: "z"}}, {
		Peer: ports.Peer{ID: "b", Incarnation: 9}, Transport: "tcp", Down: true, Failure: errors.New("no secret"),
		Refused: []ports.Refusal{{Kind: "rdma", Reason: "no device"}}}}}
	s.GetKeys[ports.Hit] = 4
	s.Peers[1].Wire[ports.PurposePull] = 11
	return s
}

// served is a server over a pool, and a client of it.
func served(t *testing.T, p *pool, c Config) (enginev1.EngineClient, *Server, string) {
	t.Helper()
	if p.objects == nil {
		p.objects = map[string][]byte{}
	}
	path := filepath.Join(t.TempDir(), "s")
	c.Pool, c.Self = p, ports.Peer{ID: "a", Incarnation: 7}
	s, err := Listen(path, c)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		_ = s.Stop(context.Background())
		require.NoError(t, <-done)
		c := s.Counts()
		for family, of := range map[string]map[string]uint64{"refused: ": c.Refused, "ended: ": c.Ended, "event: ": c.Events} {
			for name, v := range of {
				seen.Note(family+name, v)
			}
		}
	})
	return dial(t, path), s, path
}

func dial(t *testing.T, path string) enginev1.EngineClient {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return enginev1.NewEngineClient(conn)
}

func put(t *testing.T, c enginev1.EngineClient, parts ...*enginev1.PutRequest) (*enginev1.Result, error) {
	t.Helper()
	s, err := c.Put(t.Context())
	require.NoError(t, err)
	for _, m := range parts {
		if s.Send(m) != nil {
			break // the answer says why
		}
	}
	r, err := s.CloseAndRecv()
	return r.GetResult(), err
}

func header(key string, size uint64, ranges ...*enginev1.Range) *enginev1.PutRequest {
	return &enginev1.PutRequest{Header: &enginev1.PutHeader{Namespace: []byte("ns"), Key: []byte(key), Size: size, Ranges: ranges}}
}

func data(b string) *enginev1.PutRequest { return &enginev1.PutRequest{Data: []byte(b)} }

func get(t *testing.T, c enginev1.EngineClient, key string, ranges ...*enginev1.Range) (*enginev1.Result, string, error) {
	t.Helper()
	s, err := c.Get(t.Context(), &enginev1.GetRequest{Namespace: []byte("ns"), Key: []byte(key), Ranges: ranges})
	require.NoError(t, err)
	var result *enginev1.Result
	var b bytes.Buffer
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return result, b.String(), nil
		}
		if err != nil {
			return result, "", err
		}
		if m.GetResult() != nil {
			require.Nil(t, result, "two results")
			result = m.GetResult()
		}
		b.Write(m.GetData())
	}
}

func span(off, n uint64) *enginev1.Range { return &enginev1.Range{Off: off, Len: n} }

func TestBytesComeBackAsTheyWerePut(t *testing.T) {
	c, _, _ := served(t, &pool{}, Config{})
	large := strings.Repeat("0123456789abcde", chunk/8) // several chunks, none of them whole
	for _, parts := range [][]*enginev1.PutRequest{
		{header("k", uint64(len(large))), data(large[:7]), data(large[7 : chunk+7]), data(""), data(large[chunk+7:])},
		{{Header: header("k", uint64(len(large))).Header, Data: []byte(large)}},
	} {
		r, err := put(t, c, parts...)
		require.NoError(t, err)
		require.Equal(t, enginev1.KeyStatus_KEY_STATUS_STORED, r.GetStatus(), r.GetReason())
		r, got, err := get(t, c, "k")
		require.NoError(t, err)
		require.Equal(t, enginev1.KeyStatus_KEY_STATUS_HIT, r.GetStatus())
		require.Equal(t, enginev1.Source_SOURCE_LOCAL, r.GetSource())
		require.True(t, got == large)
	}
}

func TestRangesKeepTheirOrder(t *testing.T) {
	c, _, _ := served(t, &pool{}, Config{})
	r, err := put(t, c, header("k", 6, span(4, 2), span(0, 4)), data("efab"), data("cd"))
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_STORED, r.GetStatus())
	_, whole, err := get(t, c, "k")
	require.NoError(t, err)
	require.Equal(t, "abcdef", whole)
	r, got, err := get(t, c, "k", span(5, 1), span(1, 3))
	require.NoError(t, err)
	require.Equal(t, "fbcd", got)
	require.Equal(t, uint64(3), r.GetFetched())
}

func TestAPutThatIsNotWholeStoresNothing(t *testing.T) {
	p := &pool{}
	c, _, _ := served(t, p, Config{})
	for name, parts := range map[string][]*enginev1.PutRequest{
		"no header":       {data("x")},
		"second header":   {header("k", 2), header("k", 2)},
		"too few bytes":   {header("k", 5), data("abc")},
		"too many bytes":  {header("k", 2), data("abc")},
		"wrong in sum":    {header("k", 4, span(0, 3)), data("abc")},
		"no size":         {header("k", 0)},
		"size past limit": {header("k", 1<<41)},
		"ranges overflow": {header("k", 4, span(0, 1<<63), span(0, 1<<63), span(0, 4)), data("abcd")},
	} {
		r, err := put(t, c, parts...)
		if err == nil {
			require.Equal(t, enginev1.KeyStatus_KEY_STATUS_INVALID, r.GetStatus(), name)
			require.NotEmpty(t, r.GetReason(), name)
		} else {
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.Put(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Send(header("k", 4)))
	cancel()
	_, err = s.CloseAndRecv()
	// The end of the stream can reach the server before its cancellation does: then the object is too short.
	require.Contains(t, []codes.Code{codes.Canceled, codes.InvalidArgument}, status.Code(err), "%v", err)
	require.Empty(t, p.objects)
}

func TestBytesInFlightAreBounded(t *testing.T) {
	c, s, _ := served(t, &pool{objects: map[string][]byte{"ns/large": make([]byte, 9)}}, Config{MaxBytes: 8})
	r, err := put(t, c, header("k", 9), data("123456789"))
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_REFUSED, r.GetStatus())
	require.Contains(t, r.GetReason(), "bytes of a call: 9, limit 8")
	r, _, err = get(t, c, "large")
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_REFUSED, r.GetStatus())

	first, err := c.Put(t.Context())
	require.NoError(t, err)
	require.NoError(t, first.Send(header("slow", 8)))
	require.Eventually(t, func() bool {
		s.calls.bytes.mu.Lock()
		defer s.calls.bytes.mu.Unlock()
		return s.calls.bytes.mu.used == 8
	}, 5*time.Second, time.Millisecond)
	r, err = put(t, c, header("k", 1), data("1"))
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_BUSY, r.GetStatus())
	require.EqualValues(t, 3, s.Counts().Events["keys_over_bytes"])
	require.NoError(t, first.Send(data("12345678")))
	_, err = first.CloseAndRecv()
	require.NoError(t, err)
	r, err = put(t, c, header("k", 1), data("1"))
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_STORED, r.GetStatus(), "they were given back")
}

func TestAnObjectThatGrewMeanwhileIsReadWhole(t *testing.T) {
	c, _, _ := served(t, &pool{objects: map[string][]byte{"ns/grows": []byte("abc")}}, Config{})
	r, got, err := get(t, c, "grows")
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_HIT, r.GetStatus())
	require.Equal(t, "abcx", got)
}

func TestErrorsBecomeStatusesOrCodes(t *testing.T) {
	p := &pool{}
	c, _, _ := served(t, p, Config{})
	for _, tt := range []struct {
		err    error
		result enginev1.KeyStatus // of a whole get, or:
		code   codes.Code         // of Size, and of a whole get without a result
	}{
		{ports.ErrNotFound, enginev1.KeyStatus_KEY_STATUS_NOT_FOUND, codes.NotFound},
		{ports.ErrPeer, enginev1.KeyStatus_KEY_STATUS_PEER_UNAVAILABLE, codes.Unavailable},
		{domain.ErrInvalid, enginev1.KeyStatus_KEY_STATUS_INVALID, codes.InvalidArgument},
		{&domain.LimitError{What: "w"}, enginev1.KeyStatus_KEY_STATUS_INVALID, codes.InvalidArgument},
		{ports.ErrRefused, 0, codes.ResourceExhausted},
		{ports.ErrClosed, 0, codes.Unavailable},
		{errors.New("else"), 0, codes.Internal},
	} {
		p.err = fmt.Errorf("step: %w", tt.err)
		_, err := c.Size(t.Context(), &enginev1.SizeRequest{Namespace: []byte("ns"), Key: []byte("k")})
		require.Equal(t, tt.code, status.Code(err), tt.err)
		require.ErrorContains(t, err, p.err.Error())
		r, _, err := get(t, c, "k")
		if tt.result == 0 {
			require.Equal(t, tt.code, status.Code(err), tt.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.result, r.GetStatus())
		require.Equal(t, p.err.Error(), r.GetReason())
	}
}

func TestManyKeysAreAnsweredInTheirOrder(t *testing.T) {
	p := &pool{objects: map[string][]byte{"ns/a": nil, "ns/c": nil}}
	c, _, _ := served(t, p, Config{})
	keys := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
	e, err := c.Exists(t.Context(), &enginev1.ExistsRequest{Namespace: []byte("ns"), Keys: keys, HoldNanos: uint64(2 * time.Second)})
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, true}, e.GetFound())
	require.Equal(t, uint32(1), e.GetLeading())
	require.Equal(t, 2*time.Second, p.asked)
	_, err = c.Exists(t.Context(), &enginev1.ExistsRequest{Keys: keys, HoldNanos: 1 << 63})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	r, err := c.Remove(t.Context(), &enginev1.RemoveRequest{Namespace: []byte("ns"), Keys: keys})
	require.NoError(t, err)
	require.Len(t, r.GetRemovals(), 3)
	require.False(t, r.GetRemovals()[1].GetFound())
	require.Equal(t, []string{"silent"}, r.GetRemovals()[2].GetUnanswered())
}

func TestTheNodeSaysWhatItIs(t *testing.T) {
	c, _, _ := served(t, &pool{}, Config{Version: "v1", Warnings: []string{"insecure"}, Notes: func() []string { return []string{"as of now"} }, Started: time.Now().Add(-time.Hour)})
	s, err := c.Status(t.Context(), &enginev1.StatusRequest{})
	require.NoError(t, err)
	require.Equal(t, "a", s.GetNode())
	require.Equal(t, uint64(7), s.GetIncarnation())
	require.Equal(t, "v1", s.GetVersion())
	require.Equal(t, []string{"insecure", "as of now"}, s.GetWarnings())
	require.GreaterOrEqual(t, s.GetUptimeNanos(), uint64(time.Hour))
	require.Equal(t, uint64(4), s.GetCounts()["get_keys.hit"])
	for name := range s.GetCounts() {
		require.False(t, strings.HasSuffix(name, "."), "%q has no name for its last part", name)
	}
	p, err := c.Peers(t.Context(), &enginev1.PeersRequest{})
	require.NoError(t, err)
	require.Len(t, p.GetPeers(), 2)
	b := p.GetPeers()[0]
	require.Equal(t, "b", b.GetNode())
	require.Equal(t, uint64(9), b.GetIncarnation())
	require.Equal(t, "tcp", b.GetTransport())
	require.True(t, b.GetDown())
	require.Equal(t, "no secret", b.GetFailure())
	require.Equal(t, "no device", b.GetRefusals()[0].GetReason())
	require.Equal(t, map[string]uint64{"get": 0, "pull": 11, "put": 0}, b.GetWireBytes())
}

// TestNamesOnTheWireAreThePoolsNames: a status that is added to ports is one that the wire has to be told of.
func TestNamesOnTheWireAreThePoolsNames(t *testing.T) {
	for s := ports.Hit; s < ports.NumStatuses; s++ {
		require.Equal(t, "KEY_STATUS_"+strings.ToUpper(s.String()), statuses[s].String())
	}
	for s := ports.FromLocal; s < ports.NumSources; s++ {
		require.Equal(t, "SOURCE_"+strings.ToUpper(s.String()), sources[s].String())
	}
}

func TestCallsInProgressEndWellWhenTheServerStops(t *testing.T) {
	p := &pool{objects: map[string][]byte{"ns/k": []byte("abc")}, entered: make(chan struct{}), gate: make(chan struct{})}
	c, s, path := served(t, p, Config{})
	type answer struct {
		got string
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		_, got, err := get(t, c, "k", span(0, 3))
		answers <- answer{got, err}
	}()
	<-p.entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(context.Background()) }()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, 5*time.Second, time.Millisecond)
	close(p.gate)
	require.Equal(t, answer{"abc", nil}, <-answers)
	require.NoError(t, <-stopped)
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist, "it leaves no socket behind")
}

func TestASilentConnectionDoesNotHoldTheStop(t *testing.T) {
	c, s, path := served(t, &pool{}, Config{})
	silent, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer silent.Close()
	_, err = c.Status(t.Context(), &enginev1.StatusRequest{}) // over a later connection: the silent one is accepted
	require.NoError(t, err)
	begun := time.Now()
	require.NoError(t, s.Stop(context.Background()))
	require.Less(t, time.Since(begun), time.Minute, "what gRPC would wait by itself is two")
}

func TestCallsPastTheTimeAreBrokenOff(t *testing.T) {
	p := &pool{objects: map[string][]byte{"ns/k": []byte("abc")}, entered: make(chan struct{}), gate: make(chan struct{})}
	c, s, _ := served(t, p, Config{})
	failed := make(chan error, 1)
	go func() {
		_, _, err := get(t, c, "k", span(0, 3))
		failed <- err
	}()
	<-p.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(ctx) }()
	require.Equal(t, codes.Unavailable, status.Code(<-failed))
	select {
	case <-stopped:
		t.Fatal("Stop returned before the call had")
	case <-time.After(50 * time.Millisecond): // a slow machine sees less, and no failure
	}
	close(p.gate)
	require.ErrorIs(t, <-stopped, context.Canceled)
}

func TestTheSocketIsItsUsersAlone(t *testing.T) {
	_, _, path := served(t, &pool{}, Config{})
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())
	require.True(t, allowed(1000, 1000))
	require.True(t, allowed(0, 1000))
	require.False(t, allowed(1001, 1000))
	require.False(t, allowed(1000, 0))
}

func TestAStaleSocketIsReplacedAndALiveOneIsNot(t *testing.T) {
	_, _, path := served(t, &pool{}, Config{})
	_, err := Listen(path, Config{Pool: &pool{}})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, path)

	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	require.NoError(t, err)
	_, err = Listen(stale, Config{Pool: &pool{}})
	require.ErrorIs(t, err, syscall.EADDRINUSE, "another program's")
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	s, err := Listen(stale, Config{Pool: &pool{}})
	require.NoError(t, err)
	require.NoError(t, s.Stop(context.Background()))

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	_, err = Listen(file, Config{Pool: &pool{}})
	require.ErrorIs(t, err, os.ErrExist)
	left, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "precious", string(left))

}

func TestTheSocketsFolderIsMadeAndNoneAboveIt(t *testing.T) {
	dir := t.TempDir()
	s, err := Listen(filepath.Join(dir, "made", "s"), Config{Pool: &pool{}})
	require.NoError(t, err)
	require.NoError(t, s.Stop(context.Background()))

	_, err = Listen(filepath.Join(dir, "nowhere", "made", "s"), Config{Pool: &pool{}})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "nowhere")
	_, err = os.Stat(filepath.Join(dir, "nowhere"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestGarbageOnTheSocketHarmsNobody(t *testing.T) {
	c, _, path := served(t, &pool{}, Config{})
	for _, garbage := range []string{"", "\x00", "GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 4096)} {
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		_, _ = conn.Write([]byte(garbage))
		require.NoError(t, conn.Close())
	}
	_, err := c.Status(t.Context(), &enginev1.StatusRequest{})
	require.NoError(t, err)
}
