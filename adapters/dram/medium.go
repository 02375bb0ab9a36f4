// Package dram is the Medium over host memory, and the Copier between host regions.
//
// Memory lies off the Go heap (anonymous, or a memfd that other processes of the host can map), is populated when it is
// opened, and is never looked at by the collector. A medium that cannot be had is an error at Open, with what was wanted and
// which limit said no; it is never a SIGBUS or a kill later. Page sizes are any: a buffer is a whole number of them, not the
// pages of the processor.
//
// Off Linux only HeapForTesting works; the others return an error that wraps errors.ErrUnsupported.
package dram

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Backing is where the memory comes from.
type Backing uint8

// The backings.
const (
	Anonymous      Backing = iota // private to this process; transparent huge pages can be had
	Memfd                         // shared memory: regions carry their File; huge pages come from the reserved pool only
	HeapForTesting                // Go heap, which -race sees; never registered with a NIC
	numBackings
)

func (b Backing) String() string {
	if b < numBackings {
		return [numBackings]string{"anonymous", "memfd", "heap"}[b]
	}
	return fmt.Sprintf("backing %d", uint8(b))
}

// Config of a medium.
type Config struct {
	Bytes     uint64 // capacity over all buffers, a multiple of PageSize
	PageSize  uint64
	Buffers   int // 0: 1. Pages are dealt out evenly; a buffer has at most 2^32 of them, since PageRef.Page has 32 bits
	HugePages bool
	Backing   Backing
}

// Medium owns the memory. Its zero value has no buffers; use Open.
type Medium struct {
	pageSize uint64
	buffers  []ports.Region
	stats    Stats
	mu       struct { // serialises Close; everything else is constant after Open
		sync.Mutex
		mapped []mapped
	}
}

var _ ports.Medium = (*Medium)(nil)

// Stats is what Open got.
type Stats struct {
	Bytes             uint64
	HugeBytes         uint64 // of them on huge pages, as the kernel counts them
	HugePageFallbacks uint64 // buffers for which huge pages were asked and not, or not everywhere, to be had
}

// mapped is one buffer and what gives it back.
type mapped struct {
	region   ports.HostRegion
	huge     uint64 // bytes on huge pages
	fellBack bool   // huge pages were asked for and something lies on others
	release  func() error
}

// Open checks the capacity against what the host and the cgroup have left, maps, and populates. On an error nothing stays
// mapped. Errors wrap domain.ErrInvalid (the configuration cannot be met anywhere), ports.ErrNoSpace (not here and now),
// errors.ErrUnsupported, or an errno.
func Open(cfg Config) (*Medium, error) {
	sizes, err := cfg.bufferSizes()
	if err != nil {
		return nil, fmt.Errorf("dram: %w", err)
	}
	var bufs []mapped
	if cfg.Backing == HeapForTesting {
		bufs = heapBuffers(sizes)
	} else if bufs, err = mapBuffers(cfg, sizes); err != nil {
		return nil, fmt.Errorf("dram: %v medium of %d bytes: %w", cfg.Backing, cfg.Bytes, err)
	}
	return newMedium(cfg, bufs), nil
}

// OpenArena is a medium of one anonymous buffer with one page: registered scratch memory.
func OpenArena(bytes uint64) (*Medium, error) { return Open(Config{Bytes: bytes, PageSize: bytes}) }

func newMedium(cfg Config, bufs []mapped) *Medium {
	m := &Medium{pageSize: cfg.PageSize, buffers: make([]ports.Region, len(bufs))}
	m.mu.mapped = bufs
	for i, b := range bufs {
		m.buffers[i] = b.region
		m.stats.Bytes += b.region.Len()
		m.stats.HugeBytes += b.huge
		if b.fellBack {
			m.stats.HugePageFallbacks++
		}
	}
	return m
}

// bufferSizes checks what needs no look at the machine, and deals the pages out.
func (c Config) bufferSizes() ([]uint64, error) {
	buffers := uint64(max(c.Buffers, 1))
	switch {
	case c.Backing >= numBackings:
		return nil, &domain.LimitError{What: "backing", Value: uint64(c.Backing), Limit: uint64(numBackings - 1)}
	case c.Buffers < 0:
		return nil, fmt.Errorf("%w: buffers: %d, limit 0 or more", domain.ErrInvalid, c.Buffers)
	case c.PageSize == 0:
		return nil, fmt.Errorf("%w: page size in bytes: 0, limit 1 or more", domain.ErrInvalid)
	case c.Bytes == 0:
		return nil, fmt.Errorf("%w: capacity in bytes: 0, limit %d (one page) or more", domain.ErrInvalid, c.PageSize)
	case c.Bytes > math.MaxInt-maxPadding:
		return nil, &domain.LimitError{What: "capacity in bytes", Value: c.Bytes, Limit: math.MaxInt - maxPadding}
	case c.Bytes%c.PageSize != 0:
		return nil, fmt.Errorf("%w: capacity in bytes: %d, limit a multiple of the page size %d", domain.ErrInvalid, c.Bytes, c.PageSize)
	}
	pages := c.Bytes / c.PageSize
	if buffers > pages {
		return nil, &domain.LimitError{What: "buffers (a page each)", Value: buffers, Limit: pages}
	}
	if perBuffer := (pages + buffers - 1) / buffers; perBuffer > 1<<32 {
		return nil, &domain.LimitError{What: "pages of a buffer (use more buffers)", Value: perBuffer, Limit: 1 << 32}
	}
	sizes := make([]uint64, buffers)
	for i := range sizes {
		n := pages / buffers
		if uint64(i) < pages%buffers {
			n++
		}
		sizes[i] = n * c.PageSize
	}
	return sizes, nil
}

// maxPadding is more than mapping adds to a buffer for alignment and guard pages, so that those sums do not overflow.
const maxPadding = 1 << 32

func heapBuffers(sizes []uint64) []mapped {
	bufs := make([]mapped, len(sizes))
	for i, n := range sizes {
		bufs[i] = mapped{region: ports.HostRegionOf(make([]byte, n)), release: func() error { return nil }}
	}
	return bufs
}

// Kind is DRAM.
func (m *Medium) Kind() ports.MediumKind { return ports.DRAM }

// PageSize is the configured one.
func (m *Medium) PageSize() uint64 { return m.pageSize }

// Buffers returns the same regions at every call, after Close too; but then their memory is gone.
func (m *Medium) Buffers() []ports.Region { return m.buffers[:len(m.buffers):len(m.buffers)] }

// Stats says what Open got.
func (m *Medium) Stats() Stats { return m.stats }

// Close unmaps and closes the files behind regions. A second Close does nothing and returns nil. A touch of a region's bytes
// after Close is a fault (or, worse, another mapping's bytes), so the precondition of ports.Medium is the caller's to keep.
// On an error the buffer that it names may still be mapped; nothing is left to call.
func (m *Medium) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := releaseAll(m.mu.mapped)
	m.mu.mapped = nil
	return err
}

func releaseAll(bufs []mapped) error {
	var errs []error
	for i, b := range bufs {
		if err := b.release(); err != nil {
			errs = append(errs, fmt.Errorf("dram: unmap buffer %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
