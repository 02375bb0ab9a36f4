package inproc

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// OpError says what failed and at which peer. Err is or wraps an error class of ports or domain, what the peer's server
// returned, or the cause of the context's end.
type OpError struct {
	Op   string
	Peer ports.PeerID
	Err  error
}

func (e *OpError) Error() string { return fmt.Sprintf("inproc %s, peer %q: %v", e.Op, e.Peer, e.Err) }

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// ended is the error of a wait that its context ended.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ports.ErrTimeout, cause)
	}
	return cause
}
