package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Column is a figure of a row.
type Column int

// The columns, in the order in which users of the reference know them; those from wire_background_mib on are ours.
const (
	ColRanks Column = iota
	ColLayers
	ColGroup
	ColPages
	ColObjectKiB
	ColRestoreP50
	ColRestoreP95
	ColTTFLP50
	ColTTFLP95
	ColStallP50
	ColGetRate
	ColPutRate
	ColLocalHits
	ColRemoteCalls
	ColRemoteKeys
	ColRepeatRemote
	ColWireWhole
	ColWireRange
	ColLocalWrite
	ColWireBackground
	ColWireDuplicate
	ColFailedReads
	ColLinkRate
	ColLinkDelay
	ColForeign
	ColCeiling
	ColGetShare
	ColRestoreShare
	ColTTFLShare
	NumColumns
)

// columnInfo says what a figure is called, how many decimals it has, and what it means.
type columnInfo struct {
	name     string
	decimals int
	meaning  string
}

// columns is by Column.
var columns = [NumColumns]columnInfo{
	{"ranks", 0, "ranks that restore at once"},
	{"layers", 0, "layers of the model"},
	{"group", 0, "layers of a group"},
	{"pages", 0, "pages of a request"},
	{"object_kib", 2, "bytes of one page over all pools"},
	{"restore_ms_p50", 3, "from a request's start until its last group is computed"},
	{"restore_ms_p95", 3, ""},
	{"ttfl_us_p50", 1, "from a request's start until its first group is readable, in all pools"},
	{"ttfl_us_p95", 1, ""},
	{"stall_ms_p50", 3, "time that the forward thread of a request waited for groups"},
	{"get_gibps", 3, "bytes read by all ranks, per second of the windows from a request's start to its last rank's last group"},
	{"put_gibps", 3, "sum over the offload ranks of bytes put per second of put calls, as far as they lie within a request; of a call that lies partly within, as much of its bytes as of its time; 0: nothing was put meanwhile"},
	{"local_hit_pct", 2, "calls without a remote key"},
	{"remote_calls", 0, "calls with a remote key"},
	{"remote_keys", 0, "remote keys: (key, call) that took at least one byte from a peer"},
	{"repeat_remote", 0, "remote keys that an earlier call of the same request had fetched"},
	{"wire_whole_mib", 2, "computed: the sizes of all objects of which a byte came from a peer, each object once"},
	{"wire_range_mib", 2, "what moved for callers"},
	{"local_write_mib", 2, "bytes of this run's objects that were committed at the reader"},
	{"wire_background_mib", 2, "what moved for the pull"},
	{"wire_duplicate_mib", 2, "what landed though it was held already, or was thrown away"},
	{"failed_reads", 0, "reads that failed or were wrong; 'unverified' when contents were not checked"},
	{"link_gbps", 3, "Gbit/s that the slower direction of the modelled link reached; 0: not modelled"},
	{"link_delay_us", 1, "delay that the modelled link reached, each way; 0: not modelled"},
	{"foreign_cpu_pct", 1, "processor time that other programs took, of all there is"},
	{"ceiling_gibps", 3, "what the best bare loop over fragments as large reaches here: sockets, or copies by every processor, at most the modelled link's rate; 0: not measured"},
	{"get_ceiling_pct", 1, "get_gibps of that"},
	{"restore_ceiling_pct", 1, "time that the ceiling needs for the bytes of a restore, or the computing if that is longer, of restore_ms_p50"},
	{"ttfl_ceiling_pct", 1, "time that it needs for the first group, of ttfl_us_p50"},
}

func (c Column) String() string { return columns[c].name }

// ColumnNames is the header of the CSV.
func ColumnNames() []string { return namesOf(columns[:]) }

// ColumnMeanings explains the columns, one a line, for the help.
func ColumnMeanings() string { return meaningsOf(columns[:]) }

func namesOf(columns []columnInfo) []string {
	names := make([]string, len(columns))
	for i := range names {
		names[i] = columns[i].name
	}
	return names
}

func meaningsOf(columns []columnInfo) string {
	var b strings.Builder
	for _, c := range columns {
		if c.meaning != "" {
			fmt.Fprintf(&b, "  %-20s %s\n", c.name, c.meaning)
		}
	}
	return b.String()
}

func (c columnInfo) format(v float64) string { return strconv.FormatFloat(v, 'f', c.decimals, 64) }

// Row is the figures of one number of ranks.
type Row struct {
	Values   [NumColumns]float64
	Pools    []PoolRow
	Verified bool
}

// PoolRow is a pool's part of a row.
type PoolRow struct {
	Name       string
	RangeBytes uint64
	Ranges     uint64
	Calls      uint64
	Bytes      uint64  // that ranks asked for and got
	Share      float64 // of the bytes of all pools
	RemoteKeys uint64
	WireBytes  uint64 // that these calls took from a peer; the pull's are not known by pool
}

// unverified marks the failed reads of a run that checked no contents.
const unverified = " unverified"

// cell is a figure as CSV and table show it.
func (r *Row) cell(c Column) string {
	text := columns[c].format(r.Values[c])
	if c == ColFailedReads && !r.Verified {
		// What was not checked is not known to be right, so that no one takes the row for a verified one.
		return text + unverified
	}
	return text
}

// medianRow is the median of each figure over the runs of a row. Failures add up: one failed run is not outvoted.
func medianRow(runs []Row) Row {
	out := runs[len(runs)-1]
	for c := range NumColumns {
		values := make([]float64, len(runs))
		for i := range runs {
			values[i] = runs[i].Values[c]
		}
		out.Values[c] = median(values)
		if c == ColFailedReads {
			out.Values[c] = sum(values)
		}
	}
	return out
}

// median sorts its argument.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func sum(values []float64) float64 {
	var s float64
	for _, v := range values {
		s += v
	}
	return s
}

// Format is how rows are printed.
type Format string

// The formats.
const (
	Table Format = "table"
	CSV   Format = "csv"
	JSON  Format = "json"
)

// ParseFormat reads the value of --output.
func ParseFormat(text string) (Format, error) {
	return Format(text), CheckAvailable("--output", text, []string{string(Table), string(CSV), string(JSON)})
}

// WriteRows prints rows.
func WriteRows(w io.Writer, f Format, rows []Row) error {
	if f == JSON {
		return writeJSON(w, jsonRows(rows))
	}
	cells := make([][]string, len(rows))
	for i := range rows {
		for c := range NumColumns {
			cells[i] = append(cells[i], rows[i].cell(c))
		}
	}
	if f == CSV {
		return writeCSV(w, columns[:], cells)
	}
	if err := writeTable(w, columns[:], cells); err != nil {
		return err
	}
	return writePools(w, rows)
}

func writeCSV(w io.Writer, columns []columnInfo, cells [][]string) error {
	return csv.NewWriter(w).WriteAll(append([][]string{namesOf(columns)}, cells...))
}

// writeTable turns rows into columns: there are more figures than fit beside each other.
func writeTable(w io.Writer, columns []columnInfo, cells [][]string) error {
	if len(cells) == 0 {
		return nil
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for c := range columns {
		fmt.Fprintf(out, "%s\t", columns[c].name)
		for i := range cells {
			fmt.Fprintf(out, "%s\t", cells[i][c])
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

func writeJSON(w io.Writer, rows []map[string]any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(rows)
}

func jsonRows(rows []Row) []map[string]any {
	list := make([]map[string]any, len(rows))
	for i := range rows {
		list[i] = map[string]any{"pools": rows[i].jsonPools(), "verified": rows[i].Verified}
		for c := range NumColumns {
			list[i][columns[c].name] = rows[i].Values[c]
		}
	}
	return list
}

func (r *Row) jsonPools() []map[string]any {
	pools := make([]map[string]any, len(r.Pools))
	for i, p := range r.Pools {
		pools[i] = map[string]any{"pool": p.Name, "range_kib": float64(p.RangeBytes) / 1024, "ranges": p.Ranges, "calls": p.Calls,
			"mib": toMiB(p.Bytes), "share_pct": 100 * p.Share, "remote_keys": p.RemoteKeys, "wire_mib": toMiB(p.WireBytes)}
	}
	return pools
}

func writePools(w io.Writer, rows []Row) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "ranks\tpool\trange KiB\tranges\tcalls\tMiB\tshare\tremote keys\twire MiB\t")
	for i := range rows {
		for _, p := range rows[i].Pools {
			fmt.Fprintf(out, "%s\t%s\t%.2f\t%d\t%d\t%.2f\t%.1f %%\t%d\t%.2f\t\n", rows[i].cell(ColRanks), p.Name,
				float64(p.RangeBytes)/1024, p.Ranges, p.Calls, toMiB(p.Bytes), 100*p.Share, p.RemoteKeys, toMiB(p.WireBytes))
		}
	}
	return out.Flush()
}

func toMiB(n uint64) float64 { return float64(n) / mibBytes }
