//go:build !linux

package engine

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// listen refuses: who connects is found by SO_PEERCRED, which is Linux's.
func listen(string) (net.Listener, error) {
	return nil, fmt.Errorf("no engine server on this system: %w", errors.ErrUnsupported)
}

// sameUser is never asked here.
type sameUser struct {
	refused *atomic.Uint64
	credentials.TransportCredentials
}
