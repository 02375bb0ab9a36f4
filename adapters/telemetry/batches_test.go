package telemetry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

// batchSeries names a series of a histogram.
func batchSeries(name, suffix, mode, route string) string {
	return fmt.Sprintf(`spanpool_%s_%s{mode="%s",route="%s"}`, name, suffix, mode, route)
}

// TestEveryRouteThatMovedAByteGivesASample: in its own histogram, with the whole time and its own bytes, and no other does.
func TestEveryRouteThatMovedAByteGivesASample(t *testing.T) {
	for kind, name := range []string{"get", "get", "put", "put"} {
		mode := modes[kind%2]
		for _, route := range []ports.Source{ports.FromLocal, ports.FromSlot, ports.FromDirect, ports.FromArena} {
			if name == "put" && route == ports.FromSlot {
				continue // slots are of fetches
			}
			tel := unwatched(t)
			s := ports.BatchSample{Kind: ports.BatchKind(kind), Took: 2 * time.Millisecond}
			s.Bytes[route] = 1 << 20
			tel.Observer().Batch(s)
			_, values, _ := scraped(t, tel)
			for series, v := range values {
				if strings.Contains(series, "_count") && !strings.HasSuffix(series, fmt.Sprintf(`{mode="%s",route="%s"}`, mode, route)) {
					require.Zero(t, v, series)
				}
			}
			require.Equal(t, 1.0, values[batchSeries(name+"_duration_seconds", "count", mode, route.String())])
			require.InDelta(t, 2e-3, values[batchSeries(name+"_duration_seconds", "sum", mode, route.String())], 1e-9)
			require.InDelta(t, 500<<20, values[batchSeries(name+"_rate_bytes_per_second", "sum", mode, route.String())], 1)
			bucket := fmt.Sprintf(`spanpool_%s_duration_seconds_bucket{mode="%s",route="%s",le=`, name, mode, route)
			require.Zero(t, values[bucket+`"0.001"}`])
			require.Equal(t, 1.0, values[bucket+`"0.0025"}`])
			require.Equal(t, 1.0, values[bucket+`"+Inf"}`])
		}
	}
}

// TestHistogramsAreThereFromTheStart, and a batch that moved nothing is in none.
func TestHistogramsAreThereFromTheStart(t *testing.T) {
	tel := unwatched(t)
	tel.Observer().Batch(ports.BatchSample{Took: time.Second})
	_, values, kinds := scraped(t, tel)
	counts := 0
	for series, v := range values {
		require.Zero(t, v, series)
		if strings.Contains(series, "_count{") {
			counts++
		}
	}
	require.Equal(t, 2*(2*4+2*3), counts, "durations and rates; gets by two modes and four routes, puts by two and three")
	for _, name := range []string{"get_duration_seconds", "get_rate_bytes_per_second", "put_duration_seconds", "put_rate_bytes_per_second"} {
		require.Equal(t, "histogram", kinds["spanpool_"+name])
	}
}

func TestValuesFallIntoTheirBuckets(t *testing.T) {
	for _, bounds := range [][]float64{durationBounds, rateBounds} {
		require.LessOrEqual(t, len(bounds)+1, numBuckets)
		require.IsIncreasing(t, bounds)
		var h histogram
		for _, b := range bounds { // bounds belong to the bucket below them
			h.add(bounds, b)
		}
		h.add(bounds, bounds[len(bounds)-1]*2)
		h.add(bounds, 0)
		for i := range len(bounds) + 1 {
			require.EqualValues(t, map[bool]int{false: 1, true: 2}[i == 0], h.counts[i].Load(), "bucket %d", i)
		}
	}
}

func TestABatchThatTookNoTimeIsCounted(t *testing.T) {
	var b batches
	s := ports.BatchSample{Kind: ports.BatchGetWhole}
	s.Bytes[ports.FromLocal] = 1
	b.Batch(s)
	require.EqualValues(t, 1, b.rates[ports.BatchGetWhole][ports.FromLocal].counts[6].Load(), "a byte a nanosecond is between 2^29 and 2^30 a second")
}

// TestTheSumOfRatesOnlyGrows: it is past 2^64 after two days of 10,000 local reads a second at 10 GB/s each.
func TestTheSumOfRatesOnlyGrows(t *testing.T) {
	tel := unwatched(t)
	s := ports.BatchSample{Kind: ports.BatchGetWhole, Took: 1} // ns
	s.Bytes[ports.FromLocal] = 1 << 33
	for n := range 4 {
		tel.Observer().Batch(s)
		_, values, _ := scraped(t, tel)
		require.InEpsilon(t, float64(n+1)*(1<<33)*1e9, values[batchSeries("get_rate_bytes_per_second", "sum", "whole", "local")], 1e-9)
	}
}

func TestObservingDoesNotAllocate(t *testing.T) {
	o := unwatched(t).Observer()
	s := ports.BatchSample{Kind: ports.BatchGetRanges, Took: time.Millisecond, Bytes: [ports.NumSources]uint64{0, 1, 2, 3, 4}}
	require.Zero(t, testing.AllocsPerRun(100, func() { o.Batch(s) }))
}
