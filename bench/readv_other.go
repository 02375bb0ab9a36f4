//go:build !linux

package bench

import (
	"errors"
	"net"
)

const canReadVectors = false

func readVectorInto(*net.TCPConn, [][]byte) (int, error) { return 0, errors.ErrUnsupported }
