package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// PeerServer puts spans in front of what peers ask for in some trace. What they do by themselves, such as renewing leases, has none.
func (t *Tracing) PeerServer(s ports.PeerServer) ports.PeerServer {
	if t == nil {
		return s
	}
	return &tracedServer{s, t}
}

type tracedServer struct {
	ports.PeerServer
	t *Tracing
}

func (s *tracedServer) Probe(ctx context.Context, from ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
	return s.call(ctx, "probe", from, len(keys), func(ctx context.Context) error { return s.PeerServer.Probe(ctx, from, keys, out) })
}

func (s *tracedServer) Resolve(ctx context.Context, from ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	return s.call(ctx, "resolve", from, len(req.Keys), func(ctx context.Context) error { return s.PeerServer.Resolve(ctx, from, req, out) })
}

func (s *tracedServer) Complain(ctx context.Context, from ports.Peer, held []domain.Generation) error {
	return s.call(ctx, "complain", from, len(held), func(ctx context.Context) error { return s.PeerServer.Complain(ctx, from, held) })
}

func (s *tracedServer) Reserve(ctx context.Context, from ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error {
	return s.call(ctx, "reserve", from, len(req.Keys), func(ctx context.Context) error { return s.PeerServer.Reserve(ctx, from, req, out) })
}

func (s *tracedServer) Commit(ctx context.Context, from ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error {
	return s.call(ctx, "commit", from, len(req.Keys), func(ctx context.Context) error { return s.PeerServer.Commit(ctx, from, req, out) })
}

func (s *tracedServer) Abort(ctx context.Context, from ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error {
	return s.call(ctx, "abort", from, len(keys), func(ctx context.Context) error { return s.PeerServer.Abort(ctx, from, keys, versions, quiet) })
}

func (s *tracedServer) Remove(ctx context.Context, from ports.Peer, keys []ports.Key, out *[]ports.KeyStatus) error {
	return s.call(ctx, "remove", from, len(keys), func(ctx context.Context) error { return s.PeerServer.Remove(ctx, from, keys, out) })
}

func (s *tracedServer) call(ctx context.Context, name string, from ports.Peer, rows int, do func(context.Context) error) error {
	if ports.TraceOf(ctx).IsZero() {
		return do(ctx)
	}
	ctx, span := s.t.begin(ctx, "spanpool.peer."+name, trace.SpanKindServer,
		attribute.String("spanpool.peer", string(from.ID)), attribute.Int("spanpool.rows", rows))
	defer span.End()
	err := do(ctx)
	if err != nil {
		fail(span, err)
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}
