package hip

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
)

// Report is what is known of the runtime and its devices.
type Report struct {
	Library string // as it was opened
	Vendor  Vendor
	Version int  // the runtime's own number
	Batch   bool // many copies are one call
	DMABuf  bool // there is a call that exports memory for a NIC
	Export  Verdict
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
	Import      Verdict // whether a NIC takes memory that another process lent there
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
	out.Export = r.mu.export
	for i := range out.Devices {
		out.Devices[i].Import = r.mu.imported[i]
	}
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
	for i, v := range r.mu.imported {
		if v.Tried {
			out = append(out, fmt.Sprintf("gpu: a NIC takes memory lent on device %d (%s): %v", i, r.devices[i].pci, v))
		}
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
