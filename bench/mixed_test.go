package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

func newMixed() (*Mixed, *bytes.Buffer) {
	errs := &bytes.Buffer{}
	return &Mixed{Threads: []int{1, 3}, CallBytes: 100_000, Calls: 3, Rounds: 2, ScratchMiB: 1, Runs: 1, Verify: true, MaxMemory: 1 << 40,
		Transport: "inproc", Places: 2, Errors: errs}, errs
}

func TestMixedMovesAndVerifiesEveryCall(t *testing.T) {
	for _, shared := range []bool{false, true} {
		o, errs := newMixed()
		o.SharedArena, o.Link = shared, LinkSpec{Gbps: 100, DelayUs: 20}
		var stats []ports.Stats
		open := func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
			c, err := openLasting(ctx, s)
			if err == nil {
				last := c.Closers[0]
				pool := c.Nodes[0].Pool
				c.Closers[0] = func() error { stats = append(stats, pool.Stats()); return last() }
			}
			return c, err
		}
		var rows []MixedRow
		require.NoError(t, o.Run(t.Context(), open, func(r MixedRow) { rows = append(rows, r) }), errs.String())
		require.Len(t, rows, 2)
		for i, threads := range o.Threads {
			v := rows[i].Values
			require.EqualValues(t, threads, v[MixedThreads])
			require.EqualValues(t, map[bool]int{false: 2, true: 1}[shared], v[MixedSharedArenas])
			for _, c := range []MixedColumn{MixedGetAlone, MixedPutAlone, MixedGet, MixedPut, MixedTotal, MixedLinkDelay} {
				require.Positive(t, v[c], "%s", mixedColumns[c].name)
			}
			require.Zero(t, v[MixedFailedReads])
			// Two parts of each kind, each of two rounds and one that warms up.
			moved := uint64(2 * 3 * 3 * threads * 100_000)
			require.Equal(t, moved, stats[i].Wire[ports.PurposeGet], "nothing becomes local, nothing is fetched twice")
			require.Equal(t, moved, stats[i].Wire[ports.PurposePut])
		}
	}
}

// TestMixedOverSocketsIsToldAsAShareOfTheBareLoop: of a node, and of the comparison.
func TestMixedOverSocketsIsToldAsAShareOfTheBareLoop(t *testing.T) {
	for _, shared := range []bool{false, true} {
		o, errs := newMixed()
		o.Threads, o.SharedArena, o.Transport = []int{2}, shared, TransportTCP
		o.Ceilings = &Ceilings{cold: 1 << 20, least: 1, Places: 1, MaxMemory: 1 << 30}
		var rows []MixedRow
		require.NoError(t, o.Run(t.Context(), OpenNodes, func(r MixedRow) { rows = append(rows, r) }), errs.String())
		v := rows[0].Values
		require.Positive(t, v[MixedCeiling])
		require.InDelta(t, 100*v[MixedTotal]/v[MixedCeiling], v[MixedShare], 1e-9)
		require.Zero(t, v[MixedFailedReads])
	}
}

// liar is a pool whose gets or puts go wrong in one byte.
type liar struct {
	ports.Pool
	get, put bool
}

func (l liar) BatchGetRanges(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
	err := l.Pool.BatchGetRanges(ctx, g, out)
	if l.get {
		g.Regions[0].Region.(ports.HostRegion).Bytes()[g.Ranges[0].RegionOff+7]++
	}
	return err
}

func (l liar) BatchPutRanges(ctx context.Context, p *ports.PutBatch, out []ports.Result) error {
	if l.put {
		p.Regions[0].Region.(ports.HostRegion).Bytes()[p.Ranges[0].RegionOff+7]++
	}
	return l.Pool.BatchPutRanges(ctx, p, out)
}

func TestMixedFailsOnWrongBytes(t *testing.T) {
	for name, lie := range map[string]liar{"gets": {get: true}, "puts": {put: true}} {
		t.Run(name, func(t *testing.T) {
			o, errs := newMixed()
			o.Threads = []int{1}
			open := func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
				c, err := OpenNodes(ctx, s)
				if err == nil {
					lie.Pool = c.Nodes[0].Pool
					c.Nodes[0].Pool = lie
				}
				return c, err
			}
			var rows []MixedRow
			require.ErrorIs(t, o.Run(t.Context(), open, func(r MixedRow) { rows = append(rows, r) }), ErrFailed)
			require.Contains(t, errs.String(), "wrong byte at offset 7")
			require.Len(t, rows, 1)
			require.Positive(t, rows[0].Values[MixedFailedReads])
			require.Zero(t, rows[0].Values[map[string]MixedColumn{"gets": MixedGetAlone, "puts": MixedPutAlone}[name]], "a wrong window is no sample")
		})
	}
}

// endsIn ends the run in a call of one kind, which is cut short.
type endsIn struct {
	ports.Pool
	kind string
	end  context.CancelFunc
}

func (p endsIn) BatchGetRanges(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
	if p.kind == "get" {
		p.end()
	}
	return p.Pool.BatchGetRanges(ctx, g, out)
}

func (p endsIn) Remove(ctx context.Context, namespace string, keys []string, out []ports.Removal) error {
	if p.kind == "remove" {
		p.end()
	}
	return p.Pool.Remove(ctx, namespace, keys, out)
}

func TestACancelledMixedRunEndsWithoutInventedFailures(t *testing.T) {
	for _, kind := range []string{"get", "remove"} {
		o, errs := newMixed()
		o.Threads = []int{2}
		ctx, end := context.WithCancel(t.Context())
		err := o.Run(ctx, func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
			c, err := openLasting(ctx, s)
			if err == nil {
				for i := range c.Nodes {
					c.Nodes[i].Pool = endsIn{c.Nodes[i].Pool, kind, end}
				}
			}
			return c, err
		}, func(MixedRow) { t.Error("a row of a cancelled run") })
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, ErrFailed)
		require.Empty(t, errs.String(), kind)
	}
}

func TestBadMixedOptionsNameFlagAndLimit(t *testing.T) {
	for flag, change := range map[string]func(*Mixed){
		"--threads":       func(o *Mixed) { o.Threads = []int{0} },
		"--calls":         func(o *Mixed) { o.Calls = 0 },
		"--rounds":        func(o *Mixed) { o.Rounds = 0 },
		"--scratch-mib":   func(o *Mixed) { o.ScratchMiB = 0 },
		"--runs":          func(o *Mixed) { o.Runs = 0 },
		"--call-bytes":    func(o *Mixed) { o.CallBytes = 1<<20 + 1 },
		"--link-gbps":     func(o *Mixed) { o.Link.Gbps = -1 },
		"--link-delay-us": func(o *Mixed) { o.Link.DelayUs = -1 },
	} {
		o, _ := newMixed()
		require.NoError(t, o.Check())
		change(o)
		require.ErrorContains(t, o.Check(), flag)
	}
	o, _ := newMixed()
	o.MaxMemory = 1
	require.ErrorContains(t, o.Run(t.Context(), nil, nil), "--max-memory")
}

func TestMixedRowsArePrintedInEachFormat(t *testing.T) {
	rows := []MixedRow{{Verified: true}, {}}
	rows[0].Values[MixedGet] = 1.25
	var b bytes.Buffer
	require.NoError(t, WriteMixedRows(&b, CSV, rows))
	records, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Equal(t, namesOf(mixedColumns[:]), records[0])
	require.Equal(t, []string{"1.250", "0"}, []string{records[1][MixedGet], records[1][MixedFailedReads]})
	require.Equal(t, "0 unverified", records[2][MixedFailedReads])

	b.Reset()
	require.NoError(t, WriteMixedRows(&b, JSON, rows))
	var list []map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &list))
	require.Equal(t, 1.25, list[0]["get_gibps"])

	b.Reset()
	require.NoError(t, WriteMixedRows(&b, Table, rows))
	require.Equal(t, int(NumMixedColumns), strings.Count(b.String(), "\n"))
}

// The bare loop copies from where the objects are, or its time is that of something else; and a plan hits every key.
func TestPlanningComparesTheSameBytes(t *testing.T) {
	for _, p := range []planning{{layer: 1_728, page: planLayers * 1_728, gap: true, memory: 1 << 20}, {layer: 512, page: 4096, memory: 1 << 20}} {
		b, err := openPlanNode(p)
		require.NoError(t, err)
		ns, err := b.plan(t.Context())
		require.NoError(t, err)
		require.Positive(t, ns)
		ns, err = b.copy()
		require.NoError(t, err)
		require.Positive(t, ns)
		for s := range b.calls {
			for i, r := range b.calls[s].Ranges {
				name := b.calls[s].Keys[i/planGroup]
				require.Equal(t, -1, content.Check(b.into.b[r.RegionOff:r.RegionOff+r.Len], contentKey(name), r.Off), "set %d, range %d", s, i)
			}
		}
		require.NoError(t, b.close())
	}
}

func TestTheFootprintIsMeasured(t *testing.T) {
	bytes, mark, err := tableFootprint(20_000, 2)
	require.NoError(t, err)
	require.Positive(t, bytes)
	require.LessOrEqual(t, bytes, maxFootprint)
	require.GreaterOrEqual(t, mark, 0.0)
}
