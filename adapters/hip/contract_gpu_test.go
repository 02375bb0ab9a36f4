//go:build gpu && linux && cgo

package hip

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

// runtimes are the contract suites' configurations: every vendor and version whose calls differ, and the host's own device when asked.
func runtimes(t *testing.T, claim func(t *testing.T, r *Runtime)) {
	if realDevice() {
		t.Run("real", func(t *testing.T) { claim(t, open(t, nil, nil)) })
		return
	}
	for name, o := range map[string]fakehip.Options{
		"rocm7":  {},
		"rocm5":  {Version: fakehip.ROCm5, WithoutBatch: true, WithoutDMABuf: true},
		"cuda12": {CUDA: true, WithoutDMABuf: true},
		"cuda13": {CUDA: true, WithoutDMABuf: true, Version: fakehip.CUDA13},
	} {
		t.Run(name, func(t *testing.T) { claim(t, open(t, fake(t, o), nil)) })
	}
}

func TestMediumKeepsThePortsContract(t *testing.T) {
	runtimes(t, func(t *testing.T, r *Runtime) {
		all := make([]int, r.Devices())
		for i := range all {
			all[i] = i
		}
		for _, cfg := range []MediumConfig{
			{Bytes: 64 << 10, PageSize: 64 << 10},
			{Bytes: 7 * 64 << 10, PageSize: 64 << 10, Ordinals: all},
			{Bytes: 11 * 1792, PageSize: 1792},
		} {
			t.Run(fmt.Sprintf("bytes=%d/page=%d/devices=%d", cfg.Bytes, cfg.PageSize, len(cfg.ordinals())), func(t *testing.T) {
				porttest.RunMedium(t, func(t *testing.T) ports.Medium {
					m, err := r.OpenMedium(cfg)
					require.NoError(t, err)
					return m
				})
			})
		}
	})
}

func harness(r *Runtime, c ports.Copier) porttest.CopierHarness {
	h := porttest.CopierHarness{Copier: c, Memories: []porttest.Memory{porttest.HostMemory("host", nil)},
		Foreign: []ports.Region{ports.DeviceRegionOf(r.Devices(), ports.DevAddrOf(4096), 8), ports.DeviceRegionOf(-1, ports.DevAddrOf(4096), 8)}}
	for i := range min(2, r.Devices()) {
		h.Memories = append(h.Memories, deviceMemory(r, i))
	}
	return h
}

func TestCopierKeepsThePortsContract(t *testing.T) {
	runtimes(t, func(t *testing.T, r *Runtime) { porttest.RunCopier(t, harness(r, r.Copier())) })
}

func TestBackgroundCopierKeepsThePortsContract(t *testing.T) {
	r := open(t, fake(t, fakehip.Options{}), nil)
	porttest.RunCopier(t, harness(r, r.Background()))
}

// BenchmarkCopier says nothing of a device when it runs over the fake: it is there to run.
func BenchmarkCopier(b *testing.B) {
	var lib *fakehip.Library
	if !realDevice() {
		lib = fake(b, fakehip.Options{Memory: 1 << 30})
	}
	r := open(b, lib, func(c *Config) { c.BounceBytes = 4 << 20 })
	porttest.BenchmarkCopier(b, harness(r, r.Copier()))
}
