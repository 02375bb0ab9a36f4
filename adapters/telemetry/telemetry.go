// Package telemetry shows what a node counts to whoever watches it: as OpenTelemetry instruments, and over them as a page that
// Prometheus scrapes.
//
// Nothing is counted here. At each scrape one callback takes one Stats, and every instrument is read off that copy, so the series of
// a scrape belong together and a node that nobody watches does nothing. Every series is there from the start with the value 0, those
// of peers from when the node knows the peer: a series that is missing is an older program and never "nothing happened". Labels are
// bounded: their values are the names of our own enumerations, the names of configured peers, and those of transports.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/spanpool/spanpool/ports"
)

// namespace is in front of the name of every series.
const namespace = "spanpool"

// Source is what is read at each scrape: a ports.Pool, or what adds to its Stats.
type Source interface{ Stats() ports.Stats }

// Config is what New joins.
type Config struct {
	Source  Source
	Node    ports.PeerID // both are labels of target_info, which OpenTelemetry's readers join by
	Version string
	More    []Family // what parts of a process count besides the node
}

// Telemetry is the instruments of one node. Safe for parallel use.
type Telemetry struct {
	provider *sdkmetric.MeterProvider
	registry *prometheus.Registry
}

// New makes the instruments. An error is one of the families' making: a name twice, or one that is not allowed.
func New(c Config) (*Telemetry, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithNamespace(namespace), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	about := resource.NewSchemaless(attribute.String("service.name", namespace), attribute.String("service.instance.id", string(c.Node)),
		attribute.String("service.version", c.Version))
	t := &Telemetry{provider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithResource(about)), registry: registry}
	if err := observe(t.provider.Meter("github.com/spanpool/spanpool"), c.Source, append(poolFamilies(), c.More...)); err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: %w", err), t.Close())
	}
	return t, nil
}

// Handler answers a scrape.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{})
}

// Close ends the reading: what is scraped afterwards has none of the families. Twice is allowed.
func (t *Telemetry) Close() error {
	if err := t.provider.Shutdown(context.Background()); !errors.Is(err, sdkmetric.ErrReaderShutdown) {
		return err
	}
	return nil
}

// observe makes an instrument of each family and one callback for all of them.
func observe(m metric.Meter, from Source, all []Family) error {
	names := make(map[string]bool, len(all))
	instruments := make([]metric.Int64Observable, len(all))
	observables := make([]metric.Observable, len(all))
	for i, f := range all {
		if names[f.Name] {
			return fmt.Errorf("two families are called %s", f.Name)
		}
		names[f.Name] = true
		var err error
		if instruments[i], err = f.instrument(m); err != nil {
			return err
		}
		observables[i] = instruments[i]
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := from.Stats()
		for i, f := range all {
			f.Read(&s, func(v uint64, values ...string) {
				o.ObserveInt64(instruments[i], int64(v), metric.WithAttributeSet(f.labels(values)))
			})
		}
		return nil
	}, observables...)
	return err
}
