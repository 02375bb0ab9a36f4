package telemetry

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted is a source that answers what it is told to, and counts how often it is asked.
type counted struct {
	stats ports.Stats
	asked int
}

func (c *counted) Stats() ports.Stats { c.asked++; return c.stats }

func opened(t *testing.T, s Source, more ...Family) *Telemetry {
	t.Helper()
	tel := unwatched(t)
	require.NoError(t, tel.Watch(s, more...))
	return tel
}

func unwatched(t *testing.T) *Telemetry {
	t.Helper()
	tel, err := New(Config{Node: "a", Version: "v1"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tel.Close()) })
	return tel
}

// scraped is the page, the values of the pool's series by name and labels, and the kind of each name.
func scraped(t *testing.T, tel *Telemetry) (page string, values map[string]float64, kinds map[string]string) {
	t.Helper()
	w := httptest.NewRecorder()
	tel.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	values, kinds = map[string]float64{}, map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		words := strings.Fields(line)
		switch {
		case words[0] == "#" && words[1] == "TYPE" && strings.HasPrefix(words[2], namespace):
			kinds[words[2]] = words[3]
		case strings.HasPrefix(line, namespace):
			require.NotContains(t, values, words[0])
			v, err := strconv.ParseFloat(words[1], 64)
			require.NoError(t, err, line)
			values[words[0]] = v
		}
	}
	return w.Body.String(), values, kinds
}

var histogramOf = regexp.MustCompile(`^spanpool_(get|put)_(duration_seconds|rate_bytes_per_second)_(bucket|sum|count)$`)

// unseen are the places of Stats that no series shows, and why.
var unseen = map[string]string{
	"GetKeys[none]":          "no finished call returns it",
	"GetKeys[stored]":        "of puts",
	"GetKeys[exists]":        "of puts",
	"GetKeys[conflict]":      "of puts",
	"PutKeys[none]":          "no finished call returns it",
	"PutKeys[hit]":           "of gets",
	"PutKeys[not_found]":     "of gets",
	"PutKeys[too_large]":     "of gets: a put goes in rounds",
	"PutKeys[late]":          "of gets: a put has a reservation, no lease",
	"PutKeys[corrupt]":       "of gets",
	"GetSources[nowhere]":    "no hit comes from nowhere",
	"InstalledObjects[0]":    "LocalNot is no way of becoming local",
	"InstalledBytes[0]":      "LocalNot is no way of becoming local",
	"Table.Slots[free]":      "a free slot is not counted",
	"Table.Pages[free]":      "pages of free slots are PagesFree",
	"Peers.Peer.ID":          "the label peer",
	"Peers.Peer.Incarnation": "changes at each start: it would be a label without bound",
	"Peers.Transport":        "the label transport",
	"Peers.Writes":           "the label transport",
	"Peers.Wire[0]":          "the sum of Peers.Transports.Wire",
	"Peers.Wire[1]":          "the sum of Peers.Transports.Wire",
	"Peers.Wire[2]":          "the sum of Peers.Transports.Wire",
	"Peers.Transports.Kind":  "the label transport",
	"Peers.Refused":          "counted, tested apart",
	"Peers.Down":             "1 or 0, tested apart",
	"Peers.Failure":          "1 or 0, tested apart",
}

// fill gives every number in v a value of its own, and says which number that was.
func fill(name string, v reflect.Value, next *uint64, names map[float64]string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(strings.TrimPrefix(name+"."+v.Type().Field(i).Name, "."), v.Field(i), next, names)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(fmt.Sprintf("%s[%s]", name, placeName(name, i)), v.Index(i), next, names)
		}
	case reflect.Slice:
		if e := v.Type().Elem(); e == reflect.TypeFor[ports.PeerStats]() || e == reflect.TypeFor[ports.TransportStats]() {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(name, v.Index(0), next, names)
		}
	case reflect.Uint64:
		*next++
		v.SetUint(*next)
		names[float64(*next)] = name
	}
}

func placeName(array string, i int) string {
	switch array {
	case "GetKeys", "PutKeys":
		return ports.Status(i).String()
	case "GetSources":
		return ports.Source(i).String()
	case "Table.Slots", "Table.Pages":
		return domain.SlotState(i).String()
	}
	return fmt.Sprint(i)
}

// TestEveryNumberOfStatsHasItsSeries: no number is left out, shown twice, or shown as another's.
func TestEveryNumberOfStatsHasItsSeries(t *testing.T) {
	unseen := maps.Clone(unseen)
	for k := range ports.NumBatchKinds {
		for route := range ports.NumSources {
			for o := range ports.NumOutcomes {
				if !ports.CanEnd(k, route, o) {
					unseen[fmt.Sprintf("Outcomes[%d][%d][%d]", k, route, o)] = "no key can end so"
				}
			}
		}
	}
	var c counted
	next, names := uint64(1000), map[float64]string{}
	fill("", reflect.ValueOf(&c.stats).Elem(), &next, names)
	require.Greater(t, len(names), 100)
	_, values, _ := scraped(t, opened(t, &c))
	shown := map[string]string{}
	for series, v := range values {
		if name, ok := names[v]; ok {
			require.NotContains(t, shown, name, "shown by %s, too", series)
			shown[name] = series
		} else {
			require.LessOrEqual(t, v, 1.0, "%s shows a value that no number has", series)
		}
	}
	for _, name := range names {
		if _, ok := unseen[name]; ok {
			require.NotContains(t, shown, name, "is said not to be shown")
		} else {
			require.Contains(t, shown, name, "no series shows it")
		}
	}
	for name, series := range map[string]string{
		"GetKeys[hit]": `spanpool_get_keys_total{status="hit"}`, "PutKeys[busy]": `spanpool_put_keys_total{status="busy"}`,
		"GetSources[arena]": `spanpool_get_hits_total{source="arena"}`, "Wire[1]": `spanpool_wire_bytes_total{purpose="pull"}`,
		"InstallFailures[5]": `spanpool_install_failures_total{reason="lease"}`, "InstalledBytes[3]": `spanpool_installed_bytes_total{way="pull"}`,
		"Outcomes[1][4][2]": `spanpool_get_outcomes_total{mode="whole",outcome="failed",route="arena"}`,
		"Outcomes[2][1][0]": `spanpool_put_outcomes_total{mode="ranges",outcome="stored",route="local"}`,
		"Outcomes[3][0][1]": `spanpool_put_outcomes_total{mode="whole",outcome="exists",route="nowhere"}`,
		"NeededBytes":       "spanpool_needed_bytes_total", "Peers.Thrown[1]": `spanpool_peer_thrown_bytes_total{peer="",purpose="pull"}`,
		"Downgrades[6]": `spanpool_downgrades_total{reason="reset"}`, "Table.Doomed[7]": `spanpool_dooms_total{cause="version_gone"}`,
		"ArenaUsed[1]": `spanpool_arena_used_bytes{direction="put"}`, "Table.Pages[filling]": `spanpool_slot_pages{state="filling"}`,
		"Peers.Transports.Wire[2]": `spanpool_peer_wire_bytes_total{peer="",purpose="put",transport=""}`, "Table.PagesFree": "spanpool_pages_free",
	} {
		require.Equal(t, series, shown[name], name)
	}
}

// TestOnlyWhatGrowsIsACounter: a rate of a gauge is nonsense, and so is a counter that falls.
func TestOnlyWhatGrowsIsACounter(t *testing.T) {
	_, values, kinds := scraped(t, opened(t, &counted{stats: ports.Stats{Peers: make([]ports.PeerStats, 1)}}))
	for series := range values {
		name, _, _ := strings.Cut(series, "{")
		require.Equal(t, strings.HasSuffix(name, "_total"), kinds[name] == "counter", series)
		require.True(t, kinds[name] != "" || histogramOf.MatchString(name), series)
	}
	for _, name := range []string{"pull_waiting", "arena_used_bytes", "arena_waiting", "revokes_pending", "sessions", "calls_in_progress", "pages",
		"pages_free", "pages_held", "slots", "slot_pages", "pins"} {
		require.Equal(t, "gauge", kinds["spanpool_"+name], name)
	}
}

func TestPeersHaveSeriesOfTheirState(t *testing.T) {
	c := &counted{stats: ports.Stats{Peers: []ports.PeerStats{
		{Peer: ports.Peer{ID: "b"}, Transport: "shm", Writes: "tcp", Transports: []ports.TransportStats{{Kind: "shm", Lost: 2}}, Refused: []ports.Refusal{{Kind: "rdma", Reason: "no device"}}},
		{Peer: ports.Peer{ID: "c"}, Down: true, Failure: errors.New("gone")},
	}}}
	_, values, _ := scraped(t, opened(t, c))
	for series, want := range map[string]float64{
		`spanpool_peer_up{peer="b"}`: 1, `spanpool_peer_up{peer="c"}`: 0,
		`spanpool_peer_breaker_open{peer="b"}`: 0, `spanpool_peer_breaker_open{peer="c"}`: 1,
		`spanpool_peer_failing{peer="b"}`: 0, `spanpool_peer_failing{peer="c"}`: 1,
		`spanpool_peer_link{direction="read",peer="b",transport="shm"}`: 1, `spanpool_peer_link{direction="write",peer="b",transport="tcp"}`: 1,
		`spanpool_peer_links_lost_total{peer="b",transport="shm"}`: 2,
		`spanpool_peer_transports_refused{peer="b"}`:               1, `spanpool_peer_transports_refused{peer="c"}`: 0,
		`spanpool_peer_wire_bytes_total{peer="b",purpose="get",transport="shm"}`: 0,
	} {
		require.Contains(t, values, series)
		require.Equal(t, want, values[series], series)
	}
	for _, direction := range []string{"read", "write"} {
		require.NotContains(t, values, `spanpool_peer_link{direction="`+direction+`",peer="c",transport=""}`)
	}
}

// TestAScrapeIsOneLook: its series belong together, and a node that nobody watches is not asked.
func TestAScrapeIsOneLook(t *testing.T) {
	c := &counted{}
	tel := opened(t, c)
	require.Zero(t, c.asked)
	for i := range 3 {
		scraped(t, tel)
		require.Equal(t, i+1, c.asked)
	}
	c.stats.GetCalls = 7
	_, values, _ := scraped(t, tel)
	require.Equal(t, 7.0, values["spanpool_get_calls_total"])
}

func TestThePageIsReadAndEndsWithTheTelemetry(t *testing.T) {
	c := &counted{stats: ports.Stats{FlightsJoined: 5}}
	tel := opened(t, c)
	body, _, _ := scraped(t, tel)
	for _, line := range []string{"\nspanpool_flights_joined_total 5\n", "\n# TYPE spanpool_flights_joined_total counter\n",
		"\n# TYPE spanpool_pull_waiting gauge\n", "\ngo_goroutines ", "\nprocess_cpu_seconds_total ",
		`target_info{service_instance_id="a",service_name="spanpool",service_version="v1"} 1`} {
		require.Contains(t, body, line)
	}
	require.NotContains(t, body, "otel_scope")
	asked := c.asked
	require.NoError(t, tel.Close())
	body, _, _ = scraped(t, tel)
	require.NotContains(t, body, "spanpool_flights_joined_total")
	require.Equal(t, asked, c.asked)
	require.NoError(t, tel.Close(), "twice")
}

func TestMoreFamiliesStandBesideThePools(t *testing.T) {
	f := Family{Name: "tcp.ended", Help: "x", Labels: []string{"reason"}, Read: func(_ *ports.Stats, emit Emit) { emit(3, "stalled") }}
	_, values, _ := scraped(t, opened(t, &counted{}, f))
	require.Equal(t, 3.0, values[`spanpool_tcp_ended_total{reason="stalled"}`])

	require.ErrorContains(t, unwatched(t).Watch(&counted{}, f, f), "two families are called tcp.ended")
	require.ErrorContains(t, unwatched(t).Watch(&counted{}, Family{Name: "0?"}), "0?")
}

func TestALabelWithoutAValueIsABug(t *testing.T) {
	f := Family{Name: "x", Labels: []string{"a", "b"}}
	require.Panics(t, func() { f.labels([]string{"1"}) })
}
