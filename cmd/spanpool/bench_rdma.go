package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

func newBenchRDMA() *cobra.Command {
	var o bench.RDMASweep
	var sizes []string
	c := &cobra.Command{
		Use:   "rdma",
		Short: "Measure reads and writes over rdma by size and by ops in flight, verified",
		Long: `One link between two devices, or of one device to itself, without a node. Each row is verified by its last ops. Where perftest is
installed, its rate at the same size and depth stands beside. A Soft-RoCE device's figures say nothing about a NIC's.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, s := range sizes {
				n, err := bench.ParseBytes(s)
				if err != nil {
					return &bench.OptionError{Flag: "--sizes", Value: s, Want: err.Error()}
				}
				o.Sizes = append(o.Sizes, n)
			}
			var rows []bench.RDMARow
			err := o.Run(c.Context(), func(r bench.RDMARow) error { rows = append(rows, r); return nil })
			if werr := bench.WriteRDMARows(c.OutOrStdout(), rows); err == nil {
				err = werr
			}
			return err
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringSliceVar(&sizes, "sizes", []string{"4KiB", "64KiB", "576KiB", "4MiB"}, "bytes of an op")
	f.IntSliceVar(&o.Depths, "depths", []int{1, 8, 32}, "ops in flight")
	f.DurationVar(&o.Time, "time", time.Second, "time of a row")
	f.StringVar(&o.From, "device", "", "device that asks; default: the first that is up")
	f.StringVar(&o.To, "owner-device", "", "device that is asked; default: the first that is up")
	f.BoolVar(&o.Perftest, "perftest", true, "run perftest beside, where it is installed")
	return c
}
