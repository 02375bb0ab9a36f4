package bench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCountedBytesAreWithinOnePercentOfTheKernels(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		counted, kernel uint64
		ok              bool
	}{
		{100 * mib, 100 * mib, true},
		{100 * mib, 100*mib + 800, true},
		{99*mib + 1, 100 * mib, true},
		{101*mib + helloBytes, 101 * mib, true},
		{98 * mib, 100 * mib, false},
		{102 * mib, 100 * mib, false},
		{0, 800, true}, // a link that nothing was read over
		{0, mib, false},
		{mib, 0, false}, // a kernel that counts nothing proves nothing
	} {
		err := compareKernel(c.counted, c.kernel)
		if c.ok {
			require.NoError(t, err, "%+v", c)
			continue
		}
		require.ErrorIs(t, err, ErrFailed, "%+v", c)
	}
}

// TestARunAsksTheKernelOfItsSockets: both fetches read over links that are metered, and a run whose count is off fails.
func TestARunAsksTheKernelOfItsSockets(t *testing.T) {
	for _, fetch := range []FetchMode{FetchRanged, FetchWhole} {
		r := newRealRun(t, fetch)
		r.Transport, r.OffloadRanks = TransportTCP, 0
		var received, asked uint64
		factor := uint64(1)
		open := func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
			c, err := openLasting(ctx, s)
			if err == nil {
				sockets := c.Sockets
				c.Sockets = func() uint64 { received = sockets(); asked++; return factor * received }
			}
			return c, err
		}
		require.NoError(t, r.runOver(t, open), r.errs.String())
		require.EqualValues(t, 1, asked)
		sets := float64((r.Requests + 1) * r.Ranks[0]) // the warm-up's, too
		require.InEpsilon(t, sets*r.setMiB(), toMiB(received), kernelMiss)
		factor = 2
		require.ErrorIs(t, r.runOver(t, open), ErrFailed)
		require.ErrorContains(t, r.runOver(t, open), "the kernel received")
	}
}
