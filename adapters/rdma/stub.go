//go:build !(linux && cgo && rdma)

package rdma

import (
	"errors"
	"fmt"
	"os"

	"github.com/spanpool/spanpool/ports"
)

// Built says whether this build has the transport.
const Built = false

// Transport is ports.Transport in a build that has it.
type Transport struct{ ports.Transport }

// Open refuses. The error wraps errors.ErrUnsupported.
func Open(cfg Config) (*Transport, error) {
	return nil, fmt.Errorf("rdma device %q: %w: this build has no RDMA support (make builds it in where infiniband/verbs.h is)", cfg.Device, errors.ErrUnsupported)
}

// Devices refuses, as Open does.
func Devices() ([]DeviceInfo, error) {
	return nil, fmt.Errorf("rdma devices: %w: this build has no RDMA support (make builds it in where infiniband/verbs.h is)", errors.ErrUnsupported)
}

// LockedMemoryLimit is unknown.
func LockedMemoryLimit() string { return "unknown" }

// Stats is empty.
func (*Transport) Stats() Stats { return Stats{} }

// TryDMABuf refuses.
func (*Transport) TryDMABuf(*os.File, uint64, uint64) error { return errors.ErrUnsupported }

// Clamps is empty.
func (*Transport) Clamps() []Clamp { return nil }

// Device is empty.
func (*Transport) Device() string { return "" }
