package dram

import "unsafe"

// bytesAt makes bytes of memory that may not be there.
func bytesAt(addr uint64, n int) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}
