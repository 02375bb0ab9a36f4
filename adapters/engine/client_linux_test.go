package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// shelf is objects of many keys; sessions and registrations are counted. answer, where it is set, decides a key of a put.
type shelf struct {
	pool
	answer                 func(key string) ports.Status
	entered, leave         chan struct{} // of calls that move bytes; nil: none is held
	registered, reads, let int
	stuck                  error // of memory that is to be let go of
	aborted                []ports.WriteID
	opening                func(context.Context) error // of a session; nil: nobody is held
}

func (s *shelf) hold(ctx context.Context) {
	if s.entered == nil {
		return
	}
	s.entered <- struct{}{}
	select {
	case <-s.leave:
	case <-ctx.Done():
	}
}

func (s *shelf) BatchPutRanges(ctx context.Context, b *ports.PutBatch, out []ports.Result) error {
	s.hold(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	lo := uint32(0)
	for i, key := range b.Keys {
		object := make([]byte, b.Sizes[i])
		for _, r := range b.Ranges[lo:b.End[i]] {
			copy(object[r.Off:r.Off+r.Len], b.Regions[r.Region].Region.(ports.HostRegion).Bytes()[r.RegionOff:])
		}
		lo = b.End[i]
		out[i] = ports.Result{Status: ports.Stored, Size: b.Sizes[i]}
		if s.answer != nil {
			out[i].Status = s.answer(key)
		}
		if out[i].Status == ports.Stored {
			s.objects[b.Namespace+"/"+key] = object
		}
	}
	return nil
}

func (s *shelf) BatchGetRanges(ctx context.Context, b *ports.GetBatch, out []ports.Result) error {
	s.hold(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	lo := uint32(0)
	for i, key := range b.Keys {
		object, ok := s.objects[b.Namespace+"/"+key]
		out[i] = ports.Result{Status: ports.NotFound}
		for _, r := range b.Ranges[lo:b.End[i]] {
			if ok {
				copy(b.Regions[r.Region].Region.(ports.HostRegion).Bytes()[r.RegionOff:r.RegionOff+r.Len], object[r.Off:])
				out[i] = ports.Result{Status: ports.Hit, Source: ports.FromLocal, Fetched: 2, Joined: 3, Verified: true}
			}
		}
		lo = b.End[i]
	}
	return nil
}

func (s *shelf) RegisterMemory(_ context.Context, r ports.Region) (ports.Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered++
	return ports.Memory{Region: r, ID: ports.MemoryID(s.registered)}, nil
}

func (s *shelf) DeregisterMemory(context.Context, ports.MemoryID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.let++
	return s.stuck
}

func (s *shelf) OpenRead(ctx context.Context, _ string) (ports.SessionID, error) {
	if s.opening != nil {
		if err := s.opening(ctx); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return ports.SessionID(s.reads), nil
}

func (s *shelf) CloseRead(ports.SessionID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads--
	return nil
}

func (s *shelf) OpenWrite(ctx context.Context, _ string, names []string, _ []uint64, out []ports.Result) (ports.WriteID, error) {
	if s.opening != nil {
		if err := s.opening(ctx); err != nil {
			return 0, err
		}
	}
	for i := range names {
		out[i].Status = ports.Hit
	}
	return 5, nil
}

func (s *shelf) AbortWrite(id ports.WriteID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborted = append(s.aborted, id)
	return nil
}

// attached is a client of a served shelf, with its connection for descriptors.
type attached struct {
	t    *testing.T
	rpc  enginev1.EngineClient
	s    *Server
	hi   *enginev1.HelloReply
	conn *net.UnixConn
	call uint64
	mu   sync.Mutex
}

func attach(t *testing.T, p *shelf, c Config) *attached {
	t.Helper()
	rpc, s, path := served(t, &p.pool, c)
	s.calls.Pool, s.calls.clients.pool = p, p
	return another(t, rpc, s, path)
}

func another(t *testing.T, rpc enginev1.EngineClient, s *Server, path string) *attached {
	t.Helper()
	hi, err := rpc.Hello(t.Context(), &enginev1.HelloRequest{Protocol: 3, Namespace: []byte("ns"), Name: "test"})
	require.NoError(t, err)
	require.EqualValues(t, 1, hi.GetProtocol())
	a := &attached{t: t, rpc: rpc, s: s, hi: hi, conn: dialPackets(t, path)}
	reply, _ := a.ask(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Attach{Attach: &enginev1.Attach{Boot: hi.GetBoot(), Client: hi.GetClient()}}})
	require.Zero(t, reply.GetCode(), reply.GetReason())
	return a
}

func dialPackets(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path + ".fd", Net: "unixpacket"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	return conn
}

// caller numbers a call.
func (a *attached) caller() *enginev1.Caller {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.call++
	return &enginev1.Caller{Boot: a.hi.GetBoot(), Client: a.hi.GetClient(), Call: a.call}
}

func (a *attached) ask(req *enginev1.DescriptorRequest, files ...*os.File) (*enginev1.DescriptorReply, *os.File) {
	a.t.Helper()
	return ask(a.t, a.conn, req, files...)
}

func ask(t *testing.T, conn *net.UnixConn, req *enginev1.DescriptorRequest, files ...*os.File) (*enginev1.DescriptorReply, *os.File) {
	t.Helper()
	b, err := proto.Marshal(req)
	require.NoError(t, err)
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	require.NoError(t, err)
	in, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(in, oob)
	require.NoError(t, err)
	reply := new(enginev1.DescriptorReply)
	require.NoError(t, proto.Unmarshal(in[:n], reply))
	if got := filesOf(oob[:oobn]); len(got) == 1 {
		t.Cleanup(func() { _ = got[0].Close() })
		return reply, got[0]
	}
	return reply, nil
}

func (a *attached) register(f *os.File, off, n uint64) *enginev1.DescriptorReply {
	a.t.Helper()
	r, _ := a.ask(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_RegisterFile{RegisterFile: &enginev1.RegisterFile{Off: off, Len: n}}}, f)
	return r
}

// memory is a memfd with these seals, and its bytes.
func memory(t *testing.T, n int, seals int) (*os.File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, f.Truncate(int64(n)))
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	return f, b
}

// at is one range of a key.
func at(key string, size, region uint32, off uint64) *enginev1.Part {
	return lists([]string{key}, &enginev1.RangeLists{End: []uint32{1}, Off: []uint64{0}, Len: []uint64{uint64(size)}, Region: []uint32{region}, RegionOff: []uint64{off}})
}

func (a *attached) put(ctx context.Context, p *enginev1.Part) (*enginev1.RangesReply, error) {
	p.Sizes = []uint64{p.GetLists().GetLen()[0]}
	return a.rpc.BatchPutRanges(ctx, &enginev1.BatchPutRangesRequest{Caller: a.caller(), Parts: []*enginev1.Part{p}})
}

func (a *attached) get(ctx context.Context, p ...*enginev1.Part) (*enginev1.RangesReply, error) {
	return a.rpc.BatchGetRanges(ctx, &enginev1.BatchGetRangesRequest{Caller: a.caller(), Parts: p})
}

func (a *attached) count(name string) uint64 {
	a.t.Helper()
	r, err := a.rpc.Stats(a.t.Context(), &enginev1.StatsRequest{})
	require.NoError(a.t, err)
	n, ok := r.GetCounts()[name]
	require.True(a.t, ok, name)
	return n
}

func TestBytesGoThroughMemoryThatBothMap(t *testing.T) {
	p := &shelf{}
	a := attach(t, p, Config{})
	f, b := memory(t, 8192, unix.F_SEAL_SHRINK)
	r := a.register(f, 4096, 4000)
	require.Zero(t, r.GetCode(), r.GetReason())
	require.True(t, r.GetRegion().GetSealed())
	require.True(t, r.GetRegion().GetDirect())
	copy(b[4096+10:], "object")
	id := r.GetRegion().GetRegion()
	reply, err := a.put(t.Context(), at("k", 6, id, 10))
	require.NoError(t, err)
	require.Equal(t, []enginev1.KeyStatus{enginev1.KeyStatus_KEY_STATUS_STORED}, reply.GetStatus())
	reply, err = a.get(t.Context(), at("k", 6, id, 100), at("none", 6, id, 100), at("k", 6, id, 3995))
	require.NoError(t, err)
	require.Equal(t, "object", string(b[4096+100:4096+106]))
	require.Equal(t, []enginev1.KeyStatus{enginev1.KeyStatus_KEY_STATUS_HIT, enginev1.KeyStatus_KEY_STATUS_NOT_FOUND, enginev1.KeyStatus_KEY_STATUS_NOT_REGISTERED}, reply.GetStatus())
	require.EqualValues(t, 2, reply.GetFetched())
	require.EqualValues(t, 3, reply.GetJoined())
	require.EqualValues(t, 1, reply.GetVerified())
	require.EqualValues(t, 2, reply.GetFailures()[0].GetKey())
	require.EqualValues(t, 1, a.count("engine.keys_not_registered"))

	given, file := a.ask(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Allocate{Allocate: &enginev1.Allocate{Len: 5000}}})
	require.Zero(t, given.GetCode(), given.GetReason())
	require.NotNil(t, file)
	require.Error(t, file.Truncate(4096), "it is sealed")
	m, err := unix.Mmap(int(file.Fd()), 0, 5000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(m)) }()
	_, err = a.get(t.Context(), at("k", 6, given.GetRegion().GetRegion(), 4994))
	require.NoError(t, err)
	require.Equal(t, "object", string(m[4994:]))

	_, err = a.rpc.Deregister(t.Context(), &enginev1.DeregisterRequest{Caller: a.caller(), Regions: []uint32{id}})
	require.NoError(t, err)
	require.Equal(t, 1, p.let)
	reply, err = a.get(t.Context(), at("k", 6, id, 100))
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_NOT_REGISTERED, reply.GetStatus()[0])
	_, err = a.rpc.Deregister(t.Context(), &enginev1.DeregisterRequest{Caller: a.caller(), Regions: []uint32{id}})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.EqualValues(t, 1, a.count("engine.refused.unknown"))
	_, err = a.rpc.Deregister(t.Context(), &enginev1.DeregisterRequest{Caller: a.caller()})
	require.NoError(t, err)
	require.Zero(t, a.count("now.engine.region_bytes"))
}

func TestMemoryThatMayShrinkIsNeverReadIntoDirectly(t *testing.T) {
	a := attach(t, &shelf{}, Config{})
	f, _ := memory(t, 4096, 0)
	r := a.register(f, 0, 4096)
	require.Zero(t, r.GetCode(), r.GetReason())
	require.False(t, r.GetRegion().GetSealed())
	require.False(t, r.GetRegion().GetDirect())
}

func TestMemoryThatCannotBeMappedIsRefused(t *testing.T) {
	a := attach(t, &shelf{}, Config{MaxRegionBytes: 1 << 20})
	good, _ := memory(t, 8192, 0)
	readOnly, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	sealed := os.NewFile(uintptr(readOnly), "sealed")
	defer sealed.Close()
	require.NoError(t, sealed.Truncate(8192))
	_, err = unix.FcntlInt(sealed.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.NoError(t, err)
	disk, err := os.Open("client_linux_test.go")
	require.NoError(t, err)
	defer disk.Close()
	for name, tt := range map[string]struct {
		f      *os.File
		off, n uint64
		code   codes.Code
	}{
		"past the end":    {good, 4096, 4097, codes.InvalidArgument},
		"overflow":        {good, 4096, 1<<64 - 4096, codes.InvalidArgument},
		"nothing":         {good, 0, 0, codes.InvalidArgument},
		"not a page":      {good, 100, 100, codes.InvalidArgument},
		"sealed":          {sealed, 0, 4096, codes.InvalidArgument},
		"a file on disk":  {disk, 0, 100, codes.InvalidArgument},
		"over all limits": {good, 0, 1<<20 + 1, codes.ResourceExhausted},
	} {
		r := a.register(tt.f, tt.off, tt.n)
		require.Equal(t, tt.code, codes.Code(r.GetCode()), "%s: %s", name, r.GetReason())
		require.NotEmpty(t, r.GetReason(), name)
		require.Nil(t, r.GetRegion(), name)
	}
	require.Zero(t, a.count("now.engine.region_bytes"))
	require.Positive(t, a.count("engine.refused.limit"))
	for range defaultRegions {
		require.Zero(t, a.register(good, 0, 1).GetCode())
	}
	require.Equal(t, codes.ResourceExhausted, codes.Code(a.register(good, 0, 1).GetCode()), "regions of a client")
}

func TestPacketsThatSayNothingAreRefused(t *testing.T) {
	a := attach(t, &shelf{}, Config{})
	f, _ := memory(t, 4096, 0)
	reg := &enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_RegisterFile{RegisterFile: &enginev1.RegisterFile{Len: 4096}}}
	alloc := &enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Allocate{Allocate: &enginev1.Allocate{Len: 4096}}}
	again := &enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Attach{Attach: &enginev1.Attach{Boot: a.hi.GetBoot(), Client: a.hi.GetClient()}}}
	for name, reply := range map[string]*enginev1.DescriptorReply{
		"no descriptor":  first(a.ask(reg)),
		"two":            first(a.ask(reg, f, f)),
		"too many":       first(a.ask(reg, f, f, f, f, f, f)),
		"one for nobody": first(a.ask(alloc, f)),
		"attached twice": first(a.ask(again)),
	} {
		require.Equal(t, codes.InvalidArgument, codes.Code(reply.GetCode()), name)
	}
	other := dialPackets(t, a.s.calls.pathForTesting())
	require.Equal(t, codes.InvalidArgument, codes.Code(first(ask(t, other, reg, f)).GetCode()), "the first packet attaches")
	require.Equal(t, codes.InvalidArgument, codes.Code(first(ask(t, other, again)).GetCode()), "somebody has attached")
	wrong := proto.Clone(again).(*enginev1.DescriptorRequest)
	wrong.GetAttach().Boot++
	require.Equal(t, codes.FailedPrecondition, codes.Code(first(ask(t, other, wrong)).GetCode()))
	require.GreaterOrEqual(t, a.count("engine.refused.malformed"), uint64(5))
}

func first(r *enginev1.DescriptorReply, _ *os.File) *enginev1.DescriptorReply { return r }

// pathForTesting is the socket's path.
func (s *calls) pathForTesting() string { return s.path }

func TestACallerOfAnotherStartIsToldSo(t *testing.T) {
	a := attach(t, &shelf{}, Config{})
	for _, who := range []*enginev1.Caller{nil, {Boot: a.hi.GetBoot(), Client: []byte("nobody")}, {Boot: a.hi.GetBoot() + 1, Client: a.hi.GetClient()}} {
		_, err := a.rpc.BatchGetRanges(t.Context(), &enginev1.BatchGetRangesRequest{Caller: who})
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
	}
	require.EqualValues(t, 3, a.count("engine.refused.gone"))
	_, err := a.rpc.ReadRanges(t.Context(), &enginev1.ReadRangesRequest{Caller: a.caller(), Session: 3, Parts: []*enginev1.Part{at("k", 1, 1, 0)}})
	require.NoError(t, err, "no key is asked for: its memory is not registered")
	for _, call := range []func() error{
		func() error {
			_, err := a.rpc.CloseRead(t.Context(), &enginev1.CloseReadRequest{Caller: a.caller(), Session: 3})
			return err
		},
		func() error {
			_, err := a.rpc.Abort(t.Context(), &enginev1.AbortRequest{Caller: a.caller(), Session: 3})
			return err
		},
		func() error {
			_, err := a.rpc.Commit(t.Context(), &enginev1.CommitRequest{Caller: a.caller(), Session: 3})
			return err
		},
		func() error {
			_, err := a.rpc.NameKeys(t.Context(), &enginev1.NameKeysRequest{Caller: a.caller(), Handle: 3})
			return err
		},
		func() error {
			_, err := a.rpc.BatchExists(t.Context(), &enginev1.BatchExistsRequest{Caller: a.caller(), Keys: &enginev1.Keys{Handle: 3}})
			return err
		},
	} {
		require.Equal(t, codes.NotFound, status.Code(call()))
	}
}

// TestAClientThatGoesTakesAllWithIt: its call in progress, its sessions, its regions.
func TestAClientThatGoesTakesAllWithIt(t *testing.T) {
	p := &shelf{entered: make(chan struct{}, 1), leave: make(chan struct{})}
	a := attach(t, p, Config{})
	f, _ := memory(t, 4096, unix.F_SEAL_SHRINK)
	id := a.register(f, 0, 4096).GetRegion().GetRegion()
	_, err := a.rpc.OpenRead(t.Context(), &enginev1.OpenReadRequest{Caller: a.caller(), Keys: [][]byte{[]byte("k")}})
	require.NoError(t, err)
	_, err = a.rpc.OpenWrite(t.Context(), &enginev1.OpenWriteRequest{Caller: a.caller(), Keys: &enginev1.Keys{Names: [][]byte{[]byte("w")}}, Sizes: []uint64{1}})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := a.get(context.Background(), at("k", 6, id, 0))
		done <- err
	}()
	<-p.entered
	require.NoError(t, a.conn.Close())
	require.NoError(t, <-done, "it came to its end, and was answered")
	require.Eventually(t, func() bool { return a.count("now.engine.clients") == 0 }, 20*time.Second, time.Millisecond)
	require.Zero(t, a.count("now.engine.region_bytes"))
	require.EqualValues(t, 1, a.count("engine.ended.closed"))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Equal(t, []any{1, 1, 0, []ports.WriteID{5}}, []any{p.registered, p.let, p.reads, p.aborted})
	_, err = a.get(t.Context(), at("k", 6, id, 0))
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
}

func TestAClientThatNeverAttachesIsLetGo(t *testing.T) {
	a := attach(t, &shelf{}, Config{})
	_, err := a.rpc.Hello(t.Context(), &enginev1.HelloRequest{Protocol: 1})
	require.NoError(t, err)
	a.s.calls.clients.reap(time.Now())
	require.EqualValues(t, 2, a.count("now.engine.clients"))
	a.s.calls.clients.reap(time.Now().Add(attachWithin))
	require.EqualValues(t, 1, a.count("now.engine.clients"))
	require.EqualValues(t, 1, a.count("engine.ended.unattached"))
	_, err = a.get(t.Context())
	require.NoError(t, err, "who attached stays")
}

func TestQuiesceEndsCallsAndBarsThoseThatComeLater(t *testing.T) {
	p := &shelf{entered: make(chan struct{}, 2), leave: make(chan struct{})}
	a := attach(t, p, Config{})
	f, _ := memory(t, 4096, 0)
	id := a.register(f, 0, 4096).GetRegion().GetRegion()
	begin := func(call uint64) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := a.rpc.BatchGetRanges(context.Background(), &enginev1.BatchGetRangesRequest{
				Caller: &enginev1.Caller{Boot: a.hi.GetBoot(), Client: a.hi.GetClient(), Call: call}, Parts: []*enginev1.Part{at("k", 6, id, 0)}})
			done <- err
		}()
		return done
	}
	one, two := begin(1), begin(2)
	<-p.entered
	<-p.entered
	r, err := a.rpc.Quiesce(t.Context(), &enginev1.QuiesceRequest{Caller: &enginev1.Caller{Boot: a.hi.GetBoot(), Client: a.hi.GetClient(), Call: 9}, Calls: []uint64{2, 7}})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.GetEnded())
	require.NoError(t, <-two)
	require.Equal(t, codes.Canceled, status.Code(<-begin(7)), "it came too late")
	select {
	case <-one:
		require.FailNow(t, "call 1 was not meant")
	default:
	}
	r, err = a.rpc.Quiesce(t.Context(), &enginev1.QuiesceRequest{Caller: &enginev1.Caller{Boot: a.hi.GetBoot(), Client: a.hi.GetClient(), Call: 10}})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.GetEnded())
	require.NoError(t, <-one)
	require.Equal(t, codes.Canceled, status.Code(<-begin(8)))
	close(p.leave)
	require.NoError(t, <-begin(11))
	require.EqualValues(t, 2, a.count("engine.quiesced"))
	require.EqualValues(t, 2, a.count("engine.refused.barred"))
}

// TestCallsThatFailAsAWholeAreCountedByWhy: that the node could not is another thing than that their time was over.
func TestCallsThatFailAsAWholeAreCountedByWhy(t *testing.T) {
	p := &shelf{}
	a := attach(t, p, Config{})
	f, _ := memory(t, 4096, 0)
	id := a.register(f, 0, 4096).GetRegion().GetRegion()
	for _, c := range []struct {
		err  error
		name string
	}{
		{ports.ErrClosed, "failed"}, {context.DeadlineExceeded, "ended"}, {ports.ErrNotFound, "unknown"}, {ports.ErrRefused, "limit"}, {domain.ErrInvalid, "malformed"},
	} {
		p.mu.Lock()
		p.err = fmt.Errorf("step: %w", c.err)
		p.mu.Unlock()
		before := a.count("engine.refused." + c.name)
		_, err := a.get(t.Context(), at("k", 4, id, 0))
		require.Error(t, err)
		require.Equal(t, before+1, a.count("engine.refused."+c.name), c.name)
	}
}

// TestTheStopLetsClientsGo: with what they have; memory that a transport keeps is counted.
func TestTheStopLetsClientsGo(t *testing.T) {
	p := &shelf{stuck: errors.New("a transfer does not end")}
	a := attach(t, p, Config{})
	f, _ := memory(t, 4096, unix.F_SEAL_SHRINK)
	require.Zero(t, a.register(f, 0, 4096).GetCode())
	_ = a.s.Stop(t.Context())
	c := a.s.Counts()
	require.EqualValues(t, 1, c.Ended["stop"])
	require.EqualValues(t, 1, c.Events["regions_stuck"])
	require.Zero(t, c.Clients)
	require.Equal(t, 1, p.let)
}

func TestBytesInFlightOfAClientAreBounded(t *testing.T) {
	p := &shelf{entered: make(chan struct{}, 1), leave: make(chan struct{})}
	a := attach(t, p, Config{MaxClientBytes: 100})
	f, _ := memory(t, 4096, 0)
	id := a.register(f, 0, 4096).GetRegion().GetRegion()
	reply, err := a.get(t.Context(), at("k", 60, id, 0), at("k", 41, id, 0))
	require.NoError(t, err)
	require.Equal(t, []enginev1.KeyStatus{enginev1.KeyStatus_KEY_STATUS_REFUSED, enginev1.KeyStatus_KEY_STATUS_REFUSED}, reply.GetStatus())
	require.Contains(t, reply.GetFailures()[0].GetReason(), "101, limit 100")
	done := make(chan error, 1)
	go func() {
		_, err := a.get(context.Background(), at("k", 60, id, 0))
		done <- err
	}()
	<-p.entered
	reply, err = a.get(t.Context(), at("k", 41, id, 0))
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_BUSY, reply.GetStatus()[0])
	close(p.leave)
	require.NoError(t, <-done)
	reply, err = a.get(t.Context(), at("k", 100, id, 0))
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_NOT_FOUND, reply.GetStatus()[0], "they were given back")
	require.EqualValues(t, 3, a.count("engine.keys_over_bytes"))
}

func TestAPutWaitsForAnotherWriterAndTakesOverWhenItFails(t *testing.T) {
	for name, tt := range map[string]struct {
		then      ports.Status // what becomes of the other writer's key
		wait      *uint64
		due       enginev1.KeyStatus
		takeovers uint64
		over      uint64
	}{
		"the other commits": {then: ports.Exists, due: enginev1.KeyStatus_KEY_STATUS_EXISTS},
		"the other fails":   {then: ports.Stored, due: enginev1.KeyStatus_KEY_STATUS_STORED, takeovers: 1},
		"the other stays":   {then: ports.Busy, wait: proto.Uint64(uint64(20 * time.Millisecond)), due: enginev1.KeyStatus_KEY_STATUS_BUSY, over: 1},
		"nobody waits":      {then: ports.Stored, wait: proto.Uint64(0), due: enginev1.KeyStatus_KEY_STATUS_BUSY},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			p := &shelf{answer: func(key string) ports.Status {
				if key != "other's" {
					return ports.Stored
				}
				if asked++; asked <= 3 {
					return ports.Busy
				}
				return tt.then
			}}
			a := attach(t, p, Config{})
			f, b := memory(t, 4096, 0)
			copy(b, "0123456789")
			id := a.register(f, 0, 4096).GetRegion().GetRegion()
			part := lists([]string{"mine", "other's"}, &enginev1.RangeLists{End: []uint32{1, 2}, Off: []uint64{0, 0}, Len: []uint64{3, 3}, Region: []uint32{id}, RegionOff: []uint64{0, 5}}, 3)
			reply, err := a.rpc.BatchPutRanges(t.Context(), &enginev1.BatchPutRangesRequest{Caller: a.caller(), Parts: []*enginev1.Part{part}, WaitNanos: tt.wait})
			require.NoError(t, err)
			require.Equal(t, []enginev1.KeyStatus{enginev1.KeyStatus_KEY_STATUS_STORED, tt.due}, reply.GetStatus())
			require.Equal(t, tt.takeovers, a.count("engine.put_takeovers"))
			require.Equal(t, tt.over, a.count("engine.put_waits_over"))
			if tt.takeovers > 0 {
				require.Equal(t, "567", string(p.objects["ns/other's"]))
			}
		})
	}
}

func TestHandlesAreBoundedAndAppendedTo(t *testing.T) {
	p := &shelf{}
	a := attach(t, p, Config{})
	p.mu.Lock()
	p.objects["ns/k0"], p.objects["ns/k1"], p.objects["ns/k3"] = []byte("0"), []byte("1"), []byte("3")
	p.mu.Unlock()
	name := func(handle uint64, keys ...string) (*enginev1.NameKeysReply, error) {
		return a.rpc.NameKeys(t.Context(), &enginev1.NameKeysRequest{Caller: a.caller(), Handle: handle, Keys: func() (b [][]byte) {
			for _, k := range keys {
				b = append(b, []byte(k))
			}
			return b
		}()})
	}
	h, err := name(0, "k0", "k1")
	require.NoError(t, err)
	more, err := name(h.GetHandle(), "k2", "k3")
	require.NoError(t, err)
	require.Equal(t, []any{h.GetHandle(), uint32(4)}, []any{more.GetHandle(), more.GetKeys()})
	exists, err := a.rpc.BatchExists(t.Context(), &enginev1.BatchExistsRequest{Caller: a.caller(), Keys: &enginev1.Keys{Handle: h.GetHandle(), First: []uint32{3, 0}, Count: []uint32{1, 3}},
		HoldNanos: uint64(time.Second)})
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, true, false}, exists.GetFound())
	require.EqualValues(t, 3, exists.GetLeading())
	require.Equal(t, time.Second, p.asked)
	exists, err = a.rpc.BatchExists(t.Context(), &enginev1.BatchExistsRequest{Caller: a.caller(), Keys: &enginev1.Keys{Handle: h.GetHandle()}, LeadingOnly: true})
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, false, false}, exists.GetFound(), "what comes after the gap is not looked for")
	_, err = name(0, "")
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = a.rpc.NameKeys(t.Context(), &enginev1.NameKeysRequest{Caller: a.caller(), Handle: h.GetHandle(), Keys: [][]byte{{1}}, Rows: []uint64{1}})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "the others have no rows")
	_, err = a.rpc.DropKeys(t.Context(), &enginev1.DropKeysRequest{Caller: a.caller(), Handles: []uint64{h.GetHandle(), 99}})
	require.NoError(t, err)
	stats, err := a.rpc.Stats(t.Context(), &enginev1.StatsRequest{Caller: a.caller()})
	require.NoError(t, err)
	require.Zero(t, stats.GetClient()["handles"])
	c := a.s.calls.clients.find(a.hi.GetClient())
	require.Zero(t, c.mu.handleKeys)
	require.Zero(t, c.mu.handleBytes)
	for i := range maxHandles {
		_, _, err := c.name(0, [][]byte{fmt.Append(nil, i)}, nil)
		require.NoError(t, err)
	}
	_, err = name(0, "k")
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func FuzzPacket(f *testing.F) {
	b, err := proto.Marshal(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Allocate{Allocate: &enginev1.Allocate{Len: 1}}})
	require.NoError(f, err)
	f.Add(b, []byte{}, 0)
	f.Add([]byte{1}, unix.UnixRights()[:0], unix.MSG_CTRUNC)
	f.Add([]byte{}, append([]byte{18, 0, 0, 0, 0, 0, 0, 0, unix.SOL_SOCKET, 0, 0, 0, unix.SCM_RIGHTS}, make([]byte, 11)...), 0) // half a descriptor
	f.Fuzz(func(t *testing.T, b, oob []byte, flags int) {
		_, _ = parsePacket(b, flags)
		_ = rightsOf(oob) // made files of, they would close what is the test's
	})
}

// TestSessionsAreBoundedWhileTheyAreOpened: those that the pool is still asked for count too, and those that it refused do not.
func TestSessionsAreBoundedWhileTheyAreOpened(t *testing.T) {
	entered, leave := make(chan struct{}, 3), make(chan struct{})
	p := &shelf{opening: func(context.Context) error { return ports.ErrClosed }}
	a := attach(t, p, Config{MaxSessions: 2})
	read := func(ctx context.Context) (*enginev1.OpenReadReply, error) {
		return a.rpc.OpenRead(ctx, &enginev1.OpenReadRequest{Caller: a.caller()})
	}
	write := func(ctx context.Context) error {
		_, err := a.rpc.OpenWrite(ctx, &enginev1.OpenWriteRequest{Caller: a.caller(), Keys: &enginev1.Keys{Names: [][]byte{[]byte("k")}}, Sizes: []uint64{1}})
		return err
	}
	_, err := read(t.Context())
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)

	p.opening = func(ctx context.Context) error {
		entered <- struct{}{}
		select {
		case <-leave:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	opened, done := make(chan *enginev1.OpenReadReply, 1), make(chan error, 2)
	go func() {
		r, err := read(context.Background())
		opened <- r
		done <- err
	}()
	go func() { done <- write(context.Background()) }()
	<-entered
	<-entered
	_, err = read(within)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "3, limit 2")
	require.Equal(t, codes.ResourceExhausted, status.Code(write(within)))
	require.EqualValues(t, 2, a.count("engine.refused.limit"))
	close(leave)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	_, err = read(t.Context())
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "they are open")
	_, err = a.rpc.CloseRead(t.Context(), &enginev1.CloseReadRequest{Caller: a.caller(), Session: (<-opened).GetSession()})
	require.NoError(t, err)
	_, err = read(t.Context())
	require.NoError(t, err)
}
