package dram

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/ports"
)

// mapBuffers maps all buffers or none.
func mapBuffers(cfg Config, sizes []uint64) ([]mapped, error) {
	host := os.DirFS("/")
	huge := hugePagesOf(host)
	if cfg.Backing == Memfd && cfg.HugePages && sumRounded(sizes, huge.reservedSize) <= huge.reservedFree {
		// The reserved pool is neither in MemAvailable nor charged to the memory cgroup. Another process may take from it
		// between the look and the mapping: then ordinary pages do.
		bufs, err := mapAll(sizes, func(n uint64) (mapped, error) { return mapReserved(n, huge.reservedSize) })
		if err == nil || !errors.Is(err, unix.ENOMEM) {
			return bufs, err
		}
	}
	if err := checkRoom(host, sumRounded(sizes, uint64(os.Getpagesize()))); err != nil {
		return nil, err
	}
	return mapAll(sizes, func(n uint64) (mapped, error) {
		if cfg.Backing == Memfd {
			return mapMemfd(n, cfg.HugePages, huge.transparentSize)
		}
		return mapAnonymous(n, cfg.HugePages, huge.transparentSize)
	})
}

func sumRounded(sizes []uint64, to uint64) uint64 {
	var sum uint64
	for _, n := range sizes {
		sum += roundUp(n, to)
	}
	return sum
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

func mapAll(sizes []uint64, mapOne func(uint64) (mapped, error)) ([]mapped, error) {
	bufs := make([]mapped, 0, len(sizes))
	for i, n := range sizes {
		b, err := mapOne(n)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("buffer %d of %d, %d bytes: %w", i, len(sizes), n, err), releaseAll(bufs))
		}
		bufs = append(bufs, b)
	}
	return bufs, nil
}

// mapAnonymous maps n private bytes between two guards that fault, so that an overrun of a buffer hits no other memory and
// the kernel joins no neighbour to it (huge pages are counted per mapping). With huge pages the buffer begins on one.
func mapAnonymous(n uint64, hugePages bool, hugeSize uint64) (mapped, error) {
	page := uint64(os.Getpagesize())
	align, size := page, roundUp(n, page)
	if hugePages {
		align = max(align, hugeSize)
	}
	// Without access first: strict overcommit then charges only the middle.
	all, err := unix.Mmap(-1, 0, int(align+size+2*page), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return mapped{}, fmt.Errorf("mmap: %w", err)
	}
	release := func() error { return unix.Munmap(all) }
	first := roundUp(addrOf(all)+page, align) - addrOf(all)
	b := all[first : first+size : first+size]
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return mapped{}, errors.Join(fmt.Errorf("mprotect: %w", err), release())
	}
	m, err := populate(b, n, hugePages, hugeSize)
	if err != nil {
		return mapped{}, errors.Join(err, release())
	}
	m.region, m.release = ports.HostRegionOf(b[:n]), release
	return m, nil
}

// mapMemfd maps n bytes of a new memfd on ordinary pages. Its length is sealed: no process that maps it can cut it short
// under the others' feet. Who shows it to others seals it further.
func mapMemfd(n uint64, hugePages bool, hugeSize uint64) (mapped, error) {
	return mapFile(n, roundUp(n, uint64(os.Getpagesize())), 0, hugePages, hugeSize)
}

// mapReserved takes the memfd's pages from the reserved pool of huge pages; ENOMEM says that it has not enough.
func mapReserved(n, hugeSize uint64) (mapped, error) {
	return mapFile(n, roundUp(n, hugeSize), unix.MFD_HUGETLB, true, hugeSize)
}

func mapFile(n, size uint64, flags int, hugePages bool, hugeSize uint64) (mapped, error) {
	fd, err := unix.MemfdCreate("spanpool", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return mapped{}, fmt.Errorf("memfd_create: %w", err)
	}
	fail := func(err error) (mapped, error) { return mapped{}, errors.Join(err, unix.Close(fd)) }
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fail(fmt.Errorf("ftruncate: %w", err))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return fail(fmt.Errorf("seal: %w", err))
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail(fmt.Errorf("mmap: %w", err))
	}
	m, err := populate(b, n, hugePages, hugeSize)
	if err != nil {
		return fail(errors.Join(err, unix.Munmap(b)))
	}
	m.region = ports.HostRegionOfFile(b[:n], &ports.File{FD: uintptr(fd)})
	m.release = func() error { return errors.Join(unix.Munmap(b), unix.Close(fd)) }
	return m, nil
}

// populate gives every page of b its memory now: a page that cannot be had is an error here and not a signal later. It
// reports how much of the first n bytes came to lie on huge pages, if those were asked for.
func populate(b []byte, n uint64, hugePages bool, hugeSize uint64) (mapped, error) {
	if hugePages {
		// A kernel without them says EINVAL; one with them switched off says nothing. Both show below.
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
	err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		err = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	}
	if errors.Is(err, unix.EINVAL) {
		return mapped{}, fmt.Errorf("populate: %w (MADV_POPULATE_WRITE needs Linux 5.14): %w", err, errors.ErrUnsupported)
	}
	if err != nil {
		return mapped{}, fmt.Errorf("populate: %w", err)
	}
	if !hugePages {
		return mapped{}, nil
	}
	huge := min(hugeBytesAt(addrOf(b), uint64(len(b))), n)
	return mapped{huge: huge, fellBack: huge == 0 || huge+hugeSize <= n}, nil
}
