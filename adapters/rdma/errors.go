package rdma

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// OpError says what failed and at which peer. Err is or wraps an error class of ports or domain, a Status, or an errno.
type OpError struct {
	Op   string
	Peer ports.PeerID
	Err  error
}

func (e *OpError) Error() string { return fmt.Sprintf("rdma %s, peer %q: %v", e.Op, e.Peer, e.Err) }

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

func fail(op string, peer ports.PeerID, err error) error {
	return &OpError{Op: op, Peer: peer, Err: err}
}

// Status is the status of a work completion (enum ibv_wc_status) that is not success.
type Status uint32

// The statuses that code here asks about.
const (
	StatusFlushed      Status = 5
	StatusRemAccess    Status = 10
	StatusRetryExc     Status = 12
	StatusRNRRetryExc  Status = 13
	numStatuses               = 24
	statusUnknownIndex        = numStatuses - 1
)

// statuses are the names, and what usually causes them.
var statuses = [numStatuses]struct{ name, cause string }{
	1:                  {"local length error", "a message that is longer than the receive posted for it, or than the port takes"},
	2:                  {"local queue pair operation error", "a work request that contradicts its queue pair; a bug here"},
	3:                  {"local end-to-end context error", "not for this kind of queue pair"},
	4:                  {"local protection error", "local memory that is not registered, was deregistered, or is not mapped any more"},
	5:                  {"flushed", "another request on this queue pair failed, or it was moved to the state of error"},
	6:                  {"memory window bind error", "not used here"},
	7:                  {"bad response", "the peer answered with what was not asked: another start, or a broken device"},
	8:                  {"local access error", "local memory that is registered without the right to write it"},
	9:                  {"remote invalid request", "the peer does not take such a request: its message size, outstanding reads or rights are smaller"},
	10:                 {"remote access error", "a key that the peer does not know, bounds that it does not have, or rights that it did not give: it restarted or deregistered"},
	11:                 {"remote operation error", "the peer's device could not carry it out"},
	12:                 {"transport retry counter exceeded", "the peer or the way to it is gone: link down, partition, wrong GID or MTU, a process that died, or a queue pair that it fenced"},
	13:                 {"receiver not ready retries exceeded", "the peer takes no messages: it is stopped or overloaded"},
	14:                 {"local reliable domain violation", "not for this kind of queue pair"},
	15:                 {"remote invalid reliable domain request", "not for this kind of queue pair"},
	16:                 {"remote aborted", "the peer broke it off"},
	17:                 {"invalid end-to-end context number", "not for this kind of queue pair"},
	18:                 {"invalid end-to-end context state", "not for this kind of queue pair"},
	19:                 {"fatal", "the device is in trouble: see the kernel's log"},
	20:                 {"response timeout", "the peer's device did not answer"},
	21:                 {"general error", "a fault that the device does not tell more of"},
	statusUnknownIndex: {"unknown status", "a status of a later library"},
}

func (s Status) row() int {
	if s >= numStatuses || statuses[s].name == "" {
		return statusUnknownIndex
	}
	return int(s)
}

// Known reports whether a status has a name of its own.
func (s Status) Known() bool { return s.row() != statusUnknownIndex || s == statusUnknownIndex }

// String is the short name.
func (s Status) String() string { return statuses[s.row()].name }

func (s Status) Error() string {
	return fmt.Sprintf("completion status %d, %s (%s)", uint32(s), statuses[s.row()].name, statuses[s.row()].cause)
}

// Is gives the classes: what was not the op's own fault is a reset of the link.
func (s Status) Is(target error) bool {
	switch s {
	case StatusFlushed, StatusRetryExc, StatusRNRRetryExc, 20:
		return target == ports.ErrReset
	case 7, 9, StatusRemAccess, 11, 16:
		return target == ports.ErrPeer
	}
	return false
}

// blameless reports whether the same request may succeed on another queue pair.
func (s Status) blameless() bool { return s.Is(ports.ErrReset) }

var errFormat = errors.New("not of this protocol")
