package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/ports"
)

func newDoctorGPU() *cobra.Command {
	var f gpuFlags
	c := &cobra.Command{
		Use:   "gpu",
		Short: "GPU runtime, devices, memory and what the runtime can do; fails where no device can be used",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			r, err := hip.Open(hip.Config{Vendor: hip.Vendor(f.runtime), Library: f.library, Host: dram.NewCopier()})
			if err != nil {
				if werr := writeFindings(c.OutOrStdout(), noGPU(err)); werr != nil {
					return werr
				}
				return errors.New("no GPU can be used")
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			tryGPU(r)
			report, err := r.Report()
			return errors.Join(err, writeFindings(c.OutOrStdout(), examineGPU(report)))
		},
	}
	s := c.Flags()
	s.StringVar(&f.runtime, "gpu-runtime", string(hip.Auto), "whose GPU runtime: hip, cuda, auto")
	s.StringVar(&f.library, "gpu-library", "", "path of that runtime's library; none: the newest that the loader finds (default none)")
	return c
}

// noGPU advises by why the runtime could not be opened.
func noGPU(err error) []finding {
	advice := "install the vendor's runtime (ROCm's libamdhip64, or CUDA's libcudart), or name it by --gpu-library; a container needs /dev/kfd and /dev/dri, or NVIDIA's"
	if !hip.Built {
		advice = "this build has no GPU support: build it with cgo and -tags gpu"
	}
	return []finding{{"support", err.Error(), advice}}
}

// tried is what is taken of the first device for a moment, to see whether it can be exported.
const tried = 64 << 10

// tryGPU exports a little memory of the first device, which the report then tells of.
func tryGPU(r *hip.Runtime) {
	m, err := r.OpenMedium(hip.MediumConfig{Bytes: tried, PageSize: tried})
	if err != nil {
		return // the device's findings say why
	}
	defer func() { _ = m.Close() }() // likewise
	if f, err := r.ExportDMABuf(m.Buffers()[0].(ports.DeviceRegion)); err == nil {
		_ = f.Close() // it was only to be had
	}
}

func examineGPU(r hip.Report) []finding {
	batch := finding{"  batched copies", "yes", ""}
	if !r.Batch {
		batch.is, batch.advice = "no", "fragments without a stride are a call each; newer runtimes have MemcpyBatchAsync"
	}
	export := finding{"  memory for a NIC", r.Export.String(), ""}
	if r.Export.Err != nil {
		export.advice = "nothing is lost by it: NIC to GPU memory is off, and transports stage what they move"
	}
	all := []finding{{"runtime", fmt.Sprintf("%s, %s, version %d", r.Vendor, r.Library, r.Version), ""}, batch, export}
	for _, d := range r.Devices {
		f := finding{fmt.Sprintf("device %d", d.Ordinal), fmt.Sprintf("%s, %d MiB free of %d", d.PCI, d.Free>>20, d.Total>>20), ""}
		switch {
		case d.Lost:
			f.is, f.advice = "does not answer", "look at the kernel's log; a device that hangs has to be reset by its administrator"
		case d.Free < d.Total/10:
			f.advice = "little is free: serve refuses a pool that does not fit beside gpu.reserve_bytes"
		}
		all = append(all, f)
	}
	return all
}
