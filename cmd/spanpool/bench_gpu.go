package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

func newBenchGPU() *cobra.Command {
	var (
		o         bench.GPUSweep
		gpu       gpuFlags
		fragments []uint
		bytes     string
		output    string
	)
	c := &cobra.Command{
		Use:   "gpu",
		Short: "Measure copies to, from and within a GPU by size of a fragment, verified",
		Long: `Batches of copies by the node's own copier, without a node. The last batch of each row is verified.

Columns:
` + bench.GPUColumnMeanings(),
		Args: noArgs,
	}
	s := c.Flags()
	s.SortFlags = false
	s.UintSliceVar(&fragments, "fragments", []uint{1728, 37440, 73728, 589824, 4194304}, "bytes of a fragment; rows for each number")
	s.StringVar(&bytes, "bytes", "32MiB", "bytes of a batch, about")
	s.DurationVar(&o.Time, "time", 500*time.Millisecond, "time of a row")
	gpu.define(s)
	s.StringVar(&output, "output", "table", "table, csv, json")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		format, err := bench.ParseFormat(output)
		if err != nil {
			return err
		}
		if o.Bytes, err = bench.ParseBytes(bytes); err != nil {
			return &bench.OptionError{Flag: "--bytes", Value: bytes, Want: err.Error()}
		}
		for _, f := range fragments {
			o.Fragments = append(o.Fragments, uint64(f))
		}
		if err := o.Check(); err != nil {
			return err
		}
		r, err := gpu.open()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		o.GPU = &bench.GPU{Runtime: r, Ordinal: gpu.ordinal}
		var rows []bench.GPURow
		err = o.Run(c.Context(), func(r bench.GPURow) { rows = append(rows, r) })
		if werr := bench.WriteGPURows(c.OutOrStdout(), format, rows); err == nil {
			err = werr
		}
		return err
	}
	return c
}
