package main

import (
	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

// ceilingFlags is what the command line says before it is made into options.
type ceilingFlags struct {
	o         bench.Ceiling
	fragments []uint
	maxMemory string
	output    string
}

func newCeiling(env environment) *cobra.Command {
	f := &ceilingFlags{}
	c := &cobra.Command{
		Use:   "ceiling",
		Short: "Measure the bare loops that nothing here can be faster than: copy, socket, and both",
		Long: `Copies by the processor, sockets of loopback, and sockets with copies behind them, of fragments that lie apart in memory that
no cache holds. No node runs. Each figure is what the loop reaches while it has the machine to itself.

Columns:
` + bench.CeilingColumnMeanings(),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, env) },
	}
	var fragments []uint
	for _, n := range bench.DefaultFragments {
		fragments = append(fragments, uint(n))
	}
	s := c.Flags()
	s.SortFlags = false
	s.UintSliceVar(&f.fragments, "fragments", fragments, "bytes of a fragment; rows for each number")
	s.IntVar(&f.o.Runs, "runs", 3, "runs of a loop, of which each figure is the median")
	s.StringVar(&f.maxMemory, "max-memory", "", "what a run may need, as bytes or with KiB, MiB, GiB; none: nine tenths of what is available (default none)")
	s.StringVar(&f.output, "output", "table", "table, csv, json")
	return c
}

func (f *ceilingFlags) run(c *cobra.Command, env environment) error {
	format, err := bench.ParseFormat(f.output)
	if err != nil {
		return err
	}
	if f.o.MaxMemory, err = memoryLimit(f.maxMemory, env); err != nil {
		return err
	}
	for _, n := range f.fragments {
		f.o.Fragments = append(f.o.Fragments, uint64(n))
	}
	f.o.Places, f.o.Progress = env.cores, progress(c.ErrOrStderr(), env)
	if err := f.o.Check(); err != nil {
		return err
	}
	env.raiseProc(2 * env.cores)
	var rows []bench.CeilingRow
	err = f.o.Run(c.Context(), func(r bench.CeilingRow) error { rows = append(rows, r); return nil })
	if werr := bench.WriteCeilingRows(c.OutOrStdout(), format, rows); err == nil {
		err = werr
	}
	return err
}
