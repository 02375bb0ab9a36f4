package ports

import (
	"context"

	"github.com/spanpool/spanpool/domain"
)

//go:generate go tool mockgen -source=peers.go -destination=../mocks/peers.go -package=mocks

// ProtocolVersion is the one this release speaks; it also understands the one before it.
const ProtocolVersion = 1

// Hello is the first message to a peer, and is said again when the asker's namespaces grow.
type Hello struct {
	From       Peer
	Protocol   uint32
	Features   uint64
	Namespaces []string // number i is Namespaces[i], from this hello to the next one of this start of the asker
	Offers     []Offer  // in the order of preference; none when only the namespaces grew
}

// Offer carries a transport's opaque bytes.
type Offer struct {
	Kind  TransportKind
	Bytes []byte
}

// HelloReply answers it. Buffers is what layouts are checked against.
type HelloReply struct {
	From     Peer
	Protocol uint32
	Features uint64
	PageSize uint64
	Buffers  []uint64 // length of each buffer of the medium
	Answers  []Offer  // one per offer that was taken
	Refused  []Refusal
}

// Refusal says why a transport was not taken.
type Refusal struct {
	Kind   TransportKind
	Reason string
}

// Key on the wire. Space indexes the Namespaces of the asker's last hello.
type Key struct {
	Space uint32
	Name  string
}

// KeyStatus is a peer's answer about one key.
type KeyStatus uint8

// The answers.
const (
	KeyAbsent KeyStatus = iota
	KeyHere
	KeyStale   // a renewal whose generation is gone or whose lease has ended
	KeyRefused // not allowed to ask, or malformed
)

// ResolveRequest is columns, one row per key. Held and Versions are what the asker has from before: a row with Held is a
// renewal, answered KeyHere (granted) or KeyStale; a row with a version wants that version only (KeyAbsent otherwise).
type ResolveRequest struct {
	Keys          []Key
	Versions      []domain.Version    // zero: any
	Held          []domain.Generation // zero: resolve anew
	WantChecksums bool
}

// ResolveReply is columns, filled into slices that the caller reuses, one row per key. Layout columns are empty for a renewal
// and for a key that is not here.
type ResolveReply struct {
	Status      []KeyStatus
	Versions    []domain.Version
	Generations []domain.Generation
	Sizes       []uint64
	LeaseNanos  []int64
	PageEnd     []uint32 // pages of row i are Pages[PageEnd[i-1]:PageEnd[i]]
	Pages       []domain.PageRef
	LenEnd      []uint32 // put-ranges of row i are PutLens[LenEnd[i-1]:LenEnd[i]]
	PutLens     []uint64 // length of each put-range in object order (they tile, so lengths are enough)
	SumEnd      []uint32 // sums of row i: as many as its put-ranges, or none (no sum is not a sum of 0)
	Sums        []uint32 // CRC-32C
}

// Reset empties the columns and keeps their room.
func (r *ResolveReply) Reset() {
	r.Status, r.Versions, r.Generations = r.Status[:0], r.Versions[:0], r.Generations[:0]
	r.Sizes, r.LeaseNanos = r.Sizes[:0], r.LeaseNanos[:0]
	r.PageEnd, r.Pages = r.PageEnd[:0], r.Pages[:0]
	r.LenEnd, r.PutLens, r.SumEnd, r.Sums = r.LenEnd[:0], r.PutLens[:0], r.SumEnd[:0], r.Sums[:0]
}

// ProbeReply is columns, one row per key; Status is KeyHere or KeyAbsent.
type ProbeReply struct {
	Status   []KeyStatus
	Versions []domain.Version
}

// PeerResolver asks one peer about many keys: one round trip per call. Requests are borrowed for the call; replies are filled
// (their columns are truncated first) and valid when the error is nil. Every method is idempotent. The error is ErrRestarted
// when the peer is not the start that was named, or does not know this start of ours; ErrPeer when it cannot be reached;
// ErrTimeout or the context's cause when the time is over. Safe for parallel use.
type PeerResolver interface {
	Hello(ctx context.Context, p Peer, h *Hello, out *HelloReply) error
	// Probe takes no lease and moves no recency.
	Probe(ctx context.Context, p Peer, keys []Key, out *ProbeReply) error
	Resolve(ctx context.Context, p Peer, req *ResolveRequest, out *ResolveReply) error
	// Complain names copies whose bytes did not match; the owner verifies before it drops.
	Complain(ctx context.Context, p Peer, held []domain.Generation) error
}

// ReserveRequest is columns. (Key, Version) names a put, so Reserve is idempotent by it and no slot id is needed.
type ReserveRequest struct {
	Via      TransportKind // the owner grants on this transport
	Keys     []Key
	Versions []domain.Version
	Sizes    []uint64
}

// ReserveStatus is the answer for one row.
type ReserveStatus uint8

// The answers.
const (
	Reserved      ReserveStatus = iota // a fresh reservation: everything is written again
	ReservedYours                      // the same one still stands: same pages, what was written counts
	ReserveExists
	ReserveConflict // exists with another size
	ReserveBusy
	ReserveNoSpace
	ReserveRefused
)

// ReserveReply is columns, one row per key.
type ReserveReply struct {
	Status   []ReserveStatus
	Tokens   []GrantToken
	EndNanos []int64 // time left for the reservation
	PageEnd  []uint32
	Pages    []domain.PageRef
}

// Reset empties the columns and keeps their room.
func (r *ReserveReply) Reset() {
	r.Status, r.Tokens, r.EndNanos = r.Status[:0], r.Tokens[:0], r.EndNanos[:0]
	r.PageEnd, r.Pages = r.PageEnd[:0], r.Pages[:0]
}

// CommitRequest carries the put-ranges' boundaries and checksums, known only after the last byte was read.
type CommitRequest struct {
	Keys     []Key
	Versions []domain.Version
	LenEnd   []uint32
	PutLens  []uint64
	SumEnd   []uint32
	Sums     []uint32
}

// CommitStatus is the answer for one row.
type CommitStatus uint8

// The answers.
const (
	CommitDone    CommitStatus = iota // visible now, or it was by an earlier commit of the same (key, version)
	CommitExists                      // another version was first; this one was dropped
	CommitRefused                     // no such reservation: unknown, expired, aborted, or from before a clear
)

// PeerWriter puts to one peer. Every call is idempotent by (key, version). Errors as for PeerResolver.
type PeerWriter interface {
	Reserve(ctx context.Context, p Peer, req *ReserveRequest, out *ReserveReply) error
	Commit(ctx context.Context, p Peer, req *CommitRequest, out *[]CommitStatus) error
	// Abort ends reservations. quiet says that our transport has no write outstanding, so that Revoke is cheap.
	Abort(ctx context.Context, p Peer, keys []Key, versions []domain.Version, quiet Quiet) error
	// Remove dooms the copies there. A row is KeyHere when there was one.
	Remove(ctx context.Context, p Peer, keys []Key, out *[]KeyStatus) error
}

// PeerServer is PeerResolver and PeerWriter seen from the inside: there the Peer argument is the one that asks. The app
// implements it; grpcpeer and inproc serve it, so one suite runs on all three.
type PeerServer interface {
	PeerResolver
	PeerWriter
}
