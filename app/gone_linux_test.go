package app_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// vanishing is memory of a file, and what cuts it short.
func vanishing(t testing.TB, n int) (r ports.HostRegion, cut func()) {
	t.Helper()
	fd, err := unix.MemfdCreate("vanishing", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return ports.HostRegionOf(b), func() { require.NoError(t, unix.Ftruncate(fd, 0)) }
}

// TestMemoryThatGoesBeforeItIsVerifiedIsNobodysFault: the key fails, and no peer is told that its bytes are bad.
func TestMemoryThatGoesBeforeItIsVerifiedIsNobodysFault(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, noHop)
		a.putLayers(objectSize, "k")
		r, cut := vanishing(t, objectSize)
		m, err := b.RegisterMemory(t.Context(), r)
		require.NoError(t, err)
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Missum: true, After: faults.Do(cut)}))
		out := make([]ports.Result, 1)
		require.NoError(t, b.BatchGet(t.Context(), &ports.WholeBatch{Namespace: namespace, Keys: []string{"k"}, Regions: []ports.Memory{m},
			Targets: []ports.Target{{Len: objectSize}}}, out))
		requireStatus(t, ports.TransferFailed, out)
		require.ErrorContains(t, out[0].Err, "memory fault")
		require.NoError(t, b.DeregisterMemory(t.Context(), m.ID))
		s := b.Stats()
		require.Zero(t, s.CorruptRanges)
		require.Zero(t, s.ComplaintsMade)
		require.EqualValues(t, objectSize, s.DuplicateBytes)
	})
}

// TestMemoryThatIsGoneBeforeItIsPutFailsItsKeyAlone, when it is written from where it is.
func TestMemoryThatIsGoneBeforeItIsPutFailsItsKeyAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: app.Config{}})
		var table []ports.Memory
		r, cut := vanishing(t, objectSize)
		for _, r := range []ports.HostRegion{r, ports.HostRegionOf(make([]byte, objectSize))} {
			m, err := b.RegisterMemory(t.Context(), r)
			require.NoError(t, err)
			table = append(table, m)
		}
		cut()
		out := make([]ports.Result, 2)
		require.NoError(t, b.BatchPutRanges(t.Context(), &ports.PutBatch{Namespace: namespace, Keys: []string{"k", "l"}, To: "a", Regions: table,
			Sizes: []uint64{objectSize, objectSize}, End: []uint32{1, 2},
			Ranges: []domain.Range{{Len: objectSize}, {Len: objectSize, Region: 1}}}, out))
		require.Equal(t, ports.CopyFailed, out[0].Status, "%v", out[0].Err)
		require.ErrorContains(t, out[0].Err, "memory fault")
		require.Equal(t, ports.Stored, out[1].Status, "%v", out[1].Err)
		require.EqualValues(t, 1, a.committed())
		for _, m := range table {
			require.NoError(t, b.DeregisterMemory(t.Context(), m.ID))
		}
	})
}
