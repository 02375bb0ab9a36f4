package crc32c

import "unsafe"

// start is where b begins: with a length, what assembly takes.
func start(b []byte) *byte { return unsafe.SliceData(b) }

func addrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(start(b))) }

func overlap(a, b []byte) bool {
	return addrOf(a) < addrOf(b)+uintptr(len(b)) && addrOf(b) < addrOf(a)+uintptr(len(a))
}
