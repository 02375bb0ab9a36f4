//go:build !unix

package bench

import "github.com/spanpool/spanpool/ports"

// buffer is memory of the Go heap where no other can be had.
type buffer struct{ b []byte }

func openBuffer(n uint64) (*buffer, error) { return &buffer{make([]byte, n)}, nil }

func (b *buffer) region() ports.HostRegion { return ports.HostRegionOf(b.b) }

func (b *buffer) close() error { return nil }
