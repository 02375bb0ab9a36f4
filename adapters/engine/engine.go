package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// Config is what is served, and to what bounds. Pool is required; zero bounds are the defaults.
type Config struct {
	Pool     ports.Pool
	Self     ports.Peer
	Version  string
	Warnings []string  // shown by Status
	Started  time.Time // zero: now

	MaxBytes uint64 // of objects in flight, over all calls; default 1 GiB
}

// The bounds that are not configured. A message holds a chunk of 1 MiB, or the keys of a large call.
const (
	defaultMaxBytes = 1 << 30
	maxMessage      = 4 << 20
	maxStreams      = 256
	chunk           = 256 << 10 // of a reply; arbitrary: large enough that the cost of a message does not show
	pingAfter       = 10 * time.Second
	pingAnswer      = 5 * time.Second
)

// Server answers the programs that are connected to its socket.
type Server struct {
	listener net.Listener
	grpc     *grpc.Server
	health   *health.Server
	calls    *calls
}

// Listen takes the Unix socket at path; Serve answers on it. The file of a server that has ended is replaced; that of one which runs
// is an error, as is a file of another kind. The directory must be there.
func Listen(path string, c Config) (*Server, error) {
	if c.Pool == nil {
		return nil, errors.New("engine: Pool is needed")
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.Started.IsZero() {
		c.Started = time.Now()
	}
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("socket %q: %w", path, err)
	}
	s := &Server{listener: l, health: health.NewServer(), calls: &calls{Config: c, bytes: budget{limit: c.MaxBytes}}}
	s.grpc = grpc.NewServer(
		grpc.Creds(sameUser{}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingAnswer}),
	)
	enginev1.RegisterEngineServer(s.grpc, s.calls)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	return s, nil
}

// Serve answers until Stop.
func (s *Server) Serve() error {
	if err := s.grpc.Serve(s.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("socket %q: %w", s.listener.Addr(), err)
	}
	return nil
}

// Stop refuses new calls and waits for those in progress, until ctx ends; then it breaks them off, and returns the context's cause.
// It always returns after the last call has, since GracefulStop waits for handlers even when Stop breaks their streams off.
func (s *Server) Stop(ctx context.Context) error {
	s.health.Shutdown()
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
