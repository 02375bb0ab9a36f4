package tcp

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/ports"
)

// mapped is anonymous memory for the length of the test.
func mapped(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// vanishing is memory of a file, and what cuts it short.
func vanishing(t testing.TB, n int) (b []byte, cut func()) {
	fd, err := unix.MemfdCreate("vanishing", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b, func() { require.NoError(t, unix.Ftruncate(fd, 0)) }
}

// TestACallersMemoryThatIsGoneFailsItsOpAlone: small fragments go there by way of a buffer, and sums are made there.
func TestACallersMemoryThatIsGoneFailsItsOpAlone(t *testing.T) {
	const size = 64 << 10
	owner, asker := listen(t, "owner", Config{}), listen(t, "asker", Config{})
	require.NoError(t, owner.Transport.Expose(0, heap(t, size)))
	l := dial(t, asker, owner)
	gone, cut := vanishing(t, size)
	cut()
	there := ports.HostRegionOf(mapped(t, size))
	for _, sum := range []bool{false, true} {
		b := &ports.Batch{}
		for i := range uint64(2) {
			b.Ops = append(b.Ops, ports.Op{Tag: i, First: uint32(2 * i), Count: 2, Sum: sum})
			local := []ports.Region{ports.HostRegionOf(gone), there}[i]
			b.Segments = append(b.Segments, ports.Segment{Local: local, Len: 1728}, ports.Segment{RemoteOff: 4096, Local: local, LocalOff: 8192, Len: 1728})
		}
		q := ports.NewCompletions()
		require.NoError(t, l.Submit(b, q))
		var done []ports.Completion
		for len(done) < 2 {
			before := len(done)
			var err error
			done, err = q.Take(context.Background(), 10*time.Second, done)
			require.NoError(t, err)
			require.Greater(t, len(done), before)
		}
		for _, c := range done {
			if c.Tag == 0 {
				require.ErrorContains(t, c.Err, "memory fault")
			} else {
				require.NoError(t, c.Err)
			}
			require.Equal(t, sum && c.Tag == 1, c.Summed)
		}
	}
}
