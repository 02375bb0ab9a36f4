package main

import (
	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

// rangesFlags is what the command line says before it is made into options.
type rangesFlags struct {
	o         bench.Ranges
	sizes     []uint
	redis     string
	maxMemory string
	output    string
}

func newRanges(env environment) *cobra.Command {
	f := &rangesFlags{}
	c := &cobra.Command{
		Use:   "ranges",
		Short: "Read ranges of several sizes over sockets, beside whole objects, bare loops and redis",
		Long: `Two nodes of this process read over TCP of loopback. The same ranges are read by whole objects, by bare loops over sockets,
and from a redis-server that is started for it where one is installed. Every byte that any of them read is verified; a wrong
one makes the exit status 1.

Columns:
` + bench.RangesColumnMeanings(),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, env) },
	}
	var sizes []uint
	for _, n := range bench.DefaultRangeSizes {
		sizes = append(sizes, uint(n))
	}
	s := c.Flags()
	s.SortFlags = false
	s.UintSliceVar(&f.sizes, "sizes", sizes, "bytes of a range; a row for each number")
	s.IntVar(&f.o.Runs, "runs", 3, "runs of a figure, of which it is the median")
	s.StringVar(&f.redis, "redis", "auto", "auto: where it is installed; need: not to have it is an error; off")
	s.StringVar(&f.maxMemory, "max-memory", "", "what a run may need, as bytes or with KiB, MiB, GiB; none: nine tenths of what is available (default none)")
	s.StringVar(&f.output, "output", "table", "table, csv, json")
	return c
}

func (f *rangesFlags) run(c *cobra.Command, env environment) error {
	format, err := bench.ParseFormat(f.output)
	if err != nil {
		return err
	}
	if err := bench.CheckAvailable("--redis", f.redis, []string{"auto", "need", "off"}); err != nil {
		return err
	}
	f.o.NeedRedis, f.o.NoRedis = f.redis == "need", f.redis == "off"
	if f.o.MaxMemory, err = memoryLimit(f.maxMemory, env); err != nil {
		return err
	}
	for _, n := range f.sizes {
		f.o.Sizes = append(f.o.Sizes, uint64(n))
	}
	f.o.Progress = progress(c.ErrOrStderr(), env)
	env.raiseProc(2 * env.cores)
	var rows []bench.RangesRow
	err = f.o.Run(c.Context(), env.open, func(r bench.RangesRow) error { rows = append(rows, r); return nil })
	if werr := bench.WriteRangesRows(c.OutOrStdout(), format, rows); err == nil {
		err = werr
	}
	return err
}
