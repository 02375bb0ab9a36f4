package daemon

import (
	"log/slog"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// tracingModule makes the spans of batches where a collector is named. Without one it provides nil, which stands in front of nothing.
func tracingModule() fx.Option {
	return fx.Module("tracing", fx.Provide(newTracing, func(t *telemetry.Tracing, n *app.Node) ports.Pool { return t.Pool(n) }))
}

func newTracing(s *config.Settings, o Options, own *resources, l *slog.Logger) (*telemetry.Tracing, error) {
	if s.TracingOTLP == "" {
		return nil, nil
	}
	t, err := telemetry.NewTracing(telemetry.TracingConfig{Config: telemetry.Config{Node: s.ID, Version: o.Version}, Endpoint: s.TracingOTLP, Sample: s.TracingSample,
		Lost: func(err error) {
			l.Warn("spans were not taken by the collector", "tracing.otlp", s.TracingOTLP, "error", err)
		}})
	if err != nil {
		return nil, partError("tracing", err)
	}
	own.opened("tracing", func() error { _ = t.Close(); return nil }) // a collector that does not answer keeps no daemon from stopping
	return t, nil
}
