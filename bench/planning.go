package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// idleCopier copies while the node is filled, and then nothing more, so that what is left of a get is its planning, look-up and
// pins included.
type idleCopier struct {
	inner ports.Copier
	idle  bool // set before the first get, by whoever also calls
}

func (c *idleCopier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	if c.idle {
		clear(errs)
		return
	}
	c.inner.Copy(ctx, ops, errs)
}

// planning is gets of committed objects, without their copies, against the bare loop of those copies. The objects are many more
// than caches hold, and calls go round over all of them, so that both sides find their memory cold.
type planning struct {
	layer, page uint64
	gap         bool   // ranges that do not touch: every second layer
	memory      uint64 // of the objects
}

const (
	planLayers = 61
	planGroup  = 8
	planKeys   = 32        // of a call
	planMemory = 512 << 20 // many times a cache
	planTime   = 100 * time.Millisecond
)

// planNode is a node of committed objects, and calls that go over them.
type planNode struct {
	p     planning
	m     *dram.Medium
	n     *app.Node
	into  *buffer
	order []int // which object a key of a call is: any, as in a pool where objects come and go
	calls []ports.GetBatch
	out   []ports.Result
}

func (p planning) object() uint64 { return planLayers * p.layer }

// stride is from one destination to the next.
func (p planning) stride() uint64 { return roundUp(p.layer, guardBytes) + guardBytes }

// sets is how many calls' worth of objects there are.
func (p planning) sets() int {
	return max(2, int(p.memory/(roundUp(p.object(), p.page)*planKeys)))
}

func openPlanNode(p planning) (*planNode, error) {
	b := &planNode{p: p, out: make([]ports.Result, planKeys), order: rand.New(rand.NewPCG(1, 2)).Perm(planKeys * p.sets())}
	room := roundUp(p.object(), p.page) * planKeys * uint64(p.sets())
	var err error
	if b.m, err = dram.Open(dram.Config{Bytes: room, PageSize: p.page}); err != nil {
		return nil, err
	}
	copier := &idleCopier{inner: dram.NewCopier()}
	if b.n, err = app.New(app.Config{ID: "plan"}, app.Ports{Clock: boottime.New(), Medium: b.m, Copier: copier}); err != nil {
		return nil, errors.Join(err, b.m.Close())
	}
	if b.into, err = openBuffer(p.stride() * planGroup * planKeys * uint64(p.sets())); err != nil {
		return nil, errors.Join(err, b.n.Close(), b.m.Close())
	}
	clear(b.into.b) // touched once, so that no side pays for it
	if err := b.fill(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	copier.idle = true
	return b, nil
}

// fill commits the objects and lays out the calls: a layer group of each, another one in each set.
func (b *planNode) fill() error {
	src, err := openBuffer(b.p.object())
	if err != nil {
		return err
	}
	defer func() { _ = src.close() }() // unmapping what this function mapped cannot fail
	for i := range b.order {
		name := planName(i)
		content.Fill(src.b, contentKey(name), 0)
		if res := b.n.Put(context.Background(), namespace, name, src.region()); res.Status != ports.Stored {
			return fmt.Errorf("seed key %q: status %s, want %s", name, res.Status, ports.Stored)
		}
	}
	for s := range b.p.sets() {
		call := ports.GetBatch{Namespace: namespace, Regions: []ports.Memory{{Region: b.into.region()}}}
		for k := range planKeys {
			call.Keys = append(call.Keys, planName(b.order[s*planKeys+k]))
			for l := range planGroup { // as an engine keeps its KV: a row of pages for each layer
				row := uint64(l*len(b.order) + s*planKeys + k)
				call.Ranges = append(call.Ranges, domain.Range{Off: b.p.off(s, l), Len: b.p.layer, RegionOff: row * b.p.stride()})
			}
			call.End = append(call.End, uint32(len(call.Ranges)))
		}
		b.calls = append(b.calls, call)
	}
	return nil
}

func planName(i int) string { return fmt.Sprintf("plan/%d", i) }

// off is where the l-th range of a call of set s begins in each of its objects.
func (p planning) off(s, l int) uint64 {
	if p.gap {
		return uint64(s%(planLayers-2*planGroup+1)+2*l) * p.layer
	}
	return uint64(s%(planLayers/planGroup)*planGroup+l) * p.layer
}

func (b *planNode) close() error { return errors.Join(b.n.Close(), b.into.close(), b.m.Close()) }

// plan is the time of a range, planned.
func (b *planNode) plan(ctx context.Context) (float64, error) {
	return timeEach(len(b.calls), planGroup*planKeys, func(s int) error {
		if err := b.n.BatchGetRanges(ctx, &b.calls[s], b.out); err != nil {
			return err
		}
		for i := range b.out {
			if b.out[i].Status != ports.Hit {
				return fmt.Errorf("%w: read of key %q: status %s, want %s", ErrFailed, b.calls[s].Keys[i], b.out[i].Status, ports.Hit)
			}
		}
		return nil
	})
}

// copy is the time of a range, copied: pages as they lie in a medium that was filled in order.
func (b *planNode) copy() (float64, error) {
	from := b.m.Buffers()[0].(ports.HostRegion).Bytes()
	room := roundUp(b.p.object(), b.p.page)
	return timeEach(len(b.calls), planGroup*planKeys, func(s int) error {
		for i, r := range b.calls[s].Ranges {
			at := uint64(b.order[s*planKeys+i/planGroup])*room + r.Off
			copy(b.into.b[r.RegionOff:r.RegionOff+r.Len], from[at:at+r.Len])
		}
		return nil
	})
}

// timeEach goes round over the sets, for some time and at least once, and returns the nanoseconds of processor time of one of n
// in each.
func timeEach(sets, n int, f func(s int) error) (float64, error) {
	begin := processorTime()
	done := 0
	for done == 0 || processorTime()-begin < planTime {
		for s := range sets {
			if err := f(s); err != nil {
				return 0, err
			}
			done++
		}
	}
	return float64((processorTime() - begin).Nanoseconds()) / float64(done*n), nil
}

// planningBars share their node over all pairs: it is opened by the first and closed when the bar ends.
func (o *Ratios) planningBars() []pairing {
	const object = planLayers * 73_728
	var list []pairing
	for _, b := range []struct {
		name, what string
		p          planning
		atMost     float64
		reference  string
	}{
		{"planning-object", "73,728 B ranges, page = object", planning{layer: 73_728, page: object, memory: planMemory}, 0.05, ""},
		{"planning-64k", "73,728 B ranges, 64 KiB pages", planning{layer: 73_728, page: 64 << 10, memory: planMemory}, 0.05, ""},
		{"planning-1728", "1,728 B ranges with gaps, page = object", planning{layer: 1_728, page: planLayers * 1_728, gap: true, memory: planMemory}, 0.25, ""},
	} {
		list = append(list, o.planningBar(b.name, b.what, b.p, b.atMost))
	}
	return append(list, o.patternBar())
}

func (o *Ratios) planningBar(name, what string, p planning, atMost float64) pairing {
	var node *planNode
	measure := func(of func(ctx context.Context) (float64, error)) side {
		return func(ctx context.Context) (sample, error) {
			if node == nil {
				var err error
				if node, err = openPlanNode(p); err != nil {
					return sample{}, err
				}
			}
			noise := startNoise(nil, LinkSpec{}, o.Root)
			ns, err := of(ctx)
			return sample{figures: []float64{ns}, noise: noise.stop()}, err
		}
	}
	return pairing{name: name, what: what + ": plan of a get, look-up and pins included, against the bare copy loop, cold",
		ours:   measure(func(ctx context.Context) (float64, error) { return node.plan(ctx) }),
		theirs: measure(func(context.Context) (float64, error) { return node.copy() }),
		bars:   []bar{{name: "cpu ns a range", atMost: atMost}},
		end: func() error {
			if node == nil {
				return nil
			}
			return node.close()
		}}
}
