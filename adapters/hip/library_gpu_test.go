//go:build gpu && linux && cgo

package hip

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
)

// required says whether a skip is a failure.
func required() bool { return strings.Contains(os.Getenv("SPANPOOL_REQUIRE"), "hip") }

// TestDebiansLibrarySaysThatThereIsNoDevice has a vendor's own runtime, of version 5, on a host without a GPU.
func TestDebiansLibrarySaysThatThereIsNoDevice(t *testing.T) {
	if _, err := os.Stat("/dev/kfd"); err == nil {
		t.Skip("this host has a GPU")
	}
	_, err := hiprt.Open("libamdhip64.so.5", hiprt.HIP)
	if err != nil && strings.Contains(err.Error(), "cannot open shared object file") && !required() {
		t.Skip("apt-get install libamdhip64-5:", err)
	}
	require.NoError(t, err, "every required symbol is there")
	_, err = Open(Config{Vendor: HIP, Library: "libamdhip64.so.5", Host: goCopier{}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, err, hiprt.NoDevice)
	require.ErrorContains(t, err, "libamdhip64.so.5 (version 5")
	require.ErrorContains(t, err, "hipGetDeviceCount: error 100")
}

func TestWhatALibraryLacksIsNamed(t *testing.T) {
	lib := fake(t, fakehip.Options{WithoutMalloc: true})
	_, err := Open(Config{Vendor: HIP, Library: lib.Path, Host: goCopier{}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	var missing *hiprt.MissingError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"hipMalloc"}, missing.Symbols)
	require.ErrorContains(t, err, lib.Path+" has no hipMalloc")
}

// TestALibraryThatIsNoneIsAnErrorForEachVendor: auto tries both, and tells of both.
func TestALibraryThatIsNoneIsAnErrorForEachVendor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib.so")
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	_, err := Open(Config{Library: path, Host: goCopier{}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Equal(t, 2, strings.Count(err.Error(), "open "+path), "%v", err)
	_, err = Open(Config{Vendor: CUDA, Library: path, Host: goCopier{}})
	require.Equal(t, 1, strings.Count(err.Error(), "open "+path), "%v", err)
}

func TestAutoFindsOutWhoseLibraryItIs(t *testing.T) {
	for want, o := range map[Vendor]fakehip.Options{HIP: {}, CUDA: {CUDA: true}} {
		r := open(t, fake(t, o), nil)
		report, err := r.Report()
		require.NoError(t, err)
		require.Equal(t, want, report.Vendor)
	}
}

func TestNoDeviceIsSaidWithTheLibrary(t *testing.T) {
	lib := fake(t, fakehip.Options{Devices: -1})
	_, err := Open(Config{Library: lib.Path, Vendor: HIP, Host: goCopier{}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, err, hiprt.NoDevice)
	require.ErrorContains(t, err, lib.Path+" (version 70051831): hipGetDeviceCount: error 100: no device is detected")
}

func TestTheReportSaysWhatTheRuntimeHas(t *testing.T) {
	for _, tt := range []struct {
		o             fakehip.Options
		version       int
		batch, dmabuf bool
	}{
		{fakehip.Options{Devices: 3}, fakehip.ROCm7, true, true},
		{fakehip.Options{Version: fakehip.ROCm5, WithoutBatch: true, WithoutDMABuf: true}, fakehip.ROCm5, false, false},
	} {
		r := open(t, fake(t, tt.o), nil)
		report, err := r.Report()
		require.NoError(t, err)
		require.Equal(t, tt.version, report.Version)
		require.Equal(t, tt.batch, report.Batch)
		require.Equal(t, tt.dmabuf, report.DMABuf)
		require.Len(t, report.Devices, r.Devices())
		require.Equal(t, "0000:02:00.0", report.Devices[1].PCI)
		require.EqualValues(t, 256<<20, report.Devices[1].Free)
		require.Equal(t, "not tried yet", report.Devices[0].Import.String())
	}
}
