// Package rdma is the Transport over libibverbs.
//
// It is not there yet: the constructor refuses.
package rdma

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// Open opens the named RDMA device. The error wraps errors.ErrUnsupported.
func Open(device string) (ports.Transport, error) {
	return nil, fmt.Errorf("open rdma device %q: %w: this build has no RDMA support", device, errors.ErrUnsupported)
}
