package app

import (
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// fill is what a filling slot has beside its extents: who fetches what, and by which view. Guarded by Node.mu.
type fill struct {
	slot    domain.SlotID
	view    *view     // of the slot's version; kept so that later calls on the key skip the resolve
	flights []*flight // under way
	pulled  bool      // a pull of it is queued or under way
	doomed  bool      // invisible; who has it pinned goes on

	sums      *view          // whose sums its bytes are held to: the first that had any; nil: none yet
	verified  domain.Extents // of the held bytes, those that were
	from      []*view        // by which bytes came that were not verified when they landed
	finishing bool           // complete; what is left is being verified
	corrupt   bool           // bytes of it did not match
	bad       domain.Run     // those, when corrupt
}

// flight is a fetch of runs of a filling slot. It belongs to the node: who started it may leave, and whoever holds its queue
// lands it. States: claimed (newFlight) -> landed or failed (land), once. Guarded by Node.mu.
type flight struct {
	fill    *fill
	view    *view
	runs    []domain.Run // claimed; not overlapping
	bytes   uint64
	waiters []waiter

	layout domain.Layout // of the slot
	sums   *view         // what verifyFlight holds it to; nil: nothing
	foretold
	good  []domain.Run // that verifyFlight verified
	bad   domain.Run   // that did not match
	isBad bool
}

// waiter is a key of a call that joined.
type waiter struct {
	q   *ports.Completions
	tag uint64
}

// newFlightLocked claims runs of a filling slot and pins it. The runs are copied.
func (n *Node) newFlightLocked(f *fill, v *view, runs []domain.Run) *flight {
	var fl *flight
	if last := len(n.mu.flights) - 1; last >= 0 {
		fl, n.mu.flights = n.mu.flights[last], n.mu.flights[:last]
	} else {
		fl = &flight{}
	}
	f.holdToLocked(v)
	fl.fill, fl.view, fl.bytes = f, v, 0
	fl.layout, fl.sums, fl.foretold, fl.good, fl.isBad = n.mu.table.Layout(f.slot), f.sums, foretold{}, fl.good[:0], false
	if !n.hostMedium {
		fl.sums = nil
	}
	fl.runs = append(fl.runs[:0], runs...)
	fl.waiters = fl.waiters[:0]
	claimed := n.mu.table.Claimed(f.slot)
	for _, r := range runs {
		claimed.Add(r)
		fl.bytes += r.Len
	}
	n.mu.table.Pin(f.slot)
	n.useLocked(v)
	f.flights = append(f.flights, fl)
	return fl
}

// foretell is before the flight's op is sent, and says whether the sum of its bytes is known.
func (fl *flight) foretell() bool {
	if fl.sums != nil {
		fl.foretold = fl.sums.foretell(fl.runs)
	}
	return fl.foretold.known
}

// holdToLocked has the slot's bytes held to the sums of a view of its version, unless they are held to some already.
func (f *fill) holdToLocked(v *view) {
	if f.sums == nil && v.hasSums() {
		f.sums = v
	}
}

// overlap is how many bytes of r the flight fetches.
func (fl *flight) overlap(r domain.Run) uint64 {
	var sum uint64
	for _, own := range fl.runs {
		lo, hi := max(own.Off, r.Off), min(own.End(), r.End())
		if lo < hi {
			sum += hi - lo
		}
	}
	return sum
}

// landLocked ends a flight, once. The claim goes back before anyone is woken, so that the first to plan again can claim; extents
// are marked only when the bytes came in time, so that nobody is served from what the owner may have reused. It reports whether they
// came late.
func (n *Node) landLocked(fl *flight, done ports.Completion, by domain.Locality, now domain.Instant) (late bool) {
	t, f := n.mu.table, fl.fill
	held, claimed := t.Held(f.slot), t.Claimed(f.slot)
	late = done.Err == nil && done.At >= fl.view.until
	ok := done.Err == nil && !late
	for _, r := range fl.runs {
		claimed.Remove(r)
		if ok {
			if again := held.Overlap(r); by != domain.LocalFromArena { // what is in the arena crossed before, and counted
				n.counters.duplicate.Add(again)
				n.counters.needed.Add(r.Len - again)
			}
			held.Add(r)
		}
	}
	if ok {
		f.verifiedLocked(fl)
	}
	if late {
		n.counters.duplicate.Add(fl.bytes)
	}
	for _, w := range fl.waiters {
		w.q.Post(ports.Completion{Tag: w.tag, Err: done.Err})
	}
	f.flights = slices.DeleteFunc(f.flights, func(other *flight) bool { return other == fl })
	info := t.Info(f.slot)
	switch complete := ok && held.Complete(info.Size); {
	case complete && info.State == domain.SlotFilling:
		n.completeLocked(f, info, by, now)
	case complete && info.State == domain.SlotDoomed && by != domain.LocalByPull: // the pull counts its own jobs
		n.counters.installFailure(ports.InstallCommitRefused) // cleared or removed meanwhile, or another writer was first
	}
	if f.pulled {
		n.kickPull()
	}
	t.Unpin(f.slot, now)
	n.dropLocked(fl.view)
	fl.fill, fl.view, fl.sums, fl.layout = nil, nil, nil, domain.Layout{}
	n.mu.flights = append(n.mu.flights, fl)
	return late
}

// installLocked commits a complete filling slot. It gets no sums but those that its bytes were held to.
func (n *Node) installLocked(f *fill, info domain.SlotInfo, by domain.Locality, now domain.Instant) {
	lens, sums := f.view.putLens, []uint32(nil)
	if f.sums != nil {
		lens, sums = f.sums.putLens, f.sums.sums
	}
	n.mu.table.SetSums(f.slot, lens, sums)
	if !n.commitLocked(f.slot, now) {
		n.counters.installFailure(ports.InstallCommitRefused)
		return
	}
	n.counters.installed(by, info.Size)
}

// leaveFlightsLocked takes a call's queue off the flights of a slot that it joined. No word of them reaches the queue later.
func (f *fill) leaveFlightsLocked(q *ports.Completions) {
	for _, fl := range f.flights {
		fl.waiters = slices.DeleteFunc(fl.waiters, func(w waiter) bool { return w.q == q })
	}
}

// newFillLocked reserves a filling slot for a view's object, bound to its version.
func (n *Node) newFillLocked(v *view, now domain.Instant) (*fill, error) {
	id, err := n.makeRoomLocked(domain.NewSlot{
		Space: v.space, Name: v.name, Version: v.version, Size: v.layout.Size, State: domain.SlotFilling, Origin: domain.FetchedHere,
	}, now)
	if err != nil {
		n.counters.installFailure(ports.InstallSlotRefused)
		return nil, err
	}
	f := &fill{slot: id, view: v}
	n.mu.fills[id] = f
	return f, nil
}
