// Package hip is the Medium and the Copier over a GPU's HBM, with the vendor library opened at run time.
//
// It is not there yet: both constructors refuse.
package hip

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// OpenMedium takes bytes of an accelerator's memory as pages of pageSize. The error wraps errors.ErrUnsupported.
func OpenMedium(ordinal int, bytes, pageSize uint64) (ports.Medium, error) {
	return nil, fmt.Errorf("open hip medium of %d bytes on device %d: %w: this build has no GPU support", bytes, ordinal, errors.ErrUnsupported)
}

// OpenCopier opens a copier between host and device memory. The error wraps errors.ErrUnsupported.
func OpenCopier() (ports.Copier, error) {
	return nil, fmt.Errorf("open hip copier: %w: this build has no GPU support", errors.ErrUnsupported)
}
