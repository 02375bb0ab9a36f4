package domain

import "math/bits"

// slab hands out blocks of blockLen values, named by small numbers. Its memory is chunks that are never moved, so that a
// block stays where it is until it is freed, and that hold no pointer when T holds none: a collector looks at one slice
// header per chunk. Chunks are kept for ever; a slab is as large as its busiest moment.
type slab[T any] struct {
	chunks   [][]T
	free     []uint32 // blocks that were used and came back; the last is the next to go
	blockLen int
	perChunk uint32 // blocks of a chunk
	shift    uint8  // an id is chunk<<shift | block of the chunk
	fresh    uint32 // blocks of the last chunk that were handed out at least once
	live     int
}

// newSlab makes a slab whose chunks hold about chunkLen values, and at least one block.
func newSlab[T any](blockLen, chunkLen int) slab[T] {
	per := uint32(max(1, chunkLen/blockLen))
	return slab[T]{blockLen: blockLen, perChunk: per, shift: uint8(bits.Len32(per - 1)), fresh: per}
}

// alloc returns a block with whatever its last user left in it.
func (s *slab[T]) alloc() uint32 {
	s.live++
	if n := len(s.free); n > 0 {
		id := s.free[n-1]
		s.free = s.free[:n-1]
		return id
	}
	if s.fresh == s.perChunk {
		s.chunks = append(s.chunks, make([]T, int(s.perChunk)*s.blockLen))
		s.fresh = 0
	}
	id := uint32(len(s.chunks)-1)<<s.shift | s.fresh
	s.fresh++
	return id
}

// release gives a block back. Precondition: it was allocated, and was not given back since.
func (s *slab[T]) release(id uint32) {
	s.live--
	s.free = append(s.free, id)
}

// retire forgets a block that was allocated: it is never handed out again.
func (s *slab[T]) retire() { s.live-- }

// has reports whether id names a block of a chunk, used or not.
func (s *slab[T]) has(id uint32) bool {
	return int(id>>s.shift) < len(s.chunks) && id&(1<<s.shift-1) < s.perChunk
}

// at is the first value of a block.
func (s *slab[T]) at(id uint32) *T {
	return &s.chunks[id>>s.shift][int(id&(1<<s.shift-1))*s.blockLen]
}

// block is the first n values of a block.
func (s *slab[T]) block(id uint32, n int) []T {
	lo := int(id&(1<<s.shift-1)) * s.blockLen
	return s.chunks[id>>s.shift][lo : lo+n : lo+n]
}

// blocks hands out blocks of any length from one slab per size class. Whoever holds a block knows its length; the class
// follows from it. Lengths are rounded up to the granule, then by at most a sixteenth.
type blocks[T any] struct {
	classes  []slab[T]
	granule  int
	chunkLen int
}

func newBlocks[T any](granule, chunkLen int) blocks[T] {
	return blocks[T]{granule: granule, chunkLen: chunkLen}
}

// alloc returns a block for n values. Precondition: n > 0.
func (b *blocks[T]) alloc(n int) uint32 {
	class, units := b.class(n)
	for len(b.classes) <= class {
		b.classes = append(b.classes, slab[T]{})
	}
	s := &b.classes[class]
	if s.blockLen == 0 {
		*s = newSlab[T](units*b.granule, b.chunkLen)
	}
	return s.alloc()
}

func (b *blocks[T]) release(id uint32, n int) {
	class, _ := b.class(n)
	b.classes[class].release(id)
}

func (b *blocks[T]) block(id uint32, n int) []T {
	class, _ := b.class(n)
	return b.classes[class].block(id, n)
}

func (b *blocks[T]) live() (n int) {
	for i := range b.classes {
		n += b.classes[i].live
	}
	return n
}

func (b *blocks[T]) class(n int) (class, units int) {
	return sizeClass((n + b.granule - 1) / b.granule)
}

// sizeClass numbers the size classes: every size up to 32, then sixteen to a doubling. Precondition: n > 0.
func sizeClass(n int) (class, size int) {
	if n <= 16 {
		return n - 1, n
	}
	step := bits.Len(uint(n-1)) - 5
	q := (n - 1) >> step // 16 to 31
	return 16*step + q, (q + 1) << step
}
