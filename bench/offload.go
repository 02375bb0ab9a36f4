package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// offload is the ranks that put whole pages with fresh keys all the while. A put holds a turn; whoever takes all turns has
// them paused.
type offload struct {
	row    *restoreRow
	ranks  []*offloadRank
	turns  chan struct{} // capacity: one a rank
	cancel context.CancelFunc
	wg     sync.WaitGroup
	stored atomic.Uint64 // bytes that puts committed
}

// offloadRank is used by its goroutine, and read once that has ended.
type offloadRank struct {
	id   int
	src  *stampedSource
	keys [][]storedKey // by pool, oldest first: at most two sets
	puts []timedPut
}

// period is from a moment to a later one.
type period struct{ begin, end time.Time }

// within is how much of it lies in any of others, which do not overlap.
func (p period) within(others []period) (d time.Duration) {
	for _, o := range others {
		begin, end := p.begin, p.end
		if o.begin.After(begin) {
			begin = o.begin
		}
		if o.end.Before(end) {
			end = o.end
		}
		d += max(0, end.Sub(begin))
	}
	return d
}

// timedPut is a put call and what it stored.
type timedPut struct {
	period
	bytes uint64
}

// storedKey is an object that offload put and did not remove.
type storedKey struct {
	name    string
	pool    int
	content objectContent
}

// offloadChunk is how many pages of a pool one put names.
func offloadChunk(w *Walk, pool, rangesPerCall int) int {
	return max(1, min(w.Pages, rangesPerCall/len(w.Shape.Pools[pool].Layers), domain.MaxCallKeys))
}

// offloadSource is the memory that one rank puts from.
func offloadSource(w *Walk, rangesPerCall int) uint64 {
	var most uint64
	for i, p := range w.Shape.Pools {
		most = max(most, times(p.ObjectBytes(), uint64(offloadChunk(w, i, rangesPerCall))))
	}
	return most
}

// startOffload makes what the ranks put from, and starts them. stop must be called, whatever the error. Stopping ends waits; a call
// that is under way goes on to its end, so that what is kept is known.
func startOffload(ctx context.Context, row *restoreRow) (*offload, error) {
	o := &offload{row: row, turns: make(chan struct{}, row.offloads)}
	going, cancel := context.WithCancel(ctx)
	o.cancel = cancel
	for id := range row.offloads {
		src, err := openStampedSource(ctx, row.limiter, fmt.Sprintf("offload/%d", id), offloadSource(row.walk, row.o.RangesPerCall))
		if err != nil {
			return o, fmt.Errorf("offload rank %d: %w", id, err)
		}
		o.ranks = append(o.ranks, &offloadRank{id: id, src: src, keys: make([][]storedKey, len(row.walk.Shape.Pools))})
	}
	for _, k := range o.ranks {
		o.wg.Go(func() { o.run(ctx, going, k) })
	}
	return o, nil
}

// stop ends the ranks and waits for them; twice is allowed.
func (o *offload) stop() {
	o.cancel()
	o.wg.Wait()
	for _, k := range o.ranks {
		if k.src != nil {
			_ = k.src.close() // unmapping what was mapped here cannot fail
			k.src = nil
		}
	}
}

// pause waits until no put is under way and lets none begin before the answer is called.
func (o *offload) pause() (resume func()) {
	for range o.ranks {
		o.turns <- struct{}{}
	}
	return func() {
		for range o.ranks {
			<-o.turns
		}
	}
}

// storedAtReader is what puts committed at the reader. Precondition: paused.
func (o *offload) storedAtReader() uint64 {
	if o.row.putsHere {
		return o.stored.Load()
	}
	return 0
}

// rate is the sum of the ranks' rates within windows. A put may take longer than a window, or reach over its ends: of its bytes it has the
// share there that its time has. What a rank does besides putting is no part of that time. Precondition: stopped.
func (o *offload) rate(windows []period) float64 {
	var sum float64
	for _, k := range o.ranks {
		var bytes float64
		var time time.Duration
		for _, p := range k.puts {
			in := p.within(windows)
			if in > 0 {
				bytes += float64(p.bytes) * float64(in) / float64(p.end.Sub(p.begin))
			}
			time += in
		}
		sum += gibPerSecond(uint64(bytes), time)
	}
	return sum
}

// kept is what the ranks left behind. Precondition: stopped.
func (o *offload) kept() []storedKey {
	var all []storedKey
	for _, k := range o.ranks {
		for _, keys := range k.keys {
			all = append(all, keys...)
		}
	}
	return all
}

func (o *offload) run(ctx, going context.Context, k *offloadRank) {
	for n := uint64(0); ; n++ {
		for pool := range o.row.walk.Shape.Pools {
			chunk := offloadChunk(o.row.walk, pool, o.row.o.RangesPerCall)
			for first := 0; first < o.row.walk.Pages; first += chunk {
				put := o.newPut(k, n, pool, first, min(chunk, o.row.walk.Pages-first))
				if !o.step(ctx, going, k, put) {
					return
				}
			}
		}
	}
}

// offloadPut is one call of an offload rank.
type offloadPut struct {
	pool  int
	batch ports.PutBatch
	out   []ports.Result
}

// newPut names the pages [first, first+pages) of a pool under keys that are used nowhere else; an engine hands over a range
// for each layer.
func (o *offload) newPut(k *offloadRank, n uint64, pool, first, pages int) *offloadPut {
	shape := o.row.walk.Shape.Pools[pool]
	put := &offloadPut{pool: pool, out: make([]ports.Result, pages)}
	put.batch = ports.PutBatch{Namespace: namespace, Regions: []ports.Memory{{Region: k.src.region()}}}
	if !o.row.putsHere {
		put.batch.To = o.row.owner().ID
	}
	for page := range pages {
		base := uint64(page) * shape.ObjectBytes()
		for l := range shape.Layers {
			off := uint64(l) * shape.LayerBytes
			put.batch.Ranges = append(put.batch.Ranges, domain.Range{Off: off, Len: shape.LayerBytes, RegionOff: base + off})
		}
		put.batch.Keys = append(put.batch.Keys, o.row.sets.offloadName(k.id, n, pool, first+page))
		put.batch.Sizes = append(put.batch.Sizes, shape.ObjectBytes())
		put.batch.End = append(put.batch.End, uint32(len(put.batch.Ranges)))
	}
	return put
}

// step removes what is too old, and puts. It reports whether to go on.
func (o *offload) step(ctx, going context.Context, k *offloadRank, put *offloadPut) bool {
	select {
	case o.turns <- struct{}{}:
	case <-going.Done():
		return false
	}
	defer func() { <-o.turns }()
	o.makeRoom(ctx, k, put)
	o.put(ctx, k, put)
	return going.Err() == nil
}

// makeRoom removes the oldest keys, so that with the new ones there are at most two sets.
func (o *offload) makeRoom(ctx context.Context, k *offloadRank, put *offloadPut) {
	n := len(k.keys[put.pool]) + len(put.batch.Keys) - 2*o.row.walk.Pages
	if n <= 0 {
		return
	}
	var old []string
	for _, key := range k.keys[put.pool][:n] {
		old = append(old, key.name)
	}
	k.keys[put.pool] = slices.Clone(k.keys[put.pool][n:])
	out := make([]ports.Removal, n)
	err := o.row.reader().Remove(ctx, namespace, old, out)
	for i := range out {
		if (err != nil || len(out[i].Unanswered) > 0) && ctx.Err() == nil {
			o.row.failures.put("offload rank %d: remove of key %q: error %v, peers that did not answer: %v", k.id,
				namespace+"/"+old[i], err, out[i].Unanswered)
		}
	}
}

func (o *offload) put(ctx context.Context, k *offloadRank, put *offloadPut) {
	for i, name := range put.batch.Keys {
		k.src.stamp(uint64(i)*put.batch.Sizes[i], put.batch.Sizes[i], contentKey(name))
	}
	timed := timedPut{period: period{begin: time.Now()}}
	err := o.row.reader().BatchPutRanges(ctx, &put.batch, put.out)
	timed.end = time.Now()
	for i, name := range put.batch.Keys {
		if err == nil && put.out[i].Status == ports.Stored {
			timed.bytes += put.batch.Sizes[i]
			k.keys[put.pool] = append(k.keys[put.pool], storedKey{name, put.pool, k.src.object(uint64(i)*put.batch.Sizes[i], contentKey(name))})
			continue
		}
		if ctx.Err() == nil {
			o.row.failures.put("offload rank %d: put of key %q: status %s, want %s, error %v", k.id, namespace+"/"+name, put.out[i].Status, ports.Stored, errors.Join(err, put.out[i].Err))
		}
	}
	o.stored.Add(timed.bytes)
	k.puts = append(k.puts, timed)
	for i := range put.batch.Keys {
		k.src.stamp(uint64(i)*put.batch.Sizes[i], put.batch.Sizes[i], k.src.key)
	}
}
