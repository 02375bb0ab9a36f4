package hip

import "golang.org/x/sys/unix"

// mapBounce takes memory that is not Go's, since a device reads and writes it.
func mapBounce(n uint64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

func unmapBounce(b []byte) error { return unix.Munmap(b) }
