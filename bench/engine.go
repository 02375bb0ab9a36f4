package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spanpool/spanpool/client"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// Engine is the options of the comparison between reads by another process through the node, and the bare copy loop over the same
// addresses.
type Engine struct {
	Socket    string // of the node; its medium has room for Bytes
	Runs      int    // pairs, of which the figures are the medians
	MaxMemory uint64
	Progress  *Progress // nil: nobody watches

	shapes []engineShape // nil: engineShapes; tests have smaller ones
}

// engineShape is what one row reads: calls of some layers of some objects, which follow each other over all layers.
type engineShape struct {
	name    string
	objects int
	layers  int
	bytes   uint64 // of a layer
	group   int    // layers of a call
	lists   bool   // ranges one by one, and names instead of a handle
}

// engineShapes: the layer group of the default preset (18 MiB), and 8,192 of the smallest layers that are published.
var engineShapes = []engineShape{
	{"layer group", 32, 61, 73_728, 8, false},
	{"small layers", 1024, 32, 1_728, 8, false},
	{"small layers, lists", 1024, 32, 1_728, 8, true},
}

func (s engineShape) size() uint64   { return uint64(s.layers) * s.bytes }
func (s engineShape) stride() uint64 { return roundUp(s.size(), guardBytes) + guardBytes }
func (s engineShape) room() uint64   { return uint64(s.objects) * s.stride() }
func (s engineShape) calls() int     { return s.layers / s.group } // whole ones: all rows' calls have one size
func (s engineShape) ranges() int    { return s.objects * s.group }
func (s engineShape) moved() uint64  { return uint64(s.ranges()) * s.bytes }

// EngineBytes is the medium that a node needs for the benchmark: every object of every shape at once, and as much again, so that pages
// that are larger than what lies on them leave room.
func EngineBytes() (n uint64) {
	for _, s := range engineShapes {
		n += uint64(s.objects) * roundUp(s.size(), 64<<10)
	}
	return 2 * n
}

// EngineRow is what one shape took.
type EngineRow struct {
	Shape  string
	Ranges int     // of a call
	Bytes  uint64  // of a call
	Call   float64 // microseconds, medians
	Loop   float64
	Share  float64 // of what the bare loop reaches, in percent: the median over pairs
	Extra  float64 // of a call above the loop, in percent of the loop: the median over pairs
}

// Check refuses options that cannot be run.
func (o *Engine) Check() error {
	return checkBetween("--runs", o.Runs, 1, maxRuns)
}

// Run gives each row to emit as it is there.
func (o *Engine) Run(ctx context.Context, emit func(EngineRow) error) (err error) {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Socket == "" {
		return badOption("--socket", "", "want a path")
	}
	defer o.Progress.Clear()
	c, err := client.Dial(ctx, o.Socket, client.Options{Namespace: "bench engine", Name: "bench"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	shapes := o.shapes
	if shapes == nil {
		shapes = engineShapes
	}
	for i, s := range shapes {
		o.Progress.Step("shape", uint64(i), uint64(len(shapes)))
		row, err := o.shape(ctx, c, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		o.Progress.Clear()
		if err := emit(row); err != nil {
			return err
		}
	}
	return nil
}

// engineRun is one shape under way: where its bytes land, and where the bare loop has them from.
type engineRun struct {
	engineShape
	c      *client.Client
	into   *client.Region
	source *buffer
	names  []string
	handle *client.Handle
	rows   []uint64
}

func (o *Engine) shape(ctx context.Context, c *client.Client, s engineShape) (row EngineRow, err error) {
	if err := checkMemory("it", []MemoryNeed{{"source", s.room()}, {"destination", s.room()}}, o.MaxMemory); err != nil {
		return row, err
	}
	r := &engineRun{engineShape: s, c: c}
	if r.source, err = openBuffer(s.room()); err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, r.source.close()) }()
	if r.into, err = c.NewMemory(ctx, s.room()); err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, r.into.Close()) }()
	if err := r.seed(ctx); err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, r.handle.Close()) }()
	return o.pairs(ctx, r)
}

// seed puts the objects, and lays the same bytes out for the bare loop. Rows are in no order: as the pages of an engine are.
func (r *engineRun) seed(ctx context.Context) (err error) {
	for i := range r.objects {
		r.names = append(r.names, fmt.Sprintf("%s/%d", r.name, i))
		r.rows = append(r.rows, uint64(i*7919%r.objects))
		at := r.rows[i] * r.stride()
		content.Fill(r.source.b[at:at+r.size()], contentKey(r.names[i]), 0)
	}
	copy(r.into.Bytes(), r.source.b)
	whole := &client.Pattern{Off: []uint64{0}, Len: []uint64{r.size()}, Region: []*client.Region{r.into}, Base: []uint64{0}, Stride: []uint64{r.stride()}, Row: r.rows}
	a, err := r.c.PutRanges(ctx, client.PutOptions{}, client.Part{Keys: client.Keys{Names: r.names}, Pattern: whole, Sizes: []uint64{r.size()}})
	if err == nil {
		err = client.Failed(a)
	}
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	r.handle, err = r.c.NewHandle(r.names, r.rows)
	return err
}

// part is one call's request.
func (r *engineRun) part(call int) client.Part {
	if r.lists {
		return r.listed(call)
	}
	p := &client.Pattern{Len: []uint64{r.bytes}, Region: []*client.Region{r.into}, Stride: []uint64{r.stride()}, RowsOfHandle: true}
	for l := call * r.group; l < (call+1)*r.group; l++ {
		p.Off, p.Base = append(p.Off, uint64(l)*r.bytes), append(p.Base, uint64(l)*r.bytes)
	}
	return client.Part{Keys: client.Keys{Handle: r.handle}, Pattern: p}
}

func (r *engineRun) listed(call int) client.Part {
	l := &client.Lists{Region: []*client.Region{r.into}}
	for i := range r.names {
		for layer := call * r.group; layer < (call+1)*r.group; layer++ {
			off := uint64(layer) * r.bytes
			l.Off, l.Len, l.RegionOff = append(l.Off, off), append(l.Len, r.bytes), append(l.RegionOff, r.rows[i]*r.stride()+off)
		}
		l.End = append(l.End, uint32(len(l.Off)))
	}
	return client.Part{Keys: client.Keys{Names: r.names}, Lists: l}
}

// pairs alternates between the two, over all layers, so that neither finds its bytes in a cache that the other does not.
func (o *Engine) pairs(ctx context.Context, r *engineRun) (EngineRow, error) {
	row := EngineRow{Shape: r.name, Ranges: r.ranges(), Bytes: r.moved()}
	var calls, loops, shares, extras []float64
	for run := range o.Runs + 1 {
		content.Poison(r.into.Bytes())
		var call, loop time.Duration
		for i := range r.calls() {
			part := r.part(i)
			began := time.Now()
			a, err := r.c.GetRanges(ctx, part)
			call += time.Since(began)
			if err == nil {
				err = client.Failed(a)
			}
			if err != nil {
				return row, err
			}
		}
		if err := r.verify(); err != nil {
			return row, err
		}
		for i := range r.calls() {
			began := time.Now()
			r.loop(i)
			loop += time.Since(began)
		}
		if run == 0 {
			continue // the first finds nothing mapped
		}
		c, l := float64(call)/float64(r.calls())/1e3, float64(loop)/float64(r.calls())/1e3
		calls, loops, shares, extras = append(calls, c), append(loops, l), append(shares, 100*l/c), append(extras, 100*(c-l)/l)
	}
	row.Call, row.Loop, row.Share, row.Extra = median(calls), median(loops), median(shares), median(extras)
	return row, nil
}

// loop copies what a call reads, and does nothing else.
func (r *engineRun) loop(call int) {
	into := r.into.Bytes()
	for _, row := range r.rows {
		for l := call * r.group; l < (call+1)*r.group; l++ {
			at := row*r.stride() + uint64(l)*r.bytes
			copy(into[at:at+r.bytes], r.source.b[at:at+r.bytes])
		}
	}
}

// verify looks at every byte: what was read, what was not asked for, and the guards.
func (r *engineRun) verify() error {
	read := uint64(r.calls()*r.group) * r.bytes
	for i, row := range r.rows {
		at := row * r.stride()
		if !bytes.Equal(r.into.Bytes()[at:at+read], r.source.b[at:at+read]) {
			return fmt.Errorf("object %d: wrong bytes", i)
		}
		if off := content.CheckPoison(r.into.Bytes()[at+read : at+r.stride()]); off >= 0 {
			return fmt.Errorf("object %d: byte %d was written and not asked for", i, read+uint64(off))
		}
	}
	return nil
}

// engineColumns are those of EngineRow in their order.
var engineColumns = []columnInfo{
	{"shape", 0, "what a call reads: 8 layers of 32 large objects, or of 1,024 small ones, by pattern and handle, or by lists and names"},
	{"ranges", 0, "of a call"},
	{"call_mib", 2, "bytes of a call"},
	{"call_us", 1, "median time of a call from this process through the node into memory of this process"},
	{"loop_us", 1, "median time of the bare copy loop of this process over the same destinations, by one goroutine"},
	{"share_pct", 1, "what calls reach of the loop's rate: the median over pairs"},
	{"extra_pct", 1, "time of a call above that of the loop, of the loop's: the median over pairs"},
}

// EngineColumnMeanings explains the columns, one a line, for the help.
func EngineColumnMeanings() string { return meaningsOf(engineColumns) }

// WriteEngineRows prints rows.
func WriteEngineRows(w io.Writer, f Format, rows []EngineRow) error {
	cells := make([][]string, len(rows))
	list := make([]map[string]any, len(rows))
	for i, r := range rows {
		values := []float64{float64(r.Bytes) / (1 << 20), r.Call, r.Loop, r.Share, r.Extra}
		cells[i] = []string{r.Shape, strconv.Itoa(r.Ranges)}
		list[i] = map[string]any{"shape": r.Shape, "ranges": r.Ranges}
		for j, v := range values {
			cells[i] = append(cells[i], engineColumns[j+2].format(v))
			list[i][engineColumns[j+2].name] = v
		}
	}
	switch f {
	case JSON:
		return writeJSON(w, list)
	case CSV:
		return writeCSV(w, engineColumns, cells)
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range append([][]string{namesOf(engineColumns)}, cells...) {
		fmt.Fprintln(out, strings.Join(line, "\t")) // Flush tells
	}
	return out.Flush()
}
