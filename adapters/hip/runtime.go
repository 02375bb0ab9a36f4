package hip

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Vendor chooses a runtime.
type Vendor string

// The vendors. Auto is HIP where it is there and sees a device, else CUDA.
const (
	Auto Vendor = "auto"
	HIP  Vendor = "hip"
	CUDA Vendor = "cuda"
)

// Config of a runtime. Only Host is required.
type Config struct {
	Vendor  Vendor // empty: Auto
	Library string // path of the library; empty: the vendor's names are tried, newest first

	// Host copies between host memory: batches that name no device, and callers' memory to and from the bounce buffers.
	Host ports.Copier

	Deadline    time.Duration // of a step of a copy, after which the device is lost; default 2 s
	Threads     int           // per device, each with its streams and bounce buffer; default 4, at most 64
	BounceBytes uint64        // per thread; default 4 MiB
}

const (
	maxThreads = 64
	maxDevices = 64
	minBounce  = 4 << 10
	maxBounce  = 1 << 30
	// slowDeadline bounds what is no copy: taking memory, opening handles.
	slowDeadline = 30 * time.Second
)

func (c Config) withDefaults() Config {
	if c.Vendor == "" {
		c.Vendor = Auto
	}
	if c.Deadline == 0 {
		c.Deadline = 2 * time.Second
	}
	if c.Threads == 0 {
		c.Threads = 4
	}
	if c.BounceBytes == 0 {
		c.BounceBytes = 4 << 20
	}
	return c
}

func (c Config) check() error {
	switch {
	case c.Host == nil:
		return fmt.Errorf("copier between host memory: none, and one is needed: %w", domain.ErrInvalid)
	case c.Vendor != Auto && c.Vendor != HIP && c.Vendor != CUDA:
		return fmt.Errorf("runtime %q, want %s, %s or %s: %w", c.Vendor, Auto, HIP, CUDA, domain.ErrInvalid)
	case c.Deadline < 0:
		return fmt.Errorf("deadline %v, want more than 0: %w", c.Deadline, domain.ErrInvalid)
	case c.Threads < 1 || c.Threads > maxThreads:
		return &domain.LimitError{What: "threads of a device (1 or more)", Value: uint64(c.Threads), Limit: maxThreads}
	case c.BounceBytes < minBounce || c.BounceBytes > maxBounce:
		return &domain.LimitError{What: fmt.Sprintf("bytes of a bounce buffer (%d or more)", minBounce), Value: c.BounceBytes, Limit: maxBounce}
	}
	return nil
}

// Runtime is an opened library and its devices. It is made by Open, and used by the media, copiers and imports made from it.
type Runtime struct {
	cfg     Config
	lib     *hiprt.Lib
	devices []*device

	mu struct { // guards what probes showed, and calls; a device starts its threads at its first use, under a lock of its own
		sync.Mutex
		closed   bool
		calls    []*call // that nobody uses
		nic      NIC     // nil: none
		export   Verdict
		imported []Verdict // by device
	}
}

// Open loads the library and counts its devices. An error wraps errors.ErrUnsupported when this build, this host or its library has no
// device that can be used, and says what was looked for and what was missing.
func Open(cfg Config) (*Runtime, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("gpu runtime: %w", err)
	}
	lib, count, err := openLibrary(cfg.Vendor, cfg.Library)
	if err != nil {
		return nil, fmt.Errorf("gpu runtime: %w", err)
	}
	r := &Runtime{cfg: cfg, lib: lib, devices: make([]*device, min(count, maxDevices))}
	r.mu.imported = make([]Verdict, len(r.devices))
	for i := range r.devices {
		r.devices[i] = newDevice(r, i)
		r.devices[i].pci, _ = lib.PCIBusID(i) // a device without one cannot be named by it; the report says why
	}
	return r, nil
}

// openLibrary tries what may be there. Nothing is a reason to stop but one that works; all the reasons are told.
func openLibrary(v Vendor, path string) (*hiprt.Lib, int, error) {
	var errs []error
	for _, vendor := range v.candidates() {
		names := vendor.Libraries()
		if path != "" {
			names = []string{path}
		}
		for _, name := range names {
			lib, err := hiprt.Open(name, vendor)
			if errors.Is(err, errors.ErrUnsupported) {
				return nil, 0, err // the build: there is nothing to try
			}
			count := 0
			if err == nil {
				count, err = lib.DeviceCount()
			}
			if err == nil {
				return lib, count, nil
			}
			errs = append(errs, reason(lib, err))
		}
	}
	return nil, 0, fmt.Errorf("%w: no device to use: %w", errors.ErrUnsupported, errors.Join(errs...))
}

func reason(lib *hiprt.Lib, err error) error {
	if lib == nil {
		return err
	}
	return fmt.Errorf("%s (version %d): %w", lib.Path, lib.Version, err)
}

func (v Vendor) candidates() []hiprt.Vendor {
	switch v {
	case HIP:
		return []hiprt.Vendor{hiprt.HIP}
	case CUDA:
		return []hiprt.Vendor{hiprt.CUDA}
	}
	return []hiprt.Vendor{hiprt.HIP, hiprt.CUDA}
}

// Devices is how many there are; ordinals are below it.
func (r *Runtime) Devices() int { return len(r.devices) }

// device finds one by its ordinal.
func (r *Runtime) device(ordinal int) (*device, error) {
	if ordinal < 0 || ordinal >= len(r.devices) {
		return nil, fmt.Errorf("hip: device %d of %d: %w", ordinal, len(r.devices), errors.ErrUnsupported)
	}
	return r.devices[ordinal], nil
}

// Close ends the threads. Precondition: no copy is under way, and media and imports are closed. It returns an error when a device was
// lost with something under way: its threads and bounce buffers stay for the rest of the process.
func (r *Runtime) Close() error {
	r.mu.Lock()
	closed := r.mu.closed
	r.mu.closed = true
	r.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	for _, d := range r.devices {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

// Built says whether this build can open a runtime.
const Built = hiprt.Supported
