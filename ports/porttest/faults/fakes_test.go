package faults_test

import (
	"context"
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// seen records what reached a fake.
type seen struct {
	mu    sync.Mutex
	calls []string
}

func (s *seen) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
}

func (s *seen) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// fakePeer answers two rows.
type fakePeer struct{ seen }

var _ ports.PeerServer = (*fakePeer)(nil)

func (f *fakePeer) Hello(_ context.Context, _ ports.Peer, _ *ports.Hello, out *ports.HelloReply) error {
	f.add("Hello")
	out.Answers = []ports.Offer{{Kind: "a"}, {Kind: "b"}}
	return nil
}

func (f *fakePeer) Probe(_ context.Context, _ ports.Peer, _ []ports.Key, out *ports.ProbeReply) error {
	f.add("Probe")
	*out = ports.ProbeReply{Status: []ports.KeyStatus{ports.KeyHere, ports.KeyAbsent}, Versions: []domain.Version{{Lo: 1}, {}}}
	return nil
}

func twoRows() ports.ResolveReply {
	return ports.ResolveReply{
		Status:      []ports.KeyStatus{ports.KeyHere, ports.KeyHere},
		Versions:    []domain.Version{{Lo: 1}, {Lo: 2}},
		Generations: []domain.Generation{{Incarnation: 9, Counter: 1}, {Incarnation: 9, Counter: 2}},
		Sizes:       []uint64{100, 60},
		LeaseNanos:  []int64{5, 5},
		PageEnd:     []uint32{2, 3},
		Pages:       []domain.PageRef{{Page: 4}, {Page: 5}, {Page: 6}},
		LenEnd:      []uint32{2, 3},
		PutLens:     []uint64{40, 60, 60},
		SumEnd:      []uint32{2, 3},
		Sums:        []uint32{7, 8, 9},
	}
}

func (f *fakePeer) Resolve(_ context.Context, _ ports.Peer, _ *ports.ResolveRequest, out *ports.ResolveReply) error {
	f.add("Resolve")
	*out = twoRows()
	return nil
}

func (f *fakePeer) Complain(context.Context, ports.Peer, []domain.Generation) error {
	f.add("Complain")
	return nil
}

func (f *fakePeer) Reserve(_ context.Context, _ ports.Peer, _ *ports.ReserveRequest, out *ports.ReserveReply) error {
	f.add("Reserve")
	*out = ports.ReserveReply{
		Status: []ports.ReserveStatus{ports.Reserved, ports.Reserved}, Tokens: make([]ports.GrantToken, 2), EndNanos: []int64{1, 1},
		PageEnd: []uint32{1, 3}, Pages: make([]domain.PageRef, 3),
	}
	return nil
}

func (f *fakePeer) Commit(_ context.Context, _ ports.Peer, _ *ports.CommitRequest, out *[]ports.CommitStatus) error {
	f.add("Commit")
	*out = []ports.CommitStatus{ports.CommitDone, ports.CommitDone}
	return nil
}

func (f *fakePeer) Abort(context.Context, ports.Peer, []ports.Key, []domain.Version, ports.Quiet) error {
	f.add("Abort")
	return nil
}

func (f *fakePeer) Remove(_ context.Context, _ ports.Peer, _ []ports.Key, out *[]ports.KeyStatus) error {
	f.add("Remove")
	*out = []ports.KeyStatus{ports.KeyHere, ports.KeyAbsent}
	return nil
}

type fakeDirectory struct{ seen }

var _ ports.Directory = (*fakeDirectory)(nil)

func (f *fakeDirectory) Members(context.Context) ([]ports.PeerID, error) {
	f.add("Members")
	return []ports.PeerID{"a", "b"}, nil
}

func (f *fakeDirectory) Holders(_ context.Context, _ string, _ []string, out *ports.Holders) error {
	f.add("Holders")
	*out = ports.Holders{End: []uint32{1, 3}, Peers: []ports.PeerID{"a", "a", "b"}, Versions: make([]domain.Version, 3), Complete: true}
	return nil
}

func (f *fakeDirectory) Announce(_, name string, _ domain.Version) { f.add("Announce") }
func (f *fakeDirectory) Withdraw(_, name string, _ domain.Version) { f.add("Withdraw") }
func (f *fakeDirectory) Close() error                              { f.add("Close"); return nil }

type fakeTransport struct {
	seen
	link *fakeLink
}

var _ ports.Transport = (*fakeTransport)(nil)

func (f *fakeTransport) Kind() ports.TransportKind { return "fake" }
func (f *fakeTransport) Caps() ports.Caps          { return ports.Caps{Write: true} }
func (f *fakeTransport) Expose(uint32, ports.Region) error {
	f.add("Expose")
	return nil
}

func (f *fakeTransport) Register(ports.Region) (ports.Registration, error) {
	f.add("Register")
	return 3, nil
}

func (f *fakeTransport) Deregister(ports.Registration) error {
	f.add("Deregister")
	return nil
}

func (f *fakeTransport) Grant(ports.Peer, uint64, []domain.PageRef) (ports.GrantID, ports.GrantToken, error) {
	f.add("Grant")
	return 4, ports.GrantToken{1}, nil
}

func (f *fakeTransport) Revoke(context.Context, ports.GrantID, ports.Quiet) error {
	f.add("Revoke")
	return nil
}

func (f *fakeTransport) Offer(context.Context, ports.PeerID) (ports.PendingLink, error) {
	f.add("Offer")
	return &fakePending{f}, nil
}

func (f *fakeTransport) Answer(context.Context, ports.Peer, []byte) ([]byte, error) {
	f.add("Answer")
	return []byte("answer"), nil
}

func (f *fakeTransport) Drop(ports.Peer) { f.add("Drop") }
func (f *fakeTransport) Close() error    { f.add("Close"); return nil }

type fakePending struct{ t *fakeTransport }

func (f *fakePending) Bytes() []byte { return []byte("offer") }
func (f *fakePending) Close() error  { f.t.add("pending.Close"); return nil }
func (f *fakePending) Link(context.Context, []byte) (ports.Link, error) {
	f.t.add("Link")
	f.t.link = newFakeLink(&f.t.seen, nil)
	return f.t.link, nil
}

// fakeLink keeps what is submitted until land or Close; with remote it reads from there, else it moves nothing.
type fakeLink struct {
	*seen
	remote []byte
	refuse error // Submit's answer
	dead   error // Submit's answer once it is
	done   chan struct{}
	mu     sync.Mutex
	auto   bool   // land at once
	within func() // called before Submit returns
	flying []fakeOp
}

type fakeOp struct {
	ports.Op
	b *ports.Batch
	q *ports.Completions
}

func newFakeLink(s *seen, remote []byte) *fakeLink {
	if s == nil {
		s = &seen{}
	}
	return &fakeLink{seen: s, remote: remote, done: make(chan struct{})}
}

func (f *fakeLink) Submit(b *ports.Batch, q *ports.Completions) error {
	f.add("Submit")
	if f.refuse != nil {
		return f.refuse
	}
	select {
	case <-f.done:
		return f.dead
	default:
	}
	f.mu.Lock()
	for _, o := range b.Ops {
		f.flying = append(f.flying, fakeOp{o, b, q})
	}
	auto, within := f.auto, f.within
	f.mu.Unlock()
	if auto {
		f.land(nil)
	}
	if within != nil {
		within()
	}
	return nil
}

// land completes what flies, oldest first: with err, or done.
func (f *fakeLink) land(err error) {
	f.mu.Lock()
	flying := f.flying
	f.flying = nil
	f.mu.Unlock()
	for _, o := range flying {
		for _, s := range o.b.Segments[o.First : o.First+o.Count] {
			if f.remote != nil && err == nil {
				copy(s.Local.(ports.HostRegion).Bytes()[s.LocalOff:][:s.Len], f.remote[s.RemoteOff:])
			}
		}
		o.q.Post(ports.Completion{Tag: o.Tag, At: 77, Err: err})
	}
}

func (f *fakeLink) inFlight() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.flying)
}

func (f *fakeLink) Cancel(q *ports.Completions, tags []uint64) {
	f.add("Cancel")
	f.land(ports.ErrCancelled)
}

func (f *fakeLink) Counts() ports.LinkStats {
	return ports.LinkStats{Bytes: [ports.NumPurposes]uint64{1, 2, 3}}
}
func (f *fakeLink) Done() <-chan struct{} { return f.done }
func (f *fakeLink) Close() error {
	f.add("link.Close")
	f.die(ports.ErrClosed)
	return nil
}

// die refuses submissions with err from now on.
func (f *fakeLink) die(err error) {
	f.land(ports.ErrReset)
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.done:
	default:
		f.dead = err
		close(f.done)
	}
}
