package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip"
)

func TestDoctorAdvisesOnWhatItFindsOfAGPU(t *testing.T) {
	good := hip.Report{Library: "lib.so", Vendor: hip.HIP, Batch: true, DMABuf: true, Export: hip.Verdict{Tried: true}, Devices: []hip.DeviceReport{{PCI: "0000:01:00.0", Free: 10 << 30, Total: 16 << 30}}}
	with := func(change func(*hip.Report)) hip.Report {
		r := good
		r.Devices = []hip.DeviceReport{good.Devices[0]}
		change(&r)
		return r
	}
	for name, tt := range map[string]struct {
		report hip.Report
		lent   error
		advice string
	}{
		"all is well":  {good, nil, ""},
		"not tried":    {good, errors.New("no process"), "ctl status of a node"},
		"not taken":    {with(func(r *hip.Report) { r.Devices[0].Import = hip.Verdict{Tried: true, Err: errors.ErrUnsupported} }), nil, "a copy"},
		"taken":        {with(func(r *hip.Report) { r.Devices[0].Import.Tried = true }), nil, "gpu.nic: true"},
		"no batches":   {with(func(r *hip.Report) { r.Batch = false }), nil, "a call each"},
		"no export":    {with(func(r *hip.Report) { r.Export.Err = errors.ErrUnsupported }), nil, "NIC to GPU memory is off"},
		"lost":         {with(func(r *hip.Report) { r.Devices[0].Lost = true }), nil, "reset by its administrator"},
		"hardly space": {with(func(r *hip.Report) { r.Devices[0].Free = 1 << 30 }), nil, "gpu.reserve_bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, writeFindings(&b, examineGPU(tt.report, tt.lent)))
			require.Contains(t, b.String(), tt.advice)
			if tt.advice == "" {
				require.NotContains(t, b.String(), "->")
			}
		})
	}
}

func TestDoctorFailsWhereNoGPUCanBeUsed(t *testing.T) {
	o := invoke(t, "doctor", "gpu", "--gpu-library", "/nowhere/libgpu.so")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, "-> ")
	require.Contains(t, o.stderr, "no GPU can be used")
}
