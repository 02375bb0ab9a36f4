package porttest

import (
	"context"
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// FakeServer is a ports.PeerServer that answers by functions and counts who asked what. A method without a function answers
// with empty columns. The functions may be exchanged at any time, by Use; a call keeps the one that it began with.
type FakeServer struct {
	mu    sync.Mutex
	by    Answers
	calls []FakeCall
}

// Answers are the functions of a FakeServer; each has the signature of the method of its name.
type Answers struct {
	Hello    func(ctx context.Context, from ports.Peer, h *ports.Hello, out *ports.HelloReply) error
	Probe    func(ctx context.Context, from ports.Peer, keys []ports.Key, out *ports.ProbeReply) error
	Resolve  func(ctx context.Context, from ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error
	Complain func(ctx context.Context, from ports.Peer, held []domain.Generation) error
	Reserve  func(ctx context.Context, from ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error
	Commit   func(ctx context.Context, from ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error
	Abort    func(ctx context.Context, from ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error
	Remove   func(ctx context.Context, from ports.Peer, keys []ports.Key, out *[]ports.KeyStatus) error

	// Each, if set, is asked before any of them; an error of it is the answer.
	Each func(ctx context.Context, method string) error
}

// FakeCall is who called which method.
type FakeCall struct {
	Method string
	From   ports.Peer
}

var _ ports.PeerServer = (*FakeServer)(nil)

// Use exchanges the functions.
func (s *FakeServer) Use(a Answers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by = a
}

// TakeCalls returns the calls since the last TakeCalls, in the order in which they came.
func (s *FakeServer) TakeCalls() []FakeCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

func (s *FakeServer) begin(ctx context.Context, method string, from ports.Peer) (Answers, error) {
	s.mu.Lock()
	s.calls = append(s.calls, FakeCall{method, from})
	by := s.by
	s.mu.Unlock()
	if by.Each == nil {
		return by, nil
	}
	return by, by.Each(ctx, method)
}

// Hello answers by Answers.Hello.
func (s *FakeServer) Hello(ctx context.Context, from ports.Peer, h *ports.Hello, out *ports.HelloReply) error {
	by, err := s.begin(ctx, "Hello", from)
	if err != nil || by.Hello == nil {
		return err
	}
	return by.Hello(ctx, from, h, out)
}

// Probe answers by Answers.Probe.
func (s *FakeServer) Probe(ctx context.Context, from ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
	by, err := s.begin(ctx, "Probe", from)
	if err != nil || by.Probe == nil {
		return err
	}
	return by.Probe(ctx, from, keys, out)
}

// Resolve answers by Answers.Resolve.
func (s *FakeServer) Resolve(ctx context.Context, from ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	by, err := s.begin(ctx, "Resolve", from)
	if err != nil || by.Resolve == nil {
		return err
	}
	return by.Resolve(ctx, from, req, out)
}

// Complain answers by Answers.Complain.
func (s *FakeServer) Complain(ctx context.Context, from ports.Peer, held []domain.Generation) error {
	by, err := s.begin(ctx, "Complain", from)
	if err != nil || by.Complain == nil {
		return err
	}
	return by.Complain(ctx, from, held)
}

// Reserve answers by Answers.Reserve.
func (s *FakeServer) Reserve(ctx context.Context, from ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error {
	by, err := s.begin(ctx, "Reserve", from)
	if err != nil || by.Reserve == nil {
		return err
	}
	return by.Reserve(ctx, from, req, out)
}

// Commit answers by Answers.Commit.
func (s *FakeServer) Commit(ctx context.Context, from ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error {
	by, err := s.begin(ctx, "Commit", from)
	if err != nil || by.Commit == nil {
		return err
	}
	return by.Commit(ctx, from, req, out)
}

// Abort answers by Answers.Abort.
func (s *FakeServer) Abort(ctx context.Context, from ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error {
	by, err := s.begin(ctx, "Abort", from)
	if err != nil || by.Abort == nil {
		return err
	}
	return by.Abort(ctx, from, keys, versions, quiet)
}

// Remove answers by Answers.Remove.
func (s *FakeServer) Remove(ctx context.Context, from ports.Peer, keys []ports.Key, out *[]ports.KeyStatus) error {
	by, err := s.begin(ctx, "Remove", from)
	if err != nil || by.Remove == nil {
		return err
	}
	return by.Remove(ctx, from, keys, out)
}
