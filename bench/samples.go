package bench

import (
	"math"
	"slices"
	"time"
)

// Samples is latencies of one kind.
type Samples []time.Duration

// Percentile is the least sample that at least p per cent of them do not exceed, or 0 without samples.
func (s Samples) Percentile(p float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[max(i, 0)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// gibPerSecond is 0 for no time.
func gibPerSecond(bytes uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) / (1 << 30) / d.Seconds()
}
