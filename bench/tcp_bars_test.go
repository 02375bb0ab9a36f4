package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// smallShared is the small ranges of two calls over real nodes.
func smallShared(t *testing.T, withRedis bool) *shared {
	t.Helper()
	s := &shared{withRedis: withRedis, open: func(ctx context.Context) (*scattered, error) {
		c := smallest
		c.sets = 2
		return openScattered(ctx, OpenNodes, c, 1<<30)
	}}
	t.Cleanup(func() { require.NoError(t, s.close()) })
	return s
}

func TestAllSidesOfSmallRangesReadThemIntoPlace(t *testing.T) {
	sides := map[string]func(context.Context, *shared) (float64, error){"ours": rateOurs, "bare": rateBare}
	redis := redisAbsent() == ""
	if redis {
		sides["redis"] = rateRedis
	}
	s := smallShared(t, redis)
	for name, of := range sides {
		got, err := s.side(&Ratios{}, of)(t.Context()) // checks every byte
		require.NoError(t, err, name)
		require.Positive(t, got.figures[0], name)
	}
	// One that moves only a part of it is found out.
	for left := range 2 {
		_, err := s.side(&Ratios{}, func(ctx context.Context, s *shared) (float64, error) {
			return 1, s.scattered.ours(ctx, s.scattered.calls, left)
		})(t.Context())
		require.ErrorIs(t, err, ErrFailed)
		require.ErrorContains(t, err, "wrong byte")
	}
	_, err := s.side(&Ratios{}, func(ctx context.Context, s *shared) (float64, error) {
		s.scattered.into.b[3]++
		return rateOurs(ctx, s)
	})(t.Context())
	require.ErrorContains(t, err, "byte 3 of the destination")
}

// TestSmallRangesCrossEachTime: what would be local at the second read would not stand against sockets.
func TestSmallRangesCrossEachTime(t *testing.T) {
	s := smallShared(t, false)
	require.NoError(t, s.ready(t.Context()))
	sc := s.scattered
	for range 3 {
		require.NoError(t, sc.ours(t.Context(), sc.calls, 1))
	}
	stats := sc.reader().Stats()
	require.EqualValues(t, 3*sc.keys*sc.layers*int(sc.layer), stats.Wire[0]+stats.Wire[1])
	require.Zero(t, stats.Table.Slots[domain.SlotCommitted])
	for _, call := range sc.m.calls {
		require.Len(t, call, sc.keys*sc.layers)
		for i := range call[1:] {
			require.Greater(t, call[i+1].from, call[i].from+sc.layer)
			require.Greater(t, call[i+1].to, call[i].to+sc.layer)
		}
	}
	require.Equal(t, ErrFailed, func() error {
		sc.calls[0].Keys[0] = "gone"
		if err := sc.ours(t.Context(), sc.calls, 0); err != nil {
			require.ErrorContains(t, err, `"gone"`)
			return ErrFailed
		}
		return nil
	}())
}

// TestWholesAreReadWhole: nothing lies between layers, nothing is left out, and each crosses each time.
func TestWholesAreReadWhole(t *testing.T) {
	c := wholes
	require.EqualValues(t, 4392<<10, c.object())
	require.Equal(t, c.object(), c.asked())
	c.layer, c.keys, c.sets = 5000, 3, 2
	sides := map[string]func(context.Context, *shared) (float64, error){"ours": rateOurs, "bare": rateBare}
	if redisAbsent() == "" {
		sides["redis"] = rateRedis
	}
	s := &shared{withRedis: redisAbsent() == "", open: func(ctx context.Context) (*scattered, error) {
		return openScattered(ctx, OpenNodes, c, 1<<30)
	}}
	t.Cleanup(func() { require.NoError(t, s.close()) })
	for name, of := range sides {
		_, err := s.side(&Ratios{}, of)(t.Context()) // checks every byte
		require.NoError(t, err, name)
	}
	require.Len(t, s.scattered.calls[0].Ranges, c.keys)
	require.Zero(t, s.scattered.reader().Stats().Table.Slots[domain.SlotCommitted])
}

// TestDirectRestoresGoByTheDirectRoute: every byte comes into registered memory, and a rank that is not registered has none that way.
func TestDirectRestoresGoByTheDirectRoute(t *testing.T) {
	for _, register := range []bool{true, false} {
		r := newRealRun(t, FetchRanged)
		r.Transport, r.Locality, r.Register, r.OffloadRanks = TransportTCP, domain.LocalityOff, register, 0
		var reader ports.Pool
		open := func(ctx context.Context, spec ClusterSpec) (*Cluster, error) {
			c, err := OpenNodes(ctx, spec)
			if err == nil {
				reader = c.Nodes[0].Pool
			}
			return c, err
		}
		require.NoError(t, r.runOver(t, open), r.errs.String())
		s := reader.Stats()
		require.Equal(t, register, s.GetSources[ports.FromDirect] > 0)
		require.Equal(t, register, s.GetSources[ports.FromArena] == 0)
		require.Zero(t, s.GetSources[ports.FromSlot])
	}
}

func TestGroupMovesAreTheFullGroupsOfARestore(t *testing.T) {
	o := Ratios{}
	l := o.overTCP(1, 2)
	m, needs := groupMoves(2)
	w := PlanWalk(l.Shape, l.Grouping, l.Pages, l.RangesPerCall)
	require.Len(t, m.calls, 2*(len(w.Groups)-1), "the last group has five layers")
	for i, call := range m.calls {
		g := w.Groups[i%(len(w.Groups)-1)].Calls[0]
		require.Equal(t, g.Pages, len(call))
		for p, at := range call {
			ranges := g.RangesOf(p)
			require.Equal(t, ranges[0].Off, at.from%l.Shape.ObjectBytes())
			require.Equal(t, m.fragment, ranges[len(ranges)-1].Off+ranges[0].Len-ranges[0].Off)
			require.LessOrEqual(t, at.from+m.fragment, needs[0].Bytes)
			require.LessOrEqual(t, at.to+m.fragment, needs[1].Bytes)
		}
	}
	require.Equal(t, 2*uint64(l.Pages)*l.Shape.ObjectBytes(), needs[0].Bytes)
}

// TestTheBarsOverSocketsAreWhatTheyAreCalled: bounds and transports, of all that have a reader's node.
func TestTheBarsOverSocketsAreWhatTheyAreCalled(t *testing.T) {
	var specs []ClusterSpec
	var o Ratios
	o.MaxMemory, o.Places = 1<<40, 2
	bars := o.tcpBars(func(_ context.Context, s ClusterSpec) (*Cluster, error) {
		specs = append(specs, s)
		return nil, errNoSample
	})
	targets := map[string][]string{}
	for _, b := range bars {
		for _, x := range b.bars {
			targets[b.name] = append(targets[b.name], x.name+" "+x.target())
		}
		if strings.HasPrefix(b.name, "tcp-redis") {
			continue // needs a redis even to open
		}
		_, err := b.ours(t.Context())
		require.ErrorIs(t, err, errNoSample)
		require.Equal(t, TransportTCP, specs[len(specs)-1].Transport)
		require.Equal(t, LinkSpec{}, specs[len(specs)-1].Link)
		require.Equal(t, FetchRanged, specs[len(specs)-1].Fetch)
		if strings.Contains(b.name, "direct") {
			require.Equal(t, domain.LocalityOff, specs[len(specs)-1].Locality)
		}
		if strings.HasSuffix(b.name, "ranks-8") { // a warm-up and a request of 8 ranks, and with three of one
			require.EqualValues(t, (2*8)*32*61*73_728, specs[len(specs)-1].Nodes[1].MediumBytes)
			_, err = b.theirs(t.Context())
			require.ErrorIs(t, err, errNoSample)
			one := specs[len(specs)-2]
			one.Nodes, one.Copier = specs[len(specs)-1].Nodes, nil
			specs[len(specs)-1].Copier = nil
			require.Equal(t, one, specs[len(specs)-1], "but for their number they are the same")
			require.EqualValues(t, 4*32*61*73_728, specs[len(specs)-1].Nodes[1].MediumBytes)
		}
		if strings.HasPrefix(b.name, "tcp-restore") {
			_, err = b.theirs(t.Context())
			require.ErrorIs(t, err, errNoSample)
			require.Equal(t, FetchWhole, specs[len(specs)-1].Fetch)
			require.Equal(t, TransportTCP, specs[len(specs)-1].Transport)
		}
		if b.name == "tcp-restore-8" { // a warm-up and a request of 8 ranks, and two sets of each of 8 that offload
			require.EqualValues(t, (2*8+2*8)*32*61*73_728, specs[len(specs)-1].Nodes[1].MediumBytes)
		}
	}
	require.Equal(t, map[string][]string{
		"tcp-layerwise":      {"get_gibps of bare >= 0.5", "get_gibps of bare by slots >= 0.6"},
		"tcp-direct":         {"get_gibps of bare >= 0.8"},
		"tcp-ranks-8":        {"get_gibps higher >= 0.9"},
		"tcp-direct-ranks-8": {"get_gibps higher >= 0.9"},
		"tcp-fragments":      {"get_gibps of bare >= 0.6"},
		"tcp-redis":          {"get_gibps over redis >= 1.1"},
		"tcp-redis-whole":    {"get_gibps over redis >= 2.5"},
		"tcp-restore-1":      {"ttfl_us_p50 lower >= 6", "restore_ms_p50 <= 1.05", "get_gibps higher reported"},
		"tcp-restore-8":      {"ttfl_us_p95 lower >= 4", "restore_ms_p95 <= 1.05", "get_gibps higher reported", "put_gibps higher reported"},
	}, targets)
}

func TestABarWithoutItsOpponentIsNotRunAndSaysWhy(t *testing.T) {
	s := newScript(figures(1), figures(1), bar{name: "higher", atLeast: 1.1}, bar{name: "also"})
	s.absent = func() string { return "nobody is here" }
	var o Ratios
	o.Pairs = 1
	var rows []RatioRow
	emit := func(r RatioRow) error { rows = append(rows, r); return nil }
	require.NoError(t, o.one(t.Context(), &s.pairing, emit))
	require.Empty(t, s.order, "nothing was measured")
	require.Len(t, rows, 2)
	for _, f := range []Format{Table, CSV, JSON} {
		var out bytes.Buffer
		w := NewRatioWriter(&out, f)
		require.NoError(t, w.Write(rows[0]))
		require.Contains(t, out.String(), "not run: nobody is here", fmt.Sprint(f))
		require.NotContains(t, out.String(), "missed")
	}
	require.Equal(t, NotRun, rows[0].Verdict)

	s.absent = func() string { return "" }
	rows = nil
	require.NoError(t, o.one(t.Context(), &s.pairing, emit))
	require.Equal(t, "ab", s.order)
	require.Equal(t, Missed, rows[0].Verdict)

	t.Setenv("PATH", t.TempDir())
	require.Contains(t, redisAbsent(), "not installed")
}

// TestARedisThatAnswersOtherwiseFails: replies are checked, and the process is gone afterwards.
func TestARedisThatAnswersOtherwiseFails(t *testing.T) {
	if why := redisAbsent(); why != "" {
		if slices.Contains(strings.Split(os.Getenv("SPANPOOL_REQUIRE"), ","), "redis") {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	s := smallShared(t, true)
	require.NoError(t, s.ready(t.Context()))
	l, err := s.scattered.openRedisLoop(s.redis, 2)
	require.NoError(t, err)
	require.NoError(t, l.call(1))
	l.conns[1].asks[0] = appendRedis(nil, "GETRANGE", scatteredName(0), "0", "5")
	require.ErrorContains(t, l.call(0), `answers "$6\r\n"`)
	require.NoError(t, l.close())
}

// What a program that we started takes is not foreign.
func TestProcessesThatWeStartedAreOurs(t *testing.T) {
	stat := func(ticks int) *fstest.MapFile {
		return &fstest.MapFile{Data: fmt.Appendf(nil, "7 (a b) S 1 1 1 0 -1 0 0 0 0 0 %d 0 0 0", ticks)}
	}
	root := fstest.MapFS{"proc/stat": {Data: []byte("cpu  0 0 0 100 0 0 0 0\n")}, "proc/self/stat": stat(0), "proc/7/stat": stat(0)}
	m := startNoise(nil, LinkSpec{}, root)
	m.include(7)
	root["proc/stat"] = &fstest.MapFile{Data: []byte("cpu  100 0 0 200 0 0 0 0\n")}
	root["proc/self/stat"], root["proc/7/stat"] = stat(30), stat(60)
	require.InDelta(t, 10.0/200, m.stop().Foreign, 1e-9)
	delete(root, "proc/7/stat")
	require.Zero(t, m.stop().Foreign, "nothing is known then")
}

// TestTheChecksumBarComparesWithAndWithout: whatever the other bars are told.
func TestTheChecksumBarComparesWithAndWithout(t *testing.T) {
	for _, off := range []bool{false, true} {
		o := Ratios{NoChecksums: off, MaxMemory: 1 << 40, Places: 2}
		var specs []ClusterSpec
		for _, b := range o.all(func(_ context.Context, s ClusterSpec) (*Cluster, error) {
			specs = append(specs, s)
			return nil, errNoSample
		}) {
			if b.name != "tcp-checksum" && b.name != "restore-1" {
				continue
			}
			for _, of := range []side{b.ours, b.theirs} {
				_, err := of(t.Context())
				require.ErrorIs(t, err, errNoSample)
			}
			if b.name == "tcp-checksum" {
				require.Equal(t, "get_gibps higher >= 0.75", b.bars[0].name+" "+b.bars[0].target())
			}
		}
		require.Equal(t, []bool{off, off, false, true}, []bool{specs[0].NoChecksums, specs[1].NoChecksums, specs[2].NoChecksums, specs[3].NoChecksums})
		require.Equal(t, TransportTCP, specs[2].Transport)
	}
}
