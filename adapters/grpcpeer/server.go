package grpcpeer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// Server serves one start of a node to its peers, and gRPC health to everyone.
//
// States: made, serving (Serve, on any number of listeners), stopped (Stop). There is no way back: another start is another Server.
type Server struct {
	cfg    Config
	srv    ports.PeerServer
	grpc   *grpc.Server
	health *health.Server
	counts counts
	mu     struct { // guards the list only
		sync.Mutex
		listeners []*listener
		stopped   bool
	}
}

type counts struct{ unproven, strangers, crowded atomic.Uint64 }

// Counts is what a Server has turned away.
type Counts struct {
	Unproven  uint64 // connections whose end has not proven the secret, and calls on those that did not try
	Strangers uint64 // calls that named another node, or an asker that is not the one that was proven
	Crowded   uint64 // connections past Config.MaxConns, or past a quarter of it that have not proven the secret
}

// Header sizes and times of a Server. The former is far above what a call of a peer has; the latter say when a silent peer is gone,
// and how often it may ask whether we are.
const (
	maxHeaderBytes      = 16 << 10
	serverKeepaliveTime = 30 * time.Second
	minPingInterval     = keepaliveTime / 2
)

// NewServer makes a server of srv. Stop must be called.
func NewServer(cfg Config, srv ports.PeerServer) (*Server, error) {
	cfg, err := settle(cfg)
	if err != nil {
		return nil, fmt.Errorf("grpcpeer: %w", err)
	}
	s := &Server{cfg: cfg, srv: srv, health: health.NewServer()}
	s.grpc = grpc.NewServer(
		grpc.Creds(&ownerCreds{self: cfg.Self, secret: cfg.Secret, refused: &s.counts.unproven}),
		grpc.ConnectionTimeout(cfg.DialTimeout),
		grpc.MaxConcurrentStreams(cfg.MaxStreams),
		grpc.MaxRecvMsgSize(maxPartBytes), grpc.MaxSendMsgSize(maxPartBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.InitialWindowSize(partBytes), grpc.InitialConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverKeepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}))
	peerv1.RegisterPeerServer(s.grpc, &service{s: s})
	healthv1.RegisterHealthServer(s.grpc, s.health)
	return s, nil
}

// Serve answers on l until Stop, and closes it. It returns nil after Stop, one before Serve included.
func (s *Server) Serve(l net.Listener) error {
	counted := newListener(l, s.cfg.MaxConns, &s.counts.crowded)
	s.mu.Lock()
	s.mu.listeners = append(s.mu.listeners, counted)
	stopped := s.mu.stopped
	s.mu.Unlock()
	if stopped {
		_ = l.Close()
		return nil
	}
	if err := s.grpc.Serve(counted); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("grpcpeer: serve on %s: %w", l.Addr(), err)
	}
	return nil
}

// SetServing is what gRPC health says: a node that drains is not serving, and goes on answering.
func (s *Server) SetServing(serving bool) {
	now := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		now = healthv1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", now)
}

// Counts may be read at any time.
func (s *Server) Counts() Counts {
	return Counts{Unproven: s.counts.unproven.Load(), Strangers: s.counts.strangers.Load(), Crowded: s.counts.crowded.Load()}
}

// Stop takes no more calls, waits for those under way until ctx ends, and then cuts them off: their contexts end, and no answer of
// theirs goes out. It does not wait for a PeerServer that does not look at its context. Twice is allowed.
func (s *Server) Stop(ctx context.Context) {
	s.health.Shutdown()
	s.mu.Lock()
	s.mu.stopped = true
	listeners := s.mu.listeners
	s.mu.Unlock()
	if ctx.Err() == nil {
		drained := make(chan struct{})
		go func() { // ends with the last call
			defer close(drained)
			s.grpc.GracefulStop()
		}()
		select {
		case <-drained:
			return
		case <-ctx.Done():
		}
	}
	for _, l := range listeners {
		l.cut() // first: gRPC waits for handshakes before it ends connections
	}
	s.grpc.Stop()
}

// service is a Server as gRPC calls it.
type service struct {
	peerv1.UnimplementedPeerServer
	s *Server
}

// stream is a call as gRPC serves it.
type stream[Q, R any] interface {
	Context() context.Context
	Recv() (*Q, error)
	Send(*R) error
}

// call is what the first part of every request has.
type call interface {
	proto.Message
	GetEnds() *peerv1.Ends
}

// named is a pointer to a request of type T.
type named[T any] interface {
	*T
	call
}

// serve is one call: nothing is taken from an end that may not ask, and the PeerServer sees only what is whole.
func serve[T, R any, Q named[T]](s *Server, st stream[T, R], answer func(ctx context.Context, from ports.Peer, in Q) ([]*R, error)) error {
	from, in, err := receive[T, R, Q](s, st)
	if err != nil {
		return asStatus(err)
	}
	reply, err := answer(traced(st.Context()), from, in)
	if err != nil {
		return asStatus(err)
	}
	if err := st.Context().Err(); err != nil {
		return status.FromContextError(err).Err() // the asker's time is over: it gets no answer, not even one that came just so
	}
	for _, part := range reply {
		if err := st.Send(part); err != nil {
			return err // gRPC's own: the asker has gone
		}
	}
	return nil
}

// traced takes over the trace that the asker's call belongs to.
func traced(ctx context.Context) context.Context {
	if v := metadata.ValueFromIncomingContext(ctx, ports.TraceHeader); len(v) == 1 {
		return ports.WithTrace(ctx, ports.ParseTrace(v[0]))
	}
	return ctx
}

func receive[T, R any, Q named[T]](s *Server, st stream[T, R]) (from ports.Peer, in Q, err error) {
	known, err := s.proof(st.Context())
	if err != nil {
		return from, nil, err
	}
	var all whole[Q]
	for {
		part, err := st.Recv()
		switch {
		case errors.Is(err, io.EOF) && all.parts == 0:
			return from, nil, fmt.Errorf("call without a message: %w", domain.ErrInvalid)
		case errors.Is(err, io.EOF):
			return from, all.message, nil
		case err != nil:
			return from, nil, err
		}
		if all.parts == 0 {
			_, hello := any(part).(*peerv1.HelloRequest)
			if from, err = s.admit(Q(part).GetEnds(), known, hello); err != nil {
				return from, nil, err
			}
		}
		if err := all.add(part, s.cfg.MaxCallBytes); err != nil {
			return from, nil, err
		}
	}
}

// proof is who has proven the secret on the connection of a call; the zero Peer where there is none to prove.
func (s *Server) proof(ctx context.Context) (ports.Peer, error) {
	if len(s.cfg.Secret) == 0 {
		return ports.Peer{}, nil
	}
	if p, ok := peer.FromContext(ctx); ok {
		if known, ok := p.AuthInfo.(proven); ok && known.from.ID != "" {
			return known.from, nil
		}
	}
	s.counts.unproven.Add(1)
	return ports.Peer{}, fmt.Errorf("%q wants the shared secret proven: %w: %w", s.cfg.Self.ID, ports.ErrPeer, ErrSecret)
}

// admit refuses a call that is not from whom it says, or not to this start.
func (s *Server) admit(ends *peerv1.Ends, known ports.Peer, anyStart bool) (ports.Peer, error) {
	from, to, self := startIn(ends.GetFrom()), startIn(ends.GetTo()), s.cfg.Self
	if err := CheckID(from.ID); err != nil {
		return from, fmt.Errorf("the asker's id: %w", err)
	}
	switch {
	case from.Incarnation == 0:
		return from, fmt.Errorf("%q asks as start 0: %w", from.ID, domain.ErrInvalid)
	case known.ID != "" && known != from:
		s.counts.strangers.Add(1)
		return from, fmt.Errorf("%q, start %d, asks as %q, start %d: %w: %w", known.ID, known.Incarnation, from.ID, from.Incarnation, ports.ErrPeer, ErrSecret)
	case to.ID != self.ID:
		s.counts.strangers.Add(1)
		return from, fmt.Errorf("%q was named, %q answers: %w", to.ID, self.ID, ports.ErrPeer)
	case to.Incarnation != self.Incarnation && !(anyStart && to.Incarnation == 0):
		return from, fmt.Errorf("start %d was named, %d answers: %w", to.Incarnation, self.Incarnation, ports.ErrRestarted)
	}
	return from, nil
}

// Hello serves PeerServer.Hello.
func (v *service) Hello(st grpc.BidiStreamingServer[peerv1.HelloRequest, peerv1.HelloReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.HelloRequest) ([]*peerv1.HelloReply, error) {
		var out ports.HelloReply
		if err := v.s.srv.Hello(ctx, from, helloIn(from, in), &out); err != nil {
			return nil, err
		}
		m := helloReplyOut(&out)
		return parts(m, v.s.cfg.MaxCallBytes, cutHelloReply(m))
	})
}

// Probe serves PeerServer.Probe.
func (v *service) Probe(st grpc.BidiStreamingServer[peerv1.ProbeRequest, peerv1.ProbeReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.ProbeRequest) ([]*peerv1.ProbeReply, error) {
		keys, err := keysIn(in.GetKeys())
		if err != nil {
			return nil, err
		}
		var out ports.ProbeReply
		if err := v.s.srv.Probe(ctx, from, keys, &out); err != nil {
			return nil, err
		}
		m, err := probeReplyOut(&out)
		if err != nil {
			return nil, unanswerable(err)
		}
		return parts(m, v.s.cfg.MaxCallBytes, cutProbeReply(m))
	})
}

// Resolve serves PeerServer.Resolve.
func (v *service) Resolve(st grpc.BidiStreamingServer[peerv1.ResolveRequest, peerv1.ResolveReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.ResolveRequest) ([]*peerv1.ResolveReply, error) {
		req, err := resolveIn(in)
		if err != nil {
			return nil, err
		}
		var out ports.ResolveReply
		if err := v.s.srv.Resolve(ctx, from, req, &out); err != nil {
			return nil, err
		}
		m, err := resolveReplyOut(&out)
		if err != nil {
			return nil, unanswerable(err)
		}
		return parts(m, v.s.cfg.MaxCallBytes, cutResolveReply(m))
	})
}

// Complain serves PeerServer.Complain.
func (v *service) Complain(st grpc.BidiStreamingServer[peerv1.ComplainRequest, peerv1.ComplainReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.ComplainRequest) ([]*peerv1.ComplainReply, error) {
		held, err := complainIn(in)
		if err != nil {
			return nil, err
		}
		return []*peerv1.ComplainReply{{}}, v.s.srv.Complain(ctx, from, held)
	})
}

// Reserve serves PeerServer.Reserve.
func (v *service) Reserve(st grpc.BidiStreamingServer[peerv1.ReserveRequest, peerv1.ReserveReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.ReserveRequest) ([]*peerv1.ReserveReply, error) {
		req, err := reserveIn(in)
		if err != nil {
			return nil, err
		}
		var out ports.ReserveReply
		if err := v.s.srv.Reserve(ctx, from, req, &out); err != nil {
			return nil, err
		}
		m, err := reserveReplyOut(&out)
		if err != nil {
			return nil, unanswerable(err)
		}
		return parts(m, v.s.cfg.MaxCallBytes, cutReserveReply(m))
	})
}

// Commit serves PeerServer.Commit.
func (v *service) Commit(st grpc.BidiStreamingServer[peerv1.CommitRequest, peerv1.CommitReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.CommitRequest) ([]*peerv1.CommitReply, error) {
		req, err := commitIn(in)
		if err != nil {
			return nil, err
		}
		var out []ports.CommitStatus
		if err := v.s.srv.Commit(ctx, from, req, &out); err != nil {
			return nil, err
		}
		m := commitReplyOut(out)
		return parts(m, v.s.cfg.MaxCallBytes, cutCommitReply(m))
	})
}

// Abort serves PeerServer.Abort.
func (v *service) Abort(st grpc.BidiStreamingServer[peerv1.AbortRequest, peerv1.AbortReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.AbortRequest) ([]*peerv1.AbortReply, error) {
		keys, versions, err := abortIn(in)
		if err != nil {
			return nil, err
		}
		return []*peerv1.AbortReply{{}}, v.s.srv.Abort(ctx, from, keys, versions, ports.Quiet(in.GetQuiet()))
	})
}

// Remove serves PeerServer.Remove.
func (v *service) Remove(st grpc.BidiStreamingServer[peerv1.RemoveRequest, peerv1.RemoveReply]) error {
	return serve(v.s, st, func(ctx context.Context, from ports.Peer, in *peerv1.RemoveRequest) ([]*peerv1.RemoveReply, error) {
		keys, err := keysIn(in.GetKeys())
		if err != nil {
			return nil, err
		}
		var out []ports.KeyStatus
		if err := v.s.srv.Remove(ctx, from, keys, &out); err != nil {
			return nil, err
		}
		m := removeReplyOut(out)
		return parts(m, v.s.cfg.MaxCallBytes, cutRemoveReply(m))
	})
}

// unanswerable is columns of our own PeerServer that contradict each other. The asker did nothing wrong.
func unanswerable(err error) error {
	return fmt.Errorf("reply: %v: %w", err, ports.ErrPeer)
}

// cloneNames gives each name a memory of its own: a reservation is kept, and would keep all that came with it.
func cloneNames(keys []ports.Key) {
	for i := range keys {
		keys[i].Name = strings.Clone(keys[i].Name)
	}
}
