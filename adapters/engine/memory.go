package engine

import "github.com/spanpool/spanpool/ports"

// mapping is memory that a client maps too, or a GPU's that it lends.
type mapping struct {
	region ports.Region
	sealed bool // its file cannot shrink, or there is none
	unmap  func() error
}

// hostBytes is what it takes of the host's memory.
func (m mapping) hostBytes() uint64 {
	if _, device := m.region.(ports.DeviceRegion); device {
		return 0
	}
	return m.region.Len()
}
