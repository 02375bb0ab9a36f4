package bench

import (
	"context"
	"runtime"
	"time"
)

// Compute is how the forward thread spends a group's time.
type Compute int

// Sleep is the default: a GPU computes, not this processor. Spin keeps one OS thread a rank busy.
const (
	ComputeSleep Compute = iota
	ComputeSpin
)

// ParseCompute reads the value of --compute.
func ParseCompute(text string) (Compute, error) {
	if text == "spin" {
		return ComputeSpin, nil
	}
	return ComputeSleep, CheckAvailable("--compute", text, []string{"sleep", "spin"})
}

// ComputeTime reads the value of --compute-us-per-layer, which may be past what a duration can hold.
func ComputeTime(microseconds int) (time.Duration, error) {
	err := checkBetween("--compute-us-per-layer", microseconds, 0, int(maxCompute/time.Microsecond))
	return time.Duration(microseconds) * time.Microsecond, err
}

// newForwardPass prepares the calling goroutine to compute for given times. It takes the goroutine's thread for good.
func newForwardPass(c Compute) func(time.Duration) {
	if c == ComputeSpin {
		runtime.LockOSThread()
		return spin
	}
	return newSleeper().sleep
}

func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}

// waitUntil polls done until it is true; what it waits for can only be read. It gives up after the bound.
func waitUntil(ctx context.Context, bound time.Duration, done func() bool) (bool, error) {
	const every = time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	limit := time.NewTimer(bound)
	defer limit.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit.C:
			return done(), nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return true, nil
}
