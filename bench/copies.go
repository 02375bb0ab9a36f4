package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// localReads is gets of committed objects of one node, which copy and fetch nothing: runs of one size, so far apart in the object, a
// number of each of the objects of a call. An object is on one page.
type localReads struct {
	run, step, object uint64
	each              int // runs of an object in a call
	keys              int // of a call
	sets              int // calls' worth of objects: more than caches hold
}

// groups is how many calls it takes to read what they read of their objects.
func (l localReads) groups() int { return int(l.object/l.step) / l.each }

// localCopies is such a node, and the bare loop over the same addresses.
type localCopies struct {
	localReads
	medium *dram.Medium
	node   *app.Node
	into   *buffer
	m      *moves
	calls  []ports.GetBatch
	out    []ports.Result
}

// openLocalCopies commits the objects in another order than they are read, as in a pool where objects come and go.
func openLocalCopies(ctx context.Context, l localReads, maxMemory uint64) (_ *localCopies, err error) {
	c := &localCopies{localReads: l, m: &moves{fragment: l.run}, out: make([]ports.Result, l.keys)}
	objects := uint64(l.keys * l.sets)
	room := guardBytes + roundUp(l.run+guardBytes, guardBytes)*uint64(l.each*l.groups())*objects
	needs := []MemoryNeed{{"medium", objects * l.object}, {"destination", room}, {"an object to put", l.object}}
	if err := checkMemory("it", needs, maxMemory); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.medium, err = dram.Open(dram.Config{Bytes: objects * l.object, PageSize: l.object}); err != nil {
		return nil, err
	}
	if c.node, err = app.New(app.Config{ID: "copies"}, app.Ports{Clock: boottime.New(), Medium: c.medium, Copier: dram.NewCopier()}); err != nil {
		return nil, err
	}
	if c.into, err = openBuffer(room); err != nil {
		return nil, err
	}
	c.m.src, c.m.dst = c.medium.Buffers()[0].(ports.HostRegion).Bytes(), c.into.b
	if err := c.fill(ctx, int(objects)); err != nil {
		return nil, err
	}
	c.layOut(rand.New(rand.NewPCG(1, 2)).Perm(int(objects)))
	return c, nil
}

func localName(i int) string { return fmt.Sprintf("local/%d", i) }

func (c *localCopies) fill(ctx context.Context, objects int) error {
	src, err := openBuffer(c.object)
	if err != nil {
		return err
	}
	defer func() { _ = src.close() }() // unmapping what this function mapped cannot fail
	for i := range objects {
		content.Fill(src.b, contentKey(localName(i)), 0)
		if res := c.node.Put(ctx, namespace, localName(i), src.region()); res.Status != ports.Stored {
			return fmt.Errorf("%w: seed key %q: status %s, want %s", ErrFailed, localName(i), res.Status, ports.Stored)
		}
	}
	return nil
}

// layOut makes the calls. Pages of a medium that is filled in order lie in that order, which verified would tell.
func (c *localCopies) layOut(order []int) {
	to := uint64(guardBytes)
	for set := range c.sets {
		for g := range c.groups() {
			call := ports.GetBatch{Namespace: namespace, Regions: []ports.Memory{{Region: c.into.region()}}}
			var pieces []piece
			for _, i := range order[set*c.keys : (set+1)*c.keys] {
				for r := range c.each {
					off := uint64(g*c.each+r) * c.step
					pieces = append(pieces, piece{uint64(i)*c.object + off, to})
					call.Ranges = append(call.Ranges, domain.Range{Off: off, Len: c.run, RegionOff: to})
					to += roundUp(c.run+guardBytes, guardBytes)
				}
				call.Keys, call.End = append(call.Keys, localName(i)), append(call.End, uint32(len(call.Ranges)))
			}
			c.calls, c.m.calls = append(c.calls, call), append(c.m.calls, pieces)
		}
	}
}

// close ends what openLocalCopies opened, as far as it came.
func (c *localCopies) close() error {
	var errs []error
	if c.node != nil {
		errs = append(errs, c.node.Close())
	}
	if c.into != nil {
		errs = append(errs, c.into.close())
	}
	if c.medium != nil {
		errs = append(errs, c.medium.Close())
	}
	return errors.Join(errs...)
}

// ours makes one call through the node.
func (c *localCopies) ours(ctx context.Context, i int) error {
	if err := c.node.BatchGetRanges(ctx, &c.calls[i], c.out); err != nil {
		return err
	}
	for k, r := range c.out {
		if r.Status != ports.Hit || r.Source != ports.FromLocal {
			return fmt.Errorf("%w: read of key %q: status %s, error %v; want %s, local", ErrFailed, c.calls[i].Keys[k], r.Status, r.Err, ports.Hit)
		}
	}
	return nil
}

// bare is the loop that anyone would write.
func (c *localCopies) bare(_ context.Context, i int) error {
	for _, p := range c.m.calls[i] {
		copy(c.m.lands(p), c.m.at(p))
	}
	return nil
}

// verified measures with a destination of poison, and looks at all of it afterwards.
func (c *localCopies) verified(ctx context.Context, call func(ctx context.Context, i int) error) (float64, error) {
	content.Poison(c.into.b)
	rate, err := c.m.rate(scatteredTime, func(i int) error { return call(ctx, i) })
	if err != nil {
		return 0, err
	}
	end := uint64(0)
	for i := range c.calls {
		for j, r := range c.calls[i].Ranges {
			name := c.calls[i].Keys[j/c.each]
			if bad := content.Check(c.into.b[r.RegionOff:][:r.Len], contentKey(name), r.Off); bad >= 0 {
				return 0, fmt.Errorf("%w: read of key %q from offset %d: wrong byte at %d", ErrFailed, name, r.Off, bad)
			}
			if bad := content.CheckPoison(c.into.b[end:r.RegionOff]); bad >= 0 {
				return 0, fmt.Errorf("%w: byte %d of the destination was written, which belongs to nothing", ErrFailed, end+uint64(bad))
			}
			end = r.RegionOff + r.Len
		}
	}
	return rate, nil
}

// The local reads that have bars: a layer group of the default preset, and the smallest layers that are published, every second one.
var (
	localGroups   = localReads{run: 8 * 73_728, step: 8 * 73_728, object: 61 * 73_728, each: 1, keys: 32, sets: 1}
	localSmallest = localReads{run: 1728, step: 2 * 1728, object: 2 * 61 * 1728, each: 61, keys: 32, sets: 16}
)

const refLocalCopies = "the bare loop, of one goroutine by Go's copy"

// copyBars stand local reads against the bare loop over the same addresses. Large calls may use the processors that are idle.
func (o *Ratios) copyBars() []pairing {
	return []pairing{
		o.copyBar("copy-576k", "layer groups of 32 local objects, 576 KiB each", localGroups, 1),
		o.copyBar("copy-1728", "1,728 B ranges that are not adjacent, 61 of each of 32 local objects", localSmallest, 0.7),
	}
}

// copyBar shares its node over all pairs: it is opened by the first and closed when the bar ends.
func (o *Ratios) copyBar(name, what string, l localReads, atLeast float64) pairing {
	var c *localCopies
	measure := func(call func(c *localCopies) func(ctx context.Context, i int) error) side {
		return func(ctx context.Context) (s sample, err error) {
			if c == nil {
				if c, err = openLocalCopies(ctx, l, o.MaxMemory); err != nil {
					return s, err
				}
			}
			noise := startNoise(nil, LinkSpec{}, o.Root)
			rate, err := c.verified(ctx, call(c))
			return sample{figures: []float64{rate / gibBytes}, noise: noise.stop()}, err
		}
	}
	return pairing{name: name, what: what + ": through the node, against the bare loop over the same addresses, cold",
		ours:    measure(func(c *localCopies) func(context.Context, int) error { return c.ours }),
		theirs:  measure(func(c *localCopies) func(context.Context, int) error { return c.bare }),
		ceiling: o.ceilingOf(TransportInproc, l.run),
		bars:    []bar{{name: "get_gibps of bare", atLeast: atLeast, reference: refLocalCopies}},
		end: func() error {
			if c == nil {
				return nil
			}
			return c.close()
		}}
}
