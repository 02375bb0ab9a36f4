package shm

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// mapping is a peer's buffers in this process, to be read.
type mapping struct {
	buffers [][]byte       // by number; nil: there is none of that number
	regions []ports.Region // the same for a copier: made once, for that allocates
	whole   [][]byte       // what was mapped
	bytes   uint64
}

// add maps a buffer. It refuses a file that could fault under a reader: one that its owner can cut short, or that is too short now.
// The descriptor stays the caller's.
func (m *mapping) add(b buffer, fd int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("buffer %d: seals: %w", b.number, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("buffer %d: its file is not sealed against shrinking (seals %#x): %w", b.number, seals, domain.ErrInvalid)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("buffer %d: stat: %w", b.number, err)
	}
	if size := uint64(st.Size); b.len == 0 || b.len > math.MaxInt/2 || b.off > size || b.len > size-b.off {
		return fmt.Errorf("buffer %d: %d bytes at %d of a file of %d: %w", b.number, b.len, b.off, size, ports.ErrBounds)
	}
	for int(b.number) >= len(m.buffers) {
		m.buffers, m.regions = append(m.buffers, nil), append(m.regions, nil)
	}
	if m.buffers[b.number] != nil {
		return fmt.Errorf("buffer %d: twice: %w", b.number, domain.ErrInvalid)
	}
	// A file of huge pages is mapped by whole ones, and says so by its block size.
	page := max(uint64(os.Getpagesize()), uint64(st.Blksize))
	lead := b.off % page
	size := (lead + b.len + page - 1) / page * page
	all, err := unix.Mmap(fd, int64(b.off-lead), int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("buffer %d: mmap %d bytes: %w", b.number, size, err)
	}
	m.whole = append(m.whole, all)
	m.buffers[b.number] = all[lead : lead+b.len : lead+b.len]
	m.regions[b.number] = ports.HostRegionOf(m.buffers[b.number])
	m.bytes += b.len
	return nil
}

// unmap gives the memory back. Precondition: nobody reads it.
func (m *mapping) unmap() error {
	var errs []error
	for _, b := range m.whole {
		errs = append(errs, unix.Munmap(b))
	}
	m.buffers, m.regions, m.whole = nil, nil, nil
	return errors.Join(errs...)
}

// seal keeps a buffer's file from being cut short, from being written by others than its owner's mapping, and from other seals.
func seal(f *ports.File) error {
	const need = unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE
	seals, err := unix.FcntlInt(f.FD, unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("seals of its file: %w", err)
	}
	if seals&need == need {
		return nil
	}
	if _, err := unix.FcntlInt(f.FD, unix.F_ADD_SEALS, need|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal its file, which has seals %#x: %w", seals, err)
	}
	return nil
}
