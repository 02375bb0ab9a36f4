package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/adapters/rdma"
)

func newDoctorRDMA() *cobra.Command {
	return &cobra.Command{
		Use:   "rdma",
		Short: "RDMA devices, links, GIDs, caps and limits; fails where no device can be used",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			devices, err := rdma.Devices()
			all, usable := examineRDMA(devices, err, rdma.LockedMemoryLimit())
			if err := writeFindings(c.OutOrStdout(), all); err != nil {
				return err
			}
			if !usable {
				return nothingUsable("no RDMA device can be used")
			}
			return nil
		},
	}
}

// What the transport uses by default; less is lowered to the device's, at a price.
const (
	wantedRequests = 256
	wantedSGE      = 16
	wantedReads    = 16
)

// examineRDMA makes findings of what the host told, and says whether there is a device that serve can use.
func examineRDMA(devices []rdma.DeviceInfo, err error, lock string) (all []finding, usable bool) {
	switch {
	case err != nil && !rdma.Built:
		return []finding{{"support", err.Error(), "install libibverbs-dev (rdma-core-devel) and a C compiler, and run make build"}}, false
	case err != nil:
		return []finding{{"support", err.Error(), "load the kernel's modules: modprobe ib_uverbs, and the device's driver"}}, false
	case len(devices) == 0:
		return []finding{{"devices", "none", "load the driver (mlx5_ib, bnxt_re, ...) and install its provider (ibverbs-providers); for tests without a NIC: rdma link add rxe0 type rxe netdev eth0"}}, false
	}
	lockIs := finding{"locked memory (ulimit -l)", lock, ""}
	if lock != "unlimited" {
		lockIs.advice = "registered memory counts against it: LimitMEMLOCK=infinity, or --ulimit memlock=-1 of a container, unless it is at least the pool and both arenas"
	}
	all = append(all, lockIs)
	for _, d := range devices {
		found, ok := examineDevice(&d)
		all, usable = append(all, found...), usable || ok
	}
	return all, usable
}

func examineDevice(d *rdma.DeviceInfo) (all []finding, usable bool) {
	if d.Err != nil {
		return []finding{{"device " + d.Name, d.Err.Error(), "this process needs /dev/infiniband/uverbs* (a container: --device=/dev/infiniband) and the provider of the device"}}, false
	}
	all = append(all, finding{"device " + d.Name, "firmware " + d.Firmware, ""}, examineCaps(d.Caps))
	for _, p := range d.Ports {
		name := fmt.Sprintf("port %s/%d", d.Name, p.Number)
		kind := map[bool]string{true: "RoCE", false: "InfiniBand"}[p.Ethernet]
		f := finding{name, fmt.Sprintf("%s, %s, MTU %d", p.State, kind, p.MTU), ""}
		switch {
		case !p.Active:
			f.advice = "bring its network interface up (ip link set DEV up), or look at cable and subnet manager"
		case p.MTU < 1024:
			f.advice = "an interface MTU of 1500 gives 1024 and one of 4200 or more 4096: ip link set DEV mtu 9000, on the switch too"
		}
		all = append(all, f)
		used := 0
		for _, g := range p.GIDs {
			is := g.GID + ", " + g.Type
			if g.Used {
				used++
				is += ", used"
			}
			all = append(all, finding{fmt.Sprintf("  GID %d", g.Index), is, ""})
		}
		if used == 0 {
			all = append(all, finding{name + " GIDs", "none that fits", "give its interface an address: ip addr add ADDRESS/LEN dev DEV"})
		}
		usable = usable || p.Active && used > 0
	}
	return all, usable
}

func examineCaps(c rdma.Caps) finding {
	f := finding{"  caps", fmt.Sprintf("%d requests and %d scatter entries a queue pair, %d outstanding reads, %d completions a queue, registrations of %d bytes",
		c.MaxQPWR, c.MaxSGE, min(c.MaxReadsAsTarget, c.MaxReadsAsInitiator), c.MaxCQE, c.MaxMRBytes), ""}
	if c.MaxQPWR < wantedRequests || c.MaxSGE < wantedSGE || min(c.MaxReadsAsTarget, c.MaxReadsAsInitiator) < wantedReads {
		f.advice = fmt.Sprintf("less than the defaults (%d, %d, %d): serve lowers them and says so at its start", wantedRequests, wantedSGE, wantedReads)
	}
	return f
}
