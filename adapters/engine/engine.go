// Package engine serves a ports.Pool to inference engines on this host: gRPC on a Unix socket, and shared memory.
//
// It is not there yet: the constructor refuses.
package engine

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// Server answers the engines that are connected to its socket.
type Server struct{}

// Listen serves pool on the Unix socket at path. The error wraps errors.ErrUnsupported.
func Listen(path string, pool ports.Pool) (*Server, error) {
	return nil, fmt.Errorf("listen on %q: %w: this build has no engine server", path, errors.ErrUnsupported)
}
