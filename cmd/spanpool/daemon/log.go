package daemon

import (
	"log/slog"

	"go.uber.org/fx/fxevent"

	"github.com/spanpool/spanpool/cmd/spanpool/config"
)

// newLogger writes text: a line per event, key=value.
func newLogger(s *config.Settings, o Options) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel)) // config let only levels through
	return slog.New(slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: level}))
}

// quiet logs the container's own events at debug, errors too: New returns those.
func quiet(l *slog.Logger) fxevent.Logger {
	f := &fxevent.SlogLogger{Logger: l}
	f.UseLogLevel(slog.LevelDebug)
	f.UseErrorLevel(slog.LevelDebug)
	return f
}
