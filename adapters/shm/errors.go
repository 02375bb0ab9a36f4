package shm

import (
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// OpError says what failed and at which peer. Err is or wraps an error class of ports or domain, an errno or a *FaultError.
type OpError struct {
	Op   string
	Peer ports.PeerID
	Err  error
}

func (e *OpError) Error() string { return fmt.Sprintf("shm %s, peer %q: %v", e.Op, e.Peer, e.Err) }

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// FaultError says that a copy touched memory that is not there, on either side.
type FaultError struct{ Addr uintptr }

func (e *FaultError) Error() string { return fmt.Sprintf("memory fault at %#x", e.Addr) }

func fail(op string, peer ports.PeerID, err error) error {
	return &OpError{Op: op, Peer: peer, Err: err}
}
