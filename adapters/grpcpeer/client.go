package grpcpeer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// Client asks the peers of a static list. It dials a peer at the first call to it, and again, with a back-off that stays below a
// second, for as long as it is down; a call meanwhile does not wait for the back-off, and fails with the next dial that does. A Client
// has no time limits of its own but the dial's: a call lasts until its context ends.
type Client struct {
	cfg    Config
	conns  map[ports.PeerID]*conn
	closed atomic.Bool
}

var (
	_ ports.PeerResolver = (*Client)(nil)
	_ ports.PeerWriter   = (*Client)(nil)
)

// conn is the way to one peer.
type conn struct {
	cc    *grpc.ClientConn
	creds *askerCreds
	dials *dials
}

// The back-off between dials. With its jitter it is below a second, so that a peer that returns is used again soon.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 800 * time.Millisecond}

// Keepalive finds out that a silent peer is gone. 10 s is the least that gRPC takes; where data waits to be acknowledged, Linux ends
// the connection after the timeout.
const (
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 2 * time.Second
)

// connWindow is what a connection takes in advance; a stream has a part of it.
const connWindow = 4 * partBytes

// NewClient makes a client. It dials nobody yet. Close must be called.
func NewClient(cfg Config) (*Client, error) {
	cfg, err := settle(cfg)
	if err != nil {
		return nil, fmt.Errorf("grpcpeer: %w", err)
	}
	c := &Client{cfg: cfg, conns: make(map[ports.PeerID]*conn, len(cfg.Peers))}
	for _, m := range cfg.Peers {
		if m.ID == cfg.Self.ID {
			continue
		}
		if err := c.add(m); err != nil {
			return nil, errors.Join(fmt.Errorf("grpcpeer: %w", err), c.Close())
		}
	}
	return c, nil
}

func (c *Client) add(m Member) error {
	if err := checkMember(m); err != nil {
		return err
	}
	if c.conns[m.ID] != nil {
		return fmt.Errorf("peer %s is there twice: %w", m.ID, domain.ErrInvalid)
	}
	dials := &dials{timeout: c.cfg.DialTimeout}
	creds := &askerCreds{self: c.cfg.Self, to: m.ID, secret: c.cfg.Secret, dials: dials}
	// The dialer resolves the name, at every dial. gRPC's own resolver does so every 30 s at most.
	cc, err := grpc.NewClient("passthrough:///"+m.Addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dials.dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: c.cfg.DialTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPartBytes)),
		grpc.WithInitialWindowSize(partBytes), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithIdleTimeout(0), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry())
	if err != nil {
		return fmt.Errorf("peer %s at %s: %w", m.ID, m.Addr, err)
	}
	c.conns[m.ID] = &conn{cc: cc, creds: creds, dials: dials}
	return nil
}

// Close ends all connections; calls under way fail with ErrClosed. Twice is allowed.
func (c *Client) Close() error {
	c.closed.Store(true)
	var errs []error
	for _, way := range c.conns {
		if err := way.cc.Close(); status.Code(err) != codes.Canceled { // closed already
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Hello is the one call that need not name the peer's start.
func (c *Client) Hello(ctx context.Context, p ports.Peer, h *ports.Hello, out *ports.HelloReply) error {
	if h.From != c.cfg.Self {
		return c.failed("hello", p, fmt.Errorf("hello of %q, start %d, by %q, start %d: %w", h.From.ID, h.From.Incarnation, c.cfg.Self.ID, c.cfg.Self.Incarnation, domain.ErrInvalid))
	}
	m, err := helloOut(c.ends(p), h)
	if err != nil {
		return c.failed("hello", p, err)
	}
	return ask(ctx, c, "hello", p, peerv1.Peer_Hello_FullMethodName, m, cutHello(m), func(r *peerv1.HelloReply) error {
		helloReplyIn(r, out)
		return nil
	})
}

// Probe asks which keys are there.
func (c *Client) Probe(ctx context.Context, p ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
	m, err := probeOut(c.ends(p), keys)
	if err != nil {
		return c.failed("probe", p, err)
	}
	return ask(ctx, c, "probe", p, peerv1.Peer_Probe_FullMethodName, m, cutProbe(m), func(r *peerv1.ProbeReply) error {
		return probeReplyIn(r, out)
	})
}

// Resolve asks where keys lie, with a lease.
func (c *Client) Resolve(ctx context.Context, p ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	m, err := resolveOut(c.ends(p), req)
	if err != nil {
		return c.failed("resolve", p, err)
	}
	return ask(ctx, c, "resolve", p, peerv1.Peer_Resolve_FullMethodName, m, cutResolve(m), func(r *peerv1.ResolveReply) error {
		return resolveReplyIn(r, out)
	})
}

// Complain names copies whose bytes did not match.
func (c *Client) Complain(ctx context.Context, p ports.Peer, held []domain.Generation) error {
	m, err := complainOut(c.ends(p), held)
	if err != nil {
		return c.failed("complain", p, err)
	}
	return ask(ctx, c, "complain", p, peerv1.Peer_Complain_FullMethodName, m, cutComplain(m), func(*peerv1.ComplainReply) error { return nil })
}

// Reserve asks for pages to write to.
func (c *Client) Reserve(ctx context.Context, p ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error {
	m, err := reserveOut(c.ends(p), req)
	if err != nil {
		return c.failed("reserve", p, err)
	}
	return ask(ctx, c, "reserve", p, peerv1.Peer_Reserve_FullMethodName, m, cutReserve(m), func(r *peerv1.ReserveReply) error {
		return reserveReplyIn(r, out)
	})
}

// Commit publishes what was written.
func (c *Client) Commit(ctx context.Context, p ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error {
	m, err := commitOut(c.ends(p), req)
	if err != nil {
		return c.failed("commit", p, err)
	}
	return ask(ctx, c, "commit", p, peerv1.Peer_Commit_FullMethodName, m, cutCommit(m), func(r *peerv1.CommitReply) error {
		return commitReplyIn(r, out)
	})
}

// Abort ends reservations.
func (c *Client) Abort(ctx context.Context, p ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error {
	m, err := abortOut(c.ends(p), keys, versions, quiet)
	if err != nil {
		return c.failed("abort", p, err)
	}
	return ask(ctx, c, "abort", p, peerv1.Peer_Abort_FullMethodName, m, cutAbort(m), func(*peerv1.AbortReply) error { return nil })
}

// Remove dooms the copies there.
func (c *Client) Remove(ctx context.Context, p ports.Peer, keys []ports.Key, out *[]ports.KeyStatus) error {
	m, err := removeOut(c.ends(p), keys)
	if err != nil {
		return c.failed("remove", p, err)
	}
	return ask(ctx, c, "remove", p, peerv1.Peer_Remove_FullMethodName, m, cutRemove(m), func(r *peerv1.RemoveReply) error {
		return removeReplyIn(r, out)
	})
}

func (c *Client) ends(to ports.Peer) *peerv1.Ends {
	return &peerv1.Ends{From: startOut(c.cfg.Self), To: startOut(to)}
}

func (c *Client) failed(op string, p ports.Peer, err error) error {
	return &OpError{Op: op, Peer: p.ID, Err: err}
}

// message is a pointer to a message of type T.
type message[T any] interface {
	*T
	proto.Message
}

// ask is one call, from its parts to its reply. A connection that breaks in a call may be one that broke before, with a peer that
// has been back for long; so the call is made once more, on a new one.
func ask[Q proto.Message, T any, R message[T]](ctx context.Context, c *Client, op string, p ports.Peer, method string, m Q, next func(*cut, bool) Q, take func(R) error) error {
	if ctx.Err() != nil {
		return c.failed(op, p, ended(ctx))
	}
	way := c.conns[p.ID]
	if way == nil {
		return c.failed(op, p, fmt.Errorf("not in the list of peers: %w", ports.ErrPeer))
	}
	request, err := parts(m, c.cfg.MaxCallBytes, next)
	if err != nil {
		return c.failed(op, p, err)
	}
	reply, sent, err := exchange[Q, T, R](ctx, c, way, method, request)
	if sent && status.Code(err) == codes.Unavailable && len(status.Convert(err).Details()) == 0 && ctx.Err() == nil {
		reply, _, err = exchange[Q, T, R](ctx, c, way, method, request)
	}
	if err != nil {
		return c.failed(op, p, c.reason(ctx, way, err))
	}
	if err := take(reply); err != nil {
		return c.failed(op, p, malformed(err))
	}
	return nil
}

// reason is what a failed exchange means to the caller.
func (c *Client) reason(ctx context.Context, way *conn, err error) error {
	switch {
	case ctx.Err() != nil, status.Code(err) == codes.DeadlineExceeded && passed(ctx):
		return ended(ctx)
	case c.closed.Load():
		return ports.ErrClosed
	case errors.Is(err, errNoStatus):
		return err
	}
	if refusal := way.dials.refusal(); refusal != nil && status.Code(err) == codes.Unavailable {
		return fmt.Errorf("%w: %w", ports.ErrPeer, refusal)
	}
	return fromStatus(err)
}

// passed waits out the rest of a deadline that is all but over: the peer keeps the same one, and may be a little early with it.
func passed(ctx context.Context) bool {
	const early = 20 * time.Millisecond // arbitrary: two timers of one machine that is busy
	deadline, ok := ctx.Deadline()
	if !ok || time.Until(deadline) > early {
		return false
	}
	<-ctx.Done()
	return true
}

// errNoStatus marks errors that no status of gRPC came with.
var errNoStatus = errors.New("malformed")

// A request of one part goes out as that of a unary call does, in one frame that ends it.
var (
	onePart   = grpc.StreamDesc{ServerStreams: true}
	manyParts = grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
)

// open begins a call. gRPC fails calls at once between its dials to a peer that was down, and with a dial that began before them; here
// a call brings the next dial forward, and has the outcome of one that began after it. cancel is that of ctx.
func (w *conn) open(ctx context.Context, cancel context.CancelCauseFunc, desc *grpc.StreamDesc, method string) (grpc.ClientStream, error) {
	if before := w.dials.begun(); w.cc.GetState() != connectivity.TransientFailure {
		stream, err := w.cc.NewStream(ctx, desc, method)
		if status.Code(err) != codes.Unavailable || w.dials.begun() > before {
			return stream, err
		}
	}
	unwatch := w.dials.watch(cancel)
	defer unwatch()
	w.cc.ResetConnectBackoff()
	stream, err := w.cc.NewStream(ctx, desc, method, grpc.WaitForReady(true))
	if failed := context.Cause(ctx); err != nil && errors.Is(failed, errDial) {
		return nil, status.Error(codes.Unavailable, failed.Error())
	}
	return stream, err
}

// exchange sends the parts and joins those that come back. sent says that there was a connection to send them on.
func exchange[Q proto.Message, T any, R message[T]](ctx context.Context, c *Client, way *conn, method string, request []Q) (reply R, sent bool, err error) {
	if t := ports.TraceOf(ctx); !t.IsZero() {
		ctx = metadata.AppendToOutgoingContext(ctx, ports.TraceHeader, t.String())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	desc := &onePart
	if len(request) > 1 {
		desc = &manyParts
	}
	stream, err := way.open(ctx, cancel, desc, method)
	if err != nil {
		return nil, false, err
	}
	for _, part := range request {
		if err := stream.SendMsg(part); errors.Is(err, io.EOF) {
			break // the peer has ended the call: why is what RecvMsg says
		} else if err != nil {
			return nil, true, err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, true, err
	}
	var all whole[R]
	for {
		part := R(new(T))
		switch err := stream.RecvMsg(part); {
		case errors.Is(err, io.EOF) && all.parts == 0:
			return nil, true, fmt.Errorf("%w: empty reply: %w", errNoStatus, ports.ErrPeer)
		case errors.Is(err, io.EOF):
			return all.message, true, nil
		case err != nil:
			return nil, true, err
		}
		if err := all.add(part, c.cfg.MaxCallBytes); err != nil {
			return nil, true, fmt.Errorf("%w: reply: %w", errNoStatus, err)
		}
	}
}
