// Package fakehip builds a vendor runtime without a GPU, for tests: device memory whose addresses fault when a CPU touches them,
// streams that are threads, and faults on demand. The source is C and is compiled by cc when a test asks for it.
package fakehip

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"
)

//go:embed src/fakehip.c
var source []byte

// The versions that the runtimes of these releases report.
const (
	ROCm5  = 50221153
	ROCm7  = 70051831
	CUDA12 = 12080
	CUDA13 = 13000
)

// Options of a build. The zero value is ROCm 7 with everything, two devices of 256 MiB each.
type Options struct {
	CUDA          bool // symbols begin with cuda, and what libcudart has not is left out
	Version       int
	Devices       int // negative: none
	Memory        uint64
	WithoutBatch  bool
	WithoutDMABuf bool
	WithoutMalloc bool // for the error that names what is missing
}

// words is how many the control block has; its order is that of struct control.
const words = 18

// Control is a view of the running library. Every word may be read and written at any time.
type Control struct {
	Devices, Version, Memory, DelayUS                  *atomic.Int64
	Hang, Block, FailAsync, Gone                       *atomic.Int64
	Singles, Rects, Batches, High, Low                 *atomic.Int64
	Allocations, Streams, Events, Registered, Imported *atomic.Int64
	unmap                                              func() error
}

// Library is a runtime that was built.
type Library struct {
	Path string
	*Control
}

// compileTime bounds cc; a busy machine needs a second.
const compileTime = time.Minute

// Build compiles a library of its own into dir. Close unmaps its control block; a library that was opened stays in the process.
func Build(dir string, o Options) (*Library, error) {
	control := filepath.Join(dir, "control")
	if err := os.WriteFile(control, make([]byte, 8*words), 0o600); err != nil {
		return nil, err
	}
	c, err := mapControl(control)
	if err != nil {
		return nil, err
	}
	o.settle(c)
	src, out := filepath.Join(dir, "fakehip.c"), filepath.Join(dir, "libfake.so")
	if err := os.WriteFile(src, source, 0o600); err != nil {
		return nil, err
	}
	if text, err := compile(append(o.defines(), fmt.Sprintf("-DCONTROL=%q", control), "-shared", "-fPIC", "-O1", "-w", "-o", out, src, "-lpthread")); err != nil {
		return nil, fmt.Errorf("cc: %w\n%s", err, text)
	}
	return &Library{Path: out, Control: c}, nil
}

func compile(args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), compileTime)
	defer cancel()
	return exec.CommandContext(ctx, "cc", args...).CombinedOutput()
}

func (o Options) settle(c *Control) {
	c.Devices.Store(2)
	c.Version.Store(ROCm7)
	c.Memory.Store(256 << 20)
	if o.CUDA {
		c.Version.Store(CUDA12)
	}
	if o.Version != 0 {
		c.Version.Store(int64(o.Version))
	}
	if o.Devices != 0 {
		c.Devices.Store(int64(max(o.Devices, 0)))
	}
	if o.Memory != 0 {
		c.Memory.Store(int64(o.Memory))
	}
}

func (o Options) defines() []string {
	out := []string{"-DRUNTIME=hip"}
	if o.CUDA {
		out = []string{"-DRUNTIME=cuda", "-DWITHOUT_DMABUF", "-DWITHOUT_RANGE"}
		if o.Version >= CUDA13 {
			out = append(out, "-DCUDA13")
		}
	}
	for name, set := range map[string]bool{"WITHOUT_BATCH": o.WithoutBatch, "WITHOUT_DMABUF": o.WithoutDMABuf, "WITHOUT_MALLOC": o.WithoutMalloc} {
		if set {
			out = append(out, "-D"+name)
		}
	}
	return out
}

// newControl lays the words out.
func newControl(w []atomic.Int64, unmap func() error) *Control {
	c := &Control{unmap: unmap}
	for i, at := range []**atomic.Int64{&c.Devices, &c.Version, &c.Memory, &c.DelayUS, &c.Hang, &c.Block, &c.FailAsync, &c.Gone,
		&c.Singles, &c.Rects, &c.Batches, &c.High, &c.Low, &c.Allocations, &c.Streams, &c.Events, &c.Registered, &c.Imported} {
		*at = &w[i]
	}
	return c
}

// Close unmaps the control block; nothing of it may be touched after that.
func (c *Control) Close() error { return c.unmap() }
