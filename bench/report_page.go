package bench

import (
	_ "embed"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

//go:embed report.html.tmpl
var reportPage string

// pageCard is a heading with charts below it.
type pageCard struct {
	Title  string
	Open   bool
	Charts []template.HTML
}

// pageData is what the template shows.
type pageData struct {
	Machines, Commits, Times []string
	Verdicts                 map[string]int
	Bars                     []reportRow
	Ranges                   []template.HTML
	Shapes                   []pageCard
	Bare                     []reportRow
	Mixed                    []template.HTML
	Sources                  []pageSource
	Unread                   []string
	Unverified               []string // files with a row that nobody checked, or a read that was wrong
	Absent                   []string // bars that no run is there of
}

type pageSource struct{ Path, Command, Machine, Commit, Time string }

// Write writes the page.
func (r *Report) Write(w io.Writer) error {
	page, err := template.New("report").Parse(reportPage)
	if err != nil {
		return err
	}
	d := pageData{Verdicts: map[string]int{}, Machines: r.about("machine"), Commits: r.about("commit"), Times: r.about("time")}
	for _, f := range r.files {
		d.Sources = append(d.Sources, pageSource{f.path, f.about["command"], f.about["machine"], f.about["commit"], f.about["time"]})
		if slices.ContainsFunc(f.rows, reportRow.unverified) {
			d.Unverified = append(d.Unverified, f.path)
		}
	}
	for _, f := range r.Ratios {
		for _, row := range f.rows {
			row := maps.Clone(row)
			row["commit"] = f.about["commit"]
			d.Bars = append(d.Bars, row)
			d.Verdicts[row["verdict"]]++
		}
	}
	for _, f := range r.Bare {
		d.Bare = append(d.Bare, f.rows...)
	}
	for _, f := range r.Ranges {
		d.Ranges = append(d.Ranges, f.rangesChart())
	}
	for i, s := range r.Shapes {
		d.Shapes = append(d.Shapes, pageCard{Title: s.name + ", over " + s.way, Open: i == 0 || s.name == "restore", Charts: s.charts()})
	}
	d.Mixed, d.Unread, d.Absent = r.mixedCharts(), r.Unread, r.absent()
	return page.Execute(w, d)
}

// about is the different values of what stands in front of the files.
func (r *Report) about(key string) []string {
	seen := map[string]bool{}
	for _, f := range r.files {
		if v := f.about[key]; v != "" {
			seen[v] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// charts is a shape's: time of a restore and time to the first group, both beside whole objects and beside what bare loops would need,
// and the bytes by purpose.
func (s *reportShape) charts() []template.HTML {
	var out []template.HTML
	for _, c := range []struct{ title, unit, column, share string }{
		{"Restore, median", "ms", "restore_ms_p50", "restore_ceiling_pct"},
		{"Time to the first layer group, median", "µs", "ttfl_us_p50", "ttfl_ceiling_pct"},
	} {
		b := barChart{title: c.title, unit: c.unit}
		s.each(func(ranks string, ours, whole reportRow) {
			g := barGroup{label: ranks}
			if ours != nil {
				g.bars = append(g.bars, barOf{"ours", "ours", ours.number(c.column)})
			}
			if whole != nil {
				g.bars = append(g.bars, barOf{"whole objects", "whole", whole.number(c.column)})
			}
			if share := ours.number(c.share); share > 0 {
				g.bars = append(g.bars, barOf{"bare loops", "bare", ours.number(c.column) * share / 100})
			}
			b.groups = append(b.groups, g)
		})
		out = append(out, b.svg())
	}
	b := barChart{title: "Bytes on the wire, by purpose", unit: "MiB", stacked: true}
	s.each(func(ranks string, ours, whole reportRow) {
		for _, side := range []struct {
			name string
			row  reportRow
		}{{"ours", ours}, {"whole objects", whole}} {
			if side.row != nil {
				b.groups = append(b.groups, barGroup{label: ranks + ", " + side.name, bars: []barOf{
					{"for callers", "get", side.row.number("wire_range_mib")},
					{"for the pull", "pull", side.row.number("wire_background_mib")},
					{"duplicate", "duplicate", side.row.number("wire_duplicate_mib")},
				}})
			}
		}
	})
	return append(out, b.svg())
}

// each is called with the rows of each number of ranks.
func (s *reportShape) each(f func(ranks string, ours, whole reportRow)) {
	rows := func(f *reportFile) map[int]reportRow {
		by := map[int]reportRow{}
		if f != nil {
			for _, r := range f.rows {
				by[int(r.number("ranks"))] = r
			}
		}
		return by
	}
	ours, whole := rows(s.ours), rows(s.whole)
	all := maps.Clone(ours)
	maps.Copy(all, whole)
	for _, n := range slices.Sorted(maps.Keys(all)) {
		f(counted(n, "rank"), ours[n], whole[n])
	}
}

// counted is "1 rank", "2 ranks".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func (f *reportFile) rangesChart() template.HTML {
	b := barChart{title: "Ranges over TCP of loopback, by their size", unit: "GiB/s"}
	for _, r := range f.rows {
		g := barGroup{label: sizeText(r.number("range_bytes")) + " ranges"}
		for _, s := range []barOf{{"ours", "ours", r.number("ours_gibps")}, {"whole objects", "whole", r.number("whole_gibps")},
			{"bare loops", "bare", r.number("bare_gibps")}, {"redis", "redis", r.number("redis_gibps")}} {
			if s.value > 0 {
				g.bars = append(g.bars, s)
			}
		}
		b.groups = append(b.groups, g)
	}
	return b.svg()
}

// mixedCharts is a chart for each way.
func (r *Report) mixedCharts() (out []template.HTML) {
	by := map[string]map[int]*barGroup{}
	for _, f := range r.Mixed {
		groups := by[f.way()]
		if groups == nil {
			groups = map[int]*barGroup{}
			by[f.way()] = groups
		}
		for _, row := range f.rows {
			n := int(row.number("threads"))
			if groups[n] == nil {
				groups[n] = &barGroup{label: counted(n, "thread") + " each"}
			}
			s := barOf{"an arena a direction", "ours", row.number("total_gibps")}
			if row["arenas"] == "1" {
				s.name, s.class = "one shared arena", "whole"
			}
			groups[n].bars = append(groups[n].bars, s)
		}
	}
	for _, way := range slices.Sorted(maps.Keys(by)) {
		b := barChart{title: "Gets and puts at once over " + way + ", sum", unit: "GiB/s"}
		for _, n := range slices.Sorted(maps.Keys(by[way])) {
			b.groups = append(b.groups, *by[way][n])
		}
		out = append(out, b.svg())
	}
	return out
}

// absent is the bars of this program that no run is there of.
func (r *Report) absent() (names []string) {
	for _, name := range BarNames() {
		if !slices.ContainsFunc(r.Ratios, func(f reportFile) bool {
			return slices.ContainsFunc(f.rows, func(row reportRow) bool { return row["bar"] == name })
		}) {
			names = append(names, name)
		}
	}
	return names
}

func sizeText(n float64) string {
	if n >= 1<<20 {
		return strconv.FormatFloat(n/(1<<20), 'f', -1, 64) + " MiB"
	}
	return strings.TrimSuffix(strconv.FormatFloat(n/1024, 'f', 1, 64), ".0") + " KiB"
}
