package bench

import "io"

// MixedColumn is a figure of a mixed row.
type MixedColumn int

// The columns of a mixed row.
const (
	MixedThreads MixedColumn = iota
	MixedSharedArenas
	MixedCallKiB
	MixedGetAlone
	MixedPutAlone
	MixedGet
	MixedPut
	MixedTotal
	MixedFailedReads
	MixedLinkRate
	MixedLinkDelay
	MixedForeign
	MixedCeiling
	MixedShare
	NumMixedColumns
)

// mixedColumns is by MixedColumn.
var mixedColumns = [NumMixedColumns]columnInfo{
	{"threads", 0, "threads that get; as many put"},
	{"arenas", 0, "of the caller: 2, one a direction, or 1 that is shared and locked over each transfer"},
	{"call_kib", 0, "bytes of a call"},
	{"get_alone_gibps", 3, "of gets while nothing is put, from their start at once to the last one's end"},
	{"put_alone_gibps", 3, "of puts while nothing is read"},
	{"get_gibps", 3, "of gets while puts run too"},
	{"put_gibps", 3, "of puts while gets run too"},
	{"total_gibps", 3, "of both, to the end of the last of either"},
	{"failed_reads", 0, "reads that failed or were wrong; 'unverified' when contents were not checked"},
	{"link_gbps", 3, "Gbit/s that the slower direction of the modelled link reached; 0: not modelled"},
	{"link_delay_us", 1, "delay that the modelled link reached, each way; 0: not modelled"},
	{"foreign_cpu_pct", 1, "processor time that other programs took, of all there is"},
	{"ceiling_gibps", 3, "what both directions of the modelled link give; without one, what the best bare loop over such calls reaches; 0: not measured"},
	{"total_ceiling_pct", 1, "total_gibps of that"},
}

// MixedColumnMeanings explains the columns, one a line, for the help.
func MixedColumnMeanings() string { return meaningsOf(mixedColumns[:]) }

// MixedRow is the figures of one number of threads.
type MixedRow struct {
	Values   [NumMixedColumns]float64
	Noise    Noise
	Verified bool
}

func (r *MixedRow) cell(c MixedColumn) string {
	text := mixedColumns[c].format(r.Values[c])
	if c == MixedFailedReads && !r.Verified {
		return text + unverified
	}
	return text
}

// medianMixed is the median of each figure; failures add up.
func medianMixed(runs []MixedRow) MixedRow {
	out := runs[len(runs)-1]
	for c := range NumMixedColumns {
		values := make([]float64, len(runs))
		for i := range runs {
			values[i] = runs[i].Values[c]
		}
		out.Values[c] = median(values)
		if c == MixedFailedReads {
			out.Values[c] = sum(values)
		}
	}
	return out
}

// WriteMixedRows prints rows.
func WriteMixedRows(w io.Writer, f Format, rows []MixedRow) error {
	cells := make([][]string, len(rows))
	list := make([]map[string]any, len(rows))
	for i := range rows {
		list[i] = map[string]any{"verified": rows[i].Verified}
		for c := range NumMixedColumns {
			cells[i] = append(cells[i], rows[i].cell(c))
			list[i][mixedColumns[c].name] = rows[i].Values[c]
		}
	}
	switch f {
	case JSON:
		return writeJSON(w, list)
	case CSV:
		return writeCSV(w, mixedColumns[:], cells)
	}
	return writeTable(w, mixedColumns[:], cells)
}
