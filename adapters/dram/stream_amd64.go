//go:build !race

package dram

import "golang.org/x/sys/cpu"

// canStream says whether stream goes past the caches. AVX would do; with AVX2 the runtime's own copy streams too.
var canStream = cpu.X86.HasAVX2

const (
	twin = false
	// aheadMost is the longest op during which the source of the next is fetched: both fit the first cache, more or less.
	// A longer one keeps the processor's own prefetcher busy by itself.
	aheadMost = 64 << 10
)

// stream copies dst, of at least a line, from src, which does not overlap it, without reading dst into the caches or leaving it
// there. Its writes are in no order with later ones of this processor until fence. A goroutine that goes on elsewhere meanwhile
// has been through the scheduler's locked instructions, which order them too. Call it with canStream only.
func stream(dst, src, ahead []byte) {
	head := int(-addrOf(dst) % line)
	copy(dst[:head], src)
	dst, src = dst[head:], src[head:]
	body := len(dst) / line * line
	if body > 0 {
		var next *byte
		if len(dst) <= aheadMost && len(ahead) >= len(dst) {
			next = &ahead[0]
		}
		streamLines(&dst[0], &src[0], next, uintptr(body/line))
	}
	copy(dst[body:], src[body:])
}

// streamLines copies lines of 64 bytes, one at least, to dst, which begins one. Of as many lines at next it tells the processor
// that they will be read; with nil it does so of src. It may be told so of memory that is not there.
//
//go:noescape
func streamLines(dst, src, next *byte, lines uintptr)

// fetch tells the processor that b will be read.
func fetch(b []byte) {
	if len(b) > 0 {
		fetchLines(&b[0], uintptr((len(b)+line-1)/line))
	}
}

// fetchLines is fetch of lines of 64 bytes, one at least.
//
//go:noescape
func fetchLines(src *byte, lines uintptr)

// fence orders what was streamed before whatever this goroutine does next.
func fence()
