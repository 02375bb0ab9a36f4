package engine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// mapFile maps a part of a client's file, shared. It keeps no descriptor. The file has to live in memory: one on a disk could make a copy
// wait for ever.
func mapFile(f *os.File, off, n uint64) (mapping, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return mapping{}, fmt.Errorf("no memfd and no file of a tmpfs (seals: %w): %w", err, domain.ErrInvalid)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return mapping{}, fmt.Errorf("fstat: %w", err)
	}
	size, page := uint64(st.Size), uint64(max(st.Blksize, 4096))
	if off > size || n > size-off {
		return mapping{}, fmt.Errorf("%d bytes at %d of a file of %d: %w", n, off, size, domain.ErrInvalid)
	}
	if off%page != 0 {
		return mapping{}, fmt.Errorf("offset %d in a file with pages of %d: %w", off, page, domain.ErrInvalid)
	}
	if seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return mapping{}, fmt.Errorf("the file is sealed against writing: %w", domain.ErrInvalid)
	}
	b, err := unix.Mmap(int(f.Fd()), int64(off), int((n+page-1)/page*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return mapping{}, fmt.Errorf("mmap: %w", err)
	}
	m := mapping{region: ports.HostRegionOf(b[:n:n]), sealed: seals&unix.F_SEAL_SHRINK != 0, unmap: func() error { return unix.Munmap(b) }}
	if err := populate(b[:n]); err != nil {
		return mapping{}, errors.Join(err, m.unmap())
	}
	return m, nil
}

// allocate makes memory that a client maps, and the file that it is to be sent.
func allocate(n uint64) (mapping, *os.File, error) {
	fd, err := unix.MemfdCreate("spanpool-client", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return mapping{}, nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "spanpool-client")
	page := uint64(os.Getpagesize())
	if err := unix.Ftruncate(fd, int64((n+page-1)/page*page)); err != nil {
		return mapping{}, nil, errors.Join(fmt.Errorf("ftruncate: %w", err), f.Close())
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return mapping{}, nil, errors.Join(fmt.Errorf("seal: %w", err), f.Close())
	}
	m, err := mapFile(f, 0, n)
	if err != nil {
		return mapping{}, nil, errors.Join(err, f.Close())
	}
	return m, f, nil
}

// populate gives every page its memory, or finds it, now: pages that cannot be had are an error here and not a signal later, and the
// first copy is no slower than the others. A kernel before 5.14 does without.
func populate(b []byte) error {
	for {
		err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err == nil, errors.Is(err, unix.EINVAL):
			return nil
		}
		return fmt.Errorf("populate %d bytes: %w", len(b), err)
	}
}
