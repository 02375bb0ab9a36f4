package hiprt

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMemoryTypesAreTranslated: HIP began at host until version 5, and at unregistered since, as CUDA does.
func TestMemoryTypesAreTranslated(t *testing.T) {
	for _, tt := range []struct {
		vendor       Vendor
		version, raw int
		want         MemoryType
	}{
		{HIP, 50221153, 0, Host}, {HIP, 50221153, 1, Device}, {HIP, 50221153, 4, Managed}, {HIP, 50221153, 2, OtherMemory},
		{HIP, 60140091, 0, Unregistered}, {HIP, 60140091, 1, Host}, {HIP, 60140091, 2, Device}, {HIP, 70051831, 3, Managed},
		{CUDA, 12080, 0, Unregistered}, {CUDA, 12080, 2, Device}, {CUDA, 12080, 9, OtherMemory}, {CUDA, 12080, -1, OtherMemory},
	} {
		require.Equal(t, tt.want, memoryType(tt.vendor, tt.version, tt.raw), "%+v", tt)
	}
}

func TestOptionalSymbolsAreTheLastOfTheTable(t *testing.T) {
	require.Equal(t, []string{"MemcpyBatchAsync", "MemGetHandleForAddressRange", "MemGetAddressRange"}, symbols[len(symbols)-optional:])
}

func TestErrorsAreTheirCodes(t *testing.T) {
	err := error(&CallError{"hipMalloc", OutOfMemory, "out of memory"})
	require.ErrorIs(t, err, OutOfMemory)
	require.NotErrorIs(t, err, NoDevice)
	require.EqualError(t, err, "hipMalloc: error 2: out of memory")
	require.EqualError(t, &MissingError{"lib.so", []string{"hipFree", "hipMalloc"}}, "lib.so has no hipFree, hipMalloc")
	if !Supported {
		_, err := Open("lib.so", HIP)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "build tag gpu")
	}
}
