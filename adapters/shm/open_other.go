//go:build !linux

package shm

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// Transport is not there on this system.
type Transport struct{ ports.Transport }

// Open refuses, with an error that wraps errors.ErrUnsupported.
func Open(Config) (*Transport, error) {
	return nil, fmt.Errorf("shm transport: %w on this system: it needs memfd and its seals", errors.ErrUnsupported)
}

// Stats are empty.
func (t *Transport) Stats() Stats { return Stats{} }
