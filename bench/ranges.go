package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spanpool/spanpool/ports"
)

// Ranges is the options of reads by the size of their ranges: ours beside whole objects, beside the best bare loop over the same
// ranges, and beside redis with the same objects.
type Ranges struct {
	Sizes     []uint64
	Runs      int  // of which each figure is the median
	NeedRedis bool // to be without it is an error
	NoRedis   bool
	MaxMemory uint64
	Progress  *Progress

	small bool // two calls' worth of objects (tests)
}

// DefaultRangeSizes are the layers that are published, a layer group of eight, and what lies between.
var DefaultRangeSizes = []uint64{1728, 8448, 37_440, 73_728, 589_824}

// Bounds of a range's size: below the least the list of ranges is what is measured, and of the largest 32 make a call.
const (
	leastRange = 64
	mostRange  = 4 << 20
)

// rangesMemory is what is read round and round: many times a cache.
const rangesMemory = 96 << 20

// RangesRow is what reads of one size reached, in GiB/s of what was asked for.
type RangesRow struct {
	Bytes    uint64
	PerCall  int
	Ours     float64
	Whole    float64 // the same ranges by fetching their objects whole
	Bare     float64
	Redis    float64 // 0: not there
	Verified bool    // always: a wrong byte ends the run
}

// Check refuses options that cannot be run. Every error is an OptionError.
func (o *Ranges) Check() error {
	if len(o.Sizes) == 0 {
		return badOption("--sizes", "", "want 1 or more sizes in bytes")
	}
	for _, n := range o.Sizes {
		if n < leastRange || n > mostRange {
			return badOption("--sizes", n, "want %d to %d", leastRange, mostRange)
		}
	}
	if why := redisAbsent(); o.NeedRedis && why != "" {
		return badOption("--redis", "need", "%s", why)
	}
	return checkBetween("--runs", o.Runs, 1, maxRuns)
}

// Run measures size by size, and gives each row to emit as it is there.
func (o *Ranges) Run(ctx context.Context, open OpenCluster, emit func(RangesRow) error) error {
	if err := o.Check(); err != nil {
		return err
	}
	defer o.Progress.Clear()
	for i, n := range o.Sizes {
		o.Progress.Step("ranges of "+strconv.FormatUint(n, 10)+" B: size", uint64(i), uint64(len(o.Sizes)))
		row, err := o.one(ctx, open, n)
		if err != nil {
			return fmt.Errorf("ranges of %d B: %w", n, err)
		}
		o.Progress.Clear()
		if err := emit(*row); err != nil {
			return err
		}
	}
	return nil
}

// scatterOf is calls of some 4 MiB, as the ceiling has them, over objects of which every second range is read.
func (o *Ranges) scatterOf(n uint64) scatter {
	each := min(max(ceilingCall/n, ceilingLeast), ceilingMost)
	c := scatter{layer: n, keys: planKeys, layers: max(int(each)/planKeys, 1)}
	c.sets = int(max(2, rangesMemory/(uint64(c.keys)*c.object())))
	if o.small {
		c.sets = 2
	}
	return c
}

func (o *Ranges) one(ctx context.Context, open OpenCluster, n uint64) (_ *RangesRow, err error) {
	c := o.scatterOf(n)
	s := &shared{withRedis: !o.NoRedis && redisAbsent() == "", open: func(ctx context.Context) (*scattered, error) {
		return openScattered(ctx, open, c, o.MaxMemory)
	}}
	defer func() { err = errors.Join(err, s.close()) }()
	row := &RangesRow{Bytes: n, PerCall: c.keys * c.layers, Verified: true}
	for _, m := range []struct {
		into *float64
		rate func(context.Context, *shared) (float64, error)
	}{{&row.Ours, rateOurs}, {&row.Whole, rateWhole}, {&row.Bare, rateBare}, {&row.Redis, rateRedis}} {
		if m.into == &row.Redis && !s.withRedis {
			continue
		}
		var rates []float64
		for range o.Runs {
			got, err := s.side(&Ratios{}, m.rate)(ctx)
			if err != nil {
				return nil, err
			}
			rates = append(rates, got.figures[0])
		}
		*m.into = median(rates)
	}
	return row, nil
}

// rateWhole has the same ranges by whole objects: each is fetched into registered memory, and the ranges are copied out of it.
func rateWhole(ctx context.Context, s *shared) (rate float64, err error) {
	c := s.scattered
	room, err := openBuffer(uint64(c.keys) * c.object())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, room.close()) }()
	memory, err := c.reader().RegisterMemory(ctx, room.region())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.reader().DeregisterMemory(context.Background(), memory.ID)) }()
	w := ports.WholeBatch{Namespace: namespace, Regions: []ports.Memory{memory}}
	for k := range uint64(c.keys) {
		w.Targets = append(w.Targets, ports.Target{Off: k * c.object(), Len: c.object()})
	}
	return c.m.rate(scatteredTime, func(i int) error { return c.whole(ctx, i, &w, room.b) })
}

// whole makes one call by whole objects.
func (s *scattered) whole(ctx context.Context, i int, w *ports.WholeBatch, room []byte) error {
	w.Keys = s.calls[i].Keys
	if err := s.reader().BatchGet(ctx, w, s.out); err != nil {
		return err
	}
	if k := slices.IndexFunc(s.out, func(r ports.Result) bool { return r.Status != ports.Hit || r.Fetched != s.object() }); k >= 0 {
		r := s.out[k]
		return fmt.Errorf("%w: read of key %q: status %s, %d bytes fetched, error %v; want %s and %d", ErrFailed, w.Keys[k], r.Status, r.Fetched,
			r.Err, ports.Hit, s.object())
	}
	first := s.m.calls[i][0].from // the call's objects lie one behind the other, in the source as in the room
	for _, p := range s.m.calls[i] {
		copy(s.m.lands(p), room[p.from-first:])
	}
	return nil
}

// rangesColumns are those of RangesRow in their order.
var rangesColumns = []columnInfo{
	{"range_bytes", 0, "every second range of an object is read"},
	{"ranges_per_call", 0, "of 32 objects"},
	{"ours_gibps", 3, "bytes asked for, read into registered memory over TCP of loopback; each crosses each time"},
	{"whole_gibps", 3, "the same ranges by fetching their objects whole, of which half is asked for"},
	{"bare_gibps", 3, "the best bare loop over sockets with the same ranges: the ceiling"},
	{"redis_gibps", 3, "redis-server with the same objects, GETRANGE for each range, all of a call at once; the better of 1 and 4 connections; 0: not there"},
	{"ceiling_pct", 1, "ours of bare"},
	{"over_redis", 3, "ours over redis"},
}

// RangesColumnMeanings explains the columns, one a line, for the help.
func RangesColumnMeanings() string { return meaningsOf(rangesColumns) }

func (r *RangesRow) values() []float64 {
	over := 0.0
	if r.Redis > 0 {
		over = r.Ours / r.Redis
	}
	return []float64{float64(r.Bytes), float64(r.PerCall), r.Ours, r.Whole, r.Bare, r.Redis, percent(r.Ours, r.Bare), over}
}

// WriteRangesRows prints rows.
func WriteRangesRows(w io.Writer, f Format, rows []RangesRow) error {
	cells := make([][]string, len(rows))
	list := make([]map[string]any, len(rows))
	for i := range rows {
		list[i] = map[string]any{"verified": rows[i].Verified}
		for c, v := range rows[i].values() {
			cells[i] = append(cells[i], rangesColumns[c].format(v))
			list[i][rangesColumns[c].name] = v
		}
	}
	switch f {
	case JSON:
		return writeJSON(w, list)
	case CSV:
		return writeCSV(w, rangesColumns, cells)
	}
	return writeTable(w, rangesColumns, cells)
}
