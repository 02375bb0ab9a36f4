package bench

import (
	"fmt"
	"html"
	"html/template"
	"strconv"
	"strings"
)

// barChart is horizontal bars in groups: every bar has its name and its value beside it, so that colour says nothing alone, and the
// text is as wide as a phone.
type barChart struct {
	title, unit string
	groups      []barGroup
	stacked     bool // the bars of a group are parts of one
}

type barGroup struct {
	label string
	bars  []barOf
}

type barOf struct {
	name, class string
	value       float64
}

// Measures in units of the picture, which is a phone's width; on a wider screen it is no larger than a third more.
const (
	chartWidth  = 360.0
	chartBars   = 190.0 // of the longest; what is left is for its name and value
	chartLine   = 17.0
	chartBar    = 12.0
	chartGap    = 8.0
	chartBottom = 4.0
)

func (c *barChart) svg() template.HTML {
	longest := 0.0
	for _, g := range c.groups {
		longest = max(longest, g.length(c.stacked))
	}
	var b strings.Builder
	y := 0.0
	for _, g := range c.groups {
		y += chartLine
		fmt.Fprintf(&b, `<text class="group" x="0" y="%.1f">%s</text>`, y-4, html.EscapeString(g.label))
		if c.stacked {
			y = c.stack(&b, g, y, longest)
		} else {
			y = c.apart(&b, g, y, longest)
		}
		y += chartGap
	}
	height := y + chartBottom
	title := html.EscapeString(c.title + ", " + c.unit)
	return template.HTML(fmt.Sprintf(`<figure><figcaption>%s</figcaption><svg role="img" aria-label="%s" viewBox="0 0 %.0f %.0f">%s</svg></figure>`,
		title, title, chartWidth, height, b.String()))
}

func (g *barGroup) length(stacked bool) (longest float64) {
	for _, s := range g.bars {
		if stacked {
			longest += s.value
		} else {
			longest = max(longest, s.value)
		}
	}
	return longest
}

// apart draws a bar a line.
func (c *barChart) apart(b *strings.Builder, g barGroup, y, longest float64) float64 {
	for _, s := range g.bars {
		width := scaled(s.value, longest)
		fmt.Fprintf(b, `<rect class="%s" x="0" y="%.1f" width="%.1f" height="%.1f" rx="2"/>`, s.class, y, width, chartBar)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s %s</text>`, width+5, y+chartBar-1.5, html.EscapeString(s.name), figureText(s.value))
		y += chartLine
	}
	return y
}

// stack draws the parts of a group behind each other, and their names and values below.
func (c *barChart) stack(b *strings.Builder, g barGroup, y, longest float64) float64 {
	x := 0.0
	var words []string
	for _, s := range g.bars {
		width := scaled(s.value, longest) * chartWidth / chartBars
		if s.value > 0 {
			fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2"/>`, s.class, x, y, width, chartBar)
			words = append(words, s.name+" "+figureText(s.value))
		}
		x += width
	}
	if len(words) == 0 {
		words = append(words, "nothing crossed")
	}
	fmt.Fprintf(b, `<text x="0" y="%.1f">%s</text>`, y+2*chartLine-5, html.EscapeString(strings.Join(words, ", ")))
	return y + 2*chartLine
}

// scaled is at least a line that can be seen.
func scaled(v, longest float64) float64 {
	if longest <= 0 || v <= 0 {
		return 0
	}
	return max(v/longest*chartBars, 1)
}

// figureText has three digits that say something.
func figureText(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
