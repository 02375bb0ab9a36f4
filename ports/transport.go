package ports

import (
	"context"
	"fmt"

	"github.com/spanpool/spanpool/domain"
)

//go:generate go tool mockgen -source=transport.go -destination=../mocks/transport.go -package=mocks

// TransportKind names a transport in hello, in reservations and in metrics.
type TransportKind string

// PeerID is the stable name of a node; with an Incarnation it names one start of it.
type PeerID string

// Peer is one start of one node. A zero Incarnation stands for whichever start answers (Hello only).
type Peer struct {
	ID          PeerID
	Incarnation domain.Incarnation
}

// Caps says what a transport can do. Zero limits mean none.
type Caps struct {
	Write         bool   // shm: false; Grant and ops that write are refused with errors.ErrUnsupported then
	Device        bool   // may name DeviceRegions
	NeedsRegister bool   // local memory of an op must be registered (rdma)
	MaxOpBytes    uint64 // a longer op is refused
	Sums          bool   // makes the sums that reads into memory of the host ask for (Op.Sum)
}

// Registration is a local registration. The zero value is none.
type Registration uint64

// GrantID names a grant at its owner.
type GrantID uint64

// GrantToken is what the owner gives to the writer; opaque.
type GrantToken [64]byte

// Quiet says whether the writer has reported that no write of it is outstanding.
type Quiet bool

// Registrar is the owner's half: which local memory a transport may touch, and who may write where.
type Registrar interface {
	// Expose makes buffer i of the medium readable by every peer with a link. Once per buffer, before the first Answer. An error that
	// wraps errors.ErrUnsupported says that the transport does not reach that memory: no peer is answered over it then, and
	// ops do not name that memory.
	Expose(buffer uint32, r Region) error
	// Register makes local memory usable in ops (arenas, callers' memory). Deregister returns once it is quiet. An error that wraps
	// errors.ErrUnsupported is as of Expose.
	Register(r Region) (Registration, error)
	Deregister(Registration) error
	// Grant lets writer write to these pages of the exposed buffers. pages is copied. A token is good for that start of the
	// writer only.
	Grant(writer Peer, pageSize uint64, pages []domain.PageRef) (GrantID, GrantToken, error)
	// Revoke returns nil when no byte of the writer can land under this grant any more. On an error, or a context that
	// ends, the pages must not return: call it again. Twice is allowed.
	Revoke(ctx context.Context, g GrantID, quiet Quiet) error
}

// Purpose is why bytes cross. They are counted by it, in the transport.
type Purpose uint8

// The purposes.
const (
	PurposeGet Purpose = iota
	PurposePull
	PurposePut
	NumPurposes
)

// Direction of an op as the submitter sees it.
type Direction uint8

// The directions.
const (
	Read Direction = iota
	Write
)

// Segment is contiguous on both sides.
type Segment struct {
	Remote    uint32 // buffer of the peer's medium
	RemoteOff uint64
	Local     Region // the whole region, never a slice of it (boxing allocates)
	LocalOff  uint64
	Len       uint64
}

// Op is what completes or fails as one: the segments [First, First+Count) of its batch.
type Op struct {
	Tag          uint64 // comes back in the completion
	First, Count uint32
	Purpose      Purpose
	Dir          Direction
	Sum          bool       // reads: make the CRC-32C of its bytes on the way, where Caps.Sums says so
	Grant        GrantToken // writes only
	Deadline     domain.Instant
}

// Batch is columns that the caller owns. It is borrowed from Submit until the last of its ops completed.
type Batch struct {
	Ops      []Op
	Segments []Segment
}

// Check refuses a batch that contradicts itself, which is a bug of its caller: every Link's Submit asks it before anything else.
func (b *Batch) Check() error {
	for i := range b.Ops {
		op := &b.Ops[i]
		if uint64(op.First)+uint64(op.Count) > uint64(len(b.Segments)) {
			return fmt.Errorf("op %d: segments %d and the %d behind, of %d: %w", i, op.First, op.Count, len(b.Segments), domain.ErrInvalid)
		}
		if op.Purpose >= NumPurposes || op.Dir > Write {
			return fmt.Errorf("op %d: purpose %d, direction %d: %w", i, op.Purpose, op.Dir, domain.ErrInvalid)
		}
	}
	return nil
}

// Transport moves bytes between a peer's exposed buffers and local memory, one-sided.
type Transport interface {
	Registrar
	Kind() TransportKind
	Caps() Caps
	// Offer starts a link to a peer; the bytes go out in our hello.
	Offer(ctx context.Context, to PeerID) (PendingLink, error)
	// Answer serves a peer's offer; the bytes go back in the reply to its hello. The responder's state lives until
	// Drop(peer), a new Answer to a newer incarnation, or Close.
	Answer(ctx context.Context, from Peer, offer []byte) ([]byte, error)
	// Drop frees what Answer made for that start of a peer and revokes its grants.
	Drop(from Peer)
	// Close ends every link and what Answer made, and returns when exposed and registered memory is quiet.
	Close() error
}

// PendingLink is an offer that waits for its answer. Link or Close must be called, once.
type PendingLink interface {
	Bytes() []byte
	Link(ctx context.Context, answer []byte) (Link, error)
	Close() error
}

// Link is an open way to one start of one peer. Safe for parallel use.
type Link interface {
	// Submit queues b and returns; it does not wait for the network. An error means that nothing was submitted. An op out of
	// the remote buffers' or its region's bounds, or without a good grant, completes with ErrBounds or ErrRevoked.
	Submit(b *Batch, q *Completions) error
	// Cancel asks that these ops, which no other call waits for, let go of their memory soon (tcp: discard; rdma: nothing
	// to do). They still complete, each once; one whose bytes were thrown away with ErrCancelled, never with nil.
	Cancel(q *Completions, tags []uint64)
	// Counts is by purpose, and readable after Close.
	Counts() LinkStats
	// Done is closed when the link is dead; every op completed before that.
	Done() <-chan struct{}
	// Close ends the link: ops that did not finish complete with ErrReset. It returns when all have.
	Close() error
}

// LinkStats is counted where the bytes cross, by purpose.
type LinkStats struct {
	Bytes  [NumPurposes]uint64 // that arrived (reads) or were applied (writes)
	Thrown [NumPurposes]uint64 // those among them that were of ops which did not complete well, or came after these had ended
}
