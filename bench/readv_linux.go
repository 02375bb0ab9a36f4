package bench

import (
	"io"
	"net"

	"golang.org/x/sys/unix"
)

const canReadVectors = true

// readVectorInto is one readv of a connection, once there is something to read.
func readVectorInto(c *net.TCPConn, pieces [][]byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, rerr = unix.Readv(int(fd), pieces)
			if rerr != unix.EINTR {
				return rerr != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case rerr != nil:
		return 0, rerr
	case n == 0:
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}
