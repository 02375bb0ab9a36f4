package hip

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Handle names device memory to other processes of the host; the vendors' IPC handle.
type Handle = hiprt.IPCHandle

// Handle names an allocation of this process. It is of no use to this process itself.
func (r *Runtime) Handle(region ports.DeviceRegion) (Handle, error) {
	d, err := r.device(region.Ordinal())
	if err != nil {
		return Handle{}, err
	}
	var h Handle
	_, err = d.do("name memory", func(l *hiprt.Lib) (_ uint64, err error) {
		h, err = l.IPCGet(region.Addr().Raw())
		return 0, err
	})
	if err != nil { // and then a thread that was given up may write it yet
		return Handle{}, err
	}
	return h, nil
}

// Imports is device memory of other processes, by who brought it. A handle that is brought twice is opened once: drivers refuse the
// second time, or answer with the same mapping.
type Imports struct {
	r *Runtime

	// mu serialises opening and closing handles, which is rare; copies on what is open run beside it. Unlike elsewhere the library is
	// called under it: an import that is being closed must not be found by the next one.
	mu struct {
		sync.Mutex
		open   map[importKey]*imported
		owners map[string]map[importKey]int // how often each owner brought it
	}
}

type importKey struct {
	ordinal int
	handle  Handle
}

type imported struct {
	addr  ports.DevAddr
	size  uint64 // 0: the runtime cannot tell, and every owner's word counts
	users int
}

// Imports makes an empty table.
func (r *Runtime) Imports() *Imports {
	i := &Imports{r: r}
	i.mu.open = make(map[importKey]*imported)
	i.mu.owners = make(map[string]map[importKey]int)
	return i
}

// Import opens n bytes behind a handle on a device. The region is good until its owner is closed, or gave it back as often as it was
// brought. Errors: errors.ErrUnsupported for a device that is not here; domain.ErrInvalid for a handle that names no device memory, or
// less than n bytes of it (CUDA's runtime cannot tell, and then the owner's word counts).
func (i *Imports) Import(owner string, ordinal int, h Handle, n uint64) (ports.DeviceRegion, error) {
	d, err := i.r.device(ordinal)
	if err != nil {
		return ports.DeviceRegion{}, err
	}
	if n == 0 {
		return ports.DeviceRegion{}, fail("import", ordinal, fmt.Errorf("%w: 0 bytes, limit 1 or more", domain.ErrInvalid))
	}
	key := importKey{ordinal, h}
	i.mu.Lock()
	defer i.mu.Unlock()
	m := i.mu.open[key]
	if m == nil {
		if m, err = i.openLocked(d, h, n); err != nil {
			return ports.DeviceRegion{}, err
		}
		i.mu.open[key] = m
	}
	if m.size != 0 && n > m.size {
		return ports.DeviceRegion{}, fail("import", ordinal, &domain.LimitError{What: "bytes of a handle", Value: n, Limit: m.size})
	}
	if i.mu.owners[owner] == nil {
		i.mu.owners[owner] = make(map[importKey]int)
	}
	i.mu.owners[owner][key]++
	m.users++
	return ports.DeviceRegionOf(ordinal, m.addr, n), nil
}

// openLocked maps the memory, and looks whether it is what it is said to be.
func (i *Imports) openLocked(d *device, h Handle, n uint64) (*imported, error) {
	var size uint64
	at, err := d.do("import", func(l *hiprt.Lib) (uint64, error) {
		at, err := l.IPCOpen(&h)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", domain.ErrInvalid, err)
		}
		if size, err = extent(l, at, n); err != nil {
			return 0, errors.Join(err, l.IPCClose(at))
		}
		return at, nil
	})
	if err != nil {
		return nil, err
	}
	i.r.probeImport(d, at, max(size, n))
	return &imported{addr: ports.DevAddrOf(at), size: size}, nil
}

// extent is how much lies behind an address, which has to be device memory and n bytes at least; 0: the runtime cannot tell.
func extent(l *hiprt.Lib, at, n uint64) (uint64, error) {
	typ, _, err := l.Pointer(at)
	if err != nil {
		return 0, err
	}
	if typ != hiprt.Device {
		return 0, fmt.Errorf("%w: memory of type %d is not a device's", domain.ErrInvalid, typ)
	}
	base, size, err := l.Extent(at)
	if errors.Is(err, errors.ErrUnsupported) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if left := base + size - at; n > left {
		return 0, &domain.LimitError{What: "bytes of a handle", Value: n, Limit: left}
	}
	return base + size - at, nil
}

// Lend opens n bytes at off behind a handle on the device at a PCI address, which processes agree on as they do not on ordinals. release
// gives it back, once, with the precondition of Return.
func (i *Imports) Lend(pci string, handle []byte, off, n uint64) (region ports.DeviceRegion, release func() error, err error) {
	d := i.r.at(pci)
	if d == nil {
		return region, nil, fmt.Errorf("hip: no device at PCI address %q: %w", pci, errors.ErrUnsupported)
	}
	var h Handle
	if len(handle) != len(h) || n == 0 || off+n < off {
		return region, nil, fail("import", d.ordinal, fmt.Errorf("%w: %d bytes at %d of a handle of %d bytes, want more than 0 and %d", domain.ErrInvalid, n, off, len(handle), len(h)))
	}
	copy(h[:], handle)
	whole, err := i.Import("", d.ordinal, h, off+n)
	if err != nil {
		return region, nil, err
	}
	region = ports.DeviceRegionOf(d.ordinal, ports.DevAddrOf(whole.Addr().Raw()+off), n)
	return region, func() error { return i.Return("", d.ordinal, h) }, nil
}

// at is the device at a PCI address, or nil.
func (r *Runtime) at(pci string) *device {
	for _, d := range r.devices {
		if d.pci != "" && strings.EqualFold(d.pci, pci) {
			return d
		}
	}
	return nil
}

// Return gives back what an owner brought, once. Precondition: no copy on it is under way for that owner.
func (i *Imports) Return(owner string, ordinal int, h Handle) error {
	key := importKey{ordinal, h}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.owners[owner][key] == 0 {
		return fail("return", ordinal, fmt.Errorf("memory that %q did not bring: %w", owner, ports.ErrNotFound))
	}
	return i.dropLocked(owner, key)
}

// CloseOwner gives back all that an owner brought: it left or died. Precondition: as of Return. Twice is allowed.
func (i *Imports) CloseOwner(owner string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var errs []error
	for key, times := range i.mu.owners[owner] {
		for range times {
			errs = append(errs, i.dropLocked(owner, key))
		}
	}
	return errors.Join(errs...)
}

// dropLocked lets go of one of an owner's; the last one closes the handle. On a lost device it stays open: something may be at work there.
func (i *Imports) dropLocked(owner string, key importKey) error {
	owned := i.mu.owners[owner]
	if owned[key]--; owned[key] == 0 {
		delete(owned, key)
	}
	if len(owned) == 0 {
		delete(i.mu.owners, owner)
	}
	m := i.mu.open[key]
	if m.users--; m.users > 0 {
		return nil
	}
	delete(i.mu.open, key)
	_, err := i.r.devices[key.ordinal].do("close handle", func(l *hiprt.Lib) (uint64, error) { return 0, l.IPCClose(m.addr.Raw()) })
	return err
}

// Len is how many handles are open.
func (i *Imports) Len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.mu.open)
}

// Close gives back everybody's.
func (i *Imports) Close() error {
	i.mu.Lock()
	owners := make([]string, 0, len(i.mu.owners))
	for o := range i.mu.owners {
		owners = append(owners, o)
	}
	i.mu.Unlock()
	var errs []error
	for _, o := range owners {
		errs = append(errs, i.CloseOwner(o))
	}
	return errors.Join(errs...)
}
