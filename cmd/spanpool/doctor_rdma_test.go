package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/rdma"
)

func TestDoctorTellsWhatIsInTheWay(t *testing.T) {
	good := rdma.DeviceInfo{Name: "mlx5_0", Firmware: "1.2", Caps: rdma.Caps{MaxQPWR: 1024, MaxSGE: 30, MaxReadsAsTarget: 16, MaxReadsAsInitiator: 16, MaxCQE: 4096},
		Ports: []rdma.PortInfo{{Number: 1, State: "PORT_ACTIVE", Active: true, Ethernet: true, MTU: 4096, GIDs: []rdma.GIDInfo{{Index: 3, GID: "10.0.0.1", Type: "RoCE v2", Used: true}}}}}
	with := func(change func(*rdma.DeviceInfo)) []rdma.DeviceInfo {
		d := good
		d.Ports = []rdma.PortInfo{good.Ports[0]}
		change(&d)
		return []rdma.DeviceInfo{d}
	}
	for _, tt := range []struct {
		name    string
		devices []rdma.DeviceInfo
		err     error
		lock    string
		usable  bool
		advice  string
	}{
		{name: "all is well", devices: with(func(*rdma.DeviceInfo) {}), lock: "unlimited", usable: true},
		{name: "no support", err: errors.ErrUnsupported, advice: map[bool]string{true: "modprobe ib_uverbs", false: "make build"}[rdma.Built]},
		{name: "no device", advice: "rdma link add"},
		{name: "locked memory", devices: with(func(*rdma.DeviceInfo) {}), lock: "65536 bytes", usable: true, advice: "LimitMEMLOCK"},
		{name: "no permission", devices: with(func(d *rdma.DeviceInfo) { d.Err = errors.New("permission denied") }), advice: "/dev/infiniband"},
		{name: "down", devices: with(func(d *rdma.DeviceInfo) { d.Ports[0].Active = false }), advice: "ip link set"},
		{name: "small frames", devices: with(func(d *rdma.DeviceInfo) { d.Ports[0].MTU = 512 }), usable: true, advice: "mtu 9000"},
		{name: "no address", devices: with(func(d *rdma.DeviceInfo) { d.Ports[0].GIDs = nil }), advice: "ip addr add"},
		{name: "small caps", devices: with(func(d *rdma.DeviceInfo) { d.Caps.MaxSGE = 2 }), usable: true, advice: "lowers them"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.lock == "" {
				tt.lock = "unlimited"
			}
			all, usable := examineRDMA(tt.devices, tt.err, tt.lock)
			require.Equal(t, tt.usable, usable)
			var b bytes.Buffer
			require.NoError(t, writeFindings(&b, all))
			if tt.advice == "" {
				require.NotContains(t, b.String(), "->")
			}
			require.Contains(t, b.String(), tt.advice)
		})
	}
}

func TestDoctorFailsWhereNoDeviceCanBeUsed(t *testing.T) {
	if rdma.Built {
		t.Skip("this build may have a device")
	}
	o := invoke(t, "doctor", "rdma")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, "make build")
	require.Contains(t, o.stderr, "no RDMA device can be used")
}
