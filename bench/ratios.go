package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
)

// Ratios is the options of the bars: which of them, and how often. Every bar is two measurements in one process, taken in
// turns; what it compares lives in this package, never in a node.
type Ratios struct {
	Bars        []string // empty: all
	Pairs       int
	NoChecksums bool // except for the bar that compares with and without
	MaxMemory   uint64
	Places      int
	Root        fs.FS

	Errors   io.Writer
	Progress *Progress
	Ceilings *Ceilings // what figures are told as a share of; nil: of nothing
}

// The link of the bars.
var (
	barLink   = LinkSpec{Gbps: 16, DelayUs: 50}
	mixedLink = LinkSpec{Gbps: 16, DelayUs: 500}
)

// BarNames lists the bars in the order in which they run.
func BarNames() []string {
	var o Ratios
	var names []string
	for _, b := range o.all(nil) {
		names = append(names, b.name)
	}
	return names
}

// Check refuses options that cannot be run. Every error is an OptionError.
func (o *Ratios) Check() error {
	if err := checkBetween("--runs", o.Pairs, 1, maxRuns); err != nil {
		return err
	}
	names := BarNames()
	for _, b := range o.Bars {
		if err := CheckAvailable("--bars", b, names); err != nil {
			return err
		}
	}
	return nil
}

// Run measures the bars one by one and gives each figure to emit as it is there. A bar whose runs failed, or that does not fit
// into memory, is an error that wraps ErrFailed, and the others still run. A ratio that was missed is no error.
func (o *Ratios) Run(ctx context.Context, open OpenCluster, emit func(RatioRow) error) error {
	if err := o.Check(); err != nil {
		return err
	}
	defer o.Progress.Clear()
	var errs []error
	for _, b := range o.all(open) {
		if len(o.Bars) > 0 && !slices.Contains(o.Bars, b.name) {
			continue
		}
		if err := o.one(ctx, &b, emit); err != nil {
			errs = append(errs, fmt.Errorf("bar %s: %w", b.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func (o *Ratios) one(ctx context.Context, b *pairing, emit func(RatioRow) error) error {
	if b.absent != nil {
		if why := b.absent(); why != "" {
			return emitAll(b.notRun(why), emit)
		}
	}
	n := o.Pairs
	if b.once {
		n = 1
	}
	if b.ceiling != nil {
		c, err := b.ceiling()
		if err != nil {
			return err
		}
		for i := range b.bars {
			b.bars[i].ceiling = c
		}
	}
	m, err := b.measure(ctx, n, func(done int) { o.Progress.Step(b.name+": pair", uint64(done), uint64(n)) })
	if b.end != nil {
		err = errors.Join(err, b.end())
	}
	if err != nil {
		return err
	}
	o.Progress.Clear()
	return emitAll(b.rows(m), emit)
}

func emitAll(rows []RatioRow, emit func(RatioRow) error) error {
	for _, row := range rows {
		if err := emit(row); err != nil {
			return err
		}
	}
	return nil
}

// all is the bars. Their runs open nodes by open.
func (o *Ratios) all(open OpenCluster) []pairing {
	sums := o.checksumBar(open)
	if o.NoChecksums {
		open = withoutChecksums(open)
	}
	list := o.restoreBars(open)
	list = append(append(list, o.mixedBars(open)...), o.ownBars(open)...)
	list = append(append(list, o.tcpBars(open)...), sums)
	list = append(list, o.shmBars(open)...)
	list = append(append(list, o.planningBars()...), o.copyBars()...)
	return append(list, o.footprintBars()...)
}

func withoutChecksums(open OpenCluster) OpenCluster {
	return func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
		s.NoChecksums = true
		return open(ctx, s)
	}
}

// shapeOf is a preset's, which is right: a test holds them.
func shapeOf(preset string) Shape {
	p, err := FindPreset(preset)
	if err == nil {
		var pools []Pool
		if pools, err = ParsePools(p.Pools); err == nil {
			s, serr := NewShape(0, pools)
			if err = serr; err == nil {
				return s
			}
		}
	}
	panic("bench: preset " + preset + ": " + err.Error())
}

// restores is the layer-wise options that the bars have in common.
func (o *Ratios) restores(preset string, group, pages, ranks, requests int) Layerwise {
	return Layerwise{Ranks: []int{ranks}, Shape: shapeOf(preset), Grouping: Grouping{Size: group}, Pages: pages, Requests: requests,
		ComputePerLayer: 150 * time.Microsecond, RangesPerCall: 8192, ScratchMiB: 256, Verify: true, Runs: 1, MaxMemory: o.MaxMemory,
		Transport: "inproc", Link: barLink, Places: o.Places, Root: o.Root, Errors: o.Errors, Ceilings: o.Ceilings}
}

// figures of a restore, by their column.
func restoreSide(l Layerwise, open OpenCluster) side {
	return func(ctx context.Context) (sample, error) {
		r := newRestoreRow(&l, l.Ranks[0])
		if err := checkMemory("it", r.needs(), l.MaxMemory); err != nil {
			return sample{}, err
		}
		row, err := r.run(ctx, open)
		if err != nil {
			return sample{}, err
		}
		if row == nil {
			return sample{}, errNoSample
		}
		return sample{figures: row.Values[:], noise: r.noise}, nil
	}
}

// againstWhole is ranges against whole objects in one workload.
func againstWhole(name, what string, l Layerwise, open OpenCluster, bars ...bar) pairing {
	whole := l
	whole.Fetch = FetchWhole
	return pairing{name: name, what: what + ": ranges against --fetch whole", link: l.Link,
		ours: restoreSide(l, open), theirs: restoreSide(whole, open), bars: bars}
}

// shareOf tells a figure as a share of the ceiling, in percent; nil: nothing does. A time near the worst is held to what the median is held to:
// the ceiling's time is the same for all.
func shareOf(c Column) func(figures []float64) float64 {
	own := func(share, median Column) func([]float64) float64 {
		return func(f []float64) float64 {
			if f[c] == 0 {
				return 0
			}
			return f[share] * f[median] / f[c]
		}
	}
	switch c {
	case ColGetRate:
		return own(ColGetShare, ColGetRate)
	case ColPutRate:
		return func(f []float64) float64 { return percent(f[ColPutRate], f[ColCeiling]) }
	case ColRestoreP50, ColRestoreP95:
		return own(ColRestoreShare, ColRestoreP50)
	case ColTTFLP50, ColTTFLP95:
		return own(ColTTFLShare, ColTTFLP50)
	}
	return nil
}

func lower(c Column, atLeast float64, reference string) bar {
	return bar{name: c.String() + " lower", figure: int(c), share: shareOf(c), sense: theirsOverOurs, atLeast: atLeast, reference: reference}
}

func notAbove(c Column, reference string) bar {
	return bar{name: c.String(), figure: int(c), share: shareOf(c), sense: oursOverTheirs, atMost: neverAbove, reference: reference}
}

func higher(c Column, atLeast float64, reference string) bar {
	return bar{name: c.String() + " higher", figure: int(c), share: shareOf(c), sense: oursOverTheirs, atLeast: atLeast, reference: reference}
}

const (
	refRestore = "3.4x lower at 8 ranks with offload (154.69 -> 45.03 ms)"
	refTTFL    = "15.4x lower at 8 ranks with offload (127,747 -> 8,312 us)"
	refGet     = "2.6x at 8 ranks with offload (4.46 -> 11.70 GiB/s)"
	refPut     = "1.6x at 8 ranks with offload (5.34 -> 8.77 GiB/s)"
	refSmall   = "0.90x: it lost here (113.87 -> 126.15 ms)"
	refMixed   = "about 1.6x from an arena for each direction, 4 to 8 threads"
)

func (o *Ratios) restoreBars(open OpenCluster) []pairing {
	const v32, indexer = "deepseek-v3.2", "deepseek-v3.2-indexer"
	one := o.restores(v32, 8, 32, 1, 3)
	eight := o.restores(v32, 8, 32, 8, 1)
	computing := one
	computing.ComputePerLayer = 1000 * time.Microsecond
	oneOffload, eightOffload := one, eight
	oneOffload.OffloadRanks, eightOffload.OffloadRanks = 1, 8
	eightOffload.Requests = 2 // a put takes as long as a request: with one, few begin in its window
	small := o.restores(indexer, 1, 128, 8, 1)
	all := o.restores(v32, 61, 32, 1, 3)
	allWhole := all
	allWhole.Fetch = FetchWhole
	return []pairing{
		againstWhole("restore-1", "61 x 73,728 B, 32 pages, group 8, 1 rank", one, open,
			lower(ColTTFLP50, 6, refTTFL), notAbove(ColRestoreP50, refRestore), higher(ColGetRate, 0, refGet)),
		againstWhole("restore-8", "the same, 8 ranks", eight, open,
			lower(ColTTFLP95, 6, refTTFL), lower(ColTTFLP50, 4, refTTFL), notAbove(ColRestoreP95, refRestore),
			bar{name: ColRestoreP50.String(), figure: int(ColRestoreP50), share: shareOf(ColRestoreP50), sense: oursOverTheirs, atMost: 1.15, reference: refRestore}, higher(ColGetRate, 0, refGet)),
		againstWhole("restore-1-compute", "1 rank that computes 1,000 us a layer", computing, open,
			lower(ColRestoreP50, 1.3, ""), lower(ColTTFLP50, 0, "")),
		againstWhole("restore-1-offload", "1 rank beside 1 that offloads", oneOffload, open,
			lower(ColTTFLP50, 0, refTTFL), lower(ColRestoreP50, 0, refRestore), higher(ColGetRate, 0, refGet), higher(ColPutRate, 0, refPut)),
		againstWhole("restore-8-offload", "8 ranks beside 8 that offload", eightOffload, open,
			lower(ColTTFLP50, 0, refTTFL), lower(ColTTFLP95, 0, refTTFL), lower(ColRestoreP50, 0, refRestore), lower(ColRestoreP95, 0, refRestore),
			higher(ColGetRate, 0, refGet), higher(ColPutRate, 0, refPut)),
		againstWhole("small-objects", "61 x 8,448 B, 128 pages, group 1, 8 ranks", small, open,
			notAbove(ColRestoreP95, refSmall), higher(ColGetRate, 1/neverAbove, refSmall), lower(ColTTFLP50, 0, "3.1x lower")),
		{name: "whole-yardstick", what: "61 layers in one call, 1 rank: --fetch whole (as ours) against ranges; below its bar the comparison is too slow to be one",
			link: barLink, ours: restoreSide(allWhole, open), theirs: restoreSide(all, open),
			bars: []bar{higher(ColGetRate, 0.7, "")}},
	}
}

// mixedSide is one number of threads with some of a row's windows; its figures are by MixedColumn.
func (o *Ratios) mixedSide(threads int, shared bool, parts []mixedPart, open OpenCluster) side {
	m := Mixed{Threads: []int{threads}, CallBytes: mibBytes, Calls: 16, Rounds: 3, SharedArena: shared, ScratchMiB: 64, Runs: 1, Verify: true,
		MaxMemory: o.MaxMemory, Transport: "inproc", Link: mixedLink, Places: o.Places, Root: o.Root, Errors: o.Errors}
	return func(ctx context.Context) (sample, error) {
		row, err := m.run(ctx, open, threads, parts)
		if err != nil {
			return sample{}, err
		}
		return sample{figures: row.Values[:], noise: row.Noise}, nil
	}
}

// ownBars hold a node to itself: with something switched off, or under another load.
func (o *Ratios) ownBars(open OpenCluster) []pairing {
	eight := o.restores("deepseek-v3.2", 8, 32, 8, 1)
	still := eight
	still.NoPrefetch = true
	return []pairing{
		{name: "no-prefetch-8", what: "61 x 73,728 B, 32 pages, group 8, 8 ranks, the pull switched off: against the pull on", link: barLink,
			ours: restoreSide(still, open), theirs: restoreSide(eight, open),
			bars: []bar{{name: ColRestoreP95.String(), figure: int(ColRestoreP95), share: shareOf(ColRestoreP95), atMost: 1.2, reference: "3.8x"},
				{name: ColRestoreP50.String(), figure: int(ColRestoreP50), share: shareOf(ColRestoreP50)}}},
		{name: "duplex-8", what: "8 threads get and 8 put, 1 MiB a call, 16 Gbit/s and 500 us: against each alone", link: mixedLink,
			ours: o.mixedSide(8, false, mixedParts[2:], open), theirs: alone(o.mixedSide(8, false, mixedParts[:2], open)),
			bars: []bar{{name: "get_gibps kept", figure: int(MixedGet), ceiling: linkGibps(mixedLink), atLeast: 0.8},
				{name: "put_gibps kept", figure: int(MixedPut), ceiling: linkGibps(mixedLink), atLeast: 0.8}}},
	}
}

// alone gives what gets and puts reach alone the places of what they reach together.
func alone(s side) side {
	return func(ctx context.Context) (sample, error) {
		out, err := s(ctx)
		if err == nil {
			out.figures = slices.Clone(out.figures)
			out.figures[MixedGet], out.figures[MixedPut] = out.figures[MixedGetAlone], out.figures[MixedPutAlone]
		}
		return out, err
	}
}

func (o *Ratios) mixedBars(open OpenCluster) []pairing {
	both, gets := mixedParts[2:], mixedParts[:1]
	list := []pairing{}
	for _, threads := range []int{4, 8} {
		list = append(list, pairing{name: fmt.Sprintf("mixed-%d", threads), link: mixedLink,
			what: fmt.Sprintf("%d threads get and %d put, 1 MiB a call, 16 Gbit/s and 500 us: against one shared arena", threads, threads),
			ours: o.mixedSide(threads, false, both, open), theirs: o.mixedSide(threads, true, both, open),
			bars: []bar{
				{name: "total_gibps higher", figure: int(MixedTotal), ceiling: 2 * linkGibps(mixedLink), atLeast: 1.6, reference: refMixed},
				{name: "get_gibps higher", figure: int(MixedGet), ceiling: linkGibps(mixedLink), reference: refMixed},
				{name: "put_gibps higher", figure: int(MixedPut), ceiling: linkGibps(mixedLink), reference: refMixed},
			}})
	}
	return append(list, pairing{name: "two-gets", link: mixedLink, what: "2 threads get 1 MiB a call, nothing is put: against one shared arena",
		ours: o.mixedSide(2, false, gets, open), theirs: o.mixedSide(2, true, gets, open),
		bars: []bar{{name: "get_gibps higher", figure: int(MixedGetAlone), ceiling: linkGibps(mixedLink), atLeast: 1.6, reference: "1x: its arena was locked over a transfer"}}})
}
