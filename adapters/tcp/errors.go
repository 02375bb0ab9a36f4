package tcp

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// OpError says what failed and at which peer. Err is or wraps an error class of ports or domain, or an errno.
type OpError struct {
	Op   string
	Peer ports.PeerID
	Err  error
}

func (e *OpError) Error() string { return fmt.Sprintf("tcp %s, peer %q: %v", e.Op, e.Peer, e.Err) }

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// errAborted ends a send whose memory is not ours any more.
var errAborted = errors.New("the link has ended")
