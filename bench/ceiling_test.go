package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports/porttest/content"
)

// smallMoves is a few calls with content to tell, and a destination of poison.
func smallMoves(t *testing.T, fragment uint64) *moves {
	t.Helper()
	_, one := planCeiling(fragment, 1)
	m, needs := planCeiling(fragment, one[0].Bytes+1)
	require.Len(t, m.calls, 2)
	m.src, m.dst = make([]byte, needs[0].Bytes), make([]byte, needs[1].Bytes)
	content.Fill(m.src, 1, 0)
	content.Poison(m.dst)
	return m
}

// moved checks that each fragment of the calls lies where it is to, and that nothing else was written.
func (m *moves) moved(t *testing.T, how string) {
	t.Helper()
	end := uint64(0)
	for c := range m.calls {
		for i, p := range m.calls[c] {
			require.Equal(t, -1, content.Check(m.lands(p), 1, p.from), "%s: call %d, fragment %d", how, c, i)
			require.Equal(t, -1, content.CheckPoison(m.dst[end:p.to]), "%s: before fragment %d of call %d", how, i, c)
			end = p.to + m.fragment
		}
	}
	content.Poison(m.dst)
}

func TestBareLoopsPutEachFragmentIntoItsPlace(t *testing.T) {
	for _, fragment := range []uint64{1, 1728, 100_001} {
		m := smallMoves(t, fragment)
		for _, n := range []int{1, 3} {
			for c := range m.calls {
				m.copyCall(c, n)
			}
			m.moved(t, "copy")
			for _, how := range append(placing(), readArena) {
				b, err := openBareSockets(m, n, how)
				require.NoError(t, err)
				for c := range m.calls {
					require.NoError(t, b.call(c))
				}
				m.moved(t, fmt.Sprintf("%s, %d connections", how, n))
				require.NoError(t, b.close())
			}
		}
	}
}

func TestABareLoopWhoseOwnerHangsUpFails(t *testing.T) {
	m := smallMoves(t, 1728)
	for _, how := range append(placing(), readArena) {
		b, err := openBareSockets(m, 2, how)
		require.NoError(t, err)
		require.NoError(t, b.conns[1].owner.CloseWrite())
		require.ErrorContains(t, b.call(0), "EOF", how.String())
		require.NoError(t, b.close())
	}
}

func TestRatesAreOfAtLeastARoundAndALeastTime(t *testing.T) {
	m := &moves{fragment: 10, calls: [][]piece{make([]piece, 2), make([]piece, 3)}}
	var calls []int
	r, err := m.rate(0, func(i int) error { calls = append(calls, i); return nil })
	require.NoError(t, err)
	require.Equal(t, []int{0, 1}, calls)
	require.Positive(t, r)
	begin := time.Now()
	_, err = m.rate(2*time.Millisecond, func(int) error { return nil })
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), 2*time.Millisecond)
	_, err = m.rate(0, func(int) error { return errNoSample })
	require.ErrorIs(t, err, errNoSample)
}

func TestTheCeilingHasARowForEachLoop(t *testing.T) {
	o := Ceiling{Fragments: []uint64{100_000, 1728}, Runs: 1, Places: 2, MaxMemory: 1 << 30, cold: 1 << 20, least: 1}
	var rows []CeilingRow
	require.NoError(t, o.Run(t.Context(), func(r CeilingRow) error { rows = append(rows, r); return nil }))
	var got []string
	for _, r := range rows {
		require.Positive(t, r.Rate)
		require.Equal(t, r.Loop == "copy", r.Way == "", "%+v", r)
		got = append(got, fmt.Sprintf("%d %s %d", r.Fragment, r.Loop, r.Streams))
	}
	var want []string
	for _, f := range []string{"100000", "1728"} {
		want = append(want, f+" copy 1", f+" copy 2", f+" socket 1", f+" socket 4", f+" socket+copy 1", f+" socket+copy 4")
	}
	require.Equal(t, want, got)

	for format, part := range map[Format]string{CSV: "fragment_bytes,loop,streams,gb_per_s,way\n100000,copy,1,", JSON: `"loop": "socket+copy"`, Table: "fragment_bytes  loop         streams  gb_per_s  way\n"} {
		var out bytes.Buffer
		require.NoError(t, WriteCeilingRows(&out, format, rows))
		require.Contains(t, out.String(), part)
	}

	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errNoSample)
	require.ErrorIs(t, o.Run(gone, nil), errNoSample)
	require.ErrorIs(t, o.Run(t.Context(), func(CeilingRow) error { return errors.ErrUnsupported }), errors.ErrUnsupported)
	for _, f := range [][]uint64{nil, {ceilingSmallest - 1}, {ceilingCold/ceilingLeast + 1}} {
		require.ErrorContains(t, (&Ceiling{Fragments: f, Runs: 1}).Check(), "--fragments")
	}
	o.MaxMemory = 1
	require.ErrorContains(t, o.Run(t.Context(), nil), "source")
}

func TestFragmentsOfTheCeilingAreColdAndNotAdjacent(t *testing.T) {
	for _, f := range []uint64{ceilingSmallest, 1728, 64 << 10, 576 << 10, ceilingCold / ceilingLeast} {
		m, needs := planCeiling(f, ceilingCold)
		require.GreaterOrEqual(t, needs[0].Bytes, uint64(ceilingCold))
		for _, call := range m.calls {
			require.GreaterOrEqual(t, len(call), ceilingLeast)
			for i := range call[1:] {
				require.Greater(t, call[i+1].from, call[i].from+f)
				require.Greater(t, call[i+1].to, call[i].to+f)
			}
		}
		last := m.calls[len(m.calls)-1]
		require.LessOrEqual(t, last[len(last)-1].from+f, needs[0].Bytes)
		require.LessOrEqual(t, last[len(last)-1].to+f, needs[1].Bytes)
	}
}
