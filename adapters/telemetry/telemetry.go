// Package telemetry shows what a node does to whoever watches it: its counts as OpenTelemetry instruments, and over them as a page that
// Prometheus scrapes; and, when asked to, a span of each batch (Tracing).
//
// What Stats has is not counted again: at each scrape one callback takes one Stats, and every instrument is read off that copy, so the
// series of a scrape belong together and a node that nobody watches does nothing. Only how long batches took is kept here, by an
// Observer that adds to histograms without a lock and without allocating. Every series is there from the start with the value 0, those
// of peers from when the node knows the peer: a series that is missing is an older program and never "nothing happened". Labels are
// bounded: their values are the names of our own enumerations, the names of configured peers, and those of transports.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

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

// namespace is in front of the name of every series, scope is what the instruments are of.
const (
	namespace = "spanpool"
	scope     = "github.com/spanpool/spanpool"
)

// Source is what is read at each scrape: a ports.Pool, or what adds to its Stats.
type Source interface{ Stats() ports.Stats }

// Config names what is watched. Both are labels of target_info, which OpenTelemetry's readers join by.
type Config struct {
	Node    ports.PeerID
	Version string
}

// Telemetry is the instruments of one node. Safe for parallel use.
type Telemetry struct {
	provider *sdkmetric.MeterProvider
	registry *prometheus.Registry
	batches  *batches
}

// New has no instruments but those of batches: what is observed by Observer comes to be after it, and is watched then.
func New(c Config) (*Telemetry, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	b := &batches{since: time.Now()}
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithNamespace(namespace), otelprometheus.WithoutScopeInfo(),
		otelprometheus.WithProducer(b))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithResource(about(c)))
	return &Telemetry{provider: provider, registry: registry, batches: b}, nil
}

// about is what the instruments and spans are of.
func about(c Config) *resource.Resource {
	return resource.NewSchemaless(attribute.String("service.name", namespace), attribute.String("service.instance.id", string(c.Node)),
		attribute.String("service.version", c.Version))
}

// Observer is what a node tells of its batches.
func (t *Telemetry) Observer() ports.Observer { return t.batches }

// Watch makes the instruments of a pool, and those that parts of the process count besides. It is called once. An error is one of the
// families' making: a name twice, or one that is not allowed.
func (t *Telemetry) Watch(pool Source, more ...Family) error {
	if err := observe(t.provider.Meter(scope), pool, append(poolFamilies(), more...)); err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	return nil
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
