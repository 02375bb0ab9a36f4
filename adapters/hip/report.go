package hip

import (
	"errors"
	"fmt"
	"os"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
)

// Report is what is known of the runtime and its devices.
type Report struct {
	Library string // as it was opened
	Vendor  Vendor
	Version int  // the runtime's own number
	Batch   bool // many copies are one call
	DMABuf  bool // there is a call that exports memory for a NIC
	Export  Verdict
	Import  Verdict
	Devices []DeviceReport
}

// Verdict is what a probe showed.
type Verdict struct {
	Tried bool
	Err   error // nil, when tried: it works
}

func (v Verdict) String() string {
	switch {
	case !v.Tried:
		return "not tried yet"
	case v.Err != nil:
		return "no: " + v.Err.Error()
	}
	return "yes"
}

// DeviceReport is one device.
type DeviceReport struct {
	Ordinal     int
	PCI         string
	Free, Total uint64
	Lost        bool
	Stats       Stats
}

// Stats counts from the start on.
type Stats struct {
	Jobs      uint64 // batches, and calls that are no copies
	Rounds    uint64
	Submitted uint64 // copies as the library was told them: runs and rectangles
	Bytes     uint64
	Timeouts  uint64 // steps past their deadline
	Refused   uint64 // ops on a lost or closed device
	Errors    uint64 // ops that the device refused, and threads that could not give everything back
}

// Report asks every device. A device that cannot be asked is in it, with its error joined to the one returned.
func (r *Runtime) Report() (Report, error) {
	out := Report{Library: r.lib.Path, Vendor: Vendor(r.lib.Vendor), Version: r.lib.Version, Batch: r.lib.HasBatch(), DMABuf: r.lib.HasDMABuf()}
	var errs []error
	for _, d := range r.devices {
		one, err := d.report()
		out.Devices = append(out.Devices, one)
		errs = append(errs, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Export, out.Import = r.mu.export, r.mu.imported
	return out, errors.Join(errs...)
}

// Counts is what each device's threads counted, without its memory and name: it asks no device, so it does not wait for one that hangs.
func (r *Runtime) Counts() []DeviceReport {
	out := make([]DeviceReport, len(r.devices))
	for i, d := range r.devices {
		out[i] = d.counted()
	}
	return out
}

func (d *device) counted() DeviceReport {
	return DeviceReport{Ordinal: d.ordinal, Lost: d.isLost(), Stats: d.stats.read()}
}

// Notes is what whoever looks at a node should know of its devices. It asks none of them, so it does not wait for one that hangs.
func (r *Runtime) Notes() []string {
	var out []string
	for _, d := range r.devices {
		if d.isLost() {
			out = append(out, fmt.Sprintf("gpu: device %d (%s) is lost: it did not answer within %v; what lies there is not served any more", d.ordinal, d.pci, r.cfg.Deadline))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.imported.Tried {
		out = append(out, "gpu: lent memory can be exported for a NIC (which is not used): "+r.mu.imported.String())
	}
	return out
}

func (d *device) report() (DeviceReport, error) {
	out := d.counted()
	var got DeviceReport
	_, err := d.do("report", func(l *hiprt.Lib) (_ uint64, err error) {
		if got.PCI, err = l.PCIBusID(d.ordinal); err != nil {
			return 0, err
		}
		got.Free, got.Total, err = l.MemInfo()
		return 0, err
	})
	if err == nil { // else its thread may write it yet
		out.PCI, out.Free, out.Total = got.PCI, got.Free, got.Total
	}
	return out, err
}

func (c *counters) read() Stats {
	return Stats{Jobs: c.jobs.Load(), Rounds: c.rounds.Load(), Submitted: c.submitted.Load(), Bytes: c.bytes.Load(),
		Timeouts: c.timeouts.Load(), Refused: c.refused.Load(), Errors: c.errors.Load()}
}

// ExportDMABuf makes a file of device memory, which a NIC's driver can map. The caller closes it. errors.ErrUnsupported where the runtime
// has no such call.
func (r *Runtime) ExportDMABuf(region ports.DeviceRegion) (*os.File, error) {
	d, err := r.device(region.Ordinal())
	if err != nil {
		return nil, err
	}
	f, err := d.exportDMABuf(region.Addr().Raw(), region.Len())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.export = Verdict{Tried: true, Err: err}
	return f, err
}

func (d *device) exportDMABuf(at, n uint64) (*os.File, error) {
	fd, err := d.do("export dma-buf", func(l *hiprt.Lib) (uint64, error) {
		fd, err := l.DMABuf(at, n)
		return uint64(fd), err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("dma-buf of device %d", d.ordinal)), nil
}

// probeImport tries at the first import whether memory of another process can be exported for a NIC, which no documentation promises.
func (r *Runtime) probeImport(d *device, at, n uint64) {
	r.mu.Lock()
	tried := r.mu.imported.Tried
	r.mu.Unlock()
	if tried {
		return
	}
	f, err := d.exportDMABuf(at, n)
	if err == nil {
		err = f.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.imported = Verdict{Tried: true, Err: err}
}
