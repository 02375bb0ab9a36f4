package hip

import (
	"errors"
	"fmt"
	"os"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
)

// NIC registers n bytes at off of a dma-buf with a NIC, and lets go of them again. The file stays the caller's.
type NIC func(f *os.File, off, n uint64) error

// TryOn names the NIC with which the first import on each device is tried. It comes before any import.
func (r *Runtime) TryOn(n NIC) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.nic = n
}

// ImportVerdict is what the first import on a device has shown of it and the NIC.
func (r *Runtime) ImportVerdict(ordinal int) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ordinal < 0 || ordinal >= len(r.mu.imported) {
		return Verdict{}
	}
	return r.mu.imported[ordinal]
}

// DMABuf makes a file of the allocation that device memory lies in, which a NIC's driver can map, and says where in it that memory
// begins. The caller closes it. errors.ErrUnsupported where the runtime has no such call.
func (r *Runtime) DMABuf(region ports.DeviceRegion) (f *os.File, off uint64, err error) {
	d, err := r.device(region.Ordinal())
	if err != nil {
		return nil, 0, err
	}
	f, off, err = d.exportDMABuf(region.Addr().Raw(), region.Len())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.export = Verdict{Tried: true, Err: err}
	return f, off, err
}

// exportDMABuf exports whole allocations: drivers want the bounds of pages, and a part may have others.
func (d *device) exportDMABuf(at, n uint64) (f *os.File, off uint64, err error) {
	var begin uint64
	fd, err := d.do("export dma-buf", func(l *hiprt.Lib) (uint64, error) {
		base, size, err := l.Extent(at)
		if errors.Is(err, errors.ErrUnsupported) {
			base, size, err = at, n, nil
		}
		if err != nil {
			return 0, err
		}
		begin = at - base
		fd, err := l.DMABuf(base, size)
		return uint64(fd), err
	})
	if err != nil { // and then a thread that was given up may write begin yet
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("dma-buf of device %d", d.ordinal)), begin, nil
}

// errNoNIC is a node without rdma.
var errNoNIC = errors.New("it can be exported, but no rdma device is configured")

// probeImport tries at the first import on a device whether a NIC takes memory of another process, which no documentation promises.
func (r *Runtime) probeImport(d *device, at, n uint64) {
	r.mu.Lock()
	tried, nic := r.mu.imported[d.ordinal].Tried, r.mu.nic
	r.mu.Unlock()
	if tried {
		return
	}
	err := d.tryImport(nic, at, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.imported[d.ordinal] = Verdict{Tried: true, Err: err}
}

func (d *device) tryImport(nic NIC, at, n uint64) error {
	f, off, err := d.exportDMABuf(at, n)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // of a file that was only to be had
	if nic == nil {
		return errNoNIC
	}
	if err := nic(f, off, n); err != nil {
		return fmt.Errorf("it can be exported, and the NIC refused it: %w", err)
	}
	return nil
}
