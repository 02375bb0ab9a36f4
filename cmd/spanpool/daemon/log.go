package daemon

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/fx/fxevent"

	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// newLogger writes text: a line per event, key=value. Warnings that repeat are limited.
func newLogger(s *config.Settings, o Options, held *heldBack) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel)) // config let only levels through
	return slog.New(&limited{Handler: slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: level}), held: held})
}

// quiet logs the container's own events at debug, errors too: New returns those.
func quiet(l *slog.Logger) fxevent.Logger {
	f := &fxevent.SlogLogger{Logger: l}
	f.UseLogLevel(slog.LevelDebug)
	f.UseErrorLevel(slog.LevelDebug)
	return f
}

// A warning of the same words is written so often in a window, and then not before the window is over; both numbers are arbitrary.
const (
	warningsPerWindow = 3
	warningWindow     = time.Minute
)

// maxMessages bounds what is remembered; messages are constants of ours, so it is never reached.
const maxMessages = 256

// limited holds back warnings and errors whose words repeat: messages are constants, and what differs is in their attributes. The
// first that is written again says how many were not.
type limited struct {
	slog.Handler
	held *heldBack
}

// heldBack is what is known of messages, shared by a logger and those that it was made into.
type heldBack struct {
	total atomic.Uint64
	mu    struct {
		sync.Mutex
		seen map[string]*repeated
	}
}

type repeated struct {
	since         time.Time
	written, held uint64
}

// Handle implements slog.Handler.
func (h *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	held, ok := h.held.admit(r.Message, r.Time)
	if !ok {
		return nil
	}
	if held > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("held_back", held))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs and WithGroup keep the limit.
func (h *limited) WithAttrs(a []slog.Attr) slog.Handler {
	return &limited{h.Handler.WithAttrs(a), h.held}
}

func (h *limited) WithGroup(name string) slog.Handler {
	return &limited{h.Handler.WithGroup(name), h.held}
}

// admit reports whether a message may be written, and how many of the same words were held back since the last.
func (h *heldBack) admit(message string, at time.Time) (held uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.mu.seen[message]
	if m == nil {
		if len(h.mu.seen) >= maxMessages || h.mu.seen == nil {
			h.mu.seen = make(map[string]*repeated)
		}
		m = &repeated{since: at}
		h.mu.seen[message] = m
	}
	if at.Sub(m.since) >= warningWindow {
		m.since, m.written = at, 0
	}
	if m.written >= warningsPerWindow {
		m.held++
		h.total.Add(1)
		return 0, false
	}
	m.written++
	held, m.held = m.held, 0
	return held, true
}

// family counts what was not written.
func (h *heldBack) family() telemetry.Family {
	return telemetry.Family{Name: "log.held_back", Help: "Warnings and errors that were not logged, for they repeat.",
		Read: func(_ *ports.Stats, emit telemetry.Emit) { emit(h.total.Load()) }}
}

// observers is who is told of batches: the histograms, where somebody can ask for them, and the log where it is to say that much.
func observers(l *slog.Logger, t *telemetry.Telemetry) ports.Observer {
	var o ports.Observer
	if t != nil {
		o = t.Observer()
	}
	if l.Enabled(context.Background(), slog.LevelDebug) {
		return &batchLog{log: l, next: o}
	}
	return o
}

// batchLog logs each batch at debug. Where that is off it stands nowhere: a batch does nothing for the log.
type batchLog struct {
	log  *slog.Logger
	next ports.Observer
}

// Batch implements ports.Observer.
func (b *batchLog) Batch(s ports.BatchSample) {
	b.log.Debug("batch", "kind", s.Kind.String(), "took", s.Took, "local", s.Bytes[ports.FromLocal], "slot", s.Bytes[ports.FromSlot],
		"direct", s.Bytes[ports.FromDirect], "arena", s.Bytes[ports.FromArena])
	if b.next != nil {
		b.next.Batch(s)
	}
}
