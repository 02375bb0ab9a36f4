package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/spanpool/spanpool/ports"
)

// TracingConfig says where spans go.
type TracingConfig struct {
	Config
	Endpoint string  // HOST:PORT of a collector that takes OTLP over gRPC, without TLS: one on this host
	Sample   float64 // of the traces that begin here, the share that is kept; what others began is kept as they say

	// Lost is told why spans were not taken, from a goroutine of the tracing's own; nil: nobody is. It returns soon.
	Lost func(error)

	// Exporter takes the spans instead of the collector (tests). It is closed with the Tracing.
	Exporter sdktrace.SpanExporter
}

// Tracing makes a span of each batch of a pool, and of each call of a peer that belongs to one: a batch's span is the parent of those
// that its control calls become at the peers, so a trace shows which node a batch waited for. A nil *Tracing is one that is off: it
// puts nothing in front of what it is given. Safe for parallel use.
type Tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	waiting  *waitingSpans
}

// maxWaiting bounds the spans that wait for the collector, those under way included; the number is arbitrary.
const maxWaiting = 2048

// exportTimeout bounds one delivery to the collector, and closing.
const exportTimeout = 5 * time.Second

// NewTracing connects to nobody yet: a collector that is down costs spans, which are counted, and no batch any time.
func NewTracing(c TracingConfig) (*Tracing, error) {
	if !(c.Sample >= 0 && c.Sample <= 1) { // so that NaN is refused
		return nil, fmt.Errorf("telemetry: share of traces %v, want 0 to 1", c.Sample)
	}
	to := c.Exporter
	if to == nil {
		var err error
		to, err = otlptracegrpc.New(context.Background(), otlptracegrpc.WithEndpoint(c.Endpoint), otlptracegrpc.WithInsecure(),
			otlptracegrpc.WithTimeout(exportTimeout), otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}))
		if err != nil {
			return nil, fmt.Errorf("telemetry: OTLP to %s: %w", c.Endpoint, err)
		}
	}
	w := &waitingSpans{}
	w.SpanProcessor = sdktrace.NewBatchSpanProcessor(&countedExporter{SpanExporter: to, lost: c.Lost, from: w},
		sdktrace.WithExportTimeout(exportTimeout), sdktrace.WithMaxQueueSize(maxWaiting))
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w), sdktrace.WithResource(about(c.Config)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.Sample))))
	return &Tracing{provider: provider, tracer: provider.Tracer(scope), waiting: w}, nil
}

// Close sends what is left, within a bound, and ends the tracing: spans that end later are lost. Twice is allowed.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// Flush sends what has ended.
func (t *Tracing) Flush(ctx context.Context) error { return t.provider.ForceFlush(ctx) }

// Family counts spans by what became of them.
func (t *Tracing) Family() Family {
	return Family{Name: "tracing.spans", Help: "Spans by whether the collector took them; dropped: too many waited for it.", Labels: []string{"result"},
		Read: func(_ *ports.Stats, emit Emit) {
			var sent, failed, dropped uint64
			if t != nil {
				sent, failed, dropped = t.waiting.sent.Load(), t.waiting.failed.Load(), t.waiting.dropped.Load()
			}
			emit(sent, "sent")
			emit(failed, "failed")
			emit(dropped, "dropped")
		}}
}

// waitingSpans lets no more spans wait than fit the queue behind it, which would drop the others without a count.
type waitingSpans struct {
	sdktrace.SpanProcessor
	now                   atomic.Int64
	sent, failed, dropped atomic.Uint64
}

// OnEnd implements sdktrace.SpanProcessor.
func (w *waitingSpans) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if w.now.Add(1) > maxWaiting {
		w.now.Add(-1)
		w.dropped.Add(1)
		return
	}
	w.SpanProcessor.OnEnd(s)
}

// countedExporter counts, and tells errors to whom they are for: OpenTelemetry would print each of them.
type countedExporter struct {
	sdktrace.SpanExporter
	lost func(error)
	from *waitingSpans
}

func (e *countedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer e.from.now.Add(-int64(len(spans)))
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.from.failed.Add(uint64(len(spans)))
		if e.lost != nil {
			e.lost(err)
		}
		return nil
	}
	e.from.sent.Add(uint64(len(spans)))
	return nil
}

// begin starts a span under what the context says: a span of this program's own, or else a place in somebody's trace.
func (t *Tracing) begin(ctx context.Context, name string, kind trace.SpanKind, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	if from := ports.TraceOf(ctx); !from.IsZero() && !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, spanContext(from))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
	sc := span.SpanContext()
	return ports.WithTrace(ctx, ports.Trace{ID: sc.TraceID(), Span: sc.SpanID(), Sampled: sc.IsSampled()}), span
}

func spanContext(t ports.Trace) trace.SpanContext {
	c := trace.SpanContextConfig{TraceID: t.ID, SpanID: t.Span, Remote: true}
	if t.Sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c)
}

// fail says why a span did not end well.
func fail(span trace.Span, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		span.RecordError(err)
	}
}
