package boottime

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestNowIsTheKernelsBootTime nests a reading between two of the kernel's, which differ from CLOCK_MONOTONIC's on a machine
// that slept.
func TestNowIsTheKernelsBootTime(t *testing.T) {
	var before, after unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &before))
	now := int64(New().Now())
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &after))
	require.LessOrEqual(t, before.Nano(), now)
	require.GreaterOrEqual(t, after.Nano(), now)
}
