//go:build !linux

package inproc

import "time"

// exactTimers has nothing to set here.
func exactTimers() (restore func()) { return func() {} }

func nanosleep(d time.Duration) { time.Sleep(d) }
