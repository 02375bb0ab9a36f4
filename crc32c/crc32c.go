// Package crc32c computes CRC-32C (Castagnoli), the sum of hash/crc32 under crc32.Castagnoli, as fast as memory allows; while it
// copies, too; and of two runs joined, from the sums of both.
//
// A processor with AVX-512 and VPCLMULQDQ folds 256 bytes a step. Everywhere else hash/crc32 does the work. Nothing here
// allocates, holds a lock or keeps state: all of it may run in parallel, and may fault on memory that is gone (SIGBUS, a panic
// under debug.SetPanicOnFault). It knows no other package, and any layer may use it.
package crc32c

import (
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	// piece is what is done without a chance for the scheduler: some 50 us at 20 GB/s.
	piece = 1 << 20
	// cached is what is copied and then summed while the first cache still holds it.
	cached = 4 << 10
	// line is what the processor moves between its caches and memory.
	line = 64
	// streamLeast is the shortest copy that streams, linesLeast the shortest of whole lines. Lines of which a part is written by
	// ordinary stores are read after all, and cost short copies more than the others save.
	streamLeast = 4 << 10
	linesLeast  = 1 << 10
	// aheadMost is the longest copy during which the source of the next is fetched: both fit the first cache, more or less. A
	// longer one keeps the processor's own prefetcher busy by itself.
	aheadMost = 64 << 10
)

// kernel is how sums are made.
type kernel uint8

const (
	plain       kernel = iota // hash/crc32
	multiplying               // the same, and multiplies with PCLMULQDQ: only where canMultiply
	folding                   // that too, and folds with AVX-512: only where canFold
)

// best is what this processor does best.
func best() kernel {
	switch {
	case canFold:
		return folding
	case canMultiply:
		return multiplying
	default:
		return plain
	}
}

// Update goes on with a sum by the bytes that follow: crc is that of all bytes before p. The sum of nothing is 0.
func Update(crc uint32, p []byte) uint32 { return update(best(), crc, p) }

// Copy copies src to dst, of the same length, which it panics without, and goes on with crc by the bytes that dst holds
// afterwards: each byte of src is read once, so that what is summed is what was stored even where another process writes to
// src meanwhile. dst and src may overlap, as with copy. next is what the caller will read after src, or nothing: the processor is
// told to fetch it; it is not read, and need not be there any more.
func Copy(dst, src, next []byte, crc uint32) uint32 { return copySum(best(), dst, src, next, crc) }

// Stream is Copy past the caches, where the processor can and it is long enough to gain by it: dst is neither read into them nor left
// there, so it should not be read soon. Its writes are in no order with later ones of this processor until Fence. A goroutine that
// goes on elsewhere meanwhile has been through the scheduler's locked instructions, which order them too.
func Stream(dst, src, next []byte, crc uint32) uint32 { return streamSum(best(), dst, src, next, crc) }

// Fence orders what was streamed before whatever this goroutine does next. It takes some 50 ns: one does for a whole batch, and after
// a fault in it as well.
func Fence() {
	if canFold {
		fence()
	}
}

func update(k kernel, crc uint32, p []byte) uint32 {
	for len(p) > piece {
		crc = updatePiece(k, crc, p[:piece])
		p = p[piece:]
	}
	return updatePiece(k, crc, p)
}

// updatePiece is no part of its callers, since it is where the scheduler may stop a long one.
//
//go:noinline
func updatePiece(k kernel, crc uint32, p []byte) uint32 {
	if k == folding {
		return foldSum(&folds, start(p), uintptr(len(p)), crc)
	}
	return crc32.Update(crc, castagnoli, p)
}

func copySum(k kernel, dst, src, next []byte, crc uint32) uint32 {
	check(dst, src)
	if k != folding || overlap(dst, src) {
		return copyPlain(k, dst, src, crc)
	}
	for len(dst) > piece {
		crc = copyPiece(dst[:piece], src, nil, crc)
		dst, src = dst[piece:], src[piece:]
	}
	return copyPiece(dst, src, next, crc)
}

// copyPiece has the place of the scheduler that updatePiece has. src may be longer than dst.
//
//go:noinline
func copyPiece(dst, src, next []byte, crc uint32) uint32 {
	return foldCopy(&folds, start(dst), start(src), ahead(next, len(dst)), uintptr(len(dst)), crc)
}

func streamSum(k kernel, dst, src, next []byte, crc uint32) uint32 {
	if k != folding || !gains(dst) || overlap(dst, src) {
		return copySum(k, dst, src, next, crc)
	}
	check(dst, src)
	if head := int(-addrOf(dst) % line); head > 0 {
		crc = foldCopy(&folds, start(dst), start(src), start(src), uintptr(head), crc)
		dst, src = dst[head:], src[head:]
	}
	for len(dst) > piece {
		crc = streamPiece(dst[:piece], src, nil, crc)
		dst, src = dst[piece:], src[piece:]
	}
	return streamPiece(dst, src, next, crc)
}

// gains says that to stream what dst holds is faster than to copy it.
func gains(dst []byte) bool {
	return len(dst) >= streamLeast || len(dst) >= linesLeast && (int(addrOf(dst))|len(dst))%line == 0
}

// streamPiece has the place of the scheduler that updatePiece has. dst begins a line; src may be longer.
//
//go:noinline
func streamPiece(dst, src, next []byte, crc uint32) uint32 {
	body := len(dst) / line * line
	if body >= 4*line {
		crc = foldStream(&folds, start(dst), start(src), ahead(next, body), uintptr(body), crc)
		dst, src = dst[body:], src[body:]
	}
	if len(dst) == 0 {
		return crc
	}
	return foldCopy(&folds, start(dst), start(src), start(src), uintptr(len(dst)), crc)
}

// ahead is where to fetch while n bytes are copied, or nil for the copy's own source.
func ahead(next []byte, n int) *byte {
	if n > aheadMost || len(next) < n {
		return nil
	}
	return start(next)
}

func check(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Sprintf("crc32c: copy of %d bytes to %d", len(src), len(dst)))
	}
}

// copyPlain copies and then sums what it has written, never src again, whose bytes may be others by then.
func copyPlain(k kernel, dst, src []byte, crc uint32) uint32 {
	if overlap(dst, src) {
		copy(dst, src)
		return update(k, crc, dst)
	}
	for len(dst) > cached {
		copy(dst[:cached], src)
		crc = updatePiece(k, crc, dst[:cached])
		dst, src = dst[cached:], src[cached:]
	}
	copy(dst, src)
	return updatePiece(k, crc, dst)
}
