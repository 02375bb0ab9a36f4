package dram

import "unsafe"

// addrOf is where b begins: for alignment, and to find b in the kernel's list of mappings. It is 0 for no bytes.
func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func overlap(a, b []byte) bool {
	return addrOf(a) < addrOf(b)+uint64(len(b)) && addrOf(b) < addrOf(a)+uint64(len(a))
}
