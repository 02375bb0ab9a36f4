package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// runs is a folder as scripts/benchmarks.sh leaves it, of figures that are easy to find again.
func runs(t *testing.T) fstest.MapFS {
	t.Helper()
	file := func(command string, write func(w io.Writer) error) *fstest.MapFile {
		var b bytes.Buffer
		fmt.Fprintf(&b, "# machine: A Machine <1>, 2 cores\n# commit: 0123456789ab\n# time: 2026-11-30T18:00Z, load before 0.01\n# command: %s\n", command)
		require.NoError(t, write(&b))
		return &fstest.MapFile{Data: b.Bytes()}
	}
	shape := func(scale float64) func(io.Writer) error {
		return func(w io.Writer) error {
			var rows []Row
			for _, ranks := range []float64{1, 8} {
				r := Row{Verified: true}
				r.Values[ColRanks], r.Values[ColRestoreP50], r.Values[ColTTFLP50] = ranks, 71.5*ranks*scale, 1234*ranks*scale
				r.Values[ColWireRange], r.Values[ColWireBackground], r.Values[ColRestoreShare], r.Values[ColTTFLShare] = 300*ranks, 111, 50, 25
				rows = append(rows, r)
			}
			return WriteRows(w, CSV, rows)
		}
	}
	ratio := RatioRow{Bar: "restore-1", Figure: "ttfl_us_p50 lower", Ours: 10, Theirs: 75, Ratio: 7.5, Low: 7, High: 8, Target: ">= 6", Verdict: Met, Pairs: 7, Ceiling: 41.5, Reference: "15.4x, with <ranks>"}
	missed := ratio
	missed.Bar, missed.Verdict = "tcp-fragments", Missed
	return fstest.MapFS{
		"README.md": {Data: []byte("not a run")},
		"ratios/restore-1.csv": file("spanpool bench ratios", func(w io.Writer) error {
			out := NewRatioWriter(w, CSV)
			require.NoError(t, out.Write(ratio))
			return out.Write(missed)
		}),
		"shapes/restore-link-ranged.csv": file("spanpool bench layerwise --link-gbps 16 --fetch ranged", shape(1)),
		"shapes/restore-link-whole.csv":  file("spanpool bench layerwise --link-gbps 16 --fetch=whole", shape(7)),
		"shapes/restore-tcp-ranged.csv":  file("spanpool bench layerwise --transport tcp", shape(3)),
		"shapes/fill-link-ranged.csv":    file("spanpool bench layerwise --link-gbps 16 --fill 2", shape(2)),
		"ranges.csv": file("spanpool bench ranges", func(w io.Writer) error {
			return WriteRangesRows(w, CSV, []RangesRow{{1728, 1952, 3.25, 1.5, 4, 0, true}, {73_728, 32, 5.75, 3, 6, 2.5, true}})
		}),
		"ranges.json": file("spanpool bench ranges --output json", func(w io.Writer) error {
			return WriteRangesRows(w, JSON, []RangesRow{{64, 32, 0.125, 0.0625, 0.25, 0, true}})
		}),
		"ceiling.csv": file("spanpool bench ceiling", func(w io.Writer) error {
			return WriteCeilingRows(w, CSV, []CeilingRow{{1728, "copy", 2, 13.75, "readv"}})
		}),
		"mixed.csv": file("spanpool bench mixed", func(w io.Writer) error {
			return WriteMixedRows(w, CSV, []MixedRow{{Values: [NumMixedColumns]float64{MixedThreads: 4, MixedSharedArenas: 2, MixedTotal: 1.875}, Verified: true}})
		}),
		"mixed-shared-arena.csv": file("spanpool bench mixed", func(w io.Writer) error {
			return WriteMixedRows(w, CSV, []MixedRow{{Values: [NumMixedColumns]float64{MixedThreads: 4, MixedSharedArenas: 1, MixedTotal: 0.625}, Verified: true}})
		}),
	}
}

func reported(t *testing.T) string {
	t.Helper()
	r, err := ReadReport(runs(t))
	require.NoError(t, err)
	var page bytes.Buffer
	require.NoError(t, r.Write(&page))
	return page.String()
}

// TestThePageShowsWhatTheRunsSay: ours beside whole objects and beside bare loops, bytes by purpose, ranges by size, verdicts, and where
// each comes from.
func TestThePageShowsWhatTheRunsSay(t *testing.T) {
	page := reported(t)
	for _, what := range []string{
		"A Machine &lt;1&gt;, 2 cores", "0123456789ab", "2026-11-30T18:00Z",
		"restore, over a modelled link of 16 Gbit/s", "restore, over tcp", "fill, over a modelled link of 16 Gbit/s",
		">ours 71.5<", ">whole objects 500<", ">bare loops 35.8<", ">ours 572<", ">ours 1234<", ">bare loops 308<",
		">for callers 300, for the pull 111<", ">1 rank, whole objects<",
		">1.7 KiB ranges<", ">ours 3.25<", ">whole objects 1.50<", ">bare loops 4.00<", ">redis 2.50<", ">0.1 KiB ranges<",
		`<td class="met">met</td>`, `<td class="missed">missed</td>`, "1 met.", "1 missed.", ">41.5<", ">&gt;= 6<",
		">an arena a direction 1.88<", ">one shared arena 0.62<", ">13.75<", "spanpool bench layerwise --transport tcp",
	} {
		require.Contains(t, page, what)
	}
	require.NotContains(t, page, "redis 0.00", "what was not there is not drawn")
	require.Equal(t, 3, strings.Count(page, "<details open>")+strings.Count(page, "<details><summary>fill"), "the shape that all know is open")
}

// TestThePageNeedsNothingBesides: no script, and no picture, style, font or address of another place. Its pictures are well formed.
func TestThePageNeedsNothingBesides(t *testing.T) {
	page := reported(t)
	for _, s := range []string{"<script", "src=", "href=", "url(", "@import", "http:", "https:", "//"} {
		require.NotContains(t, page, s)
	}
	pictures := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1)
	require.Len(t, pictures, 2+3*3+1, "ranges of two files, three charts of each shape, and the mixed ones of a way")
	for _, p := range pictures {
		d := xml.NewDecoder(strings.NewReader(p))
		for {
			if _, err := d.Token(); err != nil {
				require.ErrorIs(t, err, io.EOF, p)
				break
			}
		}
		require.Contains(t, p, "aria-label")
	}
}

func TestFilesThatAreNoRunsAreNamed(t *testing.T) {
	for name, tt := range map[string]struct{ file, content, want string }{
		"other columns": {"x.csv", "a,b\n1,2\n", "x.csv: columns a, b are of no benchmark"},
		"ragged":        {"x.csv", "a,b\n1\n", "x.csv: record on line 2"},
		"no JSON":       {"x.json", "{", "x.json: "},
		"nothing":       {"x.txt", "", "no CSV or JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadReport(fstest.MapFS{tt.file: {Data: []byte(tt.content)}})
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, err := ReadReport(os.DirFS(filepath.Join(t.TempDir(), "none")))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestThePageSaysWhatItDoesNotShow: what was cut off, failed, or is of something else does not keep the rest from being shown, and is
// never passed over.
func TestThePageSaysWhatItDoesNotShow(t *testing.T) {
	all := runs(t)
	whole := all["ranges.csv"].Data
	all["cut.csv"] = &fstest.MapFile{Data: whole[:len(whole)-4]}
	all["ragged.csv"] = &fstest.MapFile{Data: append(whole[:len(whole)-10:len(whole)-10], '\n')}
	all["head.csv"] = &fstest.MapFile{Data: []byte("bar,figure\n")}
	all["empty.csv"] = &fstest.MapFile{Data: []byte("# command: x\n")}
	all["nothing.csv"] = &fstest.MapFile{}
	all["other.csv"] = &fstest.MapFile{Data: []byte("a,b\n1,2\n")}
	all["cut.json"] = &fstest.MapFile{Data: []byte(`[{"range_bytes": 64}`)}
	all["ratios/restore-1.failed"] = &fstest.MapFile{}
	all["shapes/zz/restore-tcp.csv"] = all["shapes/restore-tcp-ranged.csv"]
	r, err := ReadReport(all)
	require.NoError(t, err)
	var page bytes.Buffer
	require.NoError(t, r.Write(&page))
	for _, what := range []string{"cut.csv: cut off in the middle of a line", "ragged.csv: record on line 3: wrong number of fields", "head.csv: no row",
		"empty.csv: no row", "nothing.csv: no row", "other.csv: columns a, b are of no benchmark", "cut.json: unexpected EOF", "ratios/restore-1.failed: the last run of it failed",
		"shapes/zz/restore-tcp.csv: it would take the place of shapes/restore-tcp-ranged.csv, a run of the same name over tcp"} {
		require.Contains(t, page.String(), "<li>"+what)
	}
	require.Len(t, r.Unread, 9)
	require.Contains(t, page.String(), ">ours 71.5<", "the rest is there")
	require.Contains(t, page.String(), "No run is here of: restore-8, ")
	require.NotContains(t, reported(t), "Not shown")
}

// TestThePageClaimsNoMoreThanItsRuns: rows that nobody checked, or with a wrong read, are named where the others are vouched for; what was
// not run says why; rows of an earlier commit, with fewer columns, are shown as what they are.
func TestThePageClaimsNoMoreThanItsRuns(t *testing.T) {
	require.Contains(t, reported(t), "Every byte of these runs was verified")
	require.NotContains(t, reported(t), "not all of one commit")
	all := runs(t)
	row := func(verified bool, failed float64) *fstest.MapFile {
		r := Row{Verified: verified}
		r.Values[ColRanks], r.Values[ColFailedReads] = 1, failed
		var b bytes.Buffer
		require.NoError(t, WriteRows(&b, CSV, []Row{r}))
		return &fstest.MapFile{Data: b.Bytes()}
	}
	all["shapes/unchecked-tcp-ranged.csv"], all["shapes/wrong-tcp-ranged.csv"], all["shapes/right-tcp-ranged.csv"] = row(false, 0), row(true, 2), row(true, 0)
	all["ratios/older.csv"] = &fstest.MapFile{Data: []byte("# commit: 00old\nbar,figure,ours,theirs,ratio,target,verdict,reference\nrestore-8,f,1,2,3,>= 4,missed,r\ntcp-redis,f,0,0,0,>= 1,not run,not run: nobody there\n")}
	r, err := ReadReport(all)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, r.Write(&b))
	page := b.String()
	require.NotContains(t, page, "Every byte of these runs was verified")
	require.Contains(t, page, "a read was wrong: shapes/unchecked-tcp-ranged.csv, shapes/wrong-tcp-ranged.csv.")
	require.Contains(t, page, "not all of one commit")
	require.Contains(t, page, `<td data-is="commit">00old</td>`)
	require.Contains(t, page, "not run: nobody there")
	require.Contains(t, page, `data-is="noisy pairs">?<`, "it is not known, which is not none")
	require.Contains(t, page, "2 missed. ")
	require.Empty(t, r.Unread)
}

func TestFlagsAreReadOffCommands(t *testing.T) {
	require.Equal(t, map[string]string{"transport": "tcp", "fetch": "whole", "no-prefetch": "true", "ranks": "1,2"},
		flagsOf("spanpool bench layerwise --transport tcp --no-prefetch --fetch=whole --ranks 1,2"))
}

// measured is what the page says of itself in a browser.
type measured struct {
	Width, Scroll, Inner   float64 // of the document, what it would scroll to, and of the window
	Smallest               float64 // text, in pixels of the screen
	Contrast               float64 // the least between text and what is behind it
	Dark                   bool
	Pictures, Cut, Overlap int // pictures that are drawn; text that leaves its picture; text on text
}

// probe runs in the page and tells its frame what it measured.
const probe = `<script>addEventListener('load', () => {
for (const d of document.querySelectorAll('details')) d.open = true;
const lum = c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)$|transparent/.test(c)) return c } return 'rgb(255,255,255)' };
let smallest = 99, contrast = 99, cut = 0, overlap = 0;
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let n; n = walk.nextNode();) {
  const e = n.parentElement; if (!n.data.trim() || ['STYLE', 'SCRIPT'].includes(e.tagName) || !e.getClientRects().length) continue;
  const s = getComputedStyle(e), svg = e.closest('svg'), scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  smallest = Math.min(smallest, parseFloat(s.fontSize) * scale);
  const a = lum(svg ? s.fill : s.color), b = lum(behind(e)); contrast = Math.min(contrast, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
}
const svgs = [...document.querySelectorAll('svg')];
for (const svg of svgs) {
  const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect());
  for (const t of texts) if (t.left < box.left - 1 || t.right > box.right + 1 || t.bottom > box.bottom + 1) cut++;
  texts.forEach((p, i) => texts.slice(i + 1).forEach(q => { if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3) overlap++ }));
}
parent.postMessage(JSON.stringify({Width: document.documentElement.clientWidth, Scroll: document.documentElement.scrollWidth, Inner: innerWidth, Smallest: smallest,
  Contrast: contrast, Dark: matchMedia('(prefers-color-scheme: dark)').matches, Pictures: svgs.filter(s => s.getBoundingClientRect().height > 20).length, Cut: cut, Overlap: overlap}), '*');
})</script>`

// browsers are what Chromium is called.
var browsers = []string{"chromium", "chromium-browser", "google-chrome"}

// inBrowser opens a page in a frame of a width, in a theme, and returns what it measured.
func inBrowser(t *testing.T, browser, page string, width int, dark bool) measured {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page.html"), []byte(strings.Replace(page, "</body>", probe+"</body>", 1)), 0o644))
	frame := fmt.Sprintf(`<!doctype html><meta name="color-scheme" content="light dark"><p id="said"></p><script>addEventListener('message', e => { said.textContent = e.data })</script><iframe src="page.html" style="border:0;width:%dpx;height:900px"></iframe>`, width)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "frame.html"), []byte(frame), 0o644))
	profile, err := os.MkdirTemp("", "spanpool-browser")
	require.NoError(t, err)
	t.Cleanup(func() { // a browser's other processes end, and write there, a moment after it
		require.Eventually(t, func() bool { return os.RemoveAll(profile) == nil }, 20*time.Second, 10*time.Millisecond)
	})
	scheme := 1 // light, in Chromium's numbers
	if dark {
		scheme = 0
	}
	c := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000",
		fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme), "--user-data-dir="+profile, "--virtual-time-budget=20000",
		"--timeout=60000", "--dump-dom", "file://"+filepath.Join(dir, "frame.html"))
	var problems bytes.Buffer
	c.Stderr = &problems
	c.WaitDelay = 5 * time.Second
	dom, err := c.Output()
	require.NoError(t, err, "%s", &problems)
	said := regexp.MustCompile(`<p id="said">(.*?)</p>`).FindSubmatch(dom)
	require.NotNil(t, said, "%s", dom)
	var m measured
	require.NoError(t, json.Unmarshal(said[1], &m), "%s; %s", said[1], &problems)
	return m
}

// TestThePageIsReadableInABrowser: on a phone and on a desk, light and dark, it does not scroll sideways, its text is neither small nor
// faint, and no text of a picture is cut or written over another.
func TestThePageIsReadableInABrowser(t *testing.T) {
	browser := ""
	for _, name := range browsers {
		if p, err := exec.LookPath(name); err == nil && browser == "" {
			browser = p
		}
	}
	if browser == "" {
		t.Skipf("none of %s is installed; on Debian: apt-get install chromium", strings.Join(browsers, ", "))
	}
	page := reported(t)
	for _, width := range []int{390, 1200} {
		for _, dark := range []bool{false, true} {
			t.Run(fmt.Sprintf("width=%d/dark=%v", width, dark), func(t *testing.T) {
				m := inBrowser(t, browser, page, width, dark)
				require.EqualValues(t, width, m.Inner)
				require.LessOrEqual(t, m.Scroll, m.Width, "it scrolls sideways")
				require.Equal(t, dark, m.Dark)
				require.GreaterOrEqual(t, m.Smallest, 10.5, "pixels of the smallest text")
				require.GreaterOrEqual(t, m.Contrast, 4.5, "the least contrast of text")
				require.Equal(t, 2+3*3+1, m.Pictures)
				require.Zero(t, m.Cut, "text that leaves its picture")
				require.Zero(t, m.Overlap, "text over text")
			})
		}
	}
}
