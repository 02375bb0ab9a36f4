//go:build gpu && linux && cgo

package hip

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

// TestMain is the child of the tests that need another process, when it is told so.
func TestMain(m *testing.M) {
	if os.Getenv(lenderVariable) != "" {
		lend()
		return
	}
	os.Exit(m.Run())
}

// goCopier is a host copier for tests.
type goCopier struct{}

func (goCopier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	for i := range ops {
		if errs[i] = context.Cause(ctx); errs[i] == nil {
			errs[i] = goCopy(&ops[i])
		}
	}
}

func goCopy(op *ports.CopyOp) error {
	if !within(op.DstOff, op.Len, op.Dst.Len()) || !within(op.SrcOff, op.Len, op.Src.Len()) {
		return ports.ErrBounds
	}
	copy(op.Dst.(ports.HostRegion).Bytes()[op.DstOff:][:op.Len], op.Src.(ports.HostRegion).Bytes()[op.SrcOff:])
	return nil
}

// fake builds a runtime, or skips where nothing compiles C.
func fake(t testing.TB, o fakehip.Options) *fakehip.Library {
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

// realDevice says whether these tests are to use what the host has.
func realDevice() bool { return os.Getenv("SPANPOOL_E2E_GPU") != "" }

// open opens a runtime over lib, with what tests need small; nil is the host's. Everything is given back at the end, and counted.
func open(t testing.TB, lib *fakehip.Library, change func(*Config)) *Runtime {
	t.Helper()
	cfg := Config{Host: goCopier{}, BounceBytes: 64 << 10, Deadline: 20 * time.Second}
	if lib != nil {
		cfg.Library = lib.Path
	}
	if change != nil {
		change(&cfg)
	}
	r, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		err := r.Close()
		for _, d := range r.devices {
			if d.isLost() {
				return // what stays borrowed is its test's to look at
			}
		}
		require.NoError(t, err)
		if lib != nil {
			requireNothingLeft(t, lib)
		}
	})
	return r
}

func requireNothingLeft(t testing.TB, lib *fakehip.Library) {
	t.Helper()
	require.Zero(t, lib.Allocations.Load(), "allocations")
	require.Zero(t, lib.Streams.Load(), "streams")
	require.Zero(t, lib.Events.Load(), "events")
	require.Zero(t, lib.Registered.Load(), "registered host memory")
	require.Zero(t, lib.Imported.Load(), "imported memory")
}

// deviceMemory is memory of a device, looked into by single copies on a thread of the device, past the Copier.
func deviceMemory(r *Runtime, ordinal int) porttest.Memory {
	d := r.devices[ordinal]
	return porttest.Memory{
		Name: "device" + string(rune('0'+ordinal)),
		New: func(t testing.TB, n uint64) ports.Region {
			region, err := r.take(ordinal, n, 0)
			require.NoError(t, err)
			t.Cleanup(func() {
				if !d.isLost() {
					require.NoError(t, r.release(region))
				}
			})
			return region
		},
		Write: func(to ports.Region, off uint64, b []byte) {
			past(d, to.(ports.DeviceRegion), off, b, hiprt.HostToDevice)
		},
		Read: func(from ports.Region, off uint64, b []byte) {
			past(d, from.(ports.DeviceRegion), off, b, hiprt.DeviceToHost)
		},
	}
}

// past copies one way between b and a device's memory. It panics on what its test did wrong.
func past(d *device, at ports.DeviceRegion, off uint64, b []byte, kind hiprt.Kind) {
	if len(b) == 0 {
		return
	}
	host, err := mapBounce(uint64(len(b)))
	if err != nil {
		panic(err)
	}
	defer func() { _ = unmapBounce(host) }()
	copy(host, b)
	_, err = d.do("test", func(l *hiprt.Lib) (uint64, error) {
		s, err := l.StreamCreate(true)
		if err != nil {
			return 0, err
		}
		e, err := l.EventCreate()
		if err != nil {
			return 0, err
		}
		c := hiprt.Columns{Dst: []uint64{at.Addr().Raw() + off}, Src: []uint64{hiprt.HostAddr(host)}, Len: []uint64{uint64(len(b))}, Kind: []hiprt.Kind{kind}}
		if kind == hiprt.DeviceToHost {
			c.Dst, c.Src = c.Src, c.Dst
		}
		if _, err := l.Submit(s, e, &c); err != nil {
			return 0, err
		}
		for over := false; !over; {
			if over, err = l.Wait(e, time.Second); err != nil {
				return 0, err
			}
		}
		if err := l.EventDestroy(e); err != nil {
			return 0, err
		}
		return 0, l.StreamDestroy(s)
	})
	if err != nil {
		panic(err)
	}
	copy(b, host)
}
