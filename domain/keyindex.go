package domain

import "hash/maphash"

// keyIndex finds the slots of a key: open addressing with linear probing, a slot's id and 32 bits of its key's hash per
// entry. An entry names the first of the key's visible slots; the others follow it by their chain. Nothing but the hash is
// needed to move an entry, so growth and removal touch no slot.
type keyIndex struct {
	entries []indexEntry // as many as a power of two; at most three quarters are used
	used    int
	seed    maphash.Seed
}

// indexEntry is free when its slot is zero.
type indexEntry struct {
	hash uint32
	slot SlotID
}

const firstIndexEntries = 16 // arbitrary; a power of two

func newKeyIndex() keyIndex {
	return keyIndex{entries: make([]indexEntry, firstIndexEntries), seed: maphash.MakeSeed()}
}

// hash is of the space and the name; the seed keeps callers from choosing keys that collide.
func (x *keyIndex) hash(space Space, name string) uint32 {
	const golden = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio: spaces differ in the high bits
	h := maphash.String(x.seed, name) ^ uint64(space)*golden
	return uint32(h >> 32)
}

func (x *keyIndex) home(hash uint32) int { return int(hash) & (len(x.entries) - 1) }
func (x *keyIndex) after(i int) int      { return (i + 1) & (len(x.entries) - 1) }

// insert adds an entry; it may move all others.
func (x *keyIndex) insert(hash uint32, slot SlotID) {
	if (x.used+1)*4 > len(x.entries)*3 {
		x.grow()
	}
	x.place(indexEntry{hash, slot})
	x.used++
}

func (x *keyIndex) place(e indexEntry) {
	i := x.home(e.hash)
	for x.entries[i].slot != 0 {
		i = x.after(i)
	}
	x.entries[i] = e
}

func (x *keyIndex) grow() {
	old := x.entries
	x.entries = make([]indexEntry, 2*len(old))
	for _, e := range old {
		if e.slot != 0 {
			x.place(e)
		}
	}
}

// removeAt frees entry i and moves later ones back, so that no probe ends too early.
func (x *keyIndex) removeAt(i int) {
	x.used--
	mask := len(x.entries) - 1
	for j := x.after(i); x.entries[j].slot != 0; j = x.after(j) {
		// The entry at j may move to i unless its home lies behind i on the way to j.
		if home := x.home(x.entries[j].hash); (j-home)&mask >= (j-i)&mask {
			x.entries[i] = x.entries[j]
			i = j
		}
	}
	x.entries[i] = indexEntry{}
}

// find returns the position of the key's entry and the first of its slots, which is zero when it has none.
func (t *Table) find(hash uint32, space Space, name string) (pos int, first SlotID) {
	x := &t.index
	for i := x.home(hash); ; i = x.after(i) {
		e := x.entries[i]
		if e.slot == 0 || e.hash == hash && t.hasKey(e.slot, space, name) {
			return i, e.slot
		}
	}
}

func (t *Table) hasKey(id SlotID, space Space, name string) bool {
	r := t.slot(id)
	return r.space == space && string(t.keyBytes(r)) == name
}

func (t *Table) keyBytes(r *record) []byte { return t.keys.block(r.key, int(r.keyLen)) }

// enterIndex makes a slot visible under its key, whose other slots begin with first.
func (t *Table) enterIndex(id, first SlotID) {
	r := t.slot(id)
	if first == 0 {
		t.index.insert(r.hash, id)
		return
	}
	f := t.slot(first)
	r.chain, f.chain = f.chain, id
}

// leaveIndex makes a slot invisible.
func (t *Table) leaveIndex(id SlotID) {
	i := t.entryOf(id)
	first := &t.index.entries[i].slot
	t.unchain(first, id)
	if *first == 0 {
		t.index.removeAt(i)
	}
}

// entryOf is the position of the entry whose chain has id. Precondition: the slot is visible.
func (t *Table) entryOf(id SlotID) int {
	x, hash := &t.index, t.slot(id).hash
	for i := x.home(hash); x.entries[i].slot != 0; i = x.after(i) {
		if x.entries[i].hash == hash && t.chained(x.entries[i].slot, id) {
			return i
		}
	}
	panic(t.bug("not in the index", id))
}

func (t *Table) chained(first, id SlotID) bool {
	for first != 0 && first != id {
		first = t.slot(first).chain
	}
	return first == id
}

// unchain takes id out of the chain that begins at *link. Precondition: it is there.
func (t *Table) unchain(link *SlotID, id SlotID) {
	for *link != id {
		link = &t.slot(*link).chain
	}
	r := t.slot(id)
	*link, r.chain = r.chain, 0
}
