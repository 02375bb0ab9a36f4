package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
)

// httpModule answers on loopback: whether the node lives and is ready, what it counts, and what its threads do. It has a mux of its
// own, so nothing else that a library registers is served.
func httpModule() fx.Option {
	return fx.Module("http", fx.Provide(newTelemetry), fx.Invoke(watch, serveHTTP))
}

// Times of the server. A profile takes as long as its caller says, within the last of them.
const (
	headerTime = 5 * time.Second
	idleTime   = time.Minute
	answerTime = 2 * time.Minute
)

func serveHTTP(lc fx.Lifecycle, s *config.Settings, r *readiness, t *telemetry.Telemetry, own *resources, at *Addresses) error {
	l, err := net.Listen("tcp", s.HTTP)
	if err != nil {
		return partError("http", err)
	}
	at.HTTP = l.Addr().String()
	server := &http.Server{Handler: handler(r, t.Handler()), ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, IdleTimeout: idleTime,
		WriteTimeout: answerTime}
	own.opened("http", func() error { _ = l.Close(); return server.Close() })
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			own.serve("http", func() error {
				if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
					return err
				}
				return nil
			})
			return nil
		},
		OnStop: func(context.Context) error { return server.Close() }, // a profile that is being taken is no call of the pool
	})
	return nil
}

func handler(r *readiness, metrics http.Handler) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "alive\n") })
	m.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !r.Load() {
			http.Error(w, "not ready: starting or stopping", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
	m.Handle("GET /metrics", metrics)
	m.HandleFunc("GET /debug/pprof/", pprof.Index)
	m.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	m.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	m.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	m.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return m
}
