package telemetry

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// scripted is a pool that keeps the context it is called with.
type scripted struct {
	ports.Pool
	ctx context.Context
	out []ports.Result
	err error
}

// owner is a peer server that does so.
type owner struct {
	ports.PeerServer
	ctx context.Context
	err error
}

func (p *scripted) Get(ctx context.Context, _, _ string, _ ports.HostRegion) ports.Result {
	p.ctx = ctx
	return p.out[0]
}

func (p *scripted) BatchGetRanges(ctx context.Context, _ *ports.GetBatch, out []ports.Result) error {
	p.ctx = ctx
	copy(out, p.out)
	return p.err
}

func (p *owner) Resolve(ctx context.Context, _ ports.Peer, _ *ports.ResolveRequest, _ *ports.ResolveReply) error {
	p.ctx = ctx
	return p.err
}

// traced is a tracing whose spans are kept here.
func traced(t *testing.T, sample float64) (*Tracing, func() tracetest.SpanStubs) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	tr, err := NewTracing(TracingConfig{Config: Config{Node: "a", Version: "v1"}, Sample: sample, Exporter: kept})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr, func() tracetest.SpanStubs {
		require.NoError(t, tr.Flush(t.Context()))
		return kept.GetSpans()
	}
}

func attributesOf(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// TestABatchIsASpanThatSaysWhatBecameOfIt: under the trace of whoever called, and over what is called next.
func TestABatchIsASpanThatSaysWhatBecameOfIt(t *testing.T) {
	tr, spans := traced(t, 1)
	inner := &scripted{out: []ports.Result{
		{Status: ports.Hit, Source: ports.FromSlot, Size: 900, Fetched: 30}, {Status: ports.Hit, Source: ports.FromLocal, Size: 70},
		{Status: ports.NotFound, Err: errors.New("nowhere")}}}
	caller := ports.ParseTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	g := &ports.GetBatch{Namespace: "ns", Keys: []string{"k", "l", "m"}, End: []uint32{2, 3, 4},
		Ranges: []domain.Range{{Len: 30}, {Off: 40, Len: 12}, {Len: domain.Whole}, {Len: 1}}}
	require.NoError(t, tr.Pool(inner).BatchGetRanges(ports.WithTrace(t.Context(), caller), g, make([]ports.Result, 3)))

	all := spans()
	require.Len(t, all, 1)
	s := all[0]
	require.Equal(t, "spanpool.get_ranges", s.Name)
	require.EqualValues(t, caller.ID, s.SpanContext.TraceID())
	require.EqualValues(t, caller.Span, s.Parent.SpanID())
	next := ports.TraceOf(inner.ctx)
	require.Equal(t, ports.Trace{ID: caller.ID, Span: s.SpanContext.SpanID(), Sampled: true}, next)
	require.Equal(t, map[string]string{"spanpool.namespace": "ns", "spanpool.keys": "3", "spanpool.status.hit": "2", "spanpool.status.not_found": "1",
		"spanpool.bytes.slot": "42", "spanpool.bytes.local": "70", "spanpool.fetched_bytes": "30", "spanpool.joined_bytes": "0"}, attributesOf(s))
	require.Contains(t, s.Events[0].Attributes, attribute.String("exception.message", "nowhere"))
	require.Contains(t, s.Resource.Attributes(), attribute.String("service.instance.id", "a"))
}

// TestABatchOfNoTraceBeginsOne, and a batch that is malformed says so.
func TestABatchOfNoTraceBeginsOne(t *testing.T) {
	tr, spans := traced(t, 1)
	inner := &scripted{out: []ports.Result{{Status: ports.Hit, Source: ports.FromArena, Size: 5}}, err: errors.New("malformed")}
	tr.Pool(inner).Get(t.Context(), "ns", "k", ports.HostRegion{})
	require.Error(t, tr.Pool(inner).BatchGetRanges(t.Context(), &ports.GetBatch{}, nil))
	all := spans()
	require.Len(t, all, 2)
	require.False(t, all[0].Parent.IsValid())
	require.NotEqual(t, all[0].SpanContext.TraceID(), all[1].SpanContext.TraceID())
	require.Equal(t, "5", attributesOf(all[0])["spanpool.bytes.arena"])
	require.Equal(t, "malformed", all[1].Status.Description)
}

// TestWhatAPeerAsksInATraceIsASpanOfIt, and what it asks by itself is none.
func TestWhatAPeerAsksInATraceIsASpanOfIt(t *testing.T) {
	tr, spans := traced(t, 0)
	inner := &owner{err: errors.New("gone")}
	ask := func(ctx context.Context) {
		require.Error(t, tr.PeerServer(inner).Resolve(ctx, ports.Peer{ID: "b"}, &ports.ResolveRequest{Keys: make([]ports.Key, 2)}, nil))
	}
	ask(t.Context())
	require.Empty(t, spans())
	asker := ports.ParseTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	ask(ports.WithTrace(t.Context(), asker))
	all := spans()
	require.Len(t, all, 1, "what others keep is kept, whatever share begins here")
	require.Equal(t, "spanpool.peer.resolve", all[0].Name)
	require.EqualValues(t, asker.Span, all[0].Parent.SpanID())
	require.True(t, all[0].Parent.IsRemote())
	require.Equal(t, map[string]string{"spanpool.peer": "b", "spanpool.rows": "2"}, attributesOf(all[0]))
	require.Equal(t, "gone", all[0].Status.Description)
}

func TestTracesThatAreNotKeptGoOnAsSuch(t *testing.T) {
	tr, spans := traced(t, 0)
	inner := &scripted{out: make([]ports.Result, 1)}
	tr.Pool(inner).Get(t.Context(), "ns", "k", ports.HostRegion{})
	next := ports.TraceOf(inner.ctx)
	require.False(t, next.IsZero())
	require.False(t, next.Sampled)
	require.Empty(t, spans())
}

// TestTracingThatIsOffStandsNowhere: a batch and a peer's call go straight to what serves them.
func TestTracingThatIsOffStandsNowhere(t *testing.T) {
	var off *Tracing
	pool, server := &scripted{}, &owner{}
	require.Same(t, pool, off.Pool(pool))
	require.Same(t, server, off.PeerServer(server))
	require.NoError(t, off.Close())
	_, values, _ := scraped(t, opened(t, &counted{}, off.Family()))
	require.Zero(t, values[`spanpool_tracing_spans_total{result="sent"}`])
}

// refusing is a collector that takes nothing.
type refusing struct{ sdktrace.SpanExporter }

func (refusing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("no room")
}
func (refusing) Shutdown(context.Context) error { return nil }

func TestSpansAreCountedByWhetherTheyWereTaken(t *testing.T) {
	tr, spans := traced(t, 1)
	var told []error
	lost, err := NewTracing(TracingConfig{Sample: 1, Exporter: refusing{}, Lost: func(err error) { told = append(told, err) }})
	require.NoError(t, err)
	inner := &scripted{out: make([]ports.Result, 1)}
	for _, to := range []*Tracing{tr, tr, lost} {
		to.Pool(inner).Get(t.Context(), "ns", "k", ports.HostRegion{})
	}
	spans()
	require.NoError(t, lost.Close())
	_, taken, _ := scraped(t, opened(t, &counted{}, tr.Family()))
	_, failed, _ := scraped(t, opened(t, &counted{}, lost.Family()))
	require.Equal(t, 2.0, taken[`spanpool_tracing_spans_total{result="sent"}`])
	require.Equal(t, 1.0, failed[`spanpool_tracing_spans_total{result="failed"}`])
	require.Len(t, told, 1)
	require.ErrorContains(t, told[0], "no room")
}

func TestAShareOfTracesIsAShare(t *testing.T) {
	for _, share := range []float64{-0.1, 1.1} {
		_, err := NewTracing(TracingConfig{Sample: share})
		require.ErrorContains(t, err, "want 0 to 1")
	}
}

// hanging is a collector that takes spans once it is let go.
type hanging struct {
	sdktrace.SpanExporter
	release chan struct{}
}

func (h hanging) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	<-h.release
	return nil
}
func (hanging) Shutdown(context.Context) error { return nil }

// TestSpansThatFindNoRoomAreCounted: a collector that hangs holds up no batch, and what does not wait for it is no secret.
func TestSpansThatFindNoRoomAreCounted(t *testing.T) {
	const more = 10
	h := hanging{release: make(chan struct{})}
	tr, err := NewTracing(TracingConfig{Sample: 1, Exporter: h})
	require.NoError(t, err)
	inner := &scripted{out: make([]ports.Result, 1)}
	for range maxWaiting + more {
		tr.Pool(inner).Get(t.Context(), "ns", "k", ports.HostRegion{})
	}
	_, stuck, _ := scraped(t, opened(t, &counted{}, tr.Family()))
	close(h.release)
	require.NoError(t, tr.Flush(t.Context()))
	tr.Pool(inner).Get(t.Context(), "ns", "k", ports.HostRegion{})
	require.NoError(t, tr.Close())
	require.EqualValues(t, more, stuck[`spanpool_tracing_spans_total{result="dropped"}`])
	_, ended, _ := scraped(t, opened(t, &counted{}, tr.Family()))
	require.EqualValues(t, maxWaiting+1, ended[`spanpool_tracing_spans_total{result="sent"}`], "room is given back")
	require.EqualValues(t, more, ended[`spanpool_tracing_spans_total{result="dropped"}`])
}
