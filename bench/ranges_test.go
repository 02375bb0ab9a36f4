package bench

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRangesOfEverySizeAreReadByAllSides: through nodes, by whole objects, by bare loops, and from redis where it is there. Whoever
// reads a wrong byte fails.
func TestRangesOfEverySizeAreReadByAllSides(t *testing.T) {
	o := Ranges{Sizes: []uint64{64, 1728, 100_000}, Runs: 1, MaxMemory: 1 << 31, small: true}
	var rows []RangesRow
	require.NoError(t, o.Run(t.Context(), OpenNodes, func(r RangesRow) error { rows = append(rows, r); return nil }))
	require.Len(t, rows, len(o.Sizes))
	for i, r := range rows {
		require.Equal(t, o.Sizes[i], r.Bytes)
		require.Zero(t, r.PerCall%planKeys)
		for _, v := range []float64{r.Ours, r.Whole, r.Bare} {
			require.Positive(t, v)
		}
		require.Equal(t, redisAbsent() == "", r.Redis > 0)
	}
	var b bytes.Buffer
	require.NoError(t, WriteRangesRows(&b, CSV, []RangesRow{{Bytes: 64, PerCall: 32, Ours: 1, Whole: 0.5, Bare: 4, Redis: 0.5}}))
	require.Equal(t, "range_bytes,ranges_per_call,ours_gibps,whole_gibps,bare_gibps,redis_gibps,ceiling_pct,over_redis\n64,32,1.000,0.500,4.000,0.500,25.0,2.000\n", b.String())
}

// TestRangesByWholeObjectsAreVerifiedToo: the comparison copies the right part of the right object.
func TestRangesByWholeObjectsAreVerifiedToo(t *testing.T) {
	s := smallShared(t, false)
	require.NoError(t, s.ready(t.Context()))
	_, err := s.side(&Ratios{}, rateWhole)(t.Context())
	require.NoError(t, err)
	s.scattered.m.calls[1][0].from += 8 // as if it took its bytes from elsewhere
	_, err = s.side(&Ratios{}, rateWhole)(t.Context())
	require.ErrorContains(t, err, "wrong byte")
}

func TestRangesThatCannotBeReadAreRefused(t *testing.T) {
	for _, o := range []Ranges{{Runs: 1}, {Sizes: []uint64{leastRange - 1}, Runs: 1}, {Sizes: []uint64{mostRange + 1}, Runs: 1}, {Sizes: []uint64{100}}} {
		var bad *OptionError
		require.ErrorAs(t, o.Check(), &bad)
	}
}

// TestSharesAreOfWhatBareLoopsReach: over sockets and by copies, at most what the link gives.
func TestSharesAreOfWhatBareLoopsReach(t *testing.T) {
	c := &Ceilings{MaxMemory: 1 << 30, Places: 2, cold: 1 << 20, least: 1}
	for _, transport := range []string{TransportInproc, TransportTCP} {
		bare, err := c.rate(transport, LinkSpec{}, 1728)
		require.NoError(t, err)
		require.Positive(t, bare)
		again, err := c.rate(transport, LinkSpec{}, 1728)
		require.NoError(t, err)
		require.Equal(t, bare, again, "measured once")
		capped, err := c.rate(transport, LinkSpec{Gbps: 0.008, DelayUs: 1}, 1728)
		require.NoError(t, err)
		require.InDelta(t, 1e6/gibBytes, capped, 1e-12)
	}
	none, err := (&Ceilings{}).rate(TransportInproc, LinkSpec{}, 1728)
	require.NoError(t, err)
	require.Zero(t, none, "nothing of it fits")
	var off *Ceilings
	none, err = off.rate(TransportInproc, LinkSpec{}, 1728)
	require.NoError(t, err)
	require.Zero(t, none)
}

// TestARowTellsItsSharesOfTheCeiling: of its rate, of the least time of a restore, and of the least time to the first group.
func TestARowTellsItsSharesOfTheCeiling(t *testing.T) {
	r := newTestRun(t)
	r.Ceilings = &Ceilings{known: map[ceilingOf]float64{}}
	row := newRestoreRow(&r.Layerwise, 2)
	f := row.walk.fragmentBytes()
	r.Ceilings.known[ceilingOf{r.Transport, min(max(f, ceilingSmallest), maxCeilingFragment)}] = 2
	all, first := row.walk.bytes(0, len(row.walk.Groups)), row.walk.bytes(0, 1)
	require.Equal(t, r.Shape.ObjectBytes()*uint64(r.Pages), all)
	out := &Row{}
	out.Values[ColGetRate] = 0.5
	out.Values[ColRestoreP50] = 4 * 1e3 * 2 * float64(all) / (2 * gibBytes)
	out.Values[ColTTFLP50] = 8 * 1e6 * 2 * float64(first) / (2 * gibBytes)
	r.ComputePerLayer = 0
	require.NoError(t, row.addShares(out))
	require.InDelta(t, 25, out.Values[ColGetShare], 0.1)
	require.InDelta(t, 25, out.Values[ColRestoreShare], 0.5)
	require.InDelta(t, 12.5, out.Values[ColTTFLShare], 0.5)
}

// TestTheCeilingIsMeasuredWhenTheRowsMemoryIsBack: together they would take more than was computed and allowed.
func TestTheCeilingIsMeasuredWhenTheRowsMemoryIsBack(t *testing.T) {
	c := &Ceilings{MaxMemory: 1 << 30, Places: 1, cold: 1 << 20, least: 1}
	closed := 0
	open := func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
		cluster, err := openLasting(ctx, s)
		if err == nil {
			cluster.Closers = append(cluster.Closers, func() error { closed++; require.Empty(t, c.known); return nil })
		}
		return cluster, err
	}
	r := newTestRun(t)
	r.Ceilings = c
	require.NoError(t, r.runOver(t, open), r.errs.String())
	require.Positive(t, r.rows[0].Values[ColCeiling])

	m, errs := newMixed()
	m.Threads, m.Ceilings, c.known = []int{1}, c, nil
	var row MixedRow
	require.NoError(t, m.Run(t.Context(), open, func(r MixedRow) { row = r }), errs.String())
	require.Positive(t, row.Values[MixedCeiling])
	require.Equal(t, 2, closed)
}

// TestAFragmentIsWhatIsAdjacentInAnObject: the layers of a group are one, interleaved ones are apart.
func TestAFragmentIsWhatIsAdjacentInAnObject(t *testing.T) {
	s := shapeOf("deepseek-v3.2")
	group := PlanWalk(s, Grouping{Size: 61}, 2, 8192)
	require.EqualValues(t, 61*73_728, group.fragmentBytes())
	apart := PlanWalk(s, Grouping{Size: 8, Interleave: true}, 2, 8192)
	require.EqualValues(t, 73_728, apart.fragmentBytes())
}

// TestABarTellsItsShareOfTheCeiling: as its samples say, of a ceiling that is known, or of the bare loops that it stands against.
func TestABarTellsItsShareOfTheCeiling(t *testing.T) {
	p := pairing{bars: []bar{{figure: 0, share: func(f []float64) float64 { return f[1] }}, {figure: 0, ceiling: 8}, {figure: 0, bare: true}, {figure: 0}}}
	m := &pairs{}
	for range 3 {
		m.ours, m.theirs = append(m.ours, sample{figures: []float64{2, 40}}), append(m.theirs, sample{figures: []float64{4, 1}})
	}
	var shares []float64
	for _, r := range p.rows(m) {
		shares = append(shares, r.Ceiling)
	}
	require.Equal(t, []float64{40, 25, 50, 0}, shares)
	var row Row
	row.Values[ColGetShare], row.Values[ColGetRate], row.Values[ColPutRate], row.Values[ColCeiling] = 90, 9, 4, 10
	row.Values[ColRestoreShare], row.Values[ColRestoreP50], row.Values[ColRestoreP95] = 80, 100, 200
	row.Values[ColTTFLShare], row.Values[ColTTFLP50], row.Values[ColTTFLP95] = 60, 10, 30
	for c, want := range map[Column]float64{ColGetRate: 90, ColPutRate: 40, ColRestoreP50: 80, ColRestoreP95: 40, ColTTFLP50: 60, ColTTFLP95: 20} {
		require.InDelta(t, want, shareOf(c)(row.Values[:]), 1e-9, c)
		require.Zero(t, shareOf(c)(make([]float64, NumColumns)), c)
	}
	require.Nil(t, shareOf(ColPages))
}

// TestEveryBarOfSpeedIsToldAsAShareOfTheCeiling: what moves bytes has one, by its samples or as a bound of its own; what is counted, or
// of which processor time is told, has none.
func TestEveryBarOfSpeedIsToldAsAShareOfTheCeiling(t *testing.T) {
	var none []string
	o := Ratios{Ceilings: &Ceilings{cold: 1 << 20, least: 1, Places: 1, MaxMemory: 1 << 30}}
	for _, p := range o.all(nil) {
		for _, b := range p.bars {
			if b.share == nil && b.ceiling == 0 && !b.bare && p.ceiling == nil {
				none = append(none, p.name+": "+b.name)
			}
		}
		if p.ceiling != nil {
			c, err := p.ceiling()
			require.NoError(t, err)
			require.Positive(t, c, p.name)
		}
	}
	require.Equal(t, []string{"planning-object: cpu ns a range", "planning-64k: cpu ns a range", "planning-1728: cpu ns a range",
		"planning-pattern: cpu ns a range planned", "planning-pattern: cpu ns a range with look-up",
		"footprint-1: bytes an object", "footprint-1: mark_ms", "footprint-69: bytes an object", "footprint-69: mark_ms"}, none)
}
