package domain

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPullAllowanceRows(t *testing.T) {
	const piece, most = PullPieceBytes, PullInFlightBytes
	for _, c := range []struct {
		name             string
		pull, foreground uint64
		awaited          bool
		want             uint64
	}{
		{"an idle link", 0, 0, false, most},
		{"an idle link, some in flight", 3 * piece, 0, false, most - 3*piece},
		{"an idle link, all in flight", most, 0, false, 0},
		{"more in flight than a bound that shrank", most, 3 * piece, false, 0},
		{"a busy link has a quarter", 1, 12 * piece, false, 4*piece - 1},
		{"a busy link, its quarter used", 4 * piece, 12 * piece, false, 0},
		{"a busy link, no more than the bound", 1, 100 * most, false, most - 1},
		{"little in the foreground: one piece", 0, 1, false, piece},
		{"little in the foreground: not two", piece, 1, false, 0},
		{"first bytes are awaited", 0, 0, true, 0},
		{"first bytes are awaited, a busy link", 0, 12 * piece, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, PullAllowance(c.pull, c.foreground, c.awaited))
		})
	}
}

func TestPullKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pull := rapid.Uint64Range(0, 2*PullInFlightBytes).Draw(t, "pull")
		foreground := rapid.Uint64Range(0, 10*PullInFlightBytes).Draw(t, "foreground")
		total := pull + PullAllowance(pull, foreground, false)
		require.LessOrEqual(t, total, max(pull, PullInFlightBytes))
		if foreground > 0 {
			require.LessOrEqual(t, total, max(pull, PullPieceBytes, foreground/3))
		}
		if pull == 0 {
			require.GreaterOrEqual(t, total, uint64(PullPieceBytes))
		}
	})
}

func TestNextPieceIsTheLowestMissingRunCut(t *testing.T) {
	const size = 3 * PullPieceBytes
	var held, claimed Extents
	piece, ok := NextPiece(size, &held, nil)
	require.True(t, ok)
	require.Equal(t, Run{0, PullPieceBytes}, piece)

	held.Add(Run{0, 100})
	claimed.Add(Run{100, PullPieceBytes})
	claimed.Add(Run{PullPieceBytes + 300, 50})
	piece, ok = NextPiece(size, &held, &claimed)
	require.True(t, ok)
	require.Equal(t, Run{PullPieceBytes + 100, 200}, piece)

	held.Add(Run{0, size})
	_, ok = NextPiece(size, &held, &claimed)
	require.False(t, ok)
}

// Beside calls that always have bytes in flight, the pull puts at most an eighth of all bytes on a link, and one piece more.
func TestThePullEarnsAnEighthBesideForeground(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var credit PullCredit
		var landed, pulled uint64
		for _, op := range rapid.SliceOfN(rapid.Uint64Range(1, 4*PullPieceBytes), 1, 50).Draw(t, "ops") {
			enough := credit.Earn(op)
			landed += op
			require.Equal(t, enough, uint64(credit) == PullPieceBytes)
			piece := rapid.Uint64Range(1, PullPieceBytes).Draw(t, "piece")
			before := uint64(credit)
			took := credit.Spend(piece)
			require.Equal(t, before >= piece, took)
			if took {
				pulled += piece
			}
			require.LessOrEqual(t, 7*pulled, landed)
		}
	})
}

func TestAnIdleTimeEarnsThePullNoBurst(t *testing.T) {
	var credit PullCredit
	require.True(t, credit.Earn(1<<40))
	require.True(t, credit.Spend(PullPieceBytes))
	require.False(t, credit.Spend(1))
}
