package domain

// PlanEviction appends the slots to doom so that a slot of need pages in the given state can be reserved: idle filling slots,
// oldest first; then committed copies, then committed objects that were put here, each in LRU order; never one that is pinned,
// leased, held or granted. Nothing is appended when free pages suffice. It reports false, with dst as it was, when even all
// of them would not do. It changes nothing: the caller dooms.
func (t *Table) PlanEviction(need uint64, state SlotState, now Instant, dst []SlotID) ([]SlotID, bool) {
	var over uint64 // pages by which the filling slots would exceed their limit
	most := t.pages.Total()
	if state == SlotFilling {
		over = lessOrZero(t.stats.Pages[SlotFilling]+need, t.maxFilling)
		most = min(most, t.maxFilling)
	}
	if need > most { // all lists would be walked to find that out
		return dst, false
	}
	short := lessOrZero(need, t.pages.Free())
	plan, freed := t.appendIdle(dst, &t.filling, max(short, over), now)
	if freed < over {
		return dst, false
	}
	plan, freed = t.appendCommitted(plan, short, freed, now)
	if freed < short {
		return dst, false
	}
	return plan, true
}

// PlanWatermark appends what to doom, in the same order, until at least low free pages would be there.
func (t *Table) PlanWatermark(lowFree uint64, now Instant, dst []SlotID) []SlotID {
	short := lessOrZero(lowFree, t.pages.Free())
	dst, freed := t.appendIdle(dst, &t.filling, short, now)
	dst, _ = t.appendCommitted(dst, short, freed, now)
	return dst
}

// appendCommitted goes on with committed slots, copies first, until want pages would be freed.
func (t *Table) appendCommitted(dst []SlotID, want, freed uint64, now Instant) ([]SlotID, uint64) {
	for _, l := range [...]*slotList{&t.copies, &t.originals} {
		var n uint64
		dst, n = t.appendIdle(dst, l, lessOrZero(want, freed), now)
		freed += n
	}
	return dst, freed
}

// appendIdle appends slots of l whose pages would return at once, oldest first, until those are want pages.
func (t *Table) appendIdle(dst []SlotID, l *slotList, want uint64, now Instant) ([]SlotID, uint64) {
	var freed uint64
	for id := l.first; id != 0 && freed < want; id = t.after(l, id) {
		if r := t.slot(id); !r.kept(now) && r.hold <= now {
			dst = append(dst, id)
			freed += t.PagesFor(r.size)
		}
	}
	return dst, freed
}

// lessOrZero is a-b, or zero when that would be negative.
func lessOrZero(a, b uint64) uint64 { return a - min(a, b) }

// Hold keeps a committed slot from eviction until then (exists with a hold). It reports false when held pages would exceed
// MaxHeldPages; holds that have ended at now do not count. A hold never shortens. Precondition: committed.
func (t *Table) Hold(id SlotID, until, now Instant) bool {
	r := t.committed("hold", id)
	t.endHolds(now)
	if until <= r.hold || until <= now {
		return true
	}
	if r.hold == 0 && t.stats.HeldPages+t.PagesFor(r.size) > t.maxHeld {
		return false
	}
	t.endHold(id)
	r.hold = until
	t.stats.HeldPages += t.PagesFor(r.size)
	// Holds mostly last equally long: the newest ends last.
	prev := t.held.last
	for prev != 0 && t.slot(prev).hold > until {
		prev = t.slot(prev).held.prev
	}
	t.insertAfter(&t.held, prev, id)
	return true
}

// endHolds forgets the holds that have ended at now.
func (t *Table) endHolds(now Instant) {
	for id := t.held.first; id != 0 && t.slot(id).hold <= now; id = t.held.first {
		t.endHold(id)
	}
}

// endHold forgets the slot's hold, if it has one.
func (t *Table) endHold(id SlotID) {
	r := t.slot(id)
	if r.hold == 0 {
		return
	}
	t.unlink(&t.held, id)
	t.stats.HeldPages -= t.PagesFor(r.size)
	r.hold = 0
}
