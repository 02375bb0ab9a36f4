package porttest

import (
	"context"
	"errors"
	"sync"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// DeviceMemory is device memory without a device, and its Copier: regions have addresses at which nothing lies, and only Copy knows
// where their bytes are.
type DeviceMemory struct {
	mu struct {
		sync.Mutex
		at   map[ports.DevAddr][]byte
		next uint64
		fail error // what befalls the next copy that names device memory
	}
}

var _ ports.Copier = (*DeviceMemory)(nil)

// New makes n poisoned bytes on device 0.
func (d *DeviceMemory) New(n uint64) ports.DeviceRegion {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.at == nil {
		d.mu.at, d.mu.next = make(map[ports.DevAddr][]byte), 1<<44
	}
	a := ports.DevAddrOf(d.mu.next)
	d.mu.next += n + 4096
	d.mu.at[a] = make([]byte, n)
	content.Poison(d.mu.at[a])
	return ports.DeviceRegionOf(0, a, n)
}

// Bytes are those of a region of New, for tests to look at.
func (d *DeviceMemory) Bytes(r ports.DeviceRegion) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.at[r.Addr()]
}

// FailNext has the next op that names device memory fail.
func (d *DeviceMemory) FailNext(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.fail = err
}

// Copy is ports.Copier's.
func (d *DeviceMemory) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	for i := range ops {
		if errs[i] = context.Cause(ctx); errs[i] == nil {
			errs[i] = d.copy(&ops[i])
		}
	}
}

func (d *DeviceMemory) copy(op *ports.CopyOp) error {
	dst, toDevice := d.bytes(op.Dst)
	src, fromDevice := d.bytes(op.Src)
	switch {
	case dst == nil || src == nil:
		return errors.ErrUnsupported
	case op.DstOff > uint64(len(dst)) || op.Len > uint64(len(dst))-op.DstOff || op.SrcOff > uint64(len(src)) || op.Len > uint64(len(src))-op.SrcOff:
		return ports.ErrBounds
	}
	if toDevice || fromDevice {
		if err := d.takeFailure(); err != nil {
			return err
		}
	}
	copy(dst[op.DstOff:][:op.Len], src[op.SrcOff:])
	return nil
}

func (d *DeviceMemory) takeFailure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.mu.fail
	d.mu.fail = nil
	return err
}

func (d *DeviceMemory) bytes(r ports.Region) (b []byte, device bool) {
	switch r := r.(type) {
	case ports.HostRegion:
		return r.Bytes(), false
	case ports.DeviceRegion:
		return d.Bytes(r), true
	}
	return nil, false
}
