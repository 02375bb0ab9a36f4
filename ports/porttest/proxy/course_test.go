package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestACourseComesFromTheSeed: the same one for each run, and another one for each connection and direction.
func TestACourseComesFromTheSeed(t *testing.T) {
	w := Way{Piece: 5_000, Split: true, Delay: time.Second, Stall: time.Minute, StallOneIn: 3, Cut: 100_000}
	type step struct {
		piece, passes int
		wait          time.Duration
		cut           bool
	}
	drawn := func(seed, conn uint64, d Direction) (steps []step) {
		c := newCourse(seed, conn, d)
		for range 100 {
			s := step{piece: c.piece(w)}
			s.wait = c.wait(w, s.piece, time.Time{})
			s.passes, s.cut = c.spend(w, s.piece)
			steps = append(steps, s)
		}
		return steps
	}
	first := drawn(1, 1, ToTarget)
	require.Equal(t, first, drawn(1, 1, ToTarget))
	require.NotEqual(t, first, drawn(2, 1, ToTarget))
	require.NotEqual(t, first, drawn(1, 2, ToTarget))
	require.NotEqual(t, first, drawn(1, 1, ToDialler))
	passed := 0
	for i, s := range first {
		if passed += s.passes; s.cut {
			require.Less(t, i, 99)
			require.GreaterOrEqual(t, passed, 50_000)
			require.LessOrEqual(t, passed, 150_000)
			break
		}
		require.Equal(t, s.piece, s.passes)
		require.Less(t, i, 99, "never cut")
	}
}
