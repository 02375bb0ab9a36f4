package daemon

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/client"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// scrape is a page of metrics: the families of ours, and what each series says.
type scrape struct {
	families map[string]*family
	values   map[string]float64 // by name and labels, as the page has them
}

type family struct {
	kind, help string
	labels     map[string]map[string]bool // the values of each
}

var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

func scraped(t *testing.T, d *Daemon) *scrape {
	t.Helper()
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get("http://" + d.At.HTTP + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode)
	page, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return parsed(t, string(page))
}

func parsed(t *testing.T, page string) *scrape {
	t.Helper()
	s := &scrape{map[string]*family{}, map[string]float64{}}
	for line := range strings.Lines(page) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 4)
		switch {
		case len(words) == 4 && words[1] == "HELP" && strings.HasPrefix(words[2], "spanpool_"):
			s.families[words[2]] = &family{help: words[3], labels: map[string]map[string]bool{}}
		case len(words) == 4 && words[1] == "TYPE" && s.families[words[2]] != nil:
			s.families[words[2]].kind = words[3]
		case strings.HasPrefix(line, "spanpool_"):
			series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			v, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err, line)
			s.values[series] = v
			name, _, _ := strings.Cut(series, "{")
			f := s.families[name]
			if f == nil { // of a histogram
				f = s.families[strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")]
			}
			require.NotNil(t, f, line)
			f.add(series)
		}
	}
	return s
}

func (f *family) add(series string) {
	for _, l := range label.FindAllStringSubmatch(series, -1) {
		if l[1] == "le" {
			continue // the bounds of buckets are the histogram's own
		}
		if f.labels[l[1]] == nil {
			f.labels[l[1]] = map[string]bool{}
		}
		f.labels[l[1]][l[2]] = true
	}
}

// sum adds all series of a family: of a histogram, its samples.
func (s *scrape) sum(name string) (sum float64) {
	if f := s.families[name]; f != nil && f.kind == "histogram" {
		name += "_count"
	}
	for series, v := range s.values {
		if n, _, _ := strings.Cut(series, "{"); n == name {
			sum += v
		}
	}
	return sum
}

// open are labels whose values are names of nodes and transports; the values of all others are the same on every node.
var open = map[string]bool{"peer": true, "transport": true}

// table is what docs/metrics.md says of the families.
func (s *scrape) table() string {
	var b strings.Builder
	b.WriteString("| series | type | unit | labels | meaning |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(s.families)) {
		f := s.families[name]
		var labels []string
		for _, l := range slices.Sorted(maps.Keys(f.labels)) {
			if open[l] {
				labels = append(labels, "`"+l+"`")
			} else {
				labels = append(labels, "`"+l+"`: "+strings.Join(slices.Sorted(maps.Keys(f.labels[l])), ", "))
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, f.kind, unitOf(name), strings.Join(labels, "; "), f.help)
	}
	return b.String()
}

func unitOf(name string) string {
	switch {
	case strings.HasSuffix(strings.TrimSuffix(name, "_total"), "_bytes"):
		return "bytes"
	case strings.HasSuffix(name, "_bytes_per_second"):
		return "bytes/s"
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	}
	return "1"
}

const tableBegins, tableEnds = "<!-- the table is written by go test ./cmd/spanpool/daemon -run TestThePageAboutMetricsIsRight -update -->\n", "<!-- end of the table -->\n"

// TestThePageAboutMetricsIsRight: the table is the golden list of names, types, labels and their values. It is taken from a node on
// which nothing has happened, so every series is there from the start.
func TestThePageAboutMetricsIsRight(t *testing.T) {
	const path = "../../../docs/metrics.md"
	a, b := pair(t, "shm")
	linked(t, b)
	s := scraped(t, a)
	for name, f := range scraped(t, b).families { // of peers, of which a has none
		if strings.HasPrefix(name, "spanpool_peer_") {
			s.families[name] = f
		}
	}
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(page), tableBegins)
	require.True(t, ok, "%s has no line %q", path, tableBegins)
	have, after, ok := strings.Cut(rest, tableEnds)
	require.True(t, ok, "%s has no line %q", path, tableEnds)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+tableBegins+s.table()+tableEnds+after), 0o644))
		return
	}
	require.Equal(t, s.table(), have, "%s is not what a node shows", path)
}

// TestQueriesOfThePageNameWhatIsThere: series, labels and values in the text are those of the table.
func TestQueriesOfThePageNameWhatIsThere(t *testing.T) {
	page, err := os.ReadFile("../../../docs/metrics.md")
	require.NoError(t, err)
	text, rest, _ := strings.Cut(string(page), tableBegins)
	table, after, _ := strings.Cut(rest, tableEnds)
	rows := map[string]string{}
	for row := range strings.Lines(table) {
		if name := regexp.MustCompile("^\\| `([a-z_]+)`").FindStringSubmatch(row); name != nil {
			rows[name[1]] = row
		}
	}
	elsewhere := regexp.MustCompile(`^spanpool_(gpu|rdma)_`)
	used := regexp.MustCompile(`(?:by \(([a-z, ]+)\) \((?:rate|increase)\()?(spanpool_[a-z_]+[a-z])\b(_\*)?(?:\{([a-z]+)="([a-z_]+)"\})?`)
	found := 0
	for _, m := range used.FindAllStringSubmatch(text+after, -1) {
		if m[3] != "" || elsewhere.MatchString(m[2]) {
			continue
		}
		found++
		row := rows[strings.TrimSuffix(m[2], "_bucket")]
		require.NotEmpty(t, row, "%s is in no row", m[2])
		for _, label := range append(strings.Split(m[1], ", "), m[4]) {
			require.True(t, label == "" || label == "le" || strings.Contains(row, "`"+label+"`"), "%s: no label %s in %s", m[0], label, row)
		}
		require.True(t, m[5] == "" || regexp.MustCompile(`[ :]`+m[5]+`[,;| ]`).MatchString(row), "%s: no value %s in %s", m[0], m[5], row)
	}
	require.Greater(t, found, 20)
}

// pair is a node, and one that knows it.
func pair(t *testing.T, transport string) (a, b *Daemon) {
	t.Helper()
	file := secretFile(t)
	// Leases and holds outlast the test on any machine, so that nothing is fetched twice and what is held is seen; the stop waits for the
	// drain then.
	small := []string{"--transport", transport, "--secret-file", file, "--dram-page-bytes", "4KiB", "--lease", "1m", "--hold", "1m", "--drain", "100ms"}
	a = started(t, small...)
	return a, started(t, append(small, "--node-id", "b", "--peers", "a="+a.At.Control)...)
}

// linked waits until d has a link to its peer.
func linked(t *testing.T, d *Daemon) {
	t.Helper()
	require.Eventually(t, func() bool { return d.Node.Stats().Peers != nil && d.Node.Stats().Peers[0].Transport != "" }, 10*time.Second, 5*time.Millisecond)
}

// elsewhere are families of which the run below leaves a series still, and the test that sees to it that each series of theirs moves: TestMain
// is of a package whose tests fail when they leave one still.
var elsewhere = map[string]string{
	"spanpool_arena_rounds_total":          "app.TestMain",
	"spanpool_arena_used_bytes":            "app.TestMain",
	"spanpool_arena_waiting":               "app.TestMain",
	"spanpool_arena_waits_total":           "app.TestMain",
	"spanpool_calls_in_progress":           "app.TestMain",
	"spanpool_complaints_lost_total":       "app.TestMain",
	"spanpool_complaints_made_total":       "app.TestMain",
	"spanpool_complaints_total":            "app.TestMain",
	"spanpool_control_refused_total":       "adapters/grpcpeer.TestMain",
	"spanpool_corrupt_ranges_total":        "app.TestMain",
	"spanpool_dooms_total":                 "app.TestMain",
	"spanpool_downgrades_total":            "app.TestMain",
	"spanpool_duplicate_bytes_total":       "app.TestMain",
	"spanpool_engine_ended_total":          "adapters/engine.TestMain",
	"spanpool_engine_events_total":         "adapters/engine.TestMain",
	"spanpool_engine_refused_total":        "adapters/engine.TestMain",
	"spanpool_flights_joined_total":        "app.TestMain",
	"spanpool_get_duration_seconds":        "adapters/telemetry.TestEveryRouteThatMovedAByteGivesASample",
	"spanpool_get_hits_total":              "app.TestMain",
	"spanpool_get_keys_total":              "app.TestMain",
	"spanpool_get_outcomes_total":          "app.TestMain",
	"spanpool_get_rate_bytes_per_second":   "adapters/telemetry.TestEveryRouteThatMovedAByteGivesASample",
	"spanpool_install_failures_total":      "app.TestMain",
	"spanpool_installed_bytes_total":       "app.TestMain",
	"spanpool_installed_objects_total":     "app.TestMain",
	"spanpool_leases_renewed_total":        "app.TestMain",
	"spanpool_leases_stale_total":          "app.TestMain",
	"spanpool_log_held_back_total":         "cmd/spanpool/daemon.TestWarningsThatRepeatAreLimitedAndCounted",
	"spanpool_memory_huge_bytes":           "adapters/dram.TestHugePagesAreHadOrCounted",
	"spanpool_peer_breaker_open":           "app.TestPeerThatFailsCostsItsOwnKeysOnly",
	"spanpool_peer_failing":                "app.TestMembersAreMetBeforeACallNeedsThem",
	"spanpool_peer_links_lost_total":       "app.TestALinkThatIsLostFallsBackAndComesBack",
	"spanpool_peer_thrown_bytes_total":     "adapters/tcp.TestACancelledCallCostsItsNeighboursNothing",
	"spanpool_peer_transports_refused":     "app.TestALinkThatIsLostFallsBackAndComesBack",
	"spanpool_peer_wire_bytes_total":       "app.TestMain",
	"spanpool_pins":                        "app.TestMain",
	"spanpool_pull_deduped_total":          "app.TestMain",
	"spanpool_pull_dropped_total":          "app.TestMain",
	"spanpool_pull_failed_total":           "app.TestMain",
	"spanpool_pull_waiting":                "app.TestMain",
	"spanpool_put_duration_seconds":        "adapters/telemetry.TestEveryRouteThatMovedAByteGivesASample",
	"spanpool_put_keys_total":              "app.TestMain",
	"spanpool_put_outcomes_total":          "app.TestMain",
	"spanpool_put_rate_bytes_per_second":   "adapters/telemetry.TestEveryRouteThatMovedAByteGivesASample",
	"spanpool_revokes_pending":             "app.TestMain",
	"spanpool_shm_refused_total":           "adapters/shm.TestMain",
	"spanpool_slot_pages":                  "app.TestMain",
	"spanpool_slots":                       "app.TestMain",
	"spanpool_tcp_connections_ended_total": "adapters/tcp.TestMain",
	"spanpool_tcp_served_bytes_total":      "adapters/tcp.TestMain", // with shm nothing is read by it
	"spanpool_tracing_spans_total":         "adapters/telemetry.TestSpansAreCountedByWhetherTheyWereTaken",
	"spanpool_unverified_bytes_total":      "app.TestMain",
}

// TestWhatMovesOtherSeriesIsThere: the tests that are named for them exist.
func TestWhatMovesOtherSeriesIsThere(t *testing.T) {
	for family, where := range elsewhere {
		folder, test, _ := strings.Cut(where, ".")
		files, err := filepath.Glob("../../../" + folder + "/*_test.go")
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(files, func(name string) bool {
			b, err := os.ReadFile(name)
			return err == nil && bytes.Contains(b, []byte("\nfunc "+test+"("))
		}), "%s: there is no %s", family, where)
	}
}

// seriesOf takes a series' family from its name; of a histogram only its samples are a series here.
func (s *scrape) seriesOf(series string) (family string, counts bool) {
	name, _, _ := strings.Cut(series, "{")
	if s.families[name] != nil {
		return name, true
	}
	return strings.CutSuffix(name, "_count")
}

const objectBytes = 100_000 // larger than an arena: puts go in rounds

// TestMetricsFollowWhatNodesDo: two nodes, every public operation, and then what must be true of any node's counts.
func TestMetricsFollowWhatNodesDo(t *testing.T) {
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) { metricsFollow(t, transport) })
	}
}

func metricsFollow(t *testing.T, transport string) {
	a, b := pair(t, transport)
	linked(t, b)
	object := bytes.Repeat([]byte("pool"), objectBytes/4)
	put := func(d *Daemon, key string) {
		require.Equal(t, ports.Stored, d.Node.Put(t.Context(), "ns", key, ports.HostRegionOf(object)).Status)
	}
	get := func(key string) ports.Result {
		return b.Node.Get(t.Context(), "ns", key, ports.HostRegionOf(make([]byte, objectBytes)))
	}
	for _, key := range []string{"whole", "ranged"} {
		put(a, key)
	}
	put(b, "own")
	require.Equal(t, ports.FromLocal, get("own").Source)
	require.Equal(t, ports.FromSlot, get("whole").Source)
	require.Equal(t, ports.NotFound, get("nowhere").Status)
	var out [1]ports.Result
	require.NoError(t, b.Node.BatchGetRanges(t.Context(), &ports.GetBatch{Namespace: "ns", Keys: []string{"ranged"}, End: []uint32{1},
		Ranges: []domain.Range{{Off: 7, Len: 1000}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(make([]byte, 1000))}}}, out[:]))
	require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
	require.Eventually(t, func() bool { return b.Node.Stats().PullDone == 1 }, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, b.Node.BatchPut(t.Context(), &ports.WholeBatch{Namespace: "ns", Keys: []string{"given"}, To: "a",
		Targets: []ports.Target{{Len: objectBytes}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(object)}}}, out[:]))
	require.Equal(t, ports.Stored, out[0].Status, "%v", out[0].Err)
	_, err := b.Node.OpenRead(t.Context(), "ns")
	require.NoError(t, err)
	_, err = b.Node.BatchExists(t.Context(), "ns", []string{"own"}, time.Minute, make([]bool, 1))
	require.NoError(t, err)
	require.NoError(t, b.Node.Remove(t.Context(), "ns", []string{"whole"}, make([]ports.Removal, 1)))
	intrude(t, a)
	lend(t, b)

	sa, sb := scraped(t, a), scraped(t, b)
	for series := range sb.values {
		if family, counts := sb.seriesOf(series); counts && elsewhere[family] == "" {
			require.Positive(t, sa.values[series]+sb.values[series], "%s: nothing moved it", series)
		}
	}
	for family := range elsewhere {
		if family != "spanpool_shm_refused_total" || transport == "shm" {
			require.Contains(t, sb.families, family)
		}
	}
	for series, want := range map[string]float64{
		`spanpool_get_keys_total{status="hit"}`: 3, `spanpool_get_keys_total{status="not_found"}`: 1, `spanpool_get_calls_total`: 4,
		`spanpool_get_outcomes_total{mode="whole",outcome="hit",route="local"}`:      1,
		`spanpool_get_outcomes_total{mode="whole",outcome="hit",route="slot"}`:       1,
		`spanpool_get_outcomes_total{mode="whole",outcome="failed",route="nowhere"}`: 1,
		`spanpool_get_outcomes_total{mode="ranges",outcome="hit",route="slot"}`:      1,
		`spanpool_put_outcomes_total{mode="whole",outcome="stored",route="local"}`:   1,
		`spanpool_put_outcomes_total{mode="whole",outcome="stored",route="arena"}`:   1,
		`spanpool_get_hits_total{source="local"}`:                                    1, `spanpool_get_hits_total{source="slot"}`: 2,
		`spanpool_put_keys_total{status="stored"}`: 2, `spanpool_put_bytes_total`: objectBytes,
		`spanpool_wire_bytes_total{purpose="get"}`: objectBytes + 1000, `spanpool_wire_bytes_total{purpose="pull"}`: objectBytes - 1000,
		`spanpool_wire_bytes_total{purpose="put"}`:                                    objectBytes,
		`spanpool_caller_bytes_total`:                                                 2*objectBytes + 1000,
		`spanpool_installed_bytes_total{way="slot"}`:                                  objectBytes,
		`spanpool_installed_objects_total{way="pull"}`:                                1,
		`spanpool_get_duration_seconds_count{mode="whole",route="local"}`:             1,
		`spanpool_get_duration_seconds_count{mode="whole",route="slot"}`:              1,
		`spanpool_get_rate_bytes_per_second_count{mode="ranges",route="slot"}`:        1,
		`spanpool_put_rate_bytes_per_second_count{mode="whole",route="local"}`:        1,
		`spanpool_put_duration_seconds_count{mode="whole",route="arena"}`:             1,
		`spanpool_dooms_total{cause="removed"}`:                                       1,
		`spanpool_peer_up{peer="a"}`:                                                  1,
		`spanpool_peer_link{direction="read",peer="a",transport="` + transport + `"}`: 1, `spanpool_peer_link{direction="write",peer="a",transport="tcp"}`: 1,
		`spanpool_memory_bytes{part="medium"}`: 1 << 20,
		`spanpool_sessions`:                    1,
		`spanpool_engine_clients`:              1, `spanpool_engine_region_bytes`: 4096, `spanpool_engine_refused_total{reason="gone"}`: 1,
		`spanpool_engine_ended_total{reason="closed"}`: 1, `spanpool_engine_events_total{event="clients"}`: 2,
	} {
		require.Equal(t, want, sb.values[series], series)
	}
	require.Positive(t, sa.values[`spanpool_control_refused_total{reason="unproven"}`])
	require.Positive(t, sa.values[`spanpool_tcp_connections_ended_total{reason="garbage"}`])
	conserved(t, sb, 4, 2)
	require.Equal(t, sb.values[`spanpool_wire_bytes_total{purpose="put"}`], sa.values["spanpool_tcp_applied_bytes_total"])
	if transport == "tcp" {
		require.Equal(t, sb.sum("spanpool_wire_bytes_total"), sa.sum("spanpool_tcp_applied_bytes_total")+sa.sum("spanpool_tcp_served_bytes_total"))
	} else {
		require.Equal(t, 1.0, sa.sum("spanpool_shm_links_inbound"))
		require.EqualValues(t, 1<<20, sb.sum("spanpool_shm_mapped_bytes"))
	}
}

// conserved is what must be true of a node that asked for gets keys and gave puts, and is at rest.
func conserved(t *testing.T, s *scrape, gets, puts float64) {
	t.Helper()
	require.Equal(t, gets, s.sum("spanpool_get_keys_total"), "asked = hits + each kind of failure")
	require.Equal(t, puts, s.sum("spanpool_put_keys_total"), "given = stored + each kind of failure")
	require.Equal(t, s.values[`spanpool_get_keys_total{status="hit"}`], s.sum("spanpool_get_hits_total"), "every hit came from somewhere")
	require.Equal(t, gets, s.sum("spanpool_get_outcomes_total"), "by mode, route and outcome as many")
	require.Equal(t, puts, s.sum("spanpool_put_outcomes_total"), "by mode, route and outcome as many")
	require.Equal(t, s.sum("spanpool_pull_queued_total"), s.sum("spanpool_pull_done_total")+s.sum("spanpool_pull_dropped_total")+
		s.sum("spanpool_pull_failed_total")+s.sum("spanpool_pull_waiting"), "queued = done + dropped + failed + waiting")
	require.Equal(t, s.sum("spanpool_wire_bytes_total"), s.sum("spanpool_peer_wire_bytes_total"), "what crossed, crossed to some peer")
	put := s.values[`spanpool_wire_bytes_total{purpose="put"}`]
	require.Equal(t, s.sum("spanpool_wire_bytes_total")-put, s.sum("spanpool_needed_bytes_total")+s.sum("spanpool_duplicate_bytes_total"),
		"get + pull = needed + duplicate")
	require.Equal(t, s.sum("spanpool_installed_bytes_total"), s.sum("spanpool_needed_bytes_total"), "every key has become local")
	require.Equal(t, s.sum("spanpool_pages"), s.sum("spanpool_pages_free")+s.sum("spanpool_slot_pages"), "a page is free or a slot's")
}

// intrude comes to a node's doors without its secret.
func intrude(t *testing.T, a *Daemon) {
	t.Helper()
	w := started(t, "--node-id", "w", "--peers", "a="+a.At.Control)
	require.Equal(t, ports.PeerUnavailable, w.Node.Get(t.Context(), "ns", "k", ports.HostRegionOf(make([]byte, 1))).Status)
	c, err := net.Dial("tcp", a.At.Data)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(bytes.Repeat([]byte{0xfe}, 4096))
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, _ = io.Copy(io.Discard, c) // until it is closed; a reset is as good
}

// lend comes to a node's socket with memory and stays; another client goes, and one that is not there is refused.
func lend(t *testing.T, d *Daemon) {
	t.Helper()
	dial := func() *client.Client {
		c, err := client.Dial(t.Context(), d.At.Socket, client.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	_, err := dial().Allocate(t.Context(), 4096)
	require.NoError(t, err)
	require.NoError(t, dial().Close())
	require.Eventually(t, func() bool { return scraped(t, d).values[`spanpool_engine_ended_total{reason="closed"}`] == 1 }, 10*time.Second, 5*time.Millisecond)
	cc, err := grpc.NewClient("unix:"+d.At.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	_, err = enginev1.NewEngineClient(cc).Stats(t.Context(), &enginev1.StatsRequest{Caller: &enginev1.Caller{Boot: 1}})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
}

// TestPagesThatAreNotHugeAreADowngrade: a medium of less than a huge page wants them in vain on every host.
func TestPagesThatAreNotHugeAreADowngrade(t *testing.T) {
	const series = `spanpool_downgrades_total{reason="huge_pages"}`
	require.Zero(t, scraped(t, started(t)).values[series])
	require.Equal(t, 1.0, scraped(t, started(t, "--dram-huge-pages", "true")).values[series])
}
