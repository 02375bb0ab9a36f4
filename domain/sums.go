package domain

import (
	"fmt"
	"hash/maphash"
	"slices"
)

// shapeTable interns the lengths of put-ranges: objects of one model have the same few shapes. Shape n is all[n-1], and
// number 0 is none.
type shapeTable struct {
	all    []shape
	free   []uint32
	byHash map[uint64]uint32 // the first shape of each hash; the others follow by next
	seed   maphash.Seed
}

type shape struct {
	lens []uint64 // kept when the shape is free, for its next use
	hash uint64
	refs uint32
	next uint32
}

func newShapeTable() shapeTable {
	return shapeTable{byHash: map[uint64]uint32{}, seed: maphash.MakeSeed()}
}

// acquire returns the shape with these lengths and one more reference. Precondition: lens is not empty.
func (x *shapeTable) acquire(lens []uint64) uint32 { return x.acquireAs(x.hash(lens), lens) }

func (x *shapeTable) acquireAs(hash uint64, lens []uint64) uint32 {
	for n := x.byHash[hash]; n != 0; n = x.all[n-1].next {
		if s := &x.all[n-1]; slices.Equal(s.lens, lens) {
			s.refs++
			return n
		}
	}
	n := x.unused()
	s := &x.all[n-1]
	*s = shape{lens: append(s.lens[:0], lens...), hash: hash, refs: 1, next: x.byHash[hash]}
	x.byHash[hash] = n
	return n
}

func (x *shapeTable) hash(lens []uint64) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	for _, n := range lens {
		maphash.WriteComparable(&h, n)
	}
	return h.Sum64()
}

func (x *shapeTable) unused() uint32 {
	if n := len(x.free); n > 0 {
		id := x.free[n-1]
		x.free = x.free[:n-1]
		return id
	}
	x.all = append(x.all, shape{})
	return uint32(len(x.all))
}

// release gives one reference back.
func (x *shapeTable) release(n uint32) {
	s := &x.all[n-1]
	if s.refs--; s.refs > 0 {
		return
	}
	x.unchain(n)
	x.free = append(x.free, n)
}

// unchain takes shape n from the shapes of its hash.
func (x *shapeTable) unchain(n uint32) {
	s := &x.all[n-1]
	first := x.byHash[s.hash]
	if first == n && s.next == 0 {
		delete(x.byHash, s.hash)
		return
	}
	link := &first
	for *link != n {
		link = &x.all[*link-1].next
	}
	*link = s.next
	x.byHash[s.hash] = first
}

func (x *shapeTable) lens(n uint32) []uint64 {
	if n == 0 {
		return nil
	}
	lens := x.all[n-1].lens
	return lens[:len(lens):len(lens)]
}

// SetSums records the put-ranges (lengths in object order; they tile the object) and their CRC-32C. sums is empty when there
// are none, which is not a sum of 0; otherwise it is as long as lens. Both are copied; lens are interned per shape.
func (t *Table) SetSums(id SlotID, lens []uint64, sums []uint32) {
	r := t.live("set sums", id)
	if len(sums) != 0 && len(sums) != len(lens) {
		panic(fmt.Sprintf("domain: %d sums of %d put-ranges", len(sums), len(lens)))
	}
	t.dropSums(r)
	if len(lens) == 0 {
		return
	}
	r.shape = t.shapes.acquire(lens)
	if len(sums) == 0 {
		return
	}
	r.sums, r.summed = t.sums.alloc(len(sums)), true
	copy(t.sums.block(r.sums, len(sums)), sums)
}

// dropSums forgets a slot's put-ranges and their sums.
func (t *Table) dropSums(r *record) {
	if r.summed {
		t.sums.release(r.sums, len(t.shapes.lens(r.shape)))
	}
	if r.shape != 0 {
		t.shapes.release(r.shape)
	}
	r.shape, r.sums, r.summed = 0, 0, false
}

// Sums returns what SetSums recorded, as the table's own memory (see Layout).
func (t *Table) Sums(id SlotID) (lens []uint64, sums []uint32) {
	r := t.live("sums", id)
	lens = t.shapes.lens(r.shape)
	if r.summed {
		sums = t.sums.block(r.sums, len(lens))
	}
	return lens, sums
}
