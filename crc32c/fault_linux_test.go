package crc32c

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// vanishing is two pages of a file, of which the second is gone.
func vanishing(t *testing.T) []byte {
	t.Helper()
	page := os.Getpagesize()
	f, err := os.Create(filepath.Join(t.TempDir(), "gone"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(2*page)))
	b, err := syscall.Mmap(int(f.Fd()), 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	require.NoError(t, f.Truncate(int64(page)))
	return b
}

func faults(f func()) (fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		_, fault = recover().(interface {
			runtime.Error
			Addr() uintptr
		})
	}()
	f()
	return false
}

func TestMemoryThatIsGoneIsAPanicAndNoMore(t *testing.T) {
	gone, b := vanishing(t), noise(1<<16)
	here := len(gone) / 2
	eachKernel(t, func(t *testing.T, k kernel) {
		for _, n := range []int{here + 1, here + 100, 2 * here} {
			require.True(t, faults(func() { update(k, 0, gone[:n]) }), "sum of %d bytes", n)
			for _, c := range copiers {
				require.True(t, faults(func() { c.f(k, b[:n], gone[:n], nil, 0) }), "%s from %d bytes", c.name, n)
				require.True(t, faults(func() { c.f(k, gone[:n], b[:n], nil, 0) }), "%s to %d bytes", c.name, n)
				require.False(t, faults(func() { c.f(k, b[:here], gone[:here], gone[here:], 0) }), "%s while gone bytes are fetched", c.name)
			}
			require.Equal(t, due(0, b), update(k, 0, b))
		}
	})
}
