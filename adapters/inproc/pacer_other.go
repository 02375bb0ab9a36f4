//go:build !linux

package inproc

import "time"

// becomePacer has nothing to set here.
func becomePacer() {}

func nanosleep(d time.Duration) { time.Sleep(d) }
