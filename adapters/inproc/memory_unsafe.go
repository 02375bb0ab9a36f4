package inproc

import (
	"unsafe"

	"github.com/spanpool/spanpool/ports"
)

// overlap reports whether two pieces of memory share a byte.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	pa, pb := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return pa < pb+uintptr(len(b)) && pb < pa+uintptr(len(a))
}

// flowKey names a call by the queue that it waits in. It is a name and never becomes a pointer again.
func flowKey(q *ports.Completions) uint64 { return uint64(uintptr(unsafe.Pointer(q))) }
