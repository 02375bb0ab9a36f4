//go:build gpu && linux && cgo

package daemon

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// fakeGPU builds a runtime whose device memory faults when a CPU touches it.
func fakeGPU(t *testing.T, o fakehip.Options) *fakehip.Library {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		if strings.Contains(os.Getenv("SPANPOOL_REQUIRE"), "hip") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	lib, err := fakehip.Build(t.TempDir(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lib.Close()) })
	return lib
}

// TestNodesInDeviceMemoryServeEachOther by tcp, and give back all that they took.
func TestNodesInDeviceMemoryServeEachOther(t *testing.T) {
	lib := fakeGPU(t, fakehip.Options{})
	hbm := []string{"--medium", "hbm", "--gpu-library", lib.Path, "--gpu-runtime", "hip", "--gpu-devices", "0,1", "--gpu-reserve-bytes", "1MiB", "--lease", "200ms",
		"--arena-get-bytes", "1MiB", "--arena-put-bytes", "1MiB", "--insecure"}
	s := settingsOf(t, hbm...)
	require.NoError(t, fx.ValidateApp(fx.Supply(newResources(), &Addresses{}), modules(s, Options{Log: io.Discard}), fx.Populate(new(*app.Node)), fx.NopLogger))
	a, err := New(s, Options{Log: io.Discard})
	require.NoError(t, err)
	require.NoError(t, a.Start(t.Context()))
	b, err := New(settingsOf(t, append(hbm, "--node-id", "b", "--peers", "a="+a.At.Control)...), Options{Log: io.Discard})
	require.NoError(t, err)
	require.NoError(t, b.Start(t.Context()))
	require.NotZero(t, lib.Allocations.Load())

	const n = 100_000
	object := make([]byte, n)
	content.Fill(object, 1, 0)
	require.Equal(t, ports.Stored, a.Node.Put(t.Context(), "ns", "k", ports.HostRegionOf(object)).Status)
	for _, source := range []ports.Source{ports.FromSlot, ports.FromLocal} {
		got := make([]byte, n)
		r := b.Node.Get(t.Context(), "ns", "k", ports.HostRegionOf(got))
		require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
		require.Equal(t, source, r.Source)
		require.Equal(t, -1, content.Check(got, 1, 0))
	}
	require.GreaterOrEqual(t, scraped(t, b).sum("spanpool_gpu_copied_bytes_total"), 2.0*n, "in, and out to the caller")
	require.Equal(t, 2.0*n, scraped(t, b).values[`spanpool_unverified_bytes_total{reason="device"}`], "no processor sums what is in device memory")
	require.NoError(t, b.Stop())
	require.NoError(t, a.Stop())
	require.Zero(t, lib.Allocations.Load()+lib.Streams.Load()+lib.Events.Load()+lib.Registered.Load())
}

// TestANodeInDeviceMemoryTakesALinkThatDoesNotReachIt: what shm brings, as a NIC would, goes by the arena; peers are told why it does not
// serve by it.
func TestANodeInDeviceMemoryTakesALinkThatDoesNotReachIt(t *testing.T) {
	lib := fakeGPU(t, fakehip.Options{})
	var told logged
	common := []string{"--arena-get-bytes", "1MiB", "--arena-put-bytes", "1MiB", "--transport", "shm", "--dram-bytes", "8MiB"}
	a, err := New(settingsOf(t, common...), Options{Log: io.Discard})
	require.NoError(t, err)
	require.NoError(t, a.Start(t.Context()))
	b, err := New(settingsOf(t, append(common, "--node-id", "b", "--peers", "a="+a.At.Control, "--medium", "hbm", "--gpu-library", lib.Path, "--gpu-reserve-bytes", "1MiB")...), Options{Log: &told})
	require.NoError(t, err)
	require.NoError(t, b.Start(t.Context()))
	require.Contains(t, told.String(), "does not reach the pool")

	const n = 200_000
	object := make([]byte, n)
	content.Fill(object, 1, 0)
	for _, key := range []string{"whole", "part"} {
		require.Equal(t, ports.Stored, a.Node.Put(t.Context(), "ns", key, ports.HostRegionOf(object)).Status)
	}
	read := func(key string, off, length uint64, from ports.Source) {
		t.Helper()
		got := make([]byte, length)
		content.Poison(got)
		out := make([]ports.Result, 1)
		require.NoError(t, b.Node.BatchGetRanges(t.Context(), &ports.GetBatch{Namespace: "ns", Keys: []string{key}, End: []uint32{1},
			Ranges: []domain.Range{{Off: off, Len: length}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(got)}}}, out))
		require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
		require.Equal(t, from, out[0].Source)
		require.Equal(t, -1, content.Check(got, 1, off))
	}
	read("whole", 0, n, ports.FromArena)
	read("part", 70_001, 5_000, ports.FromArena)
	require.Eventually(t, func() bool { return b.Node.Stats().PullDone == 1 }, 10*time.Second, time.Millisecond)
	read("whole", 0, n, ports.FromLocal)
	read("part", 0, n, ports.FromLocal)
	s := b.Node.Stats()
	require.EqualValues(t, 2, s.Downgrades[ports.DowngradeUnreached])
	by := s.Peers[0].Transports
	require.Equal(t, [2]ports.TransportKind{"shm", "tcp"}, [2]ports.TransportKind{by[0].Kind, by[1].Kind})
	require.EqualValues(t, n+5_000, by[0].Wire[ports.PurposeGet])
	require.EqualValues(t, n, by[1].Wire[ports.PurposePull])
	require.EqualValues(t, 2, scraped(t, b).values[`spanpool_downgrades_total{reason="unreached"}`])
	require.NoError(t, b.Stop())
	require.NoError(t, a.Stop())
	require.Zero(t, lib.Allocations.Load()+lib.Streams.Load()+lib.Events.Load()+lib.Registered.Load())
}

func TestAMediumThatADeviceCannotHoldIsRefusedByItsPart(t *testing.T) {
	lib := fakeGPU(t, fakehip.Options{Memory: 2 << 20})
	for _, args := range [][]string{{"--dram-bytes", "4MiB"}, {"--dram-bytes", "1MiB", "--gpu-reserve-bytes", "2MiB"}, {"--gpu-devices", "5"}, {"--dram-page-bytes", "100", "--dram-bytes", "1000"}} {
		_, err := New(settingsOf(t, append([]string{"--medium", "hbm", "--gpu-library", lib.Path, "--gpu-reserve-bytes", "0"}, args...)...), Options{Log: io.Discard})
		var part *PartError
		require.ErrorAs(t, err, &part, "%v", args)
		require.Equal(t, "medium", part.Part)
	}
	require.Zero(t, lib.Allocations.Load()+lib.Streams.Load()+lib.Registered.Load())
}

// TestClientsMayLendDeviceMemoryToANodeInHostMemory: the runtime is opened for them, and closed after them.
func TestClientsMayLendDeviceMemoryToANodeInHostMemory(t *testing.T) {
	lib := fakeGPU(t, fakehip.Options{})
	d, err := New(settingsOf(t, "--gpu-clients", "true", "--gpu-library", lib.Path), Options{Log: io.Discard})
	require.NoError(t, err)
	require.NoError(t, d.Start(t.Context()))
	require.Equal(t, ports.Stored, d.Node.Put(t.Context(), "ns", "k", ports.HostRegionOf([]byte("v"))).Status)
	require.Contains(t, scraped(t, d).values, `spanpool_gpu_lost{device="0"}`)
	require.NoError(t, d.Stop())
	require.Zero(t, lib.Streams.Load()+lib.Registered.Load())
}
