//go:build linux && cgo && rdma

package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// region is registered memory, in chunks of what one registration takes.
type region struct {
	lo, len, chunk uint64
	device         bool
	local          []*verbs.MR // for our own ops; of exposed memory also for reads by peers
	writes         []*verbs.MR // for writes by peers; nil: not exposed
	refs           int         // guarded by Transport.mu
	closing        atomic.Bool // takes no new ops
}

// addrOf is where a region lies, by whatever the device calls it.
func addrOf(r ports.Region) (addr uint64, device bool) {
	switch r := r.(type) {
	case ports.HostRegion:
		return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.Bytes())))), false
	case ports.DeviceRegion:
		return r.Addr().Raw(), true
	}
	return 0, false
}

// regions is a snapshot of the table, by address; it is replaced, never changed.
type regions []*region

// find returns the region that holds all of these bytes, or nil: one that is closing if there is no other. Regions may overlap; there
// are few.
func (rs regions) find(addr, n uint64, device bool) (closing *region) {
	i, _ := slices.BinarySearchFunc(rs, addr, func(r *region, a uint64) int {
		if r.lo <= a {
			return -1
		}
		return 1
	})
	for i--; i >= 0; i-- {
		if r := rs[i]; r.device == device && r.holds(addr, n) {
			if !r.closing.Load() {
				return r
			}
			closing = r
		}
	}
	return closing
}

func (r *region) holds(addr, n uint64) bool {
	return addr >= r.lo && addr-r.lo <= r.len && n <= r.len-(addr-r.lo)
}

// at is the local key for an address, and how many bytes on it is good for. Precondition: the address is the region's.
func (r *region) at(addr uint64) (lkey uint32, n uint64) {
	i := (addr - r.lo) / r.chunk
	return r.local[i].LKey, min(r.len, (i+1)*r.chunk) - (addr - r.lo)
}

// told is how peers are told of exposed memory.
func (r *region) told(id uint32) buffer {
	b := buffer{id: id, base: r.lo, len: r.len, chunk: r.chunk}
	for _, m := range r.local {
		b.keys = append(b.keys, m.RKey)
	}
	return b
}

func (r *region) keyForWrites(off uint64) (key uint32, until uint64) {
	i := off / r.chunk
	return r.writes[i].RKey, min(r.len, (i+1)*r.chunk)
}

// register registers a region in chunks. What fails leaves nothing behind.
func (t *Transport) register(of ports.Region, expose bool) (*region, error) {
	addr, device := addrOf(of)
	if device && t.cfg.DMABuf == nil {
		return nil, fmt.Errorf("region of type %T, want host memory: %w", of, errors.ErrUnsupported)
	}
	if of.Len() == 0 || addr == 0 {
		return nil, fmt.Errorf("region of %d bytes at %#x, want some: %w", of.Len(), addr, domain.ErrInvalid)
	}
	r := &region{lo: addr, len: of.Len(), chunk: t.cfg.ChunkBytes, device: device}
	if n := (r.len-1)/r.chunk + 1; expose && n > maxKeys { // peers take no more
		return nil, &domain.LimitError{What: "registrations of an exposed buffer", Value: n, Limit: maxKeys}
	}
	register, done, err := t.registrar(of)
	if err == nil {
		defer done()
		access := verbs.LocalWrite
		if expose {
			access |= verbs.RemoteRead
			r.writes, err = r.chunks(register, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
		}
		if err == nil {
			r.local, err = r.chunks(register, access)
		}
	}
	t.account(r, 1)
	if err != nil {
		t.counts.note(EventRegisterFail)
		if device { // then it goes by other ways
			err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		return nil, errors.Join(fmt.Errorf("register %d bytes at %#x: %w%s", r.len, r.lo, err, lockHint(err)), t.deregister(r))
	}
	return r, nil
}

// registrar is how memory of that kind is registered, by its offset in the region, and what is done when it was.
func (t *Transport) registrar(of ports.Region) (register func(off, n uint64, access int) (*verbs.MR, error), done func(), err error) {
	d, ok := of.(ports.DeviceRegion)
	addr, _ := addrOf(of)
	if !ok {
		return func(off, n uint64, access int) (*verbs.MR, error) { return t.pd.Register(addr+off, n, access) }, func() {}, nil
	}
	f, at, err := t.cfg.DMABuf(d)
	if err != nil {
		return nil, nil, fmt.Errorf("dma-buf: %w", err)
	}
	register = func(off, n uint64, access int) (*verbs.MR, error) {
		return t.pd.RegisterDMABuf(int(f.Fd()), at+off, n, addr+off, access)
	}
	return register, func() { _ = f.Close() }, nil // what is registered keeps the memory
}

// TryDMABuf registers n bytes at off of a dma-buf, as much of them as one registration takes, and lets go of them again. The file stays the
// caller's. It needs no Config.DMABuf: whether ops may name device memory is another matter.
func (t *Transport) TryDMABuf(f *os.File, off, n uint64) error {
	if err := t.enter(); err != nil {
		return fail("try device memory", "", err)
	}
	defer t.wg.Done()
	m, err := t.pd.RegisterDMABuf(int(f.Fd()), off, min(n, t.cfg.ChunkBytes), off, verbs.LocalWrite)
	if err != nil {
		t.counts.note(EventRegisterFail)
		return fail("try device memory", "", err)
	}
	return m.Close()
}

func (r *region) chunks(register func(off, n uint64, access int) (*verbs.MR, error), access int) (out []*verbs.MR, err error) {
	for off := uint64(0); off < r.len; off += r.chunk {
		m, err := register(off, min(r.chunk, r.len-off), access)
		if err != nil {
			return out, fmt.Errorf("chunk at %d: %w", off, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// account counts what is registered: by 1 what came, by -1 what goes.
func (t *Transport) account(r *region, sign int64) {
	n := len(r.local) + len(r.writes)
	t.counts.regions.Add(sign * int64(n))
	for _, mrs := range [][]*verbs.MR{r.local, r.writes} {
		t.counts.registered.Add(sign * int64(min(r.len, uint64(len(mrs))*r.chunk)))
	}
}

func (t *Transport) deregister(r *region) error {
	t.account(r, -1)
	var errs []error
	for _, m := range slices.Concat(r.local, r.writes) {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// lockHint names the limit that a refusal to lock memory usually comes from.
func lockHint(err error) string {
	if !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EPERM) {
		return ""
	}
	return fmt.Sprintf(" (the limit of locked memory, RLIMIT_MEMLOCK, is %s; ulimit -l or LimitMEMLOCK= raises it)", LockedMemoryLimit())
}

const rlimitMemlock = 8 // syscall does not have it

// LockedMemoryLimit is what registered memory counts against, as text.
func LockedMemoryLimit() string {
	var limit syscall.Rlimit
	switch err := syscall.Getrlimit(rlimitMemlock, &limit); {
	case err != nil:
		return "unknown: " + err.Error()
	case limit.Cur == ^uint64(0):
		return "unlimited"
	}
	return fmt.Sprintf("%d bytes", limit.Cur)
}

// insert adds to the table, or finds the same memory in it.
func (t *Transport) insertLocked(r *region) {
	old := *t.table.Load()
	i, _ := slices.BinarySearchFunc(old, r.lo, func(x *region, lo uint64) int { return cmp.Compare(x.lo, lo) })
	next := slices.Insert(slices.Clone(old), i, r)
	t.table.Store(&next)
}

func (t *Transport) removeLocked(r *region) {
	next := slices.DeleteFunc(slices.Clone(*t.table.Load()), func(x *region) bool { return x == r })
	t.table.Store(&next)
}

// mapped is a piece of memory of our own for messages, registered.
type mapped struct {
	b    []byte
	mr   *verbs.MR
	addr uint64
}

func mapMemory(pd *verbs.PD, n, access int) (*mapped, error) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	m := &mapped{b: b, addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))}
	if m.mr, err = pd.Register(m.addr, uint64(n), access); err != nil {
		return nil, errors.Join(fmt.Errorf("register %d bytes for control: %w%s", n, err, lockHint(err)), syscall.Munmap(b))
	}
	return m, nil
}

func (m *mapped) close() error { return errors.Join(m.mr.Close(), syscall.Munmap(m.b)) }
