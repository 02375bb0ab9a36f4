package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Pool puts spans in front of a pool's batches. The context of a batch may carry the caller's trace.
func (t *Tracing) Pool(p ports.Pool) ports.Pool {
	if t == nil {
		return p
	}
	return &tracedPool{p, t}
}

type tracedPool struct {
	ports.Pool
	t *Tracing
}

func (p *tracedPool) Put(ctx context.Context, namespace, name string, b ports.HostRegion) (r ports.Result) {
	p.batch(ctx, ports.BatchPutWhole, namespace, 1, func(ctx context.Context) (bytesOf, []ports.Result, error) {
		r = p.Pool.Put(ctx, namespace, name, b)
		return sizeOf, []ports.Result{r}, nil
	})
	return r
}

func (p *tracedPool) Get(ctx context.Context, namespace, name string, b ports.HostRegion) (r ports.Result) {
	p.batch(ctx, ports.BatchGetWhole, namespace, 1, func(ctx context.Context) (bytesOf, []ports.Result, error) {
		r = p.Pool.Get(ctx, namespace, name, b)
		return sizeOf, []ports.Result{r}, nil
	})
	return r
}

func (p *tracedPool) BatchPut(ctx context.Context, w *ports.WholeBatch, out []ports.Result) error {
	return p.batch(ctx, ports.BatchPutWhole, w.Namespace, len(w.Keys), func(ctx context.Context) (bytesOf, []ports.Result, error) {
		return sizeOf, out, p.Pool.BatchPut(ctx, w, out)
	})
}

func (p *tracedPool) BatchGet(ctx context.Context, w *ports.WholeBatch, out []ports.Result) error {
	return p.batch(ctx, ports.BatchGetWhole, w.Namespace, len(w.Keys), func(ctx context.Context) (bytesOf, []ports.Result, error) {
		return sizeOf, out, p.Pool.BatchGet(ctx, w, out)
	})
}

func (p *tracedPool) BatchPutRanges(ctx context.Context, b *ports.PutBatch, out []ports.Result) error {
	return p.batch(ctx, ports.BatchPutRanges, b.Namespace, len(b.Keys), func(ctx context.Context) (bytesOf, []ports.Result, error) {
		return sizeOf, out, p.Pool.BatchPutRanges(ctx, b, out)
	})
}

func (p *tracedPool) BatchGetRanges(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
	return p.batch(ctx, ports.BatchGetRanges, g.Namespace, len(g.Keys), func(ctx context.Context) (bytesOf, []ports.Result, error) {
		err := p.Pool.BatchGetRanges(ctx, g, out)
		return rangesOf(g), out, err
	})
}

// bytesOf is how many bytes key i of a batch was about, once it has its result.
type bytesOf func(i int, r *ports.Result) uint64

func sizeOf(_ int, r *ports.Result) uint64 { return r.Size }

func rangesOf(g *ports.GetBatch) bytesOf {
	return func(i int, r *ports.Result) (sum uint64) {
		lo := uint32(0)
		if i > 0 {
			lo = g.End[i-1]
		}
		for _, own := range g.Ranges[lo:g.End[i]] {
			if own.Len == domain.Whole {
				return r.Size
			}
			sum += own.Len
		}
		return sum
	}
}

// batch is the span of one batch: what was asked for, what became of it, and by which ways its bytes came.
func (p *tracedPool) batch(ctx context.Context, kind ports.BatchKind, namespace string, keys int, do func(context.Context) (bytesOf, []ports.Result, error)) error {
	ctx, span := p.t.begin(ctx, "spanpool."+kind.String(), trace.SpanKindServer,
		attribute.String("spanpool.namespace", namespace), attribute.Int("spanpool.keys", keys))
	defer span.End()
	bytes, out, err := do(ctx)
	if span.IsRecording() {
		describe(span, bytes, out, err)
	}
	return err
}

func describe(span trace.Span, bytes bytesOf, out []ports.Result, err error) {
	if err != nil {
		fail(span, err)
		span.SetStatus(codes.Error, err.Error())
		return
	}
	var statuses [ports.NumStatuses]int
	var routes [ports.NumSources]uint64
	var fetched, joined uint64
	var first error
	for i := range out {
		r := &out[i]
		statuses[r.Status]++
		fetched, joined = fetched+r.Fetched, joined+r.Joined
		if r.Status.Outcome() == ports.OutcomeDone {
			routes[r.Source] += bytes(i, r)
		} else if first == nil {
			first = r.Err
		}
	}
	for s, n := range statuses {
		if n > 0 {
			span.SetAttributes(attribute.Int("spanpool.status."+ports.Status(s).String(), n))
		}
	}
	for route, n := range routes {
		if n > 0 {
			span.SetAttributes(attribute.Int64("spanpool.bytes."+ports.Source(route).String(), int64(n)))
		}
	}
	span.SetAttributes(attribute.Int64("spanpool.fetched_bytes", int64(fetched)), attribute.Int64("spanpool.joined_bytes", int64(joined)))
	fail(span, first)
}
