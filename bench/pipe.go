package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// pipe is a bare client of one node: control calls, and one link between that node's pages and memory of the client's own. It
// has no pool, no arena and no policy, so that a comparison built on it pays for no hop that is not its own.
type pipe struct {
	way
	to    ports.Peer
	page  uint64
	link  ports.Link
	clock ports.Clock
}

// way is what a pipe is made of. Whoever made its parts ends them, after the pipe.
type way struct {
	self      ports.Peer
	transport ports.Transport
	resolver  ports.PeerResolver
	writer    ports.PeerWriter
}

// inprocWay joins the network under a node's name; leave leaves it.
func inprocWay(network *inproc.Network, as ports.PeerID) (w way, leave func() error, err error) {
	place := network.Endpoint(as)
	w = way{self: ports.Peer{ID: as, Incarnation: domain.Incarnation(rand.Uint64() | 1)}, transport: place.Transport(),
		resolver: place.Resolver(), writer: place.Writer()}
	return w, func() error { place.Stop(); return nil }, place.Start(w.self, mute{})
}

// pipeOpBound is an op's deadline and a control call's time: far longer than a whole arena takes at the least rate in use, so
// that only a fault meets it.
const pipeOpBound = 20 * time.Second

// openPipe links to a node.
func openPipe(ctx context.Context, w way, to ports.PeerID, namespaces ...string) (*pipe, error) {
	p := &pipe{way: w, clock: boottime.New()}
	pending, err := w.transport.Offer(ctx, to)
	if err != nil {
		return nil, err
	}
	hello := ports.Hello{From: p.self, Protocol: ports.ProtocolVersion, Namespaces: namespaces,
		Offers: []ports.Offer{{Kind: w.transport.Kind(), Bytes: pending.Bytes()}}}
	var reply ports.HelloReply
	if err := p.resolver.Hello(ctx, ports.Peer{ID: to}, &hello, &reply); err != nil || len(reply.Answers) != 1 {
		return nil, errors.Join(fmt.Errorf("hello to %s: %d links, error %w", to, len(reply.Answers), err), pending.Close())
	}
	p.to, p.page = reply.From, reply.PageSize
	if p.link, err = pending.Link(ctx, reply.Answers[0].Bytes); err != nil {
		return nil, err
	}
	return p, nil
}

// close ends the link; no op may be under way.
func (p *pipe) close() error { return p.link.Close() }

// mute is a client's answer to a peer that asks it: it has nothing, and is not there. A node that removes a key asks all.
type mute struct{}

var _ ports.PeerServer = mute{}

func (mute) Hello(context.Context, ports.Peer, *ports.Hello, *ports.HelloReply) error {
	return ports.ErrPeer
}

func (mute) Probe(context.Context, ports.Peer, []ports.Key, *ports.ProbeReply) error {
	return ports.ErrPeer
}

func (mute) Resolve(context.Context, ports.Peer, *ports.ResolveRequest, *ports.ResolveReply) error {
	return ports.ErrPeer
}

func (mute) Complain(context.Context, ports.Peer, []domain.Generation) error { return ports.ErrPeer }

func (mute) Reserve(context.Context, ports.Peer, *ports.ReserveRequest, *ports.ReserveReply) error {
	return ports.ErrPeer
}

func (mute) Commit(context.Context, ports.Peer, *ports.CommitRequest, *[]ports.CommitStatus) error {
	return ports.ErrPeer
}

func (mute) Abort(context.Context, ports.Peer, []ports.Key, []domain.Version, ports.Quiet) error {
	return ports.ErrPeer
}

func (mute) Remove(context.Context, ports.Peer, []ports.Key, *[]ports.KeyStatus) error {
	return ports.ErrPeer
}

// located is where an object lies at the peer, and for how long that is promised.
type located struct {
	status ports.KeyStatus
	layout domain.Layout
	until  domain.Instant
}

// locate asks for objects in one round trip.
func (p *pipe) locate(ctx context.Context, names []string) ([]located, error) {
	keys := wireKeys(names)
	req := ports.ResolveRequest{Keys: keys, Versions: make([]domain.Version, len(keys)), Held: make([]domain.Generation, len(keys))}
	var reply ports.ResolveReply
	asked := p.clock.Now()
	ctx, cancel := context.WithTimeout(ctx, pipeOpBound)
	defer cancel()
	if err := p.resolver.Resolve(ctx, p.to, &req, &reply); err != nil {
		return nil, err
	}
	out := make([]located, len(keys))
	lo := uint32(0)
	for i := range keys {
		hi := reply.PageEnd[i]
		out[i] = located{status: reply.Status[i], until: asked.Add(time.Duration(reply.LeaseNanos[i])),
			layout: domain.Layout{Pages: reply.Pages[lo:hi], PageSize: p.page, Size: reply.Sizes[i]}}
		lo = hi
	}
	return out, nil
}

// good reports whether at least half of a lease of the usual length is left.
func (l *located) good(now domain.Instant) bool { return now.Add(leaseMargin) <= l.until }

// leaseMargin is half of the default lease.
const leaseMargin = 250 * time.Millisecond

// transferJob is a run of an object between the peer's pages and flat local memory.
type transferJob struct {
	layout domain.Layout
	run    domain.Run
	at     uint64 // in the local region
	token  ports.GrantToken
}

// transfer moves jobs and returns when no op is under way. errs is by job.
func (p *pipe) transfer(dir ports.Direction, why ports.Purpose, local ports.Region, jobs []transferJob) (errs []error, seen []domain.Instant) {
	errs, seen = make([]error, len(jobs)), make([]domain.Instant, len(jobs))
	var b ports.Batch
	flat := domain.Flat([]domain.PageRef{{}}, local.Len())
	deadline := p.clock.Now().Add(pipeOpBound)
	for i, j := range jobs {
		op := ports.Op{Tag: uint64(i), First: uint32(len(b.Segments)), Purpose: why, Dir: dir, Grant: j.token, Deadline: deadline}
		err := domain.ForEachPair(j.layout, j.run, flat, domain.Run{Off: j.at, Len: j.run.Len}, func(x domain.Pair) bool {
			b.Segments = append(b.Segments, ports.Segment{Remote: x.A, RemoteOff: x.AOff, Local: local, LocalOff: x.BOff, Len: x.Len})
			return true
		})
		if err != nil {
			errs[i] = err
			b.Segments = b.Segments[:op.First]
			continue
		}
		op.Count = uint32(len(b.Segments)) - op.First
		b.Ops = append(b.Ops, op)
	}
	q := ports.NewCompletions()
	if err := p.link.Submit(&b, q); err != nil {
		for i := range errs {
			errs[i] = errors.Join(errs[i], err)
		}
		return errs, seen
	}
	var done []ports.Completion
	for left := len(b.Ops); left > 0; left -= len(done) {
		// Not the caller's context: its end must not let memory go that an op may still write. Each op has a deadline.
		done, _ = q.Take(context.Background(), time.Second, done[:0])
		for _, d := range done {
			errs[d.Tag], seen[d.Tag] = d.Err, d.At
		}
	}
	return errs, seen
}

// wireKeys names keys of the one namespace that the pipe told.
func wireKeys(names []string) []ports.Key {
	keys := make([]ports.Key, len(names))
	for i, n := range names {
		keys[i] = ports.Key{Name: n}
	}
	return keys
}

// remove dooms the copies at the peer.
func (p *pipe) remove(ctx context.Context, names []string) ([]ports.KeyStatus, error) {
	var out []ports.KeyStatus
	ctx, cancel := context.WithTimeout(ctx, pipeOpBound)
	defer cancel()
	err := p.writer.Remove(ctx, p.to, wireKeys(names), &out)
	return out, err
}

// counts is what the link moved.
func (p *pipe) counts() [ports.NumPurposes]uint64 { return p.link.Counts().Bytes }
