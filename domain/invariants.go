package domain

import (
	"errors"
	"fmt"
	"math/bits"
)

// CheckInvariants verifies the whole table against itself; for tests. O(n).
func (t *Table) CheckInvariants() error {
	ids := t.AppendSlots(^uint8(0), nil)
	return errors.Join(
		t.checkLists(ids),
		t.checkCounts(ids),
		t.checkPages(ids),
		t.checkIndex(ids),
		t.checkHolds(ids),
		t.checkBlocks(ids),
		t.checkShapes(ids),
	)
}

// checkLists: every list is linked both ways and has what belongs there; every record that is not free is in one.
func (t *Table) checkLists(ids []SlotID) error {
	for _, l := range [...]*slotList{&t.pending, &t.filling, &t.copies, &t.originals, &t.doomed} {
		var prev SlotID
		n := 0
		for id := l.first; id != 0; prev, id = id, t.after(l, id) {
			if r := t.slot(id); t.listOf(r) != l || r.order.prev != prev {
				return errors.New(t.bug(fmt.Sprintf("in a wrong list, or not behind slot %d", prev), id))
			}
			n++
		}
		if l.last != prev || l.n != n {
			return fmt.Errorf("a list of %d slots ends at slot %d, not %d, and counts %d", n, prev, l.last, l.n)
		}
	}
	used := 0
	for _, chunk := range t.records.chunks {
		for i := range chunk {
			if chunk[i].state != SlotFree {
				used++
			}
		}
	}
	if used != len(ids) || used != t.records.live-1 {
		return fmt.Errorf("%d records are not free, %d are listed, %d are allocated", used, len(ids), t.records.live-1)
	}
	return nil
}

// checkCounts: the counts of Stats are those of the slots, and filling slots keep to their limit.
func (t *Table) checkCounts(ids []SlotID) error {
	got := TableStats{HeldPages: t.stats.HeldPages, Doomed: t.stats.Doomed} // these are looked at elsewhere, or grow for ever
	for _, id := range ids {
		r := t.slot(id)
		got.Slots[r.state]++
		got.Pages[r.state] += t.PagesFor(r.size)
		got.Pins += uint64(r.pins)
	}
	if got != t.stats {
		return fmt.Errorf("slots count %+v, stats say %+v", got, t.stats)
	}
	if got.Pages[SlotFilling] > t.maxFilling {
		return fmt.Errorf("filling slots have %d pages, limit %d", got.Pages[SlotFilling], t.maxFilling)
	}
	return nil
}

// checkPages: a page is free or owned once.
func (t *Table) checkPages(ids []SlotID) error {
	owner := map[PageRef]SlotID{}
	for _, id := range ids {
		for _, ref := range t.Layout(id).Pages {
			if o, ok := owner[ref]; ok {
				return errors.New(t.bug(fmt.Sprintf("page %v is also slot %d's", ref, o), id))
			}
			if !t.pages.allocated(ref) {
				return errors.New(t.bug(fmt.Sprintf("page %v is free", ref), id))
			}
			owner[ref] = id
		}
	}
	if n := uint64(len(owner)) + t.pages.Free(); n != t.pages.Total() {
		return fmt.Errorf("%d pages are owned and %d free, of %d", len(owner), t.pages.Free(), t.pages.Total())
	}
	return t.pages.check()
}

// check: the counts and summaries are those of the bitmaps.
func (p *Pages) check() error {
	var free uint64
	for i := range p.buffers {
		b := &p.buffers[i]
		var n uint32
		for w, word := range b.words {
			n += uint32(bits.OnesCount64(word))
			if b.summary[w/64]>>(w%64)&1 != 0 != (word != 0) {
				return fmt.Errorf("the summary of word %d of buffer %d is wrong", w, i)
			}
		}
		if n != b.free {
			return fmt.Errorf("buffer %d has %d free pages and counts %d", i, n, b.free)
		}
		free += uint64(n)
	}
	if free != p.free {
		return fmt.Errorf("%d pages are free, counted %d", free, p.free)
	}
	return nil
}

// checkIndex: every visible slot is found by its key, in its place, and nothing else is.
func (t *Table) checkIndex(ids []SlotID) error {
	visible, found := 0, 0
	for _, id := range ids {
		r := t.slot(id)
		if r.state == SlotDoomed {
			continue
		}
		visible++
		committed, filling, pending := t.Lookup(r.space, t.Name(id))
		if at := [...]SlotID{SlotPending: pending, SlotFilling: filling, SlotCommitted: committed}; at[r.state] != id {
			return errors.New(t.bug(fmt.Sprintf("its key has slot %d instead", at[r.state]), id))
		}
	}
	entries := 0
	for _, e := range t.index.entries {
		if e.slot != 0 {
			entries++
		}
		for id := e.slot; id != 0; id = t.slot(id).chain {
			found++
		}
	}
	if visible != found || entries != t.index.used {
		return fmt.Errorf("%d slots are visible, %d indexed; %d entries, counted %d", visible, found, entries, t.index.used)
	}
	return nil
}

// checkHolds: the held slots are committed, in order, within the limit, and all that have a hold.
func (t *Table) checkHolds(ids []SlotID) error {
	var pages uint64
	held := 0
	for _, id := range ids {
		if t.slot(id).hold != 0 {
			held++
		}
	}
	last := Instant(0)
	for id := t.held.first; id != 0; id = t.after(&t.held, id) {
		r := t.slot(id)
		if r.state != SlotCommitted || r.hold == 0 || r.hold < last {
			return errors.New(t.bug(fmt.Sprintf("held until %d, behind one until %d", r.hold, last), id))
		}
		pages += t.PagesFor(r.size)
		last = r.hold
		held--
	}
	if held != 0 || pages != t.stats.HeldPages || pages > t.maxHeld {
		return fmt.Errorf("%d held slots are not listed; %d pages are held, counted %d, limit %d",
			held, pages, t.stats.HeldPages, t.maxHeld)
	}
	return nil
}

// checkBlocks: there is a block for everything that a slot keeps elsewhere, and no block more.
func (t *Table) checkBlocks(ids []SlotID) error {
	sums := 0
	fills := map[uint32]bool{}
	for _, id := range ids {
		r := t.slot(id)
		if r.summed {
			sums++
		}
		if r.fill != 0 {
			fills[r.fill] = true
		}
		if r.state == SlotFilling && r.fill == 0 || r.fill != 0 && r.state != SlotFilling && r.state != SlotDoomed {
			return errors.New(t.bug(fmt.Sprintf("its extents are %d", r.fill), id))
		}
	}
	got := [...]int{t.keys.live(), t.pageLists.live(), t.sums.live(), len(t.fills.all) - len(t.fills.free)}
	if want := [...]int{len(ids), len(ids), sums, len(fills)}; got != want {
		return fmt.Errorf("blocks of keys, pages, sums and extents: %v, want %v", got, want)
	}
	return nil
}

// checkShapes: put-ranges tile their objects, and shapes count who uses them.
func (t *Table) checkShapes(ids []SlotID) error {
	refs := map[uint32]uint32{}
	for _, id := range ids {
		r := t.slot(id)
		if r.shape == 0 {
			continue
		}
		refs[r.shape]++
		var sum uint64
		for _, n := range t.shapes.lens(r.shape) {
			sum += n
		}
		if sum != r.size {
			return errors.New(t.bug(fmt.Sprintf("put-ranges of %d bytes of an object of %d", sum, r.size), id))
		}
	}
	for n, want := range refs {
		if got := t.shapes.all[n-1].refs; got != want {
			return fmt.Errorf("shape %d counts %d uses, has %d", n, got, want)
		}
	}
	if used := len(t.shapes.all) - len(t.shapes.free); used != len(refs) {
		return fmt.Errorf("%d shapes are kept, %d used", used, len(refs))
	}
	return nil
}
