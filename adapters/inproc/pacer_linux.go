package inproc

import (
	"time"

	"golang.org/x/sys/unix"
)

// exactTimers sets the calling thread's timer slack to 1 ns. Where that is refused, sleeps are up to 50 us longer.
func exactTimers() (restore func()) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	return func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) } // 0: what it was born with
}

// nanosleep may return early, when a signal comes.
func nanosleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
}
