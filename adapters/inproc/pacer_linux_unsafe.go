//go:build linux

package inproc

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// becomePacer prepares the calling thread, which is locked and ends with its goroutine. Its timers get a slack of 1 ns instead
// of 50 us, and it goes before every other thread of its rank: it sleeps most of the time, and where two goroutines copy on two
// processors it would come back from each sleep up to a time slice late. Both may be refused; what was reached is in LinkReport.
func becomePacer() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20)
}

// longNap is from where on a sleep lets the scheduler have the thread's P. Below it the P is kept, which holds up a garbage
// collection's stop of the world for at most that long: a P that is given away is not there when the sleep ends and other
// goroutines copy (measured beside two of them, on processors that had other work too: the longest delay was 49 ms instead of
// 122 in the median, and a restore took two thirds of the time).
const longNap = 200 * time.Microsecond

// nanosleep may return early, when a signal comes.
//
//	int clock_nanosleep(clockid_t clockid, int flags, const struct timespec *t, struct timespec *remain)
func nanosleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	if d > longNap {
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
		return
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
}
