package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// RatioRow is one bar and what was reached.
type RatioRow struct {
	Bar       string
	Figure    string
	What      string
	Ours      float64 // medians
	Theirs    float64
	Ratio     float64 // the median of the pairs' ratios, and the least and the greatest of them
	Low, High float64
	Target    string
	Verdict   Verdict
	Pairs     int
	Repeats   int
	Noisy     int
	Noise     Noise   // the worst among the pairs that count
	Ceiling   float64 // percent of what bare loops, or the link, give that ours reached; 0: not known
	Reference string
}

// ratioColumns are those of RatioRow in their order.
var ratioColumns = []columnInfo{
	{"bar", 0, "the workload; what stands against what is printed with the table"},
	{"figure", 0, ""},
	{"ours", 0, "median over the pairs"},
	{"theirs", 0, "median over the pairs, of what it is compared with"},
	{"ratio", 0, "median of the pairs' ratios"},
	{"ratio_low", 0, ""},
	{"ratio_high", 0, ""},
	{"target", 0, "what the ratio should be"},
	{"verdict", 0, "met, missed, reported (there is no target), not run (why: under reference)"},
	{"pairs", 0, "that count"},
	{"repeats", 0, "pairs that were thrown away for noise"},
	{"noisy", 0, "pairs that count though they were measured under too much noise"},
	{"link_gbps", 0, "worst that the modelled link reached in a pair that counts; 0: not modelled"},
	{"link_delay_us", 0, "likewise, each way"},
	{"foreign_cpu_pct", 0, "most processor time that other programs took in a pair that counts"},
	{"ceiling_pct", 0, "ours as a share of what the best bare loop or the modelled link gives; of a time: of the least that it could be; 0: not measured"},
	{"reference", 0, "what the reference published nearest to it"},
}

// RatioColumnMeanings explains the columns, one a line, for the help.
func RatioColumnMeanings() string { return meaningsOf(ratioColumns) }

func (r *RatioRow) cells() []string {
	f := func(v float64, prec int) string { return strconv.FormatFloat(v, 'f', prec, 64) }
	return []string{r.Bar, r.Figure, f(r.Ours, 3), f(r.Theirs, 3), f(r.Ratio, 3), f(r.Low, 3), f(r.High, 3), r.Target, string(r.Verdict),
		strconv.Itoa(r.Pairs), strconv.Itoa(r.Repeats), strconv.Itoa(r.Noisy), f(r.Noise.Gbps, 2), f(microseconds(r.Noise.Delay), 1),
		f(100*r.Noise.Foreign, 1), f(r.Ceiling, 1), r.Reference}
}

// RatioWriter prints rows as they come: a run takes minutes, and what is there should be seen.
type RatioWriter struct {
	w      io.Writer
	format Format
	begun  bool
	last   string
}

// NewRatioWriter prints on w.
func NewRatioWriter(w io.Writer, f Format) *RatioWriter { return &RatioWriter{w: w, format: f} }

// Write prints one row. JSON is an object a line.
func (w *RatioWriter) Write(r RatioRow) error {
	switch w.format {
	case JSON:
		fields := map[string]any{}
		for i, c := range r.cells() {
			fields[ratioColumns[i].name] = c
			if n, err := strconv.ParseFloat(c, 64); err == nil {
				fields[ratioColumns[i].name] = n
			}
		}
		fields["what"] = r.What
		return json.NewEncoder(w.w).Encode(fields)
	case CSV:
		out := csv.NewWriter(w.w)
		if !w.begun {
			_ = out.Write(namesOf(ratioColumns)) // Flush tells
		}
		w.begun = true
		_ = out.Write(r.cells())
		out.Flush()
		return out.Error()
	}
	return w.table(r)
}

func (w *RatioWriter) table(r RatioRow) error {
	if w.last != r.Bar {
		if _, err := fmt.Fprintf(w.w, "\n%s: %s\n", r.Bar, r.What); err != nil {
			return err
		}
		w.last = r.Bar
	}
	if r.Verdict == NotRun {
		_, err := fmt.Fprintf(w.w, "  %-22s %8s  target %-8s %s\n", r.Figure, "-", r.Target, r.Reference)
		return err
	}
	noise := ""
	if r.Noisy > 0 {
		noise = fmt.Sprintf("  NOISY: %d of the pairs", r.Noisy)
	}
	link := ""
	if r.Noise.Gbps > 0 {
		link = fmt.Sprintf(", link %.2f Gbit/s %.0f us", r.Noise.Gbps, microseconds(r.Noise.Delay))
	}
	_, err := fmt.Fprintf(w.w, "  %-22s %8.3f  target %-8s %-8s  ours %.3f, against %.3f; %d pairs from %.3f to %.3f, %d repeated%s, foreign %.0f %%%s\n",
		r.Figure, r.Ratio, r.Target, r.Verdict, r.Ours, r.Theirs, r.Pairs, r.Low, r.High, r.Repeats, link, 100*r.Noise.Foreign, noise)
	if err == nil && r.Reference != "" {
		_, err = fmt.Fprintf(w.w, "  %-22s reference: %s\n", "", r.Reference)
	}
	return err
}
