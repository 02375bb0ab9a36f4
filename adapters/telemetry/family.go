package telemetry

import (
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/spanpool/spanpool/ports"
)

// Kind says how the values of a family may be read.
type Kind uint8

// The kinds.
const (
	Counter Kind = iota // only grows, from 0 at the node's start
	Gauge               // what is now
)

// Bytes is the unit of a family that counts bytes: its series' names end in it. Others count what their names say.
const Bytes = "By"

// Family is the series of one name, which differ in their labels. A name is in OpenTelemetry's form: "arena.waits" is scraped as
// spanpool_arena_waits_total.
type Family struct {
	Name, Unit, Help string
	Kind             Kind
	Labels           []string

	// Read emits every series of the family, with a value for each label. It is called at each scrape, with a copy of the node's
	// counts that is not to be changed, and from any goroutine.
	Read func(s *ports.Stats, emit Emit)
}

// Emit takes one series. values are those of the family's Labels, in their order.
type Emit func(v uint64, values ...string)

func (f *Family) instrument(m metric.Meter) (metric.Int64Observable, error) {
	if f.Kind == Gauge {
		return m.Int64ObservableGauge(f.Name, metric.WithUnit(f.Unit), metric.WithDescription(f.Help))
	}
	return m.Int64ObservableCounter(f.Name, metric.WithUnit(f.Unit), metric.WithDescription(f.Help))
}

func (f *Family) labels(values []string) attribute.Set {
	if len(values) != len(f.Labels) {
		panic(fmt.Sprintf("telemetry: %s has %d labels and was given %d values", f.Name, len(f.Labels), len(values)))
	}
	all := make([]attribute.KeyValue, len(values))
	for i, v := range values {
		all[i] = attribute.String(f.Labels[i], v)
	}
	return attribute.NewSet(all...)
}

// one reads the one series of a family without labels.
func one(value func(s *ports.Stats) uint64) func(*ports.Stats, Emit) {
	return func(s *ports.Stats, emit Emit) { emit(value(s)) }
}

// each reads a series for every place that has a name; a place without one is a value that nothing can take.
func each(names []string, values func(s *ports.Stats) []uint64) func(*ports.Stats, Emit) {
	return func(s *ports.Stats, emit Emit) {
		v := values(s)
		for i, name := range names {
			if name != "" {
				emit(v[i], name)
			}
		}
	}
}

// namesOf names every value below n but those that are left out.
func namesOf[T ~uint8](n T, name func(T) string, without ...T) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = name(T(i))
	}
	for _, v := range without {
		names[v] = ""
	}
	return names
}
