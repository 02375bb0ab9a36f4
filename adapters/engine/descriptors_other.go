//go:build !linux

package engine

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/domain"
)

// descriptors is never made here.
type descriptors struct{}

func listenDescriptors(string, *clients, domain.Incarnation) (*descriptors, error) {
	return nil, fmt.Errorf("no socket for descriptors on this system: %w", errors.ErrUnsupported)
}

func (*descriptors) start() {}
func (*descriptors) stop()  {}
