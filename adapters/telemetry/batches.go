package telemetry

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/spanpool/spanpool/ports"
)

// The upper bounds of buckets: 1-2.5-5 from what a read of a local key takes to the bound of a call, and powers of two from
// a slow network to what memory gives.
var (
	durationBounds = []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5}
	rateBounds     = []float64{1 << 24, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30, 1 << 31, 1 << 32, 1 << 33, 1 << 34, 1 << 35, 1 << 36, 1 << 37}
)

// numBuckets has room for the longer of the bounds, and for what lies above.
const numBuckets = 18

// histogram counts into buckets without a lock. OpenTelemetry's own appears with its first sample only, and would allocate in the
// batch; this one is there from the start.
type histogram struct {
	counts [numBuckets]atomic.Uint64
	sum    atomic.Uint64 // the bits of a float64: whole rates would be past 2^64 after days of local reads, and a sum only grows
}

// add counts v.
func (h *histogram) add(bounds []float64, v float64) {
	i, _ := slices.BinarySearch(bounds, v)
	h.counts[i].Add(1)
	for {
		was := h.sum.Load()
		if h.sum.CompareAndSwap(was, math.Float64bits(math.Float64frombits(was)+v)) {
			return
		}
	}
}

// point copies it. A sample that is being added may be in the counts and not yet in the sum.
func (h *histogram) point(bounds []float64, since time.Time, labels attribute.Set) metricdata.HistogramDataPoint[float64] {
	p := metricdata.HistogramDataPoint[float64]{Attributes: labels, StartTime: since, Time: time.Now(), Bounds: bounds,
		BucketCounts: make([]uint64, len(bounds)+1), Sum: math.Float64frombits(h.sum.Load())}
	for i := range p.BucketCounts {
		p.BucketCounts[i] = h.counts[i].Load()
		p.Count += p.BucketCounts[i]
	}
	return p
}

// batches is a histogram of durations and one of rates for each kind and route. It is the observer of a node, and what the reader
// of the instruments asks for more.
type batches struct {
	since     time.Time
	durations [ports.NumBatchKinds][ports.NumSources]histogram
	rates     [ports.NumBatchKinds][ports.NumSources]histogram
}

var _ ports.Observer = (*batches)(nil)

// Batch gives a sample to each route that moved a byte: how long the batch took, and the route's bytes over that time.
func (b *batches) Batch(s ports.BatchSample) {
	took := max(s.Took, 1) // ns: the clock's grain
	for route, n := range s.Bytes {
		if n > 0 {
			b.durations[s.Kind][route].add(durationBounds, took.Seconds())
			b.rates[s.Kind][route].add(rateBounds, float64(n)/took.Seconds())
		}
	}
}

// batchFamily is one of the four histograms: the labels that it has, and where each is counted.
type batchFamily struct {
	name, unit, help string
	modes            [2]ports.BatchKind // ranges, whole
	routes           []string
	of               *[ports.NumBatchKinds][ports.NumSources]histogram
	bounds           []float64
}

var (
	modes     = [2]string{"ranges", "whole"}
	getKinds  = [2]ports.BatchKind{ports.BatchGetRanges, ports.BatchGetWhole}
	putKinds  = [2]ports.BatchKind{ports.BatchPutRanges, ports.BatchPutWhole}
	putRoutes = namesOf(ports.NumSources, ports.Source.String, ports.FromNowhere, ports.FromSlot)
)

func (b *batches) families() []batchFamily {
	return []batchFamily{
		{"get.duration", "s", "Time of gets that were hits, for each route that moved a byte.", getKinds, sources, &b.durations, durationBounds},
		{"get.rate", "By/s", "Bytes of a route over the time of its get.", getKinds, sources, &b.rates, rateBounds},
		{"put.duration", "s", "Time of puts that stored, for each route that moved a byte.", putKinds, putRoutes, &b.durations, durationBounds},
		{"put.rate", "By/s", "Bytes of a route over the time of its put.", putKinds, putRoutes, &b.rates, rateBounds},
	}
}

// Produce implements the SDK's Producer.
func (b *batches) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	out := metricdata.ScopeMetrics{Scope: instrumentation.Scope{Name: scope}}
	for _, f := range b.families() {
		data := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
		for m, kind := range f.modes {
			for route, name := range f.routes {
				if name != "" {
					labels := attribute.NewSet(attribute.String("mode", modes[m]), attribute.String("route", name))
					data.DataPoints = append(data.DataPoints, f.of[kind][route].point(f.bounds, b.since, labels))
				}
			}
		}
		out.Metrics = append(out.Metrics, metricdata.Metrics{Name: f.name, Description: f.help, Unit: f.unit, Data: data})
	}
	return []metricdata.ScopeMetrics{out}, nil
}
