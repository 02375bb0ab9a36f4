package inproc

import (
	"context"
	"fmt"
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// caller is a start as its node's PeerResolver and PeerWriter. What crosses is copied: a server may keep requests, and goes on
// writing to its own reply when the caller has left.
type caller start

var (
	_ ports.PeerResolver = (*caller)(nil)
	_ ports.PeerWriter   = (*caller)(nil)
)

// Hello is the one call that need not name the peer's start.
func (c *caller) Hello(ctx context.Context, p ports.Peer, h *ports.Hello, out *ports.HelloReply) error {
	in, reply := cloneHello(h), new(ports.HelloReply)
	err := c.call(ctx, "hello", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Hello(ctx, from, in, reply)
	})
	if err != nil {
		return err
	}
	*out = *cloneHelloReply(reply)
	return nil
}

// Probe asks which keys are there.
func (c *caller) Probe(ctx context.Context, p ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
	in, reply := slices.Clone(keys), new(ports.ProbeReply)
	err := c.call(ctx, "probe", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Probe(ctx, from, in, reply)
	})
	if err != nil {
		return err
	}
	out.Status = append(out.Status[:0], reply.Status...)
	out.Versions = append(out.Versions[:0], reply.Versions...)
	return nil
}

// Resolve asks where keys lie, with a lease.
func (c *caller) Resolve(ctx context.Context, p ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	in, reply := *req, new(ports.ResolveReply)
	in.Keys, in.Versions, in.Held = slices.Clone(req.Keys), slices.Clone(req.Versions), slices.Clone(req.Held)
	err := c.call(ctx, "resolve", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Resolve(ctx, from, &in, reply)
	})
	if err != nil {
		return err
	}
	out.Status = append(out.Status[:0], reply.Status...)
	out.Versions = append(out.Versions[:0], reply.Versions...)
	out.Generations = append(out.Generations[:0], reply.Generations...)
	out.Sizes = append(out.Sizes[:0], reply.Sizes...)
	out.LeaseNanos = append(out.LeaseNanos[:0], reply.LeaseNanos...)
	out.PageEnd = append(out.PageEnd[:0], reply.PageEnd...)
	out.Pages = append(out.Pages[:0], reply.Pages...)
	out.LenEnd = append(out.LenEnd[:0], reply.LenEnd...)
	out.PutLens = append(out.PutLens[:0], reply.PutLens...)
	out.SumEnd = append(out.SumEnd[:0], reply.SumEnd...)
	out.Sums = append(out.Sums[:0], reply.Sums...)
	return nil
}

// Complain names copies whose bytes did not match.
func (c *caller) Complain(ctx context.Context, p ports.Peer, held []domain.Generation) error {
	in := slices.Clone(held)
	return c.call(ctx, "complain", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Complain(ctx, from, in)
	})
}

// Reserve asks for pages to write to.
func (c *caller) Reserve(ctx context.Context, p ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error {
	in, reply := *req, new(ports.ReserveReply)
	in.Keys, in.Versions, in.Sizes = slices.Clone(req.Keys), slices.Clone(req.Versions), slices.Clone(req.Sizes)
	err := c.call(ctx, "reserve", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Reserve(ctx, from, &in, reply)
	})
	if err != nil {
		return err
	}
	out.Status = append(out.Status[:0], reply.Status...)
	out.Tokens = append(out.Tokens[:0], reply.Tokens...)
	out.EndNanos = append(out.EndNanos[:0], reply.EndNanos...)
	out.PageEnd = append(out.PageEnd[:0], reply.PageEnd...)
	out.Pages = append(out.Pages[:0], reply.Pages...)
	return nil
}

// Commit publishes what was written.
func (c *caller) Commit(ctx context.Context, p ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error {
	in, reply := cloneCommit(req), new([]ports.CommitStatus)
	err := c.call(ctx, "commit", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Commit(ctx, from, in, reply)
	})
	if err != nil {
		return err
	}
	*out = append((*out)[:0], *reply...)
	return nil
}

// Abort ends reservations.
func (c *caller) Abort(ctx context.Context, p ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error {
	in, of := slices.Clone(keys), slices.Clone(versions)
	return c.call(ctx, "abort", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Abort(ctx, from, in, of, quiet)
	})
}

// Remove dooms the copies there.
func (c *caller) Remove(ctx context.Context, p ports.Peer, keys []ports.Key, out *[]ports.KeyStatus) error {
	in, reply := slices.Clone(keys), new([]ports.KeyStatus)
	err := c.call(ctx, "remove", p, func(ctx context.Context, from ports.Peer, s ports.PeerServer) error {
		return s.Remove(ctx, from, in, reply)
	})
	if err != nil {
		return err
	}
	*out = append((*out)[:0], *reply...)
	return nil
}

// call is one round trip. A nil error says that the server has returned; on any other the server may still be at work, on
// copies.
func (c *caller) call(ctx context.Context, op string, p ports.Peer, f serverCall) error {
	if err := c.roundTrip(ctx, p, op == "hello", f); err != nil {
		return &OpError{Op: op, Peer: p.ID, Err: err}
	}
	return nil
}

type serverCall func(ctx context.Context, from ports.Peer, s ports.PeerServer) error

func (c *caller) roundTrip(ctx context.Context, p ports.Peer, anyStart bool, f serverCall) error {
	s := (*start)(c)
	if s.over.Err() != nil {
		return ports.ErrClosed
	}
	self := s.self()
	if self.Incarnation == 0 {
		return fmt.Errorf("%w: %w", errNotStarted, ports.ErrPeer)
	}
	way := s.ep.net.pair(s.ep.id, p.ID)
	if way == nil {
		return ports.ErrClosed
	}
	if err := way.crossing(ctx, s); err != nil {
		return err
	}
	peer := s.ep.net.answering(p.ID)
	if peer == nil {
		return ports.ErrPeer
	}
	if now := peer.self().Incarnation; now != p.Incarnation && !(anyStart && p.Incarnation == 0) {
		return fmt.Errorf("start %d was named, %d answers: %w", p.Incarnation, now, ports.ErrRestarted)
	}
	answer := s.await(ctx, peer, self, f)
	if err := way.crossing(ctx, s); err != nil {
		return err
	}
	return answer
}

// await runs a server's call in a goroutine of the network and returns when it has, or when either start or the context ends.
func (s *start) await(ctx context.Context, peer *start, self ports.Peer, f serverCall) error {
	server := peer.identity.Load().server
	sctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(peer.over, func() { cancel(errOver) })
	answer := make(chan error, 1)
	ok := s.ep.net.serve(func() {
		defer cancel(nil)
		defer unlink()
		answer <- f(sctx, self, server)
	})
	if !ok {
		unlink()
		cancel(nil)
		return ports.ErrClosed
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ended(ctx)
	case <-peer.over.Done():
		return ports.ErrPeer
	case <-s.over.Done():
		cancel(errOver)
		return ports.ErrClosed
	}
}

func cloneHello(h *ports.Hello) *ports.Hello {
	c := *h
	c.Namespaces, c.Offers = slices.Clone(h.Namespaces), cloneOffers(h.Offers)
	return &c
}

func cloneHelloReply(r *ports.HelloReply) *ports.HelloReply {
	c := *r
	c.Buffers, c.Answers, c.Refused = slices.Clone(r.Buffers), cloneOffers(r.Answers), slices.Clone(r.Refused)
	return &c
}

func cloneOffers(offers []ports.Offer) []ports.Offer {
	c := slices.Clone(offers)
	for i := range c {
		c[i].Bytes = slices.Clone(c[i].Bytes)
	}
	return c
}

func cloneCommit(r *ports.CommitRequest) *ports.CommitRequest {
	c := *r
	c.Keys, c.Versions = slices.Clone(r.Keys), slices.Clone(r.Versions)
	c.LenEnd, c.PutLens = slices.Clone(r.LenEnd), slices.Clone(r.PutLens)
	c.SumEnd, c.Sums = slices.Clone(r.SumEnd), slices.Clone(r.Sums)
	return &c
}
