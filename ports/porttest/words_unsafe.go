package porttest

import (
	"sync/atomic"
	"unsafe"
)

// atomicWords is memory that begins at a word, as words.
func atomicWords(b []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}
