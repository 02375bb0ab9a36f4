package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script is a pairing over given samples, which says in which order its sides were asked.
type script struct {
	pairing
	order string
}

func newScript(ours, theirs []sample, bars ...bar) *script {
	s := &script{}
	s.name, s.what, s.bars = "scripted", "a against b", bars
	take := func(who string, left *[]sample) side {
		return func(context.Context) (sample, error) {
			s.order += who
			next := (*left)[0]
			*left = (*left)[1:]
			return next, nil
		}
	}
	s.ours, s.theirs = take("a", &ours), take("b", &theirs)
	return s
}

func figures(values ...float64) (list []sample) {
	for _, v := range values {
		list = append(list, sample{figures: []float64{v}})
	}
	return list
}

func (s *script) measured(t *testing.T, n int) *pairs {
	t.Helper()
	m, err := s.measure(t.Context(), n, func(int) {})
	require.NoError(t, err)
	return m
}

func TestARatioIsTheMedianOfItsPairs(t *testing.T) {
	s := newScript(figures(10, 1, 30), figures(20, 8, 30), bar{name: "lower", sense: theirsOverOurs, atLeast: 2}, bar{name: "plain", atMost: 0.5})
	rows := s.rows(s.measured(t, 3))
	require.Len(t, rows, 2)
	// The pairs' ratios are 2, 8 and 1; the ratio of the medians would be 20/10.
	require.Equal(t, []float64{2, 1, 8}, []float64{rows[0].Ratio, rows[0].Low, rows[0].High})
	require.Equal(t, []float64{10, 20}, []float64{rows[0].Ours, rows[0].Theirs})
	require.Equal(t, Met, rows[0].Verdict)
	require.Equal(t, 0.5, rows[1].Ratio)
	require.Equal(t, 3, rows[0].Pairs)
	require.Equal(t, "abbaab", s.order, "sides go first in turns")
}

func TestVerdictsFollowTheirBounds(t *testing.T) {
	for _, c := range []struct {
		bar   bar
		ratio float64
		want  Verdict
	}{
		{bar{atLeast: 6}, 6, Met},
		{bar{atLeast: 6}, 5.99, Missed},
		{bar{atMost: 1.05}, 1.05, Met},
		{bar{atMost: 1.05}, 1.06, Missed},
		{bar{}, 0.1, Reported},
		{bar{atLeast: 1}, 0, Missed}, // nothing was measured
	} {
		require.Equal(t, c.want, c.bar.verdict(c.ratio), "%+v at %v", c.bar, c.ratio)
	}
	require.Zero(t, (&bar{sense: theirsOverOurs}).ratio(0, 5), "no division by nothing")
	require.Equal(t, ">= 6", (&bar{atLeast: 6}).target())
	require.Equal(t, "<= 1.05", (&bar{atMost: neverAbove}).target())
	require.Equal(t, "reported", (&bar{}).target())
}

func TestANoisyPairIsRepeated(t *testing.T) {
	loud := sample{figures: []float64{99}, noise: Noise{Foreign: 0.5}}
	for _, first := range []bool{true, false} {
		ours, theirs := figures(1, 1, 1), figures(2, 2, 2)
		if first {
			ours[1] = loud
		} else {
			theirs[1] = loud
		}
		s := newScript(ours, theirs, bar{sense: theirsOverOurs})
		m := s.measured(t, 2)
		require.Equal(t, 1, m.repeats)
		require.Zero(t, m.noisy)
		require.Zero(t, m.noise.Foreign, "what was thrown away is not reported")
		require.Equal(t, 2.0, s.rows(m)[0].High, "its figures do not count")
	}
}

func TestAPairThatMissedTheLinkIsRepeated(t *testing.T) {
	s := newScript([]sample{{figures: []float64{1}, noise: Noise{Gbps: 12}}, {figures: []float64{1}, noise: Noise{Gbps: 15.9}}},
		[]sample{{figures: []float64{1}, noise: Noise{Gbps: 16}}, {figures: []float64{1}, noise: Noise{Gbps: 16}}}, bar{})
	s.link = LinkSpec{Gbps: 16}
	m := s.measured(t, 1)
	require.Equal(t, 1, m.repeats)
	require.Equal(t, 15.9, m.noise.Gbps)
}

func TestAfterSevenRepeatsPairsCountAndAreMarked(t *testing.T) {
	loud := func(n int) (list []sample) {
		for range n {
			list = append(list, sample{figures: []float64{1}, noise: Noise{Foreign: 0.4}})
		}
		return list
	}
	s := newScript(loud(maxRepeats+3), loud(maxRepeats+3), bar{})
	m := s.measured(t, 3)
	require.Equal(t, maxRepeats, m.repeats, "for all pairs of a ratio together")
	require.Equal(t, 3, m.noisy)
	row := s.rows(m)[0]
	require.Equal(t, 3, row.Noisy)
	require.Equal(t, 0.4, row.Noise.Foreign)
}

func TestAFailedSideEndsItsBarAndTheOthersRun(t *testing.T) {
	broken := errors.New("broken")
	s := newScript(figures(1), figures(1), bar{})
	s.theirs = func(context.Context) (sample, error) { return sample{}, broken }
	_, err := s.measure(t.Context(), 1, func(int) {})
	require.ErrorIs(t, err, broken)

	var errs bytes.Buffer
	o := Ratios{Pairs: 1, Bars: []string{"mixed-4", "two-gets"}, Places: 1, MaxMemory: 1 << 40, Errors: &errs}
	err = o.Run(t.Context(), func(context.Context, ClusterSpec) (*Cluster, error) { return nil, broken }, func(RatioRow) error { return nil })
	require.ErrorContains(t, err, "bar mixed-4: ")
	require.ErrorContains(t, err, "bar two-gets: ")
	require.ErrorIs(t, err, broken)
}

func TestABarThatDoesNotFitIsRefusedByName(t *testing.T) {
	o := Ratios{Pairs: 1, Bars: []string{"restore-8", "mixed-4"}, Places: 1, MaxMemory: 1 << 20}
	err := o.Run(t.Context(), nil, nil)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "bar restore-8: ")
	require.ErrorContains(t, err, "limit 1.0 MiB by --max-memory")
}

func TestBarsAreChosenByName(t *testing.T) {
	names := BarNames()
	require.Contains(t, names, "restore-8")
	require.Contains(t, names, "planning-1728")
	for i, n := range names {
		require.NotContains(t, names[:i], n)
	}
	o := Ratios{Pairs: 7, Bars: []string{"restore-9"}}
	require.ErrorContains(t, o.Check(), `--bars "restore-9"`)
	o = Ratios{Pairs: 0}
	require.ErrorContains(t, o.Check(), "--runs")
}

// Every bar of a restore names a column of what its sides give, and asks the same workload of both but for how it is fetched.
func TestRestoreBarsCompareTheSameWorkload(t *testing.T) {
	var specs []ClusterSpec
	stop := errors.New("enough")
	open := func(_ context.Context, s ClusterSpec) (*Cluster, error) {
		specs = append(specs, s)
		return nil, stop
	}
	o := Ratios{Pairs: 1, Places: 1, MaxMemory: 1 << 40}
	for _, p := range append(o.restoreBars(open), o.mixedBars(open)...) {
		specs = nil
		_, err := p.ours(t.Context())
		require.ErrorIs(t, err, stop, p.name)
		_, err = p.theirs(t.Context())
		require.ErrorIs(t, err, stop, p.name)
		require.Len(t, specs, 2)
		require.NotEqual(t, specs[0].Fetch, specs[1].Fetch, p.name)
		require.Equal(t, specs[0].Nodes, specs[1].Nodes, "%s: equal media and arenas", p.name)
		require.Equal(t, specs[0].Link, specs[1].Link, p.name)
		require.Equal(t, p.link, specs[0].Link, p.name)
		require.NotNil(t, specs[0].Copier, "%s: copies take places of the limiter", p.name)
	}
}

func TestRatiosArePrintedAsTheyCome(t *testing.T) {
	row := RatioRow{Bar: "b", Figure: "f", What: "x against y", Ours: 1, Theirs: 7, Ratio: 7, Low: 6, High: 8, Target: ">= 6", Verdict: Met, Pairs: 7,
		Repeats: 2, Noisy: 1, Noise: Noise{Gbps: 15.5, Delay: 60_000, Foreign: 0.2}, Reference: "15.4x"}
	print := func(f Format) string {
		var b bytes.Buffer
		w := NewRatioWriter(&b, f)
		require.NoError(t, w.Write(row))
		require.NoError(t, w.Write(row))
		return b.String()
	}
	records, err := csv.NewReader(strings.NewReader(print(CSV))).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 3, "the header once")
	require.Equal(t, namesOf(ratioColumns), records[0])
	require.Equal(t, row.cells(), records[1])

	table := print(Table)
	require.Equal(t, 1, strings.Count(table, "b: x against y"), "the bar's words once")
	for _, want := range []string{"7.000", "target >= 6", "met", "7 pairs from 6.000 to 8.000", "2 repeated", "15.50 Gbit/s 60 us", "foreign 20 %", "NOISY: 1", "reference: 15.4x"} {
		require.Contains(t, table, want)
	}

	lines := strings.Split(strings.TrimSpace(print(JSON)), "\n")
	require.Len(t, lines, 2)
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &fields))
	require.Equal(t, 7.0, fields["ratio"])
	require.Equal(t, "met", fields["verdict"])
	require.Equal(t, "x against y", fields["what"])
}

func TestAFailureNamesItsSide(t *testing.T) {
	good := func(context.Context) (sample, error) { return figures(1)[0], nil }
	bad := func(context.Context) (sample, error) { return sample{}, errNoSample }
	for want, p := range map[string]pairing{"ours: no figures": {ours: bad, theirs: good}, "theirs: no figures": {ours: good, theirs: bad}} {
		for _, theirsFirst := range []bool{false, true} {
			_, _, err := p.pair(t.Context(), theirsFirst)
			require.ErrorIs(t, err, errNoSample)
			require.EqualError(t, err, want)
		}
	}
}

// TestFiguresOfBarsNeedNoQuotes: the scripts take the columns of a row apart at its commas.
func TestFiguresOfBarsNeedNoQuotes(t *testing.T) {
	o := Ratios{Pairs: 1, Places: 2, MaxMemory: 1 << 40}
	for _, p := range o.all(nil) {
		for _, b := range p.bars {
			require.NotContains(t, b.name, ",", p.name)
		}
	}
}

// TestThePageSaysWhatEachBarIs: docs/benchmarks has every bar in a row of its table.
func TestThePageSaysWhatEachBarIs(t *testing.T) {
	page, err := os.ReadFile("../docs/benchmarks/README.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(page), "\n## What the bars are\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n## ")
	var listed []string
	for line := range strings.Lines(table) {
		if names, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| ") && names != "bar" {
			listed = append(listed, strings.Split(names, ", ")...)
		}
	}
	require.ElementsMatch(t, BarNames(), listed)
}

// TestThePageSaysWhatEachShapeIs: a row for each shape that scripts/benchmarks.sh measures, with the flags that it has there.
func TestThePageSaysWhatEachShapeIs(t *testing.T) {
	page, err := os.ReadFile("../docs/benchmarks/README.md")
	require.NoError(t, err)
	script, err := os.ReadFile("../scripts/benchmarks.sh")
	require.NoError(t, err)
	flags := regexp.MustCompile(`--[a-z-]+ [^- |]\S*|--[a-z-]+`)
	said, run := map[string][]string{}, map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| shapes/(\\S+)( \\*)? \\|[^|]*\\| `(.*)` \\|$").FindAllStringSubmatch(string(page), -1) {
		said[m[1]+m[2]] = flags.FindAllString(strings.ReplaceAll(m[3], "--offload-ranks -1", ""), -1)
	}
	common := map[string]bool{"--pages 32": true, "--offload-ranks 0": true, "--requests 1": true}
	for _, m := range regexp.MustCompile(`(?m)^\t\t(shape|alone) (\S+) (.*)$`).FindAllStringSubmatch(string(script), -1) {
		line, _, _ := strings.Cut(m[3], " # ")
		line = strings.NewReplacer("$v32", "", "$indexer", "--preset deepseek-v3.2-indexer", `"$three"`, "412").Replace(line)
		name := m[2]
		if m[1] == "alone" {
			name += " *"
		}
		run[name] = slices.DeleteFunc(flags.FindAllString(line, -1), func(f string) bool { return common[f] })
	}
	require.Equal(t, run, said)
	require.Len(t, run, 18)
}
