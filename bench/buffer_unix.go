//go:build unix

package bench

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/ports"
)

// buffer is memory outside of the Go heap, as an engine's is: it may be registered with a transport.
type buffer struct{ b []byte }

func openBuffer(n uint64) (*buffer, error) {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return &buffer{b}, nil
}

func (b *buffer) region() ports.HostRegion { return ports.HostRegionOf(b.b) }

// close unmaps; nothing may use the memory any more.
func (b *buffer) close() error { return unix.Munmap(b.b) }
