package crc32c

import "unsafe"

func addrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func overlap(a, b []byte) bool {
	return addrOf(a) < addrOf(b)+uintptr(len(b)) && addrOf(b) < addrOf(a)+uintptr(len(a))
}
