package inproc

import (
	"encoding/binary"
	"fmt"

	"github.com/spanpool/spanpool/domain"
)

// descriptor is what offers and answers carry: the start that made it, and 64 random bits.
type descriptor struct {
	incarnation domain.Incarnation
	key         uint64
}

const (
	descriptorVersion = 1
	descriptorBytes   = 17
)

func (d descriptor) encode() []byte {
	b := make([]byte, 0, descriptorBytes)
	b = append(b, descriptorVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(d.incarnation))
	return binary.LittleEndian.AppendUint64(b, d.key)
}

func decodeDescriptor(b []byte) (descriptor, error) {
	if len(b) != descriptorBytes {
		return descriptor{}, fmt.Errorf("descriptor of %d bytes, want %d: %w", len(b), descriptorBytes, domain.ErrInvalid)
	}
	if b[0] != descriptorVersion {
		return descriptor{}, fmt.Errorf("descriptor of version %d, want %d: %w", b[0], descriptorVersion, domain.ErrInvalid)
	}
	return descriptor{
		incarnation: domain.Incarnation(binary.LittleEndian.Uint64(b[1:])),
		key:         binary.LittleEndian.Uint64(b[9:]),
	}, nil
}
