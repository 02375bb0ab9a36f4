package grpcpeer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// ErrSecret says that two nodes do not share a secret, or that one of them has none. It comes with ports.ErrPeer: to a caller, the
// peer is one that cannot be reached.
var ErrSecret = errors.New("shared secret not proven")

// OpError says what failed and at which peer. Err is or wraps error classes of ports or domain: those that the peer's server
// returned, ErrPeer for a peer that gave no answer or one that is malformed, or the cause of the context's end.
type OpError struct {
	Op   string
	Peer ports.PeerID
	Err  error
}

func (e *OpError) Error() string { return fmt.Sprintf("grpcpeer %s, peer %q: %v", e.Op, e.Peer, e.Err) }

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// classes is every error class that crosses, and the code of gRPC that goes with it: for other programs, and for a class that this
// release does not know. An error of several classes has the code of the first of them.
var classes = []struct {
	class peerv1.Class
	err   error
	code  codes.Code
}{
	{peerv1.Class_CLASS_RESTARTED, ports.ErrRestarted, codes.FailedPrecondition},
	{peerv1.Class_CLASS_INVALID, domain.ErrInvalid, codes.InvalidArgument},
	{peerv1.Class_CLASS_NOT_FOUND, ports.ErrNotFound, codes.NotFound},
	{peerv1.Class_CLASS_STALE, ports.ErrStale, codes.FailedPrecondition},
	{peerv1.Class_CLASS_NO_SPACE, ports.ErrNoSpace, codes.ResourceExhausted},
	{peerv1.Class_CLASS_REFUSED, ports.ErrRefused, codes.ResourceExhausted},
	{peerv1.Class_CLASS_BUSY, ports.ErrBusy, codes.Aborted},
	{peerv1.Class_CLASS_CLOSED, ports.ErrClosed, codes.Unavailable},
	{peerv1.Class_CLASS_RESET, ports.ErrReset, codes.Aborted},
	{peerv1.Class_CLASS_REVOKED, ports.ErrRevoked, codes.Aborted},
	{peerv1.Class_CLASS_TIMEOUT, ports.ErrTimeout, codes.DeadlineExceeded},
	{peerv1.Class_CLASS_CANCELLED, ports.ErrCancelled, codes.Canceled},
	{peerv1.Class_CLASS_PEER, ports.ErrPeer, codes.Unavailable},
	{peerv1.Class_CLASS_BOUNDS, ports.ErrBounds, codes.OutOfRange},
	{peerv1.Class_CLASS_UNSUPPORTED, errors.ErrUnsupported, codes.Unimplemented},
}

// maxErrorText keeps a status within what HTTP/2 allows for headers. Arbitrary.
const maxErrorText = 1024

// asStatus is an error as a peer is told of it.
func asStatus(err error) error {
	failure, code := &peerv1.Failure{}, codes.Unknown
	for _, c := range classes {
		if errors.Is(err, c.err) {
			failure.Classes = append(failure.Classes, c.class)
			if code == codes.Unknown {
				code = c.code
			}
		}
	}
	if errors.Is(err, ErrSecret) {
		code = codes.Unauthenticated
	}
	s := status.New(code, printable(err.Error()))
	if detailed, err := s.WithDetails(failure); err == nil {
		s = detailed
	}
	return s.Err()
}

// printable is a text that a message can carry.
func printable(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// answer is an error that a peer returned: its text, and the classes that it had there.
type answer struct {
	text    string
	classes []error
}

func (a *answer) Error() string   { return a.text }
func (a *answer) Unwrap() []error { return a.classes }

// fromStatus is what a status says to a caller. What did not come from the peer's server has no Failure: it is gRPC's own.
func fromStatus(err error) error {
	s := status.Convert(err)
	a := &answer{text: s.Message()}
	if s.Code() == codes.Unauthenticated {
		a.classes = append(a.classes, ErrSecret)
	}
	detailed := false
	for _, d := range s.Details() {
		if f, ok := d.(*peerv1.Failure); ok {
			detailed = true
			a.classes = append(a.classes, classesOf(f)...)
		}
	}
	if !detailed || len(a.classes) == 0 {
		a.classes = append(a.classes, byCode(s.Code(), detailed)...)
	}
	return a
}

func classesOf(f *peerv1.Failure) []error {
	var out []error
	for _, class := range f.GetClasses() {
		for _, c := range classes {
			if c.class == class {
				out = append(out, c.err)
			}
		}
	}
	return out
}

// byCode is the class that a code stands for. Where gRPC speaks for itself, and not for a server that has no class to name, whatever
// is wrong makes the peer one that cannot be used.
func byCode(code codes.Code, detailed bool) []error {
	switch code {
	case codes.ResourceExhausted:
		return []error{ports.ErrRefused}
	case codes.DeadlineExceeded:
		return []error{ports.ErrTimeout}
	case codes.InvalidArgument:
		return []error{domain.ErrInvalid}
	case codes.Unknown:
		if detailed {
			return nil
		}
	}
	return []error{ports.ErrPeer}
}

// ended is the error of a wait that its context ended.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ports.ErrTimeout, cause)
	}
	return cause
}

// malformed makes what a peer sent its own fault: another holder is asked.
func malformed(err error) error {
	return fmt.Errorf("malformed reply: %v: %w", err, ports.ErrPeer)
}
