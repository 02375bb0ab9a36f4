package domain

import "errors"

// ErrNoSpace says that an allocation does not fit now; nothing was changed.
var ErrNoSpace = errors.New("no space")

// SlotID names a slot of a Table; zero is none. An id is reused after its slot is free: who keeps one keeps a pin, or
// compares the Generation.
type SlotID uint32

// SlotState is the life of a slot: free -> pending or filling -> committed; each of these -> doomed -> free.
type SlotState uint8

// The states of a slot.
const (
	SlotFree SlotState = iota
	SlotPending
	SlotFilling
	SlotCommitted
	SlotDoomed
)

// Origin is where an object's bytes came from; copies give way before objects that were put here.
type Origin uint8

// The origins.
const (
	PutHere Origin = iota
	FetchedHere
)

// DoomCause is why a slot was doomed; counted.
type DoomCause uint8

// The causes.
const (
	DoomAbort       DoomCause = iota // its writer gave up
	DoomDeadline                     // its reservation ended
	DoomEvicted                      // its pages were wanted
	DoomCleared                      // Clear
	DoomRemoved                      // Remove
	DoomLost                         // another slot of the key was committed first
	DoomVersionGone                  // a filling slot whose version no holder has any more
	DoomCorrupt                      // its bytes did not match their sums
	DoomFailed                       // its copy or transfer failed
	NumDoomCauses
)

// TableConfig sizes a Table.
type TableConfig struct {
	Incarnation     Incarnation
	PageSize        uint64
	BufferPages     []uint32
	MaxFillingPages uint64 // zero: a quarter of all pages
	MaxHeldPages    uint64 // zero: a tenth of all pages
	Scatter         bool   // see NewPages
}

// Table is the slots of one medium: states, pages, pins, leases, recency, and the index by key. A key has at most one
// committed, one pending and one filling slot at a time. Records are slabs without pointers; a key's bytes, its pages and its
// sums lie in slabs of their own, and the boundaries of put-ranges are interned per shape. A Table takes no lock.
type Table struct{ cfg TableConfig }

// NewTable makes an empty table.
func NewTable(cfg TableConfig) *Table { panic("todo") }

// Lookup finds the visible slots of a key; each is zero when there is none. It moves no recency.
func (t *Table) Lookup(space Space, name string) (committed, filling, pending SlotID) { panic("todo") }

// NewSlot says what to reserve.
type NewSlot struct {
	Space    Space
	Name     string
	Version  Version
	Size     uint64
	State    SlotState // SlotPending or SlotFilling
	Origin   Origin
	Deadline Instant // of a pending slot
}

// Reserve allocates the pages of a new slot and makes it the key's pending or filling slot, with a generation of its own. It
// returns ErrNoSpace when the pages cannot be had as things are (or a filling slot would exceed MaxFillingPages); PlanEviction
// says what could give way. Preconditions: CheckKey passed, 0 < Size <= MaxObjectSize, and the key has no slot in that state.
func (t *Table) Reserve(n NewSlot) (SlotID, error) { panic("todo") }

// PagesFor is the number of pages that size bytes need.
func (t *Table) PagesFor(size uint64) uint64 { panic("todo") }

// PlanEviction appends the slots to doom so that a slot of need pages in the given state can be reserved: idle filling slots,
// oldest first; then committed copies, then committed objects that were put here, each in LRU order; never one that is pinned,
// leased, held or granted. Nothing is appended when free pages suffice. It reports false, with dst as it was, when even all
// of them would not do. It changes nothing: the caller dooms.
func (t *Table) PlanEviction(need uint64, state SlotState, now Instant, dst []SlotID) ([]SlotID, bool) {
	panic("todo")
}

// PlanWatermark appends what to doom, in the same order, until at least low free pages would be there.
func (t *Table) PlanWatermark(lowFree uint64, now Instant, dst []SlotID) []SlotID { panic("todo") }

// Commit makes a pending or filling slot the key's committed one, most recently used. It reports false, and changes nothing,
// when the key has a committed slot already. Precondition: id is pending or filling.
func (t *Table) Commit(id SlotID) bool { panic("todo") }

// Doom makes a slot invisible; it takes no new pin, and its pages return as soon as it is unpinned, no lease runs, and no
// grant stands. Dooming a doomed slot changes nothing.
func (t *Table) Doom(id SlotID, cause DoomCause, now Instant) { panic("todo") }

// Pin keeps the slot's pages. Precondition: it is neither free nor doomed; anything else panics (resurrection).
func (t *Table) Pin(id SlotID) { panic("todo") }

// Unpin undoes one Pin. One too many panics.
func (t *Table) Unpin(id SlotID, now Instant) { panic("todo") }

// Touch makes a committed or filling slot the most recently used of its kind.
func (t *Table) Touch(id SlotID) { panic("todo") }

// Lease promises that the pages are not reused before until; it never shortens. Precondition: committed.
func (t *Table) Lease(id SlotID, until Instant) { panic("todo") }

// Hold keeps a committed slot from eviction until then (exists with a hold). It reports false when held pages would exceed
// MaxHeldPages; holds that have ended at now do not count.
func (t *Table) Hold(id SlotID, until, now Instant) bool { panic("todo") }

// SetGranted says whether a peer may write the slot's pages. Clearing it frees a doomed slot that nothing else keeps.
func (t *Table) SetGranted(id SlotID, granted bool, now Instant) { panic("todo") }

// SlotInfo is a copy of what a Table knows of a slot.
type SlotInfo struct {
	State      SlotState
	Origin     Origin
	Granted    bool
	Space      Space
	Version    Version
	Generation Generation
	Size       uint64
	Pins       uint32
	LeaseUntil Instant
	Deadline   Instant
}

// Info copies the slot's record.
func (t *Table) Info(id SlotID) SlotInfo { panic("todo") }

// Name is the slot's key. It allocates.
func (t *Table) Name(id SlotID) string { panic("todo") }

// Layout is the slot's pages. The slice is the table's own memory: it stays right while the slot is pinned, also outside of
// the caller's lock, and must not be changed.
func (t *Table) Layout(id SlotID) Layout { panic("todo") }

// SetSums records the put-ranges (lengths in object order; they tile the object) and their CRC-32C. sums is empty when there
// are none, which is not a sum of 0; otherwise it is as long as lens. Both are copied; lens are interned per shape.
func (t *Table) SetSums(id SlotID, lens []uint64, sums []uint32) { panic("todo") }

// Sums returns what SetSums recorded, as the table's own memory (see Layout).
func (t *Table) Sums(id SlotID) (lens []uint64, sums []uint32) { panic("todo") }

// Held is the extents that a filling slot holds; Claimed those that flights are fetching. Both live as long as the slot is
// filling, or doomed and not free.
func (t *Table) Held(id SlotID) *Extents { panic("todo") }

// Claimed is the extents of a filling slot that flights are fetching.
func (t *Table) Claimed(id SlotID) *Extents { panic("todo") }

// Find returns the committed slot of that generation, or zero. O(1).
func (t *Table) Find(g Generation) SlotID { panic("todo") }

// AppendExpired appends the pending slots whose deadline has passed at now.
func (t *Table) AppendExpired(now Instant, dst []SlotID) []SlotID { panic("todo") }

// AppendSlots appends every slot that is in one of the states (a bit per SlotState).
func (t *Table) AppendSlots(states uint8, dst []SlotID) []SlotID { panic("todo") }

// Sweep frees the doomed slots that only a lease that has ended at now still kept.
func (t *Table) Sweep(now Instant) { panic("todo") }

// TableStats is what a Table counts.
type TableStats struct {
	PagesTotal, PagesFree uint64
	Slots                 [SlotDoomed + 1]uint64 // by state; Slots[SlotFree] is 0
	Pages                 [SlotDoomed + 1]uint64
	Pins                  uint64 // over all slots
	HeldPages             uint64
	Doomed                [NumDoomCauses]uint64 // since the start
}

// Stats copies the counts. O(1).
func (t *Table) Stats() TableStats { panic("todo") }

// CheckInvariants verifies the whole table against itself; for tests and the invariants build. O(n).
func (t *Table) CheckInvariants() error { panic("todo") }
