package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/ports"
)

func newDoctorGPU(env environment) *cobra.Command {
	var f gpuFlags
	var lend bool
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
				return nothingUsable("no GPU can be used")
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			if lend {
				return lendGPU(r, c.InOrStdin(), c.OutOrStdout())
			}
			tryGPU(r)
			lent := tryLent(c.Context(), r, env.self, &f)
			report, err := r.Report()
			return errors.Join(err, writeFindings(c.OutOrStdout(), examineGPU(report, lent)))
		},
	}
	s := c.Flags()
	s.StringVar(&f.runtime, "gpu-runtime", string(hip.Auto), "whose GPU runtime: hip, cuda, auto")
	s.StringVar(&f.library, "gpu-library", "", "path of that runtime's library; none: the newest that the loader finds (default none)")
	s.BoolVar(&lend, "lend", false, "be the other process, which lends memory")
	_ = s.MarkHidden("lend") // fails for flags that are not there
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
	if f, _, err := r.DMABuf(m.Buffers()[0].(ports.DeviceRegion)); err == nil {
		_ = f.Close() // it was only to be had
	}
}

// lendTime bounds what another process takes to open the runtime and lend memory; the number is arbitrary.
const lendTime = 30 * time.Second

// lendGPU takes a little memory of the first device, prints its handle, and lives until in ends.
func lendGPU(r *hip.Runtime, in io.Reader, out io.Writer) (err error) {
	m, err := r.OpenMedium(hip.MediumConfig{Bytes: tried, PageSize: tried})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	h, err := r.Handle(m.Buffers()[0].(ports.DeviceRegion))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%x\n", h)
	_, err = io.Copy(io.Discard, in)
	return err
}

// tryLent has another process of this program lend memory of the first device, which is then tried with the first rdma device. The error
// is why it came to no trial; what the trial has shown is in the report.
func tryLent(ctx context.Context, r *hip.Runtime, self string, f *gpuFlags) (err error) {
	if self == "" {
		return errors.New("the program's own file is not known")
	}
	ctx, cancel := context.WithTimeout(ctx, lendTime)
	defer cancel()
	lender := exec.CommandContext(ctx, self, "doctor", "gpu", "--lend", "--gpu-runtime", f.runtime, "--gpu-library", f.library)
	stdin, err := lender.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := lender.StdoutPipe()
	if err != nil {
		return err
	}
	if err := lender.Start(); err != nil {
		return fmt.Errorf("start another process: %w", err)
	}
	defer func() { err = errors.Join(err, stdin.Close(), lender.Wait()) }()
	var handle []byte
	if _, err := fmt.Fscanf(stdout, "%x\n", &handle); err != nil {
		return fmt.Errorf("another process lends no memory: %w", err)
	}
	return importOn(r, handle)
}

// importOn imports memory, by which it is tried with the first rdma device there is.
func importOn(r *hip.Runtime, handle []byte) error {
	t, err := rdma.Open(rdma.Config{Clock: boottime.New()})
	if err != nil {
		r.TryOn(func(*os.File, uint64, uint64) error { return err })
	} else {
		defer func() { _ = t.Close() }() // nothing went over it
		r.TryOn(t.TryDMABuf)
	}
	var h hip.Handle
	copy(h[:], handle)
	in := r.Imports()
	if _, err := in.Import("doctor", 0, h, tried); err != nil {
		return err
	}
	return in.Close()
}

// examineGPU makes findings; lent is why lent memory was not tried.
func examineGPU(r hip.Report, lent error) []finding {
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
		if d.Import.Tried || lent != nil && d.Ordinal == 0 {
			all = append(all, examineImport(d.Import, lent))
		}
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

// examineImport is whether a NIC takes memory that another process lent.
func examineImport(v hip.Verdict, lent error) finding {
	f := finding{"  lent memory and a NIC", v.String(), ""}
	switch {
	case !v.Tried:
		f.is, f.advice = "not tried: "+lent.Error(), "ctl status of a node shows what the first memory that a client lends has shown"
	case v.Err != nil:
		f.advice = "nothing is lost by it but a copy: with gpu.nic too, what comes by rdma goes by the arena"
	default:
		f.advice = "gpu.nic: true would let rdma read and write it; on this kind of hardware that was never seen to work"
	}
	return f
}
