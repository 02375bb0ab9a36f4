package domain

// fill is what is known of the bytes of a filling slot.
type fill struct{ held, claimed Extents }

// fillSlab keeps the fills of filling slots, and of doomed ones that were filling. They hold pointers, but there are only as
// many as slots were ever filling at once; they are used again with the storage of their runs.
type fillSlab struct {
	all  []*fill // fill n is all[n-1]: number 0 is none
	free []uint32
}

func (f *fillSlab) alloc() uint32 {
	if n := len(f.free); n > 0 {
		id := f.free[n-1]
		f.free = f.free[:n-1]
		return id
	}
	f.all = append(f.all, new(fill))
	return uint32(len(f.all))
}

// dropFill takes a slot's extents away from it.
func (t *Table) dropFill(r *record) {
	if r.fill == 0 {
		return
	}
	f := t.fills.all[r.fill-1]
	f.held.Reset()
	f.claimed.Reset()
	t.fills.free = append(t.fills.free, r.fill)
	r.fill = 0
}

// Held is the extents that a filling slot holds; Claimed those that flights are fetching. Both live as long as the slot is
// filling, or doomed and not free. They are nil for a slot that was never filling or is committed.
func (t *Table) Held(id SlotID) *Extents {
	if r := t.slot(id); r.fill != 0 {
		return &t.fills.all[r.fill-1].held
	}
	return nil
}

// Claimed is the extents of a filling slot that flights are fetching.
func (t *Table) Claimed(id SlotID) *Extents {
	if r := t.slot(id); r.fill != 0 {
		return &t.fills.all[r.fill-1].claimed
	}
	return nil
}
