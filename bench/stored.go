package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// seed puts every set at the owner, and before that --fill times its medium of other objects at the reader.
func (r *restoreRow) seed(ctx context.Context) error {
	size := r.o.Shape.LargestObject()
	fill := int(times(uint64(r.o.Fill), r.readerBytes()) / roundUp(size, r.o.pageBytes()))
	err := r.eachObject(ctx, "filling", fill, func(b []byte, i int) error {
		return r.seedOne(ctx, r.reader(), fmt.Sprintf("fill/%d", i), b[:size], size)
	})
	if err != nil {
		return err
	}
	return r.eachObject(ctx, "seeding", r.sets.objects(), func(b []byte, i int) error {
		name, pool := r.sets.object(i)
		p := &r.o.Shape.Pools[pool]
		return r.seedOne(ctx, r.owner().Pool, name, b[:p.ObjectBytes()], p.LayerBytes)
	})
}

// seedOne puts an object by its layers, as an engine does: a put-range is what can be verified by itself.
func (r *restoreRow) seedOne(ctx context.Context, p ports.Pool, name string, b []byte, layer uint64) error {
	if err := r.limiter.Do(ctx, func() { content.Fill(b, contentKey(name), 0) }); err != nil {
		return err
	}
	if res := putLayers(ctx, p, name, b, layer); res.Status != ports.Stored {
		return fmt.Errorf("seed key %q of %d bytes: status %s, want %s", namespace+"/"+name, len(b), res.Status, ports.Stored)
	}
	return nil
}

// putLayers stores an object as ranges of that length.
func putLayers(ctx context.Context, p ports.Pool, name string, b []byte, layer uint64) ports.Result {
	put := ports.PutBatch{Namespace: namespace, Keys: []string{name}, Sizes: []uint64{uint64(len(b))}, Regions: []ports.Memory{{Region: ports.HostRegionOf(b)}}}
	for off := uint64(0); off < uint64(len(b)); off += layer {
		put.Ranges = append(put.Ranges, domain.Range{Off: off, Len: min(layer, uint64(len(b))-off), RegionOff: off})
	}
	put.End = []uint32{uint32(len(put.Ranges))}
	var out [1]ports.Result
	_ = p.BatchPutRanges(ctx, &put, out[:]) // the result says it all
	return out[0]
}

// eachObject runs f for 0, ..., n-1 in as many goroutines as the limiter has places, each with room for one object.
func (r *restoreRow) eachObject(ctx context.Context, what string, n int, f func(b []byte, i int) error) error {
	var next, done atomic.Int64
	return inParallel(min(r.limiter.Places(), n), func(int) error {
		b, err := openBuffer(r.o.Shape.LargestObject())
		if err != nil {
			return err
		}
		for i := int(next.Add(1)) - 1; i < n && err == nil; i = int(next.Add(1)) - 1 {
			if err = context.Cause(ctx); err == nil {
				err = f(b.b, i)
			}
			r.o.Progress.Step(fmt.Sprintf("%d ranks: %s", r.sets.ranks, what), uint64(done.Add(1)), uint64(n))
		}
		return errors.Join(err, b.close())
	})
}

// checkStored reads whole what the run left behind: what became local at the reader, and what offload put. A piece of an
// object that no rank asked for after it came would go unseen otherwise.
func (r *restoreRow) checkStored(ctx context.Context) error {
	if !r.o.Verify {
		return nil
	}
	evictable := r.o.MediumMiB > 0 || r.o.Fill > 0
	kept := r.offload.kept()
	holder := r.owner().Pool
	if r.putsHere {
		holder = r.reader()
	}
	err := r.eachObject(ctx, "checking offload", len(kept), func(b []byte, i int) error {
		r.checkObject(ctx, holder, kept[i].name, kept[i].content, b[:r.o.Shape.Pools[kept[i].pool].ObjectBytes()], evictable && r.putsHere)
		return nil
	})
	if err != nil || r.o.Locality == domain.LocalityOff {
		return err
	}
	return r.eachObject(ctx, "checking", r.sets.objects(), func(b []byte, i int) error {
		name, pool := r.sets.object(i)
		r.checkObject(ctx, r.reader(), name, contentOf(name), b[:r.o.Shape.Pools[pool].ObjectBytes()], false)
		return nil
	})
}

// checkObject reads a whole object. One that may have been evicted may be gone.
func (r *restoreRow) checkObject(ctx context.Context, p ports.Pool, name string, want objectContent, b []byte, mayBeGone bool) {
	if r.limiter.Do(ctx, func() { content.Poison(b) }) != nil {
		return
	}
	res := p.Get(ctx, namespace, name, ports.HostRegionOf(b))
	if ctx.Err() != nil || mayBeGone && res.Status == ports.NotFound {
		return
	}
	if res.Status != ports.Hit {
		r.failures.read("after the run: read of key %q from offset 0: status %s, want %s", namespace+"/"+name, res.Status, ports.Hit)
		return
	}
	at := -1
	if r.limiter.Do(ctx, func() { at = want.check(b) }) == nil && at >= 0 {
		r.failures.read("after the run: wrong byte of key %q at offset %d: got %#02x, want %#02x", namespace+"/"+name, at, b[at], want.byteAt(uint64(at)))
	}
}
