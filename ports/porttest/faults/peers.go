package faults

import (
	"context"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

type resolver struct {
	i     *Injector
	inner ports.PeerResolver
}

// Resolver wraps a PeerResolver.
func (i *Injector) Resolver(inner ports.PeerResolver) ports.PeerResolver { return resolver{i, inner} }

func (r resolver) Hello(ctx context.Context, p ports.Peer, h *ports.Hello, out *ports.HelloReply) error {
	return r.i.call(ctx, Call{Port: "PeerResolver", Method: "Hello", Peer: p}, out, func() error { return r.inner.Hello(ctx, p, h, out) })
}

func (r resolver) Probe(ctx context.Context, p ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
	return r.i.call(ctx, Call{Port: "PeerResolver", Method: "Probe", Peer: p}, out, func() error { return r.inner.Probe(ctx, p, keys, out) })
}

func (r resolver) Resolve(ctx context.Context, p ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	return r.i.call(ctx, Call{Port: "PeerResolver", Method: "Resolve", Peer: p}, out, func() error { return r.inner.Resolve(ctx, p, req, out) })
}

func (r resolver) Complain(ctx context.Context, p ports.Peer, held []domain.Generation) error {
	return r.i.call(ctx, Call{Port: "PeerResolver", Method: "Complain", Peer: p}, nil, func() error { return r.inner.Complain(ctx, p, held) })
}

type writer struct {
	i     *Injector
	inner ports.PeerWriter
}

// Writer wraps a PeerWriter.
func (i *Injector) Writer(inner ports.PeerWriter) ports.PeerWriter { return writer{i, inner} }

func (w writer) Reserve(ctx context.Context, p ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error {
	return w.i.call(ctx, Call{Port: "PeerWriter", Method: "Reserve", Peer: p}, out, func() error { return w.inner.Reserve(ctx, p, req, out) })
}

func (w writer) Commit(ctx context.Context, p ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error {
	return w.i.call(ctx, Call{Port: "PeerWriter", Method: "Commit", Peer: p}, out, func() error { return w.inner.Commit(ctx, p, req, out) })
}

func (w writer) Abort(ctx context.Context, p ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error {
	return w.i.call(ctx, Call{Port: "PeerWriter", Method: "Abort", Peer: p}, nil, func() error { return w.inner.Abort(ctx, p, keys, versions, quiet) })
}

func (w writer) Remove(ctx context.Context, p ports.Peer, keys []ports.Key, out *[]ports.KeyStatus) error {
	return w.i.call(ctx, Call{Port: "PeerWriter", Method: "Remove", Peer: p}, out, func() error { return w.inner.Remove(ctx, p, keys, out) })
}

type server struct {
	ports.PeerResolver
	ports.PeerWriter
}

// Server wraps both halves of a PeerServer, under their own names.
func (i *Injector) Server(inner ports.PeerServer) ports.PeerServer {
	return server{i.Resolver(inner), i.Writer(inner)}
}
