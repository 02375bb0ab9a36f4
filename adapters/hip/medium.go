package hip

import (
	"errors"
	"fmt"
	"sync"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// PageAlign is what a page in device memory is a multiple of: with less, copies between pages are slow on every device.
const PageAlign = 256

// MediumConfig is what a medium takes.
type MediumConfig struct {
	Bytes    uint64 // capacity over all devices, a multiple of PageSize
	PageSize uint64 // a multiple of PageAlign
	Ordinals []int  // the devices; pages are dealt out evenly, a buffer each. Empty: device 0
	Reserve  uint64 // of each device's memory, to be left to others
}

// Medium owns memory of devices. No CPU touches it.
type Medium struct {
	r        *Runtime
	pageSize uint64
	buffers  []ports.Region
	mu       struct { // serialises Close
		sync.Mutex
		closed bool
	}
}

var _ ports.Medium = (*Medium)(nil)

// OpenMedium checks what is asked for against what the devices have free, less the reserve, and takes it. On an error nothing stays
// taken. Errors wrap domain.ErrInvalid, ports.ErrNoSpace with what was asked for and what there is, or what the library said.
func (r *Runtime) OpenMedium(c MediumConfig) (*Medium, error) {
	sizes, err := c.bufferSizes()
	if err != nil {
		return nil, fmt.Errorf("hip medium: %w", err)
	}
	m := &Medium{r: r, pageSize: c.PageSize}
	for i, ordinal := range c.ordinals() {
		region, err := r.take(ordinal, sizes[i], c.Reserve)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("hip medium of %d bytes: %w", c.Bytes, err), m.Close())
		}
		m.buffers = append(m.buffers, region)
	}
	return m, nil
}

func (c MediumConfig) ordinals() []int {
	if len(c.Ordinals) == 0 {
		return []int{0}
	}
	return c.Ordinals
}

// bufferSizes checks what needs no look at a device, and deals the pages out.
func (c MediumConfig) bufferSizes() ([]uint64, error) {
	devices := uint64(len(c.ordinals()))
	switch {
	case c.PageSize == 0 || c.PageSize%PageAlign != 0:
		return nil, fmt.Errorf("%w: page size in bytes: %d, limit a multiple of %d", domain.ErrInvalid, c.PageSize, PageAlign)
	case c.Bytes == 0 || c.Bytes%c.PageSize != 0:
		return nil, fmt.Errorf("%w: capacity in bytes: %d, limit a multiple of the page size %d, more than 0", domain.ErrInvalid, c.Bytes, c.PageSize)
	}
	pages := c.Bytes / c.PageSize
	if devices > pages {
		return nil, &domain.LimitError{What: "devices (a page each)", Value: devices, Limit: pages}
	}
	if most := (pages + devices - 1) / devices; most > 1<<32-1 {
		return nil, &domain.LimitError{What: "pages of a buffer", Value: most, Limit: 1<<32 - 1}
	}
	sizes := make([]uint64, devices)
	for i := range sizes {
		sizes[i] = pages / devices * c.PageSize
		if uint64(i) < pages%devices {
			sizes[i] += c.PageSize
		}
	}
	return sizes, nil
}

// take allocates on one device, when it has that much and the reserve.
func (r *Runtime) take(ordinal int, n, reserve uint64) (ports.DeviceRegion, error) {
	var none ports.DeviceRegion
	d, err := r.device(ordinal)
	if err != nil {
		return none, err
	}
	free, err := d.do("memory info", func(l *hiprt.Lib) (uint64, error) {
		free, _, err := l.MemInfo()
		return free, err
	})
	if err != nil {
		return none, err
	}
	if n > free || reserve > free-n {
		return none, fail("take memory", ordinal, fmt.Errorf("%d bytes and a reserve of %d, of %d that are free: %w", n, reserve, free, ports.ErrNoSpace))
	}
	at, err := d.do("take memory", func(l *hiprt.Lib) (uint64, error) { return l.Malloc(n) })
	if err != nil {
		return none, err
	}
	return ports.DeviceRegionOf(ordinal, ports.DevAddrOf(at), n), nil
}

// Kind is HBM.
func (m *Medium) Kind() ports.MediumKind { return ports.HBM }

// PageSize is the configured one.
func (m *Medium) PageSize() uint64 { return m.pageSize }

// Buffers returns the same regions at every call, after Close too; but then their memory is gone.
func (m *Medium) Buffers() []ports.Region { return m.buffers[:len(m.buffers):len(m.buffers)] }

// Close gives the memory back. A second Close does nothing and returns nil. Memory of a device that is lost stays taken, and is an
// error: something may still be at work on it.
func (m *Medium) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil
	}
	m.mu.closed = true
	var errs []error
	for _, b := range m.buffers {
		errs = append(errs, m.r.release(b.(ports.DeviceRegion)))
	}
	return errors.Join(errs...)
}

func (r *Runtime) release(b ports.DeviceRegion) error {
	_, err := r.devices[b.Ordinal()].do("give memory back", func(l *hiprt.Lib) (uint64, error) { return 0, l.Free(b.Addr().Raw()) })
	return err
}
