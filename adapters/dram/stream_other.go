//go:build !amd64 || race

package dram

// canStream: the twin below is the runtime's copy, which goes past the caches from about 1 MiB on where it can. The race detector
// sees it, and would see nothing of assembly.
const (
	twin      = true
	canStream = false
)

func stream(dst, src, _ []byte) { copy(dst, src) }

func fetch([]byte) {}

func fence() {}
