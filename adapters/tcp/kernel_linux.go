package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

func kernelCounts(fd int) KernelCounts {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return KernelCounts{}
	}
	return KernelCounts{Received: info.Bytes_received, Acked: info.Bytes_acked}
}

// tune bounds how long sent bytes may stay without an acknowledgement: by twice the time after which our own watch acts.
func tune(fd int, stall time.Duration) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(2*stall.Milliseconds()))
}
