package ports

import (
	"context"
	"time"

	"github.com/spanpool/spanpool/domain"
)

//go:generate go tool mockgen -source=pool.go -destination=../mocks/pool.go -package=mocks

// Status is what became of one key of a call. Only Hit, Stored and Exists are successes.
type Status uint8

// The statuses.
const (
	StatusNone      Status = iota // not decided; no finished call returns it
	Hit                           // every byte asked for is in its destination
	Stored                        // put: committed by this call
	Exists                        // put: was there already; nothing was written
	Conflict                      // put: was there already with another size
	NotFound                      // nowhere, and every peer that may hold it answered
	Invalid                       // the key or its ranges are malformed, or do not fit the object
	TooLarge                      // a span larger than the arena and no other route, or a destination smaller than the object
	NoSpace                       // no slot, no direct way, and the arena is off; put: the medium is full
	Busy                          // put: another writer holds the reservation; or over the limit of bytes in flight
	Late                          // the lease was over before the bytes came, twice; or the session's version is gone
	Corrupt                       // no holder had bytes that match their sums
	TransferFailed                // the transport failed
	CopyFailed                    // the copy to or from the caller's memory failed
	PeerUnavailable               // nowhere here, and a peer that may hold it did not answer
	NotRegistered                 // the route needs memory that is not registered
	Refused                       // quota or limit
	Cancelled                     // the caller's context ended
	NumStatuses
)

var statusNames = [NumStatuses]string{"none", "hit", "stored", "exists", "conflict", "not_found", "invalid", "too_large", "no_space", "busy", "late",
	"corrupt", "transfer_failed", "copy_failed", "peer_unavailable", "not_registered", "refused", "cancelled"}

func (s Status) String() string {
	if s < NumStatuses {
		return statusNames[s]
	}
	return "unknown"
}

// OK reports whether s is a success.
func (s Status) OK() bool { return s == Hit || s == Stored || s == Exists }

// Source is which way the bytes of a hit came.
type Source uint8

// The sources.
const (
	FromNowhere Source = iota
	FromLocal          // a committed slot of this node
	FromSlot           // a filling slot: what it lacked was fetched into it
	FromDirect         // fetched into the caller's memory
	FromArena          // fetched into the arena and copied out
	NumSources
)

var sourceNames = [NumSources]string{"nowhere", "local", "slot", "direct", "arena"}

func (s Source) String() string {
	if s < NumSources {
		return sourceNames[s]
	}
	return "unknown"
}

// Result is the answer for one key. The destination of a key without Hit is undefined.
type Result struct {
	Status   Status
	Source   Source
	Verified bool   // every byte of this key was checked against a sum, in this call or when it came to this node
	Size     uint64 // of the object, when it is known
	Fetched  uint64 // bytes that this call took from a peer for this key
	Joined   uint64 // bytes of other calls' flights that it waited for
	Err      error  // what went wrong, for people; nil for a success
}

// Remote reports whether the key took at least one byte from a peer.
func (r Result) Remote() bool { return r.Fetched+r.Joined > 0 }

// MemoryID names registered memory; zero is none.
type MemoryID uint64

// Memory is an entry of a call's region table. ID is zero for memory that was not registered: it serves every route but the
// direct one.
type Memory struct {
	Region Region
	ID     MemoryID
}

// SessionID names a read session; zero is none.
type SessionID uint64

// WriteID names a write session; zero is none.
type WriteID uint64

// Target is where one whole object goes or comes from: Len bytes of room at offset Off of entry Region of the call's table.
type Target struct {
	Region   uint32
	Off, Len uint64
}

// GetBatch asks for ranges of many keys, as lists or by patterns. All columns are borrowed for the call. Keys may repeat; each is
// served. Where destinations overlap, which of the bytes stay there is not defined, and Result.Verified says nothing of them; a read
// straight into registered memory may be Corrupt then, for what it has brought is gone when it is looked at.
type GetBatch struct {
	Namespace string
	Keys      []string
	End       []uint32 // ranges of key i are Ranges[End[i-1]:End[i]]; as long as Keys
	Ranges    []domain.Range
	Patterns  []Pattern // instead of End and Ranges: their rows together are as many as Keys
	Regions   []Memory
	Session   SessionID // zero: no session
}

// Pattern is the same ranges of as many keys as it has rows, which follow those of the pattern before it. A call by pattern is
// planned once for each of them, and not for each key.
type Pattern struct {
	Ranges []domain.PatternRange
	Rows   []uint64
}

// PutBatch gives the ranges of many objects; those of a key tile [0, Sizes[i]).
type PutBatch struct {
	Namespace string
	Keys      []string
	Sizes     []uint64
	End       []uint32
	Ranges    []domain.Range
	Regions   []Memory
	To        PeerID // empty: this node
}

// WholeBatch names whole objects. For a put Len is the object's size; for a get it is the room.
type WholeBatch struct {
	Namespace string
	Keys      []string
	Targets   []Target // as long as Keys
	Regions   []Memory
	To        PeerID // put: empty is this node
}

// Removal is the answer of Remove for one key.
type Removal struct {
	Found      bool     // at least one copy was dropped
	Unanswered []PeerID // known holders that did not answer
}

// Pool is the way in: what a Go program, the engine's adapter, ctl and the benchmark call. A batch call fills out[i] for key i
// (len(out) == len(keys)) and returns an error only when the call as a whole is malformed or the pool is closed; every key then
// has a status that says so. When a call returns, nothing touches the caller's memory any more. Calls end within the bound of a
// whole call (5 s by default) and of their context. Safe for parallel use.
type Pool interface {
	// Put stores b under a key: a BatchPut of one.
	Put(ctx context.Context, namespace, name string, b HostRegion) Result
	// Get reads a whole object into b: a BatchGet of one.
	Get(ctx context.Context, namespace, name string, b HostRegion) Result
	BatchPut(ctx context.Context, w *WholeBatch, out []Result) error
	BatchGet(ctx context.Context, w *WholeBatch, out []Result) error
	BatchPutRanges(ctx context.Context, p *PutBatch, out []Result) error
	BatchGetRanges(ctx context.Context, g *GetBatch, out []Result) error

	// OpenRead begins a session: its reads of a key all come from one version. CloseRead ends it; twice is ErrNotFound.
	OpenRead(ctx context.Context, namespace string) (SessionID, error)
	CloseRead(id SessionID) error

	// OpenWrite reserves room on this node for objects that are written in parts. out[i] is Hit for a key that is reserved, Exists for
	// one that needs nothing, or why not. What is not committed within the reservation's time is aborted. Names do not repeat.
	OpenWrite(ctx context.Context, namespace string, names []string, sizes []uint64, out []Result) (WriteID, error)
	// WriteRanges writes ranges of keys of a session; p.Sizes is not read, and p.Namespace is the session's. Stored is written, and
	// nothing is visible yet. A range that was written before is Invalid, and changes nothing. A copy that fails ends its key.
	WriteRanges(ctx context.Context, id WriteID, p *PutBatch, out []Result) error
	// CommitWrite makes keys of a session visible, whole or not at all: Invalid says that a key's ranges do not tile it yet. A key that
	// was committed gets the same answer again.
	CommitWrite(ctx context.Context, id WriteID, names []string, out []Result) error
	// AbortWrite gives back what is not committed and ends the session; one that is not there is ErrNotFound.
	AbortWrite(id WriteID) error

	// BatchExists fills found[i] for names[i], here or at a peer, and returns the length of the leading run that exists. It
	// takes no lease and moves no recency. With a hold, what was found here stays for that time, within bounds.
	BatchExists(ctx context.Context, namespace string, names []string, hold time.Duration, found []bool) (leading int, err error)
	// Size is the size of an object that is here or at a peer; ErrNotFound otherwise, and ErrPeer where one that may have it did not answer.
	Size(ctx context.Context, namespace, name string) (uint64, error)
	// Remove dooms the copies here and asks every known holder; ErrPeer, after that, where a directory does not know all of them.
	Remove(ctx context.Context, namespace string, names []string, out []Removal) error
	// Clear dooms everything on this node, pending reservations included.
	Clear(ctx context.Context) error

	// RegisterMemory makes a caller's memory usable by the direct route. DeregisterMemory returns once it is quiet; an id that
	// is not known is ErrNotFound.
	RegisterMemory(ctx context.Context, r Region) (Memory, error)
	DeregisterMemory(ctx context.Context, id MemoryID) error

	Stats() Stats
	Close() error
}
