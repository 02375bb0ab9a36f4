package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// GPUSweep measures the copier by direction, size of a fragment and how fragments lie on the device, without a node.
type GPUSweep struct {
	GPU       *GPU
	Fragments []uint64 // bytes
	Bytes     uint64   // of a batch, about
	Time      time.Duration
}

// GPURow is one combination. It was verified when it is there.
type GPURow struct {
	Direction string // h2d, d2h, d2d
	Lay       string // dense: neighbours on the device; rows: equal strides; loose: no stride
	Fragment  uint64
	Count     int     // fragments of a batch
	Rate      float64 // GiB/s
	Each      float64 // microseconds of a fragment
}

var gpuColumns = []columnInfo{
	{"direction", 0, "h2d: host to device; d2h: back; d2d: within the device"},
	{"lay", 0, "how fragments lie on the device; dense: neighbours, rows: equal strides, loose: no stride"},
	{"fragment_bytes", 0, "bytes of a fragment"},
	{"fragments", 0, "of a batch"},
	{"gibps", 2, "rate of batch after batch"},
	{"fragment_us", 2, "time of a batch by its fragments"},
}

// GPUColumnMeanings is a line a column.
func GPUColumnMeanings() string { return meaningsOf(gpuColumns) }

const (
	maxFragment = 1 << 30
	maxSweep    = 1 << 34
	maxBatchOps = 1 << 16
)

// Check refuses what cannot be measured.
func (o *GPUSweep) Check() error {
	if len(o.Fragments) == 0 {
		return badOption("--fragments", "", "want 1 or more sizes")
	}
	if o.Time <= 0 || o.Time > time.Minute {
		return badOption("--time", o.Time, "want more than 0 and at most %v", time.Minute)
	}
	for _, f := range o.Fragments {
		switch {
		case f == 0 || f > maxFragment:
			return badOption("--fragments", f, "want 1 to %d", maxFragment)
		case o.Bytes < f || o.Bytes > maxSweep:
			return badOption("--bytes", o.Bytes, "want at least a fragment (%d) and at most %d", f, uint64(maxSweep))
		}
	}
	return nil
}

// Run gives each row to emit as it is there.
func (o *GPUSweep) Run(ctx context.Context, emit func(GPURow)) error {
	if err := o.Check(); err != nil {
		return err
	}
	for _, f := range o.Fragments {
		if err := o.size(ctx, f, emit); err != nil {
			return fmt.Errorf("fragments of %d bytes: %w", f, err)
		}
	}
	return nil
}

// gpuLays are the distances between fragments on the device, by the fragment's size and number.
var gpuLays = []struct {
	name string
	at   func(f uint64, i int) uint64
}{
	{"dense", func(f uint64, i int) uint64 { return uint64(i) * f }},
	{"rows", func(f uint64, i int) uint64 { return uint64(i) * 2 * f }},
	{"loose", func(f uint64, i int) uint64 { return uint64(i)*2*f + uint64(i*i%7)*f/8 }},
}

// size measures every direction and lay of one size over memory that it takes and gives back.
func (o *GPUSweep) size(ctx context.Context, f uint64, emit func(GPURow)) (err error) {
	count := min(int(o.Bytes/f), maxBatchOps)
	room := roundUp(uint64(count)*2*f+f, hip.PageAlign)
	var device [2]ports.Region
	for i := range device {
		m, merr := o.GPU.OpenMedium(hip.MediumConfig{Bytes: room, PageSize: room, Ordinals: []int{o.GPU.Ordinal}})
		if merr != nil {
			return merr
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		device[i] = m.Buffers()[0]
	}
	host, err := openBuffer(room)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.close()) }()
	for _, lay := range gpuLays {
		for _, direction := range []string{"h2d", "d2h", "d2d"} {
			ops := make([]ports.CopyOp, count)
			for i := range ops {
				at, dense := lay.at(f, i), uint64(i)*f
				switch direction {
				case "h2d":
					ops[i] = ports.CopyOp{Dst: device[0], DstOff: at, Src: host.region(), SrcOff: dense, Len: f}
				case "d2h":
					ops[i] = ports.CopyOp{Dst: host.region(), DstOff: dense, Src: device[0], SrcOff: at, Len: f}
				default:
					ops[i] = ports.CopyOp{Dst: device[1], DstOff: dense, Src: device[0], SrcOff: at, Len: f}
				}
			}
			row := GPURow{Direction: direction, Lay: lay.name, Fragment: f, Count: count}
			if err := o.measure(ctx, &row, ops, device, host); err != nil {
				return fmt.Errorf("%s, %s: %w", direction, lay.name, err)
			}
			emit(row)
		}
	}
	return nil
}

// measure copies batch after batch for the time, and verifies the last one: the source has content, and the destination is poisoned.
func (o *GPUSweep) measure(ctx context.Context, row *GPURow, ops []ports.CopyOp, device [2]ports.Region, host *buffer) error {
	whole := func(dst, src ports.Region) error {
		return copyOnce(o.GPU, ports.CopyOp{Dst: dst, Src: src, Len: uint64(len(host.b))})
	}
	const key = 0x6b
	content.Fill(host.b, key, 0)
	if row.Direction != "h2d" {
		if err := whole(ops[0].Src, host.region()); err != nil {
			return err
		}
	}
	if row.Direction == "d2h" {
		content.Poison(host.b)
	}
	errs := make([]error, len(ops))
	batches, began := 0, time.Now()
	for batches == 0 || time.Since(began) < o.Time {
		o.GPU.Copier().Copy(ctx, ops, errs)
		if err := errors.Join(errs...); err != nil {
			return err
		}
		batches++
	}
	took := time.Since(began)
	row.Rate = float64(batches) * float64(len(ops)) * float64(row.Fragment) / took.Seconds() / (1 << 30)
	row.Each = took.Seconds() * 1e6 / float64(batches) / float64(len(ops))
	if row.Direction != "d2h" {
		content.Poison(host.b)
		if err := whole(host.region(), ops[0].Dst); err != nil {
			return err
		}
	}
	for i := range ops {
		if at := content.Check(host.b[ops[i].DstOff:][:row.Fragment], key, ops[i].SrcOff); at >= 0 {
			return fmt.Errorf("wrong byte %d of fragment %d: %w", at, i, ErrFailed)
		}
	}
	return nil
}

// WriteGPURows prints rows.
func WriteGPURows(w io.Writer, f Format, rows []GPURow) error {
	cells := make([][]string, len(rows))
	values := make([]map[string]any, len(rows))
	for i, r := range rows {
		cells[i] = []string{r.Direction, r.Lay, fmt.Sprint(r.Fragment), fmt.Sprint(r.Count), gpuColumns[4].format(r.Rate), gpuColumns[5].format(r.Each)}
		values[i] = map[string]any{"direction": r.Direction, "lay": r.Lay, "fragment_bytes": r.Fragment, "fragments": r.Count, "gibps": r.Rate, "fragment_us": r.Each}
	}
	switch f {
	case CSV:
		return writeCSV(w, gpuColumns, cells)
	case JSON:
		return writeJSON(w, values)
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range append([][]string{namesOf(gpuColumns)}, cells...) { // a line a row: the rows are many and the columns few
		fmt.Fprintln(out, strings.Join(line, "\t")) // Flush tells
	}
	return out.Flush()
}
