// Package shm is the Transport between processes of one host: reads only, over memory that both have mapped.
//
// It is not there yet: the constructor refuses.
package shm

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// Open opens the transport, whose descriptors pass over sockets in dir. The error wraps errors.ErrUnsupported.
func Open(dir string) (ports.Transport, error) {
	return nil, fmt.Errorf("open shm transport in %q: %w: this build has no shared memory transport", dir, errors.ErrUnsupported)
}
