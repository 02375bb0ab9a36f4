package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Ceiling is the options of the bare loops: what this machine gives to whoever does nothing besides.
type Ceiling struct {
	Fragments []uint64 // bytes; rows for each
	Runs      int      // of which each figure is the median
	Places    int      // goroutines that copy at once, for the second row of copies
	MaxMemory uint64
	Progress  *Progress // nil: nobody watches

	cold  uint64        // bytes of source; 0: ceilingCold. Tests have less
	least time.Duration // of a figure; 0: ceilingTime
}

const (
	ceilingCold = 256 << 20 // of source and of destination: many times a cache
	ceilingTime = 250 * time.Millisecond
	ceilingCall = 4 << 20 // bytes of a call, in at least ceilingLeast fragments and at most ceilingMost: what a rank asks for in
	// one call is a layer group of 32 objects, or 61 small layers of each
	ceilingLeast    = 32
	ceilingMost     = 32 * 61
	ceilingSmallest = 64 // a cache line: below, the list of the fragments is what is measured
	ceilingGuard    = 64 // bytes between fragments, so that none is adjacent
)

// DefaultFragments are a layer group of eight of the default preset, and the smallest layers of those that are published.
var DefaultFragments = []uint64{576 << 10, 1728}

// CeilingRow is what one loop reached.
type CeilingRow struct {
	Fragment uint64
	Loop     string
	Streams  int     // goroutines or connections
	Rate     float64 // GB/s: 10^9 bytes
	Way      string  // the best one, where there are several
}

// Check refuses options that cannot be run. Every error is an OptionError.
func (o *Ceiling) Check() error {
	if len(o.Fragments) == 0 {
		return badOption("--fragments", "", "want 1 or more sizes in bytes")
	}
	for _, f := range o.Fragments {
		if f < ceilingSmallest || f > ceilingCold/ceilingLeast {
			return badOption("--fragments", f, "want %d to %d", ceilingSmallest, ceilingCold/ceilingLeast)
		}
	}
	return checkBetween("--runs", o.Runs, 1, maxRuns)
}

// Run measures the loops, and gives each row to emit as it is there.
func (o *Ceiling) Run(ctx context.Context, emit func(CeilingRow) error) error {
	if err := o.Check(); err != nil {
		return err
	}
	defer o.Progress.Clear()
	for _, f := range o.Fragments {
		if err := o.fragment(ctx, f, emit); err != nil {
			return err
		}
	}
	return nil
}

func (o *Ceiling) fragment(ctx context.Context, f uint64, emit func(CeilingRow) error) (err error) {
	cold := o.cold
	if cold == 0 {
		cold = ceilingCold
	}
	m, needs := planCeiling(f, cold)
	if err := checkMemory("it", needs, o.MaxMemory); err != nil {
		return err
	}
	src, dst, err := m.openBuffers(needs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.close(), dst.close()) }()
	return o.loops(ctx, m, emit)
}

// planCeiling is calls over so many bytes of source, whose fragments are adjacent on neither side.
func planCeiling(f, cold uint64) (*moves, []MemoryNeed) {
	m := &moves{fragment: f}
	each := min(max(ceilingCall/f, ceilingLeast), ceilingMost)
	gap := min(f, 64<<10)
	var from, to uint64
	for len(m.calls) == 0 || from < cold {
		var call []piece
		for range each {
			call = append(call, piece{from, to})
			from, to = from+f+gap, to+roundUp(f, ceilingGuard)+ceilingGuard
		}
		m.calls = append(m.calls, call)
	}
	return m, []MemoryNeed{{"source", from}, {"destination", to}}
}

// ceilingLoop is one row.
type ceilingLoop struct {
	name    string
	streams int
	rate    func(m *moves, least time.Duration) (float64, string, error)
}

func (o *Ceiling) all() []ceilingLoop {
	copies := func(n int) ceilingLoop {
		return ceilingLoop{"copy", n, func(m *moves, least time.Duration) (float64, string, error) {
			r, err := m.rate(least, func(i int) error { m.copyCall(i, n); return nil })
			return r, "", err
		}}
	}
	sockets := func(name string, n int, how ...reading) ceilingLoop {
		return ceilingLoop{name, n, func(m *moves, least time.Duration) (float64, string, error) {
			r, by, err := m.bareBest(least, []int{n}, how)
			return r, by.String(), err
		}}
	}
	list := []ceilingLoop{copies(1)}
	if o.Places > 1 {
		list = append(list, copies(o.Places))
	}
	for _, n := range bareConns {
		list = append(list, sockets("socket", n, placing()...))
	}
	for _, n := range bareConns {
		list = append(list, sockets("socket+copy", n, readArena))
	}
	return list
}

func (o *Ceiling) loops(ctx context.Context, m *moves, emit func(CeilingRow) error) error {
	least := o.least
	if least == 0 {
		least = ceilingTime
	}
	for i, l := range o.all() {
		o.Progress.Step("fragments of "+strconv.FormatUint(m.fragment, 10)+" B: loop", uint64(i), uint64(len(o.all())))
		row := CeilingRow{Fragment: m.fragment, Loop: l.name, Streams: l.streams}
		var rates []float64
		for range o.Runs {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			r, way, err := l.rate(m, least)
			if err != nil {
				return err
			}
			rates = append(rates, r/1e9)
			row.Way = way
		}
		row.Rate = median(rates)
		o.Progress.Clear()
		if err := emit(row); err != nil {
			return err
		}
	}
	return nil
}

// ceilingColumns are those of CeilingRow in their order.
var ceilingColumns = []columnInfo{
	{"fragment_bytes", 0, "in calls of 4 MiB, or 32 to 1,952 fragments, that are adjacent on neither side"},
	{"loop", 0, "copy: by the processor; socket: over TCP of loopback into place; socket+copy: into flat memory, and copied from there"},
	{"streams", 0, "goroutines that copy, or connections"},
	{"gb_per_s", 2, "median of the runs, in 10^9 bytes, both ends in this process"},
	{"way", 0, "how it was read, where the best of several ways is told: a read a fragment, readv, or through a buffer"},
}

// CeilingColumnMeanings explains the columns, one a line, for the help.
func CeilingColumnMeanings() string { return meaningsOf(ceilingColumns) }

// WriteCeilingRows prints rows.
func WriteCeilingRows(w io.Writer, f Format, rows []CeilingRow) error {
	cells := make([][]string, len(rows))
	list := make([]map[string]any, len(rows))
	for i, r := range rows {
		cells[i] = []string{strconv.FormatUint(r.Fragment, 10), r.Loop, strconv.Itoa(r.Streams), ceilingColumns[3].format(r.Rate), r.Way}
		list[i] = map[string]any{"fragment_bytes": r.Fragment, "loop": r.Loop, "streams": r.Streams, "gb_per_s": r.Rate, "way": r.Way}
	}
	switch f {
	case JSON:
		return writeJSON(w, list)
	case CSV:
		return writeCSV(w, ceilingColumns, cells)
	}
	// A line a row, unlike elsewhere: the rows are many and the columns few.
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range append([][]string{namesOf(ceilingColumns)}, cells...) {
		fmt.Fprintln(out, strings.Join(line, "\t")) // Flush tells
	}
	return out.Flush()
}
