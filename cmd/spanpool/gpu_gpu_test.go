//go:build gpu && linux && cgo

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/client"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/cmd/spanpool/daemon"
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
	t.Cleanup(func() {
		require.Zero(t, lib.Allocations.Load()+lib.Streams.Load()+lib.Registered.Load(), "something of the device was not given back")
		require.NoError(t, lib.Close())
	})
	return lib
}

// invokeNodes runs a command line over real nodes.
func invokeNodes(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	env := environment{open: bench.OpenNodes, maxMemory: 1 << 30, cores: 2, raiseProc: func(int) {}}
	code := run(t.Context(), args, &stdout, &stderr, env)
	return outcome{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// lenderVariable has this test binary be the program.
const lenderVariable = "SPANPOOL_E2E_LENDER"

func TestMain(m *testing.M) {
	if os.Getenv(lenderVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestDoctorTriesMemoryOfAnotherProcessWithTheNIC: there is none here, which is said.
func TestDoctorTriesMemoryOfAnotherProcessWithTheNIC(t *testing.T) {
	t.Setenv(lenderVariable, "1")
	for _, tt := range []struct {
		o    fakehip.Options
		want string
	}{
		{fakehip.Options{}, "no: it can be exported, and the NIC refused it: rdma "},
		{fakehip.Options{WithoutDMABuf: true}, "no: hip: export dma-buf on device 0: hipMemGetHandleForAddressRange"},
		{fakehip.Options{Memory: 64 << 10}, "not tried: another process lends no memory"},
	} {
		lib := fakeGPU(t, tt.o)
		if tt.o.Memory != 0 {
			lib.Memory.Store(1)
		}
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"doctor", "gpu", "--gpu-library", lib.Path}, &stdout, &stderr, environment{self: os.Args[0]})
		require.Equal(t, exitOK, code, "%s", stderr.String())
		require.Contains(t, stdout.String(), "lent memory and a NIC      "+tt.want)
		require.Zero(t, lib.Imported.Load())
	}
}

// TestLayerwiseRestoresFromAndToDeviceMemory verifies every byte, as ever, over media and destinations that no CPU may touch.
func TestLayerwiseRestoresFromAndToDeviceMemory(t *testing.T) {
	lib := fakeGPU(t, fakehip.Options{})
	for _, args := range [][]string{
		{"--medium", "hbm", "--destination", "gpu"},
		{"--medium", "hbm", "--destination", "gpu", "--transport", "tcp", "--page-bytes", "4096", "--gpu-device", "1"},
		{"--medium", "hbm", "--locality", "off"},
		{"--destination", "gpu", "--local-only"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			o := invokeNodes(t, append([]string{"bench", "layerwise", "--pools", "kv:8:8192", "--ranks", "2", "--pages", "6", "--requests", "2", "--layer-group", "3",
				"--compute-us-per-layer", "0", "--gpu-library", lib.Path, "--output", "json"}, args...)...)
			require.Equal(t, exitOK, o.code, "%s", o.stderr)
			require.Contains(t, o.stdout, `"failed_reads": 0`)
		})
	}
}

func TestBenchGPUMeasuresWhatItVerified(t *testing.T) {
	lib := fakeGPU(t, fakehip.Options{})
	o := invoke(t, "bench", "gpu", "--gpu-library", lib.Path, "--fragments", "1728,65536", "--bytes", "256KiB", "--time", "1ms", "--output", "csv")
	require.Equal(t, exitOK, o.code, "%s", o.stderr)
	lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
	require.Len(t, lines, 1+2*3*3)
	require.Contains(t, o.stdout, "d2d,loose,1728,151,")
	o = invoke(t, "bench", "gpu", "--gpu-library", lib.Path, "--gpu-device", "2")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "--gpu-device 2: want 0 to 1")
}

func TestDoctorTellsWhatTheGPUsRuntimeCan(t *testing.T) {
	lib := fakeGPU(t, fakehip.Options{Devices: 2})
	o := invoke(t, "doctor", "gpu", "--gpu-library", lib.Path)
	require.Equal(t, exitOK, o.code, "%s", o.stderr)
	for _, want := range []string{"hip, " + lib.Path + ", version 70051831", "memory for a NIC           yes", "0000:02:00.0, 256 MiB free of 256"} {
		require.Contains(t, o.stdout, want)
	}
	require.Contains(t, o.stdout, "lent memory and a NIC      not tried: the program's own file is not known")

	lib = fakeGPU(t, fakehip.Options{Version: fakehip.ROCm5, WithoutBatch: true, WithoutDMABuf: true})
	o = invoke(t, "doctor", "gpu", "--gpu-library", lib.Path)
	require.Equal(t, exitOK, o.code, "%s", o.stderr)
	require.Contains(t, o.stdout, "MemcpyBatchAsync")
	require.Contains(t, o.stdout, "hipMemGetHandleForAddressRange")

	lib = fakeGPU(t, fakehip.Options{Devices: -1})
	o = invoke(t, "doctor", "gpu", "--gpu-library", lib.Path)
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, "no device is detected")
	require.Contains(t, o.stderr, "no GPU can be used")
}

// lentHandle is memory of another process, which lives until the test ends. It has a library of its own, so that the counts of lib are
// this process's.
func lentHandle(t *testing.T) []byte {
	t.Helper()
	t.Setenv(lenderVariable, "1")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own is over before its clean-up
	lender := exec.CommandContext(ctx, os.Args[0], "doctor", "gpu", "--lend", "--gpu-library", fakeGPU(t, fakehip.Options{}).Path)
	stdin, err := lender.StdinPipe()
	require.NoError(t, err)
	stdout, err := lender.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, lender.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close())
		require.NoError(t, lender.Wait())
		cancel()
	})
	var handle []byte
	_, err = fmt.Fscanf(stdout, "%x\n", &handle)
	require.NoError(t, err)
	return handle
}

// TestAClientLendsDeviceMemory to a node, which opens it with the region and closes it with that.
func TestAClientLendsDeviceMemory(t *testing.T) {
	handle := lentHandle(t)
	lib := fakeGPU(t, fakehip.Options{})
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.Flags(f)
	require.NoError(t, f.Parse([]string{"--node-id", "a", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--http", "off", "--dram-bytes", "1MiB",
		"--arena-get-bytes", "64KiB", "--arena-put-bytes", "64KiB", "--socket", filepath.Join(t.TempDir(), "s"), "--gpu-clients", "true", "--gpu-library", lib.Path}))
	s, err := config.Load(f, nil)
	require.NoError(t, err)
	d, err := daemon.New(s, daemon.Options{Log: io.Discard})
	require.NoError(t, err)
	require.NoError(t, d.Start(t.Context()))
	defer func() { require.NoError(t, d.Stop()) }()
	c, err := client.Dial(t.Context(), d.At.Socket, client.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.True(t, c.Hello().GetAbilities().GetDeviceIpc())

	r, err := c.RegisterDevice(t.Context(), "0000:01:00.0", handle, 1000, 2000)
	require.NoError(t, err)
	require.EqualValues(t, 2000, r.Len())
	require.Nil(t, r.Bytes())
	require.Nil(t, r.File())
	require.EqualValues(t, 1, lib.Imported.Load())
	for _, tt := range []struct {
		pci    string
		handle []byte
		n      uint64
		is     error
	}{
		{"0000:09:00.0", handle, 1, client.ErrUnsupported},
		{"0000:01:00.0", handle[:63], 1, client.ErrInvalid},
		{"0000:01:00.0", handle, 0, client.ErrInvalid},
		{"0000:01:00.0", handle, 1 << 30, client.ErrInvalid},
	} {
		_, err := c.RegisterDevice(t.Context(), tt.pci, tt.handle, 0, tt.n)
		require.ErrorIs(t, err, tt.is, "%+v", tt)
	}
	require.NoError(t, r.Close())
	require.Zero(t, lib.Imported.Load())
}
