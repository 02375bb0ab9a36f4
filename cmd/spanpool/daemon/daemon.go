// Package daemon runs a node as a process of its own: fx opens the parts that the settings name, in order, and the injector joins them.
//
// Constructors open, and note with resources how what they opened is closed; that happens in reverse order whether the graph came up or
// not. Hooks only schedule and wait: a goroutine that serves belongs to resources, which waits for it.
//
// It starts from the inside out (memory, transports, node) and then opens the ways in (http, peers, engine socket); readiness comes
// last. It stops in the opposite order: not ready, calls over the socket drain, peers' calls drain and the leases that were granted
// end, and then the node, its transports and its memory go.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.uber.org/fx"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

// Options is what does not come from the settings.
type Options struct {
	Log     io.Writer
	Version string
}

// startTimeout bounds the whole start; populating a large medium is most of it.
const startTimeout = 2 * time.Minute

// closeTimeout bounds what follows the drain: a node's calls end within their own bound, and transports need no peer to close.
const closeTimeout = 15 * time.Second

// PartError says which part of the daemon failed.
type PartError struct {
	Part string
	Err  error
}

func (e *PartError) Error() string { return e.Part + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *PartError) Unwrap() error { return e.Err }

func partError(part string, err error) error {
	if err == nil {
		return nil
	}
	return &PartError{part, err}
}

// Daemon is one start. Start and Stop are called once each; Stop also after a Start that failed.
type Daemon struct {
	Node *app.Node
	Pool ports.Pool // the node, with spans in front where they are wanted: what its ways in call
	At   Addresses

	app *fx.App
	own *resources
	log *slog.Logger
}

// Addresses is where the daemon can be reached; empty where it cannot.
type Addresses struct{ Control, Data, HTTP, Socket string }

// modules is what the settings name. The order of the last four is that of their hooks.
func modules(s *config.Settings, o Options) fx.Option {
	all := []fx.Option{
		fx.Supply(s, o),
		fx.Provide(newLogger, func() *heldBack { return &heldBack{} }),
		fx.WithLogger(quiet),
		fx.Module("settings", fx.Invoke(announce)), // a module, and the first: what modules invoke comes before the rest
		tracingModule(), mediumModule(s), transportModule(), nodeModule(),
	}
	if s.HTTP != config.Off {
		all = append(all, httpModule())
	}
	all = append(all, peersModule())
	if s.Socket != config.Off {
		all = append(all, engineModule())
	}
	return fx.Options(append(all, readyModule())...)
}

// New opens every part. An error names the part, and leaves nothing behind.
func New(s *config.Settings, o Options) (*Daemon, error) {
	d := &Daemon{own: newResources()}
	d.app = fx.New(fx.Supply(d.own, &d.At), modules(s, o), fx.Populate(&d.Node, &d.Pool, &d.log),
		fx.StartTimeout(startTimeout), fx.StopTimeout(2*s.Drain+closeTimeout))
	if err := d.app.Err(); err != nil {
		var part *PartError
		if errors.As(err, &part) {
			err = part // without the container's account of how it came to call that constructor
		}
		return nil, errors.Join(err, d.own.close())
	}
	return d, nil
}

// Start opens the ways in.
func (d *Daemon) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.app.StartTimeout())
	defer cancel()
	return d.app.Start(ctx)
}

// Stop drains and closes. It returns what did not go well, or did not within its time; then the process should end.
func (d *Daemon) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), d.app.StopTimeout())
	defer cancel()
	return errors.Join(d.app.Stop(ctx), d.own.close())
}

// Run starts the daemon, and stops it when ctx ends or a part fails.
func Run(ctx context.Context, s *config.Settings, o Options) error {
	d, err := New(s, o)
	if err != nil {
		return err
	}
	if err := d.Start(ctx); err != nil {
		if errors.Is(err, ctx.Err()) {
			d.log.Info("stopped before it was ready", "why", context.Cause(ctx))
			err = nil
		}
		return errors.Join(err, d.Stop())
	}
	d.log.Info("ready", "node", s.ID, "incarnation", fmt.Sprintf("%016x", uint64(d.Node.Self().Incarnation)),
		"control", d.At.Control, "data", d.At.Data, "http", d.At.HTTP, "socket", d.At.Socket)
	select {
	case <-ctx.Done():
		d.log.Info("stopping", "drain", s.Drain)
	case err = <-d.own.failed:
		d.log.Error("a part failed", "error", err)
	}
	err = errors.Join(err, d.Stop())
	d.log.Info("stopped")
	return err
}

// announce logs what the daemon was told, and by whom. The secret is not among the settings. It comes before all else: to give a large
// pool its memory takes a minute.
func announce(s *config.Settings, l *slog.Logger) {
	var all []any
	s.Each(func(key, value, source string) {
		all = append(all, slog.String(key, fmt.Sprintf("%s (%s)", value, source)))
	})
	l.Info("settings", all...)
	for _, w := range s.Warnings() {
		l.Warn(w)
	}
}
