package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// described is one call on many keys of the preset deepseek-v4, as lists and by patterns, to a node that has none of them and no
// peers: what is left of a get then is to take in what it asks, to look keys up and to answer. The floor is the same keys with one
// range each, so that what a call takes above it is the planning of its ranges.
type described struct {
	n                      *app.Node
	into                   *buffer
	lists, patterns, floor ports.GetBatch
	out                    []ports.Result
	ranges                 int
}

// patternPages is the pages of a 262,144-token restore; each has an object of each pool, which has so many layers.
const patternPages = 1_023

var patternLayers = []struct {
	layers int
	bytes  uint64
}{{30, 37_440}, {30, 8_448}, {31, 1_728}}

const (
	describedFigure = iota // nanoseconds a range above the floor
	describedCall          // with it
)

func openDescribed() (*described, error) {
	d := &described{out: make([]ports.Result, patternPages*len(patternLayers))}
	var err error
	// The destination is described and never touched, so it is one row that all name: rows of a pattern may.
	if d.into, err = openBuffer(64 << 20); err != nil {
		return nil, err
	}
	if d.n, err = app.New(app.Config{ID: "described"}, app.Ports{Clock: boottime.New(), Copier: dram.NewCopier()}); err != nil {
		return nil, errors.Join(err, d.into.close())
	}
	memory := []ports.Memory{{Region: d.into.region()}}
	for _, b := range []*ports.GetBatch{&d.lists, &d.patterns, &d.floor} {
		b.Namespace, b.Regions = namespace, memory
	}
	for i, pool := range patternLayers {
		var p ports.Pattern
		for l := range pool.layers {
			p.Ranges = append(p.Ranges, domain.PatternRange{Off: uint64(l) * pool.bytes, Len: pool.bytes, Base: uint64(l) * guardBytes, Stride: guardBytes})
		}
		for page := range patternPages {
			p.Rows = append(p.Rows, uint64(page))
			d.lists.Keys = append(d.lists.Keys, fmt.Sprintf("described/%d/%032x", i, page))
			for l := range p.Ranges {
				d.lists.Ranges = append(d.lists.Ranges, p.Ranges[l].At(uint64(page)))
			}
			d.lists.End = append(d.lists.End, uint32(len(d.lists.Ranges)))
		}
		d.patterns.Patterns = append(d.patterns.Patterns, p)
		d.floor.Patterns = append(d.floor.Patterns, ports.Pattern{Ranges: p.Ranges[:1], Rows: p.Rows})
	}
	d.patterns.Keys, d.floor.Keys = d.lists.Keys, d.lists.Keys
	d.ranges = len(d.lists.Ranges)
	return d, nil
}

func (d *described) close() error { return errors.Join(d.n.Close(), d.into.close()) }

// time is the processor time of a range of a call.
func (d *described) time(ctx context.Context, g *ports.GetBatch) (float64, error) {
	return timeEach(1, d.ranges, func(int) error {
		if err := d.n.BatchGetRanges(ctx, g, d.out); err != nil {
			return err
		}
		for i := range d.out {
			if d.out[i].Status != ports.NotFound {
				return fmt.Errorf("%w: read of key %q: status %s, want %s", ErrFailed, g.Keys[i], d.out[i].Status, ports.NotFound)
			}
		}
		return nil
	})
}

// patternBar shares its node over all pairs, as planningBar does.
func (o *Ratios) patternBar() pairing {
	var d *described
	measure := func(of func(d *described) *ports.GetBatch) side {
		return func(ctx context.Context) (sample, error) {
			if d == nil {
				var err error
				if d, err = openDescribed(); err != nil {
					return sample{}, err
				}
			}
			noise := startNoise(nil, LinkSpec{}, o.Root)
			floor, err := d.time(ctx, &d.floor)
			if err != nil {
				return sample{}, err
			}
			call, err := d.time(ctx, of(d))
			return sample{figures: []float64{describedFigure: max(call-floor, 0), describedCall: call}, noise: noise.stop()}, err
		}
	}
	return pairing{name: "planning-pattern", what: "a call of 93,093 ranges of deepseek-v4: taken in by pattern, against the same ranges as lists",
		ours:   measure(func(d *described) *ports.GetBatch { return &d.patterns }),
		theirs: measure(func(d *described) *ports.GetBatch { return &d.lists }),
		bars: []bar{
			{name: "cpu ns a range planned", figure: describedFigure, atMost: 0.1},
			{name: "cpu ns a range with look-up", figure: describedCall},
		},
		end: func() error {
			if d == nil {
				return nil
			}
			return d.close()
		}}
}
