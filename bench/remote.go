package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spanpool/spanpool/ports"
)

// stand puts the nodes of other processes in the place of those that this process does not have. A workload with one node is a
// replay: that node puts elsewhere what it puts.
func (c *Cluster) stand(spec *ClusterSpec) {
	t := &tracked{Pool: c.Nodes[0].Pool}
	t.mu.keys = make(map[string]map[string]struct{})
	there := &elsewhere{t, spec.Remotes}
	c.Nodes[0].Pool = t
	if len(spec.Nodes) == 1 {
		c.Nodes[0].Pool = there
	}
	for range spec.Nodes[1:] {
		c.Nodes = append(c.Nodes, Node{ID: spec.Remotes[0].ID, Pool: there})
	}
	c.Closers = append([]func() error{t.clear}, c.Closers...)
}

// tracked is the node of this process, and remembers what it put on nodes of other processes: they outlive the workload, and keep
// nothing of it.
type tracked struct {
	ports.Pool
	mu struct {
		sync.Mutex
		keys map[string]map[string]struct{} // by namespace
	}
}

func (t *tracked) note(namespace string, keys []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.keys[namespace] == nil {
		t.mu.keys[namespace] = make(map[string]struct{})
	}
	for _, k := range keys {
		t.mu.keys[namespace][k] = struct{}{}
	}
}

// BatchPut stores whole objects.
func (t *tracked) BatchPut(ctx context.Context, w *ports.WholeBatch, out []ports.Result) error {
	if w.To != "" {
		t.note(w.Namespace, w.Keys)
	}
	return t.Pool.BatchPut(ctx, w, out)
}

// BatchPutRanges stores objects by ranges.
func (t *tracked) BatchPutRanges(ctx context.Context, p *ports.PutBatch, out []ports.Result) error {
	if p.To != "" {
		t.note(p.Namespace, p.Keys)
	}
	return t.Pool.BatchPutRanges(ctx, p, out)
}

// Remove drops objects everywhere.
func (t *tracked) Remove(ctx context.Context, namespace string, names []string, out []ports.Removal) error {
	err := t.Pool.Remove(ctx, namespace, names, out)
	if err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		for i, name := range names {
			if len(out[i].Unanswered) == 0 {
				delete(t.mu.keys[namespace], name)
			}
		}
	}
	return err
}

const (
	clearBound = 30 * time.Second // for all that a workload leaves behind; arbitrary
	clearKeys  = 1024             // of one call, whose bound is a second
)

// clear removes what is left. It runs when no call of the workload is under way.
func (t *tracked) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), clearBound)
	defer cancel()
	t.mu.Lock()
	left := make(map[string][]string)
	for namespace, keys := range t.mu.keys {
		left[namespace] = slices.Collect(maps.Keys(keys))
	}
	t.mu.Unlock()
	var errs []error
	for namespace, keys := range left {
		for batch := range slices.Chunk(keys, clearKeys) {
			if ctx.Err() != nil {
				return errors.Join(append(errs, fmt.Errorf("remove what the run put on other nodes: %w", context.Cause(ctx)))...)
			}
			errs = append(errs, t.Remove(ctx, namespace, batch, make([]ports.Removal, len(batch))))
		}
	}
	return errors.Join(errs...)
}

// elsewhere is the nodes of other processes as one: what it puts goes to one of them by its key, and it reads by the node of this
// process.
type elsewhere struct {
	*tracked
	peers []Remote
}

func (e *elsewhere) home(key string) ports.PeerID {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return e.peers[h.Sum32()%uint32(len(e.peers))].ID
}

// Put stores one whole object. One that a run before this one left there is replaced.
func (e *elsewhere) Put(ctx context.Context, namespace, name string, b ports.HostRegion) ports.Result {
	var out [1]ports.Result
	_ = e.replace(ctx, namespace, name, out[:], func() error { // the result says it all
		return e.BatchPut(ctx, &ports.WholeBatch{Namespace: namespace, Keys: []string{name}, Regions: []ports.Memory{{Region: b}},
			Targets: []ports.Target{{Len: b.Len()}}}, out[:])
	})
	return out[0]
}

// replace puts one object, and once more when another one was there.
func (e *elsewhere) replace(ctx context.Context, namespace, name string, out []ports.Result, put func() error) error {
	err := put()
	if s := out[0].Status; err != nil || s != ports.Exists && s != ports.Conflict {
		return err
	}
	if err := e.Remove(ctx, namespace, []string{name}, make([]ports.Removal, 1)); err != nil {
		return nil // the result says that it is there
	}
	return put()
}

// BatchPutRanges stores objects by ranges, all on the node of the first key, and replaces one as Put does.
func (e *elsewhere) BatchPutRanges(ctx context.Context, p *ports.PutBatch, out []ports.Result) error {
	there := *p
	if len(p.Keys) != 1 || p.To != "" {
		return e.tracked.BatchPutRanges(ctx, &there, out)
	}
	there.To = e.home(p.Keys[0])
	return e.replace(ctx, p.Namespace, p.Keys[0], out, func() error { return e.tracked.BatchPutRanges(ctx, &there, out) })
}

// BatchPut stores whole objects, all on the node of the first key.
func (e *elsewhere) BatchPut(ctx context.Context, w *ports.WholeBatch, out []ports.Result) error {
	there := *w
	if len(w.Keys) > 0 {
		there.To = e.home(w.Keys[0])
	}
	return e.tracked.BatchPut(ctx, &there, out)
}
