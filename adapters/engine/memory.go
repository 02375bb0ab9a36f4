package engine

import "github.com/spanpool/spanpool/ports"

// mapping is memory that a client maps too.
type mapping struct {
	region ports.HostRegion
	sealed bool // its file cannot shrink
	unmap  func() error
}
