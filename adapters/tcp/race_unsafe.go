//go:build linux && race

package tcp

import (
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// The race detector sees neither what a system call does to memory nor that a read comes after the write that it reads. These
// tell it, as the net package does: accesses to the ends of each piece, and an order of all sends before all receives.
var wire atomic.Uint64

// landed notes that the first n bytes of v were written.
func (v *vec) landed(n int) {
	wire.Load()
	for _, p := range v.iov[v.head:] {
		k := min(n, int(p.Len))
		if k == 0 {
			return
		}
		b := unsafe.Slice(p.Base, k)
		b[0], b[k-1] = b[0], b[k-1]
		n -= k
	}
}

// leaving notes that all of v may be read. What is not there any more it leaves to the system call.
func (v *vec) leaving() {
	defer wire.Add(1)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	for _, p := range v.iov[v.head:] {
		b := unsafe.Slice(p.Base, int(p.Len))
		sink.Store(uint32(b[0]) + uint32(b[len(b)-1]))
	}
}

var sink atomic.Uint32
