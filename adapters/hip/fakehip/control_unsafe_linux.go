package fakehip

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapControl maps the block that the library maps too.
func mapControl(path string) (*Control, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	b, err := unix.Mmap(int(f.Fd()), 0, 8*words, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return newControl(unsafe.Slice((*atomic.Int64)(unsafe.Pointer(unsafe.SliceData(b))), words), func() error { return unix.Munmap(b) }), nil
}
