//go:build !linux

package bench

import (
	"runtime"
	"time"
)

// sleeper sleeps by the runtime's timers where there is no clock_nanosleep; its figures are coarse.
type sleeper struct{}

func newSleeper() sleeper {
	runtime.LockOSThread()
	return sleeper{}
}

func (sleeper) sleep(d time.Duration) { time.Sleep(d) }
