package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/adapters/rdma"
)

// TestDoctorAloneLooksAtEverythingAndFindsNothingWithoutFailing: a pool needs no GPU and no RDMA.
func TestDoctorAloneLooksAtEverythingAndFindsNothingWithoutFailing(t *testing.T) {
	if hip.Built || rdma.Built {
		t.Skip("this build may have devices")
	}
	o := invoke(t, "doctor")
	require.Equal(t, exitOK, o.code, o.stderr)
	for _, says := range []string{"processors", "memory", "gpu: ", "-tags gpu", "rdma: ", "make build"} {
		require.Contains(t, o.stdout, says)
	}
	require.Equal(t, exitUsage, invoke(t, "doctor", "disk").code)
}

func TestAHostTooSmallForTheDefaultsIsTold(t *testing.T) {
	require.EqualValues(t, 1536<<20, defaultBytes())
	all := examineHost(2, 1<<30, "a limit", 1536<<20)
	require.Contains(t, all[1].is, "1024 MiB at most (a limit)")
	require.Contains(t, all[1].advice, "1536 MiB")
	require.Empty(t, examineHost(2, 2<<30, "a limit", 1536<<20)[1].advice)
	require.Empty(t, examineHost(2, 0, "", 1536<<20)[1].advice)
}
