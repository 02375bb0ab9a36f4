package app_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
)

// table is destinations as an engine keeps them: a buffer for each layer, with a row for each page.
type table struct {
	mem     []byte
	rows    int
	sizes   []uint64 // of a row, with its guard bytes behind it
	offsets []uint64
	batch   ports.GetBatch
}

// newTable asks for layers of an object that lie back to back in it, in any order, for each key into another row.
func newTable(names []string, sizes []uint64, r *rand.Rand) *table {
	l := &table{rows: len(names) + 3, sizes: sizes}
	p := ports.Pattern{}
	at, off := uint64(guard), uint64(0)
	for _, n := range sizes {
		l.offsets = append(l.offsets, at)
		p.Ranges = append(p.Ranges, domain.PatternRange{Off: off, Len: n, Base: at, Stride: n + guard})
		at += uint64(l.rows) * (n + guard)
		off += n
	}
	for _, row := range r.Perm(l.rows)[:len(names)] {
		p.Rows = append(p.Rows, uint64(row))
	}
	order := r.Perm(len(sizes))
	shuffled := make([]domain.PatternRange, len(sizes))
	for i, j := range order {
		shuffled[i] = p.Ranges[j]
	}
	p.Ranges = shuffled
	l.mem = make([]byte, at)
	l.batch = ports.GetBatch{Namespace: namespace, Keys: names, Patterns: []ports.Pattern{p}, Regions: []ports.Memory{{Region: ports.HostRegionOf(l.mem)}}}
	return l
}

// check requires each layer of each key in its row, and nothing anywhere else.
func (l *table) check(t *testing.T, out []ports.Result) {
	t.Helper()
	for i, res := range out {
		require.Equal(t, ports.Hit, res.Status, "%v", res.Err)
		off := uint64(0)
		for j, n := range l.sizes {
			row := l.mem[l.offsets[j]+l.batch.Patterns[0].Rows[i]*(n+guard):][:n]
			require.Equal(t, -1, pattern.Check(row, pattern.KeyOf(l.batch.Keys[i], 0), off), "%q, layer %d", l.batch.Keys[i], j)
			pattern.Poison(row)
			off += n
		}
	}
	require.Equal(t, -1, pattern.CheckPoison(l.mem), "a byte that belongs to nothing was written")
}

// TestACallByPatternPutsEachRangeInItsRow over every route, and again when the objects are here.
func TestACallByPatternPutsEachRangeInItsRow(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: r.cfg, registered: r.direct})
				names := keys("k", 20)
				sizes := []uint64{1_000, 7, 1_728, 3_000, 1, 64}
				a.put(5_800, names...)
				l := newTable(names, sizes, rand.New(rand.NewPCG(1, 2)))
				for range 2 {
					pattern.Poison(l.mem)
					forget := b.register(l.batch.Regions)
					out := make([]ports.Result, len(names))
					require.NoError(t, b.BatchGetRanges(t.Context(), &l.batch, out))
					forget()
					l.batch.Regions[0].ID = 0
					l.check(t, out)
				}
			})
		})
	}
}

func TestAPatternThatCannotBeServedFailsItsKeysAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, _ := w.pair(place{}, place{})
		a.put(100, "k")
		mem := make([]byte, 1_000)
		one := func(r ...domain.PatternRange) ports.Pattern { return ports.Pattern{Ranges: r, Rows: []uint64{2}} }
		for _, tt := range []struct {
			p    ports.Pattern
			want string
		}{
			{one(), "no ranges"},
			{one(domain.PatternRange{Len: 10}, domain.PatternRange{Off: 5, Len: 10, Base: 100}), "ranges overlap"},
			{one(domain.PatternRange{Len: 10}, domain.PatternRange{Off: 10, Len: 10, Stride: 496}), "row of a pattern, by its range 1: 2, limit 1"},
			{one(domain.PatternRange{Len: 10, Base: math.MaxUint64 - 4}), "bytes at"},
			{one(domain.PatternRange{Len: 10, Stride: math.MaxUint64}), "row of a pattern"},
			{one(domain.PatternRange{Len: 10, Region: 1}), "region of the call's table: 1, limit 1"},
			{one(domain.PatternRange{Len: domain.Whole}), "overflows"},
			{one(domain.PatternRange{Off: 95, Len: 10}), "past the object"},
		} {
			pattern.Poison(mem)
			good := one(domain.PatternRange{Len: 100, Base: 300, Stride: 300})
			g := ports.GetBatch{Namespace: namespace, Keys: []string{"k", "k"}, Patterns: []ports.Pattern{tt.p, good}, Regions: []ports.Memory{{Region: ports.HostRegionOf(mem)}}}
			out := make([]ports.Result, 2)
			require.NoError(t, a.BatchGetRanges(t.Context(), &g, out))
			require.Equal(t, ports.Invalid, out[0].Status)
			require.ErrorContains(t, out[0].Err, tt.want)
			require.Equal(t, ports.Hit, out[1].Status, "%v", out[1].Err)
			require.Equal(t, -1, pattern.Check(mem[900:], pattern.KeyOf("k", 0), 0))
			require.Equal(t, -1, pattern.CheckPoison(mem[:900]))
		}
	})
}

func TestPatternsThatAreNoCallAreRefusedWhole(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node("a", place{})
		p := ports.Pattern{Ranges: make([]domain.PatternRange, 1<<10), Rows: make([]uint64, 1_025)}
		for _, tt := range []struct {
			g    ports.GetBatch
			want string
		}{
			{ports.GetBatch{Keys: keys("k", 1_025), Patterns: []ports.Pattern{p}}, "ranges of a call: 1049600, limit 1048576"},
			{ports.GetBatch{Keys: keys("k", 2), Patterns: []ports.Pattern{{Rows: make([]uint64, 1)}}}, "rows of patterns: 1 entries for 2 keys"},
			{ports.GetBatch{Keys: keys("k", 1), Patterns: []ports.Pattern{{Rows: make([]uint64, 1)}}, End: []uint32{0}}, "1 patterns beside 0 ranges"},
			{ports.GetBatch{Patterns: []ports.Pattern{{Rows: make([]uint64, domain.MaxCallKeys)}, {Rows: make([]uint64, 1)}}}, "keys of a call: 65537, limit 65536"},
		} {
			tt.g.Namespace = namespace
			out := make([]ports.Result, len(tt.g.Keys))
			require.ErrorContains(t, a.BatchGetRanges(t.Context(), &tt.g, out), tt.want)
			for _, r := range out {
				require.Equal(t, ports.Invalid, r.Status)
			}
		}
	})
}
