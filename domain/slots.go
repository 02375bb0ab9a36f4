package domain

import (
	"errors"
	"fmt"
	"math"
)

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

func (s SlotState) String() string {
	names := [...]string{"free", "pending", "filling", "committed", "doomed"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("slot state %d", uint8(s))
}

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
	DoomPressure                     // background eviction between watermarks
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
//
//	        Reserve            Commit
//	free ----------> pending ----------> committed
//	  |  ----------> filling ----------^     |
//	  |                 | Doom               | Doom
//	  ^                 v                    v
//	  +-------------- doomed <---------------+
//	    reap: no pin, no running lease, no grant
//
// A visible slot (pending, filling, committed) is in the index and in the list of its kind; a doomed one is in the list of
// doomed slots only. Instants are not negative: zero is no lease, no hold, no deadline.
type Table struct {
	cfg        TableConfig
	maxFilling uint64
	maxHeld    uint64

	records   slab[record]
	keys      blocks[byte]
	pageLists blocks[PageRef]
	sums      blocks[uint32]
	shapes    shapeTable
	fills     fillSlab
	pages     *Pages
	index     keyIndex

	// The list of each kind of slot. Filling and committed ones are in order of use, doomed and pending ones in order of
	// arrival.
	pending, filling, originals, copies, doomed slotList
	held                                        slotList // committed slots that are held, by the end of the hold

	stats TableStats // all but PagesTotal and PagesFree, which pages knows
}

// record is what a Table keeps per slot. It holds no pointer, and its 112 bytes fill chunks without a rest.
type record struct {
	version  Version
	size     uint64
	lease    Instant // no reuse of the pages before
	hold     Instant // no eviction before
	deadline Instant

	use   uint32 // of this record: 1 for its first slot. With the id it is the generation's counter
	hash  uint32
	space Space
	key   uint32 // blocks
	pages uint32
	sums  uint32
	shape uint32 // of the put-ranges; zero is none
	fill  uint32 // the extents; zero is none
	chain SlotID // the key's next visible slot
	order links  // in the list of its kind
	held  links
	pins  uint32

	keyLen  uint16
	state   SlotState
	origin  Origin
	granted bool
	summed  bool // there are sums
}

// Values per chunk: some 16 KiB, so that a small table stays small and a large one has few chunks.
const (
	recordsPerChunk = 128
	bytesPerChunk   = 16 << 10
	pagesPerChunk   = 2 << 10
	sumsPerChunk    = 4 << 10
)

// NewTable makes an empty table. Precondition: the page size is not zero.
func NewTable(cfg TableConfig) *Table {
	if cfg.PageSize == 0 {
		panic("domain: page size 0")
	}
	t := &Table{
		cfg:       cfg,
		records:   newSlab[record](1, recordsPerChunk),
		keys:      newBlocks[byte](8, bytesPerChunk),
		pageLists: newBlocks[PageRef](1, pagesPerChunk),
		sums:      newBlocks[uint32](1, sumsPerChunk),
		shapes:    newShapeTable(),
		pages:     NewPages(cfg.BufferPages, cfg.Scatter),
		index:     newKeyIndex(),
	}
	t.maxFilling = orElse(cfg.MaxFillingPages, t.pages.Total()/4)
	t.maxHeld = orElse(cfg.MaxHeldPages, t.pages.Total()/10)
	for _, l := range []*slotList{&t.pending, &t.filling, &t.originals, &t.copies, &t.doomed} {
		l.of = byOrder
	}
	t.held.of = byHold
	t.records.alloc() // id 0 is no slot
	return t
}

// orElse is the configured value, or the default when it is zero.
func orElse(configured, otherwise uint64) uint64 {
	if configured != 0 {
		return configured
	}
	return otherwise
}

func (t *Table) slot(id SlotID) *record { return t.records.at(uint32(id)) }

// bug describes a slot for a panic.
func (t *Table) bug(what string, id SlotID) string {
	r := t.slot(id)
	return fmt.Sprintf("domain: %s: slot %d is %v, use %d, %d pins", what, id, r.state, r.use, r.pins)
}

// live is the record of a slot that must not be free.
func (t *Table) live(what string, id SlotID) *record {
	r := t.slot(id)
	if r.state == SlotFree {
		panic(t.bug(what, id))
	}
	return r
}

// committed is the record of a slot that must be committed.
func (t *Table) committed(what string, id SlotID) *record {
	r := t.slot(id)
	if r.state != SlotCommitted {
		panic(t.bug(what, id))
	}
	return r
}

// Lookup finds the visible slots of a key; each is zero when there is none. It moves no recency.
func (t *Table) Lookup(space Space, name string) (committed, filling, pending SlotID) {
	_, first := t.find(t.index.hash(space, name), space, name)
	return t.chain(first)
}

// chain sorts the slots of a key by their states.
func (t *Table) chain(first SlotID) (committed, filling, pending SlotID) {
	for id := first; id != 0; {
		r := t.slot(id)
		switch r.state {
		case SlotCommitted:
			committed = id
		case SlotFilling:
			filling = id
		case SlotPending:
			pending = id
		}
		id = r.chain
	}
	return committed, filling, pending
}

// NewSlot says what to reserve.
type NewSlot struct {
	Space    Space
	Name     string
	Version  Version
	Size     uint64
	State    SlotState // SlotPending or SlotFilling
	Origin   Origin
	Deadline Instant // of a pending slot; zero: none
}

// Reserve allocates the pages of a new slot and makes it the key's pending or filling slot, with a generation of its own. It
// returns ErrNoSpace when the pages cannot be had as things are (or a filling slot would exceed MaxFillingPages); PlanEviction
// says what could give way. Preconditions: CheckKey passed, 0 < Size <= MaxObjectSize, and the key has no slot in that state.
func (t *Table) Reserve(n NewSlot) (SlotID, error) {
	hash := t.index.hash(n.Space, n.Name)
	_, first := t.find(hash, n.Space, n.Name)
	t.checkNew(n, first)
	need := t.PagesFor(n.Size)
	if need > t.pages.Free() || n.State == SlotFilling && t.stats.Pages[SlotFilling]+need > t.maxFilling {
		return 0, ErrNoSpace
	}
	id := SlotID(t.records.alloc())
	r := t.slot(id)
	*r = record{
		version: n.Version, size: n.Size, deadline: n.Deadline,
		use: r.use + 1, hash: hash, space: n.Space,
		key: t.keys.alloc(len(n.Name)), keyLen: uint16(len(n.Name)),
		pages:  t.pageLists.alloc(int(need)),
		origin: n.Origin,
	}
	copy(t.keyBytes(r), n.Name)
	if !t.pages.Allocate(t.pageLists.block(r.pages, int(need))) {
		panic(t.bug("free pages that cannot be had", id))
	}
	if n.State == SlotFilling {
		r.fill = t.fills.alloc()
	}
	t.enterIndex(id, first)
	t.move(id, n.State)
	return id, nil
}

// checkNew panics when a precondition of Reserve does not hold; first is the key's first slot.
func (t *Table) checkNew(n NewSlot, first SlotID) {
	_, filling, pending := t.chain(first)
	switch {
	case n.Size == 0 || n.Size > MaxObjectSize:
		panic(fmt.Sprintf("domain: reserve of %d bytes, limit %d", n.Size, uint64(MaxObjectSize)))
	case CheckKey(n.Name) != nil:
		panic(fmt.Sprintf("domain: reserve under a key of %d bytes", len(n.Name)))
	case n.State != SlotPending && n.State != SlotFilling:
		panic(fmt.Sprintf("domain: reserve of a slot that is %v", n.State))
	case n.State == SlotPending && pending != 0:
		panic(t.bug("the key has a pending slot", pending))
	case n.State == SlotFilling && filling != 0:
		panic(t.bug("the key has a filling slot", filling))
	}
}

// PagesFor is the number of pages that size bytes need.
func (t *Table) PagesFor(size uint64) uint64 {
	n := size / t.cfg.PageSize
	if size%t.cfg.PageSize != 0 {
		n++
	}
	return n
}

// move takes a slot from the list and the counts of its state to those of the next one. It is the only place that changes
// a state.
func (t *Table) move(id SlotID, to SlotState) {
	r := t.slot(id)
	n := t.PagesFor(r.size)
	if l := t.listOf(r); l != nil {
		t.unlink(l, id)
		t.stats.Slots[r.state]--
		t.stats.Pages[r.state] -= n
	}
	r.state = to
	if l := t.listOf(r); l != nil {
		t.pushBack(l, id)
		t.stats.Slots[to]++
		t.stats.Pages[to] += n
	}
}

// listOf is the list that a slot is in; a free one is in none.
func (t *Table) listOf(r *record) *slotList {
	switch r.state {
	case SlotPending:
		return &t.pending
	case SlotFilling:
		return &t.filling
	case SlotDoomed:
		return &t.doomed
	case SlotCommitted:
		if r.origin == FetchedHere {
			return &t.copies
		}
		return &t.originals
	}
	return nil
}

// Commit makes a pending or filling slot the key's committed one, most recently used. It reports false, and changes nothing,
// when the key has a committed slot already. Precondition: id is pending or filling.
func (t *Table) Commit(id SlotID) bool {
	r := t.slot(id)
	if r.state != SlotPending && r.state != SlotFilling {
		panic(t.bug("commit", id))
	}
	first := t.index.entries[t.entryOf(id)].slot
	if committed, _, _ := t.chain(first); committed != 0 {
		return false
	}
	t.dropFill(r)
	r.deadline = 0
	t.move(id, SlotCommitted)
	return true
}

// Doom makes a slot invisible; it takes no new pin, and its pages return as soon as it is unpinned, no lease runs, and no
// grant stands. Dooming a doomed slot changes nothing.
func (t *Table) Doom(id SlotID, cause DoomCause, now Instant) {
	r := t.live("doom", id)
	if r.state == SlotDoomed {
		return
	}
	t.leaveIndex(id)
	t.endHold(id)
	t.move(id, SlotDoomed)
	t.stats.Doomed[cause]++
	t.reap(id, now)
}

// kept reports whether somebody may still touch the pages: this process, a peer that reads, or a peer that writes.
func (r *record) kept(now Instant) bool { return r.pins > 0 || r.lease > now || r.granted }

// reap frees a doomed slot that nothing keeps. Everything that stops keeping a slot ends here, and nothing else frees one.
func (t *Table) reap(id SlotID, now Instant) {
	r := t.slot(id)
	if r.state != SlotDoomed || r.kept(now) {
		return
	}
	n := int(t.PagesFor(r.size))
	t.pages.Release(t.pageLists.block(r.pages, n))
	t.pageLists.release(r.pages, n)
	t.keys.release(r.key, int(r.keyLen))
	t.dropSums(r)
	t.dropFill(r)
	t.move(id, SlotFree)
	if r.use == math.MaxUint32 { // its next generation would be one that was used before
		t.records.retire()
		return
	}
	t.records.release(uint32(id))
}

// Pin keeps the slot's pages. Precondition: it is neither free nor doomed; anything else panics (resurrection).
func (t *Table) Pin(id SlotID) {
	r := t.slot(id)
	if r.state == SlotFree || r.state == SlotDoomed {
		panic(t.bug("pin", id))
	}
	r.pins++
	t.stats.Pins++
}

// Unpin undoes one Pin. One too many panics.
func (t *Table) Unpin(id SlotID, now Instant) {
	r := t.slot(id)
	if r.pins == 0 {
		panic(t.bug("unpin", id))
	}
	r.pins--
	t.stats.Pins--
	t.reap(id, now)
}

// Touch makes a committed or filling slot the most recently used of its kind; on any other it does nothing.
func (t *Table) Touch(id SlotID) {
	r := t.slot(id)
	if r.state != SlotCommitted && r.state != SlotFilling {
		return
	}
	if l := t.listOf(r); l.last != id {
		t.unlink(l, id)
		t.pushBack(l, id)
	}
}

// Lease promises that the pages are not reused before until; it never shortens. Precondition: committed.
func (t *Table) Lease(id SlotID, until Instant) {
	r := t.committed("lease", id)
	r.lease = max(r.lease, until)
}

// SetGranted says whether a peer may write the slot's pages. Clearing it frees a doomed slot that nothing else keeps.
func (t *Table) SetGranted(id SlotID, granted bool, now Instant) {
	t.live("grant", id).granted = granted
	t.reap(id, now)
}

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

// Info copies the slot's record; a free one gives the zero SlotInfo.
func (t *Table) Info(id SlotID) SlotInfo {
	r := t.slot(id)
	if r.state == SlotFree {
		return SlotInfo{}
	}
	return SlotInfo{
		State: r.state, Origin: r.origin, Granted: r.granted, Space: r.space,
		Version: r.version, Generation: t.generation(id, r), Size: r.size,
		Pins: r.pins, LeaseUntil: r.lease, Deadline: r.deadline,
	}
}

// generation is (use of the record, id): no two slots share it, since a record whose uses are exhausted is retired.
func (t *Table) generation(id SlotID, r *record) Generation {
	return Generation{t.cfg.Incarnation, uint64(r.use)<<32 | uint64(id)}
}

// Find returns the committed slot of that generation, or zero. O(1). Any value may be asked for.
func (t *Table) Find(g Generation) SlotID {
	id := SlotID(uint32(g.Counter))
	if !t.records.has(uint32(id)) {
		return 0
	}
	if r := t.slot(id); r.state != SlotCommitted || t.generation(id, r) != g {
		return 0
	}
	return id
}

// Name is the slot's key. It allocates.
func (t *Table) Name(id SlotID) string { return string(t.keyBytes(t.live("name", id))) }

// Layout is the slot's pages. The slice is the table's own memory: it stays right while the slot is pinned, also outside of
// the caller's lock, and must not be changed.
func (t *Table) Layout(id SlotID) Layout {
	r := t.live("layout", id)
	n := int(t.PagesFor(r.size))
	return Layout{Pages: t.pageLists.block(r.pages, n), PageSize: t.cfg.PageSize, Size: r.size}
}

// Sweep frees the doomed slots that only a lease that has ended at now still kept, and forgets holds that have ended.
func (t *Table) Sweep(now Instant) {
	t.endHolds(now)
	for id := t.doomed.first; id != 0; {
		next := t.after(&t.doomed, id)
		t.reap(id, now)
		id = next
	}
}

// AppendExpired appends the pending slots whose deadline has passed at now.
func (t *Table) AppendExpired(now Instant, dst []SlotID) []SlotID {
	for id := t.pending.first; id != 0; id = t.after(&t.pending, id) {
		if d := t.slot(id).deadline; d != 0 && d <= now {
			dst = append(dst, id)
		}
	}
	return dst
}

// AppendSlots appends every slot that is in one of the states (a bit per SlotState).
func (t *Table) AppendSlots(states uint8, dst []SlotID) []SlotID {
	for _, l := range [...]*slotList{&t.pending, &t.filling, &t.copies, &t.originals, &t.doomed} {
		if l.first == 0 || states&(1<<t.slot(l.first).state) == 0 {
			continue
		}
		for id := l.first; id != 0; id = t.after(l, id) {
			dst = append(dst, id)
		}
	}
	return dst
}

// TableStats is what a Table counts.
type TableStats struct {
	PagesTotal, PagesFree uint64
	Slots                 [SlotDoomed + 1]uint64 // by state; Slots[SlotFree] is 0
	Pages                 [SlotDoomed + 1]uint64
	Pins                  uint64                // over all slots
	HeldPages             uint64                // holds that ended count until the next Hold or Sweep
	Doomed                [NumDoomCauses]uint64 // since the start
}

// Stats copies the counts. O(1).
func (t *Table) Stats() TableStats {
	s := t.stats
	s.PagesTotal, s.PagesFree = t.pages.Total(), t.pages.Free()
	return s
}
