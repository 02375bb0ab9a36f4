package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// What a ratio is made of (rules.md section 7).
const (
	DefaultPairs = 7
	maxRepeats   = 7
)

// sample is the figures that one side of a pair reached.
type sample struct {
	figures []float64
	noise   Noise
}

// side measures once.
type side func(ctx context.Context) (sample, error)

// sense is how the figures of a pair make a ratio.
type sense uint8

const (
	oursOverTheirs sense = iota
	theirsOverOurs       // how many times lower ours is
)

// bar is a ratio that is to be reached. Figure is its place in the samples. A bar without a bound is reported.
type bar struct {
	name      string
	figure    int
	sense     sense
	atLeast   float64                         // 0: no such bound
	atMost    float64                         // 0: no such bound
	share     func(figures []float64) float64 // of the ceiling that ours reached, in percent; nil: its figures do not tell
	ceiling   float64                         // what nothing can be above; 0: not known
	bare      bool                            // theirs is the ceiling
	reference string                          // what the reference published for it, or for what comes nearest
}

// neverAbove is what "never above" means, and its inverse "never below".
const neverAbove = 1.05

func (b *bar) ratio(ours, theirs float64) float64 {
	if b.sense == theirsOverOurs {
		ours, theirs = theirs, ours
	}
	if theirs == 0 {
		return 0
	}
	return ours / theirs
}

func (b *bar) target() string {
	switch {
	case b.atLeast > 0:
		return fmt.Sprintf(">= %.3g", b.atLeast)
	case b.atMost > 0:
		return fmt.Sprintf("<= %.3g", b.atMost)
	}
	return "reported"
}

// verdict says whether a ratio is what the bar asks for.
func (b *bar) verdict(ratio float64) Verdict {
	switch {
	case b.atLeast == 0 && b.atMost == 0:
		return Reported
	case b.atLeast > 0 && ratio < b.atLeast, b.atMost > 0 && ratio > b.atMost:
		return Missed
	}
	return Met
}

// Verdict is what became of a bar.
type Verdict string

// The verdicts.
const (
	Met      Verdict = "met"
	Missed   Verdict = "missed"
	Reported Verdict = "reported"
	NotRun   Verdict = "not run"
)

// pairing is two sides that are measured in turns, and the bars that their samples are held to.
type pairing struct {
	name         string
	what         string // in words, with what stands against what
	link         LinkSpec
	ours, theirs side
	bars         []bar
	once         bool                    // counted, not timed: one pair says it
	end          func() error            // gives back what the sides share; nil: nothing
	ceiling      func() (float64, error) // of all of its bars, asked for before they are measured; nil: they have their own, or none
	absent       func() string           // why what it stands against is not on this machine; empty, or nil: it is
}

// pairs is what a pairing came to.
type pairs struct {
	ours, theirs []sample
	repeats      int
	noisy        int // pairs that count though they missed
	noise        Noise
}

// measure takes n pairs. Which side goes first alternates, so that what drifts favours neither. A pair that was measured under
// too much noise is repeated, as long as there are repeats left; then it counts, and is marked.
func (p *pairing) measure(ctx context.Context, n int, step func(done int)) (*pairs, error) {
	out := &pairs{}
	for turn := 0; len(out.ours) < n; turn++ {
		step(len(out.ours))
		ours, theirs, err := p.pair(ctx, turn%2 == 1)
		if err != nil {
			return out, err
		}
		noise := ours.noise.worse(theirs.noise)
		quiet := noise.quiet(p.link)
		if !quiet && out.repeats < maxRepeats {
			out.repeats++
			continue
		}
		if !quiet {
			out.noisy++
		}
		out.noise = out.noise.worse(noise)
		out.ours, out.theirs = append(out.ours, ours), append(out.theirs, theirs)
	}
	return out, nil
}

func (p *pairing) pair(ctx context.Context, theirsFirst bool) (ours, theirs sample, err error) {
	take := func(who string, of side, into *sample) {
		if err != nil {
			return
		}
		if *into, err = of(ctx); err != nil {
			err = fmt.Errorf("%s: %w", who, err)
		}
	}
	if theirsFirst {
		take("theirs", p.theirs, &theirs)
	}
	take("ours", p.ours, &ours)
	if !theirsFirst {
		take("theirs", p.theirs, &theirs)
	}
	return ours, theirs, err
}

// rows holds every bar to the median of its pairs' ratios.
func (p *pairing) rows(m *pairs) []RatioRow {
	var rows []RatioRow
	for i := range p.bars {
		b := &p.bars[i]
		var ratios, ours, theirs []float64
		for k := range m.ours {
			o, t := m.ours[k].figures[b.figure], m.theirs[k].figures[b.figure]
			ours, theirs, ratios = append(ours, o), append(theirs, t), append(ratios, b.ratio(o, t))
		}
		row := RatioRow{Bar: p.name, Figure: b.name, What: p.what, Target: b.target(), Reference: b.reference,
			Pairs: len(ratios), Repeats: m.repeats, Noisy: m.noisy, Noise: m.noise}
		row.Ours, row.Theirs, row.Ratio = median(ours), median(theirs), median(ratios)
		row.Low, row.High = slices.Min(ratios), slices.Max(ratios)
		row.Verdict = b.verdict(row.Ratio)
		row.Ceiling = b.shareOf(m, &row)
		rows = append(rows, row)
	}
	return rows
}

// shareOf is what share of the ceiling ours reached, in percent.
func (b *bar) shareOf(m *pairs, row *RatioRow) float64 {
	switch {
	case b.bare:
		return 100 * row.Ratio
	case b.ceiling > 0:
		return percent(row.Ours, b.ceiling)
	case b.share == nil:
		return 0
	}
	var shares []float64
	for _, s := range m.ours {
		shares = append(shares, b.share(s.figures))
	}
	return median(shares)
}

// notRun is the rows of a pairing that cannot be measured here. They say why in the place of the reference.
func (p *pairing) notRun(why string) []RatioRow {
	var rows []RatioRow
	for _, b := range p.bars {
		rows = append(rows, RatioRow{Bar: p.name, Figure: b.name, What: p.what, Target: b.target(), Verdict: NotRun, Reference: "not run: " + why})
	}
	return rows
}

// errNoSample is a run that came to no figures without an error of its own.
var errNoSample = errors.New("no figures")
