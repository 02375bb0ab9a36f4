package crc32c

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// twice is memory that is there at two places.
func twice(t *testing.T, n int) (a, b []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(n)))
	mapped := func() []byte {
		m, err := syscall.Mmap(int(f.Fd()), 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, syscall.Munmap(m)) })
		return m
	}
	return mapped(), mapped()
}

// TestSumsAreOfWhatWasStoredThoughTheSourceChanges writes to the source while it is copied, always at the worst moment: source and
// destination are one memory, a little apart, so that a byte of the source is another one as soon as it was copied.
func TestSumsAreOfWhatWasStoredThoughTheSourceChanges(t *testing.T) {
	const room = 1 << 16
	dst, src := twice(t, 2*room)
	eachCopier(t, func(t *testing.T, c copier, k kernel) {
		for _, apart := range []int{1, 3, 8, 32, 64, 200, 4096} {
			for _, at := range []int{0, 1, 64} {
				for _, n := range []int{9, 40, 100, 200, 511, 1728, 5000, room} {
					copy(src, noise(2*room))
					sum := c.f(k, dst[at:at+n], src[at+apart:at+apart+n], nil, 0)
					require.Equal(t, due(0, dst[at:at+n]), sum, "%d bytes to %d from %d", n, at, at+apart)
				}
			}
		}
	})
}
