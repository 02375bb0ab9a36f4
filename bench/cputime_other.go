//go:build !unix

package bench

import "time"

var processStart = time.Now()

// processorTime is time on the wall where the process's own cannot be had.
func processorTime() time.Duration { return time.Since(processStart) }
