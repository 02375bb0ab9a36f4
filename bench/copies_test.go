package bench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallLocal is a few calls of each kind: runs with gaps, of odd length, and adjacent ones.
func smallLocal() []localReads {
	return []localReads{
		{run: 1728, step: 2 * 1728, object: 2 * 5 * 1728, each: 5, keys: 4, sets: 2},
		{run: 1001, step: 1500, object: 7 * 1500, each: 2, keys: 3, sets: 2},
		{run: 8 * 73_728, step: 8 * 73_728, object: 61 * 73_728, each: 1, keys: 2, sets: 1},
	}
}

func TestBothSidesOfLocalCopiesMoveTheSameBytes(t *testing.T) {
	for _, l := range smallLocal() {
		c, err := openLocalCopies(t.Context(), l, 1<<30)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.close()) }()
		require.Len(t, c.calls, l.sets*l.groups())
		for name, call := range map[string]func(context.Context, int) error{"ours": c.ours, "bare": c.bare} {
			rate, err := c.verified(t.Context(), call) // checks every byte
			require.NoError(t, err, name)
			require.Positive(t, rate)
		}
		_, err = c.verified(t.Context(), func(context.Context, int) error { return nil })
		require.ErrorContains(t, err, "wrong byte at 0", "one that moves nothing is found out")
		_, err = c.verified(t.Context(), func(ctx context.Context, i int) error {
			c.into.b[3] = 0 // and not one more each time: after 256 calls it would be what it was
			return c.ours(ctx, i)
		})
		require.ErrorContains(t, err, "byte 3 of the destination")
	}
}

func TestTheBarsOfCopiesAreWhatTheyAreCalled(t *testing.T) {
	require.EqualValues(t, 576<<10, localGroups.run)
	require.Equal(t, 7, localGroups.groups(), "the full groups of 61 layers")
	require.Equal(t, 1, localSmallest.groups())
	for _, l := range []localReads{localGroups, localSmallest} {
		require.Greater(t, l.object*uint64(l.keys*l.sets), uint64(96<<20), "caches hold less")
	}
	bars := (&Ratios{MaxMemory: 1 << 20}).copyBars()
	require.Equal(t, "get_gibps of bare >= 0.7", bars[1].bars[0].name+" "+bars[1].bars[0].target())
	for _, b := range bars {
		_, err := b.ours(t.Context())
		require.ErrorContains(t, err, "--max-memory", "%s does not fit, and says so", b.name)
		require.NoError(t, b.end(), "%s: nothing was opened", b.name)
	}
}
