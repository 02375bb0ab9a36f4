package boottime

import (
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/domain"
)

// Clock reads CLOCK_BOOTTIME. Instants of all Clocks of one host are on one scale.
type Clock struct{}

// New makes a Clock.
func New() Clock { return Clock{} }

// Now asks the kernel. It cannot fail: the clock exists since Linux 2.6.39, and a time of 0 in its place would let every
// lease live for ever, so a kernel that says no ends the process.
func (Clock) Now() domain.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("boottime: clock_gettime(CLOCK_BOOTTIME): " + err.Error())
	}
	return domain.Instant(ts.Nano())
}
