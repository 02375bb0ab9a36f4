package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/bench"
)

// gpuFlags names a device for commands that run without the daemon's settings.
type gpuFlags struct {
	runtime, library string
	ordinal          int
}

func (f *gpuFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.runtime, "gpu-runtime", string(hip.Auto), "whose GPU runtime: hip, cuda, auto")
	s.StringVar(&f.library, "gpu-library", "", "path of that runtime's library; none: the newest that the loader finds (default none)")
	s.IntVar(&f.ordinal, "gpu-device", 0, "ordinal of the device (default 0)")
}

// refuse is for a command line by which nothing lies on a device: what is said of one was meant for something.
func (f *gpuFlags) refuse(s *pflag.FlagSet) error {
	for _, name := range []string{"gpu-runtime", "gpu-library", "gpu-device"} {
		if s.Changed(name) {
			return &bench.OptionError{Flag: "--" + name, Value: s.Lookup(name).Value.String(), Want: "nothing lies on a GPU; want --medium hbm or --destination gpu"}
		}
	}
	return nil
}

// open opens the runtime that is named, and checks that it has the device.
func (f *gpuFlags) open() (*hip.Runtime, error) {
	if err := bench.CheckAvailable("--gpu-runtime", f.runtime, []string{string(hip.Auto), string(hip.HIP), string(hip.CUDA)}); err != nil {
		return nil, err
	}
	r, err := hip.Open(hip.Config{Vendor: hip.Vendor(f.runtime), Library: f.library, Host: dram.NewCopier()})
	if err != nil {
		return nil, err
	}
	if f.ordinal < 0 || f.ordinal >= r.Devices() {
		_ = r.Close() // nothing of it was used
		return nil, deviceError(f.ordinal, r.Devices())
	}
	return r, nil
}

func deviceError(ordinal, devices int) error {
	return fmt.Errorf("--gpu-device %d: want 0 to %d", ordinal, devices-1)
}
