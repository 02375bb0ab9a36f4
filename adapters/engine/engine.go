package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// Config is what is served, and to what bounds. Pool is required; zero bounds are the defaults.
type Config struct {
	Pool     ports.Pool
	Self     ports.Peer
	Version  string
	Warnings []string        // shown by Status
	Notes    func() []string // more of those, as they are when Status is asked; it does not wait. nil: none
	Started  time.Time       // zero: now

	MaxBytes       uint64 // of objects in flight in messages, over all calls; default 1 GiB
	MaxClientBytes uint64 // in flight to and from registered memory, of each client; default 1 GiB
	MaxRegionBytes uint64 // of registered memory, over all clients; default 1 TiB. What the container's limit leaves is the caller's to say

	MaxClients  uint64 // at a time; default 256
	MaxRegions  uint64 // of a client; default 256
	MaxSessions uint64 // of a client, reads and writes together; default 1,024

	Devices   Devices  // nil: clients cannot lend a GPU's memory
	Checksums bool     // bytes from other nodes are checked
	Journal   *Journal // of what comes and goes; nil: there are no events
}

// The bounds that are not configured. A message holds a chunk of 1 MiB, or the keys of a large call.
const (
	defaultMaxBytes = 1 << 30
	defaultMapped   = 1 << 40
	maxMessage      = 8 << 20
	maxHold         = time.Hour
	callBound       = 10 * time.Second // a call of the pool, and the wait for another writer
	maxStreams      = 256
	chunk           = 256 << 10       // of a reply; arbitrary: large enough that the cost of a message does not show
	greetWithin     = 5 * time.Second // from a connection to its first bytes: Stop cannot end sooner while one is silent
	pingAfter       = 10 * time.Second
	pingAnswer      = 5 * time.Second
)

// Server answers the programs that are connected to its socket.
type Server struct {
	listener    net.Listener
	descriptors *descriptors
	grpc        *grpc.Server
	health      *health.Server
	calls       *calls
	stopping    context.CancelFunc // ends what would go on for ever: streams of events, and the reaper
	wg          sync.WaitGroup
}

// Listen takes the Unix socket at path; Serve answers on it. The file of a server that has ended is replaced; that of one which runs
// is an error, as is a file of another kind. The directory must be there.
func Listen(path string, c Config) (*Server, error) {
	if c.Pool == nil {
		return nil, errors.New("engine: Pool is needed")
	}
	for _, d := range []struct {
		have      *uint64
		otherwise uint64
	}{{&c.MaxBytes, defaultMaxBytes}, {&c.MaxClientBytes, defaultMaxBytes}, {&c.MaxRegionBytes, defaultMapped},
		{&c.MaxClients, defaultClients}, {&c.MaxRegions, defaultRegions}, {&c.MaxSessions, defaultSessions}} {
		if *d.have == 0 {
			*d.have = d.otherwise
		}
	}
	if c.Started.IsZero() {
		c.Started = time.Now()
	}
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("socket %q: %w", path, err)
	}
	count := new(counters)
	service := &calls{Config: c, bytes: budget{limit: c.MaxBytes}, count: count, clients: newClients(c, count), path: path, descriptorSocket: filepath.Base(path) + ".fd"}
	d, err := listenDescriptors(path+".fd", service.clients, c.Self.Incarnation)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &Server{listener: l, descriptors: d, health: health.NewServer(), calls: service}
	service.stopped, s.stopping = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.Creds(sameUser{refused: &count.refused[refusedUser]}),
		grpc.ConnectionTimeout(greetWithin),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingAnswer}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			return handle(traced(ctx), req)
		}),
		grpc.StreamInterceptor(func(srv any, st grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return handle(srv, &tracedStream{st, traced(st.Context())})
		}),
	)
	enginev1.RegisterEngineServer(s.grpc, s.calls)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	d.start()
	s.wg.Go(s.reap)
	return s, nil
}

// reap lets go of clients that never attached.
func (s *Server) reap() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-s.calls.stopped.Done():
			return
		case now := <-tick.C:
			s.calls.clients.reap(now)
		}
	}
}

// traced takes over the trace that an engine's call belongs to.
func traced(ctx context.Context) context.Context {
	if v := metadata.ValueFromIncomingContext(ctx, ports.TraceHeader); len(v) == 1 {
		return ports.WithTrace(ctx, ports.ParseTrace(v[0]))
	}
	return ctx
}

// tracedStream is a stream whose calls belong to that trace.
type tracedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context is the stream's, with the trace.
func (s *tracedStream) Context() context.Context { return s.ctx }

// Serve answers until Stop.
func (s *Server) Serve() error {
	if err := s.grpc.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("socket %q: %w", s.listener.Addr(), err)
	}
	return nil
}

// Stop refuses new calls and waits for those in progress, until ctx ends; then it breaks them off, and returns the context's cause.
// It always returns after the last call has, since GracefulStop waits for handlers even when Stop breaks their streams off, and it may
// have to wait for greetWithin: neither breaks a connection off that has not said a word.
func (s *Server) Stop(ctx context.Context) error {
	s.health.Shutdown()
	s.stopping()
	defer func() { // the last call has ended: nobody's memory is in use
		s.descriptors.stop()
		s.calls.clients.stop()
		s.wg.Wait()
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		_ = s.listener.Close() // Serve may never have been called; a second close is no matter
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
		_ = s.listener.Close()
		return context.Cause(ctx)
	}
}
