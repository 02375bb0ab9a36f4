package domain

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestLeaseEndsATenthEarlyCountedFromBeforeTheRequest(t *testing.T) {
	require.Equal(t, Instant(100).Add(450*time.Millisecond), LeaseEnd(100, 500*time.Millisecond))
	require.Equal(t, Instant(100).Add(250*time.Millisecond), RenewAt(100, 500*time.Millisecond))
	require.Equal(t, Instant(100), LeaseEnd(100, 0))
	require.Equal(t, Instant(100+8), LeaseEnd(100, 9), "rounded down")
}

func TestLeaseEndIsNeverPastNineTenths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		granted := rapid.Int64Range(0, math.MaxInt64/10).Draw(t, "granted")
		end := LeaseEnd(0, time.Duration(granted))
		require.Equal(t, Instant(granted*9/10), end)
		require.LessOrEqual(t, RenewAt(0, time.Duration(granted)), end)
	})
}
