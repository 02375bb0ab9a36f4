//go:build !linux

package fakehip

import (
	"errors"
	"fmt"
)

// mapControl refuses: the library is written for Linux.
func mapControl(string) (*Control, error) {
	return nil, fmt.Errorf("fake runtime: %w on this system", errors.ErrUnsupported)
}
