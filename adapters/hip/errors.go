package hip

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
)

// ErrLost is a device that did not answer within its deadline. It is not used any more until the process starts anew. What the device
// may still write is memory of its own, of this package, or of those who lent it by a handle.
var ErrLost = errors.New("device is lost")

// OpError is what failed on which device. Err is a code of the vendor, a class of ports, or ErrLost.
type OpError struct {
	Op      string
	Ordinal int
	Err     error
}

func (e *OpError) Error() string {
	return fmt.Sprintf("hip: %s on device %d: %v", e.Op, e.Ordinal, e.Err)
}

// Unwrap returns the reason.
func (e *OpError) Unwrap() error { return e.Err }

// fail adds the class that a vendor's code belongs to.
func fail(op string, ordinal int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, hiprt.OutOfMemory) {
		err = fmt.Errorf("%w: %w", ports.ErrNoSpace, err)
	}
	return &OpError{op, ordinal, err}
}
