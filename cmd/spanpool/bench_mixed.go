package main

import (
	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

// mixedFlags is what the command line says before it is made into options.
type mixedFlags struct {
	o         bench.Mixed
	maxMemory string
	output    string
}

func newMixed(env environment) *cobra.Command {
	f := &mixedFlags{}
	c := &cobra.Command{
		Use:   "mixed",
		Short: "Get and put at once through the arenas, each beside its rate alone",
		Long: `Two nodes run in this process. Threads of the one walk objects of the other, a range a call in a session, and as many put
there, an object a call; nothing becomes local. With --shared-arena the caller is a comparison instead of a node: one arena for both directions, and
one lock that is held over each transfer. What was read is verified, and what was put is read again; a failed or wrong one
makes the exit status 1.

Columns:
` + bench.MixedColumnMeanings(),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, env) },
	}
	s := c.Flags()
	s.SortFlags = false
	s.IntSliceVar(&f.o.Threads, "threads", []int{1, 2, 4, 8}, "threads that get, and as many that put; a row for each number")
	s.BoolVar(&f.o.SharedArena, "shared-arena", false, "the comparison: one arena and one lock for gets and puts (default false)")
	s.Uint64Var(&f.o.CallBytes, "call-bytes", 1<<20, "bytes of a call")
	s.IntVar(&f.o.Calls, "calls", 16, "calls of a thread in a round")
	s.IntVar(&f.o.Rounds, "rounds", 3, "measured rounds, after one that warms up")
	s.IntVar(&f.o.ScratchMiB, "scratch-mib", 64, "MiB of each arena")
	s.IntVar(&f.o.Runs, "runs", 1, "runs of a row, of which each figure is the median")
	s.BoolVar(&f.o.Verify, "verify", true, "check every byte; false marks the rows")
	s.StringVar(&f.o.Transport, "transport", "inproc", "between the nodes: inproc, tcp, rdma, shm (reads; writes by tcp)")
	s.Float64Var(&f.o.Link.Gbps, "link-gbps", 0, "Gbit/s of the modelled link; 0: not modelled (default 0)")
	s.IntVar(&f.o.Link.DelayUs, "link-delay-us", 0, "microseconds of delay of the modelled link, each way (default 0)")
	s.StringVar(&f.maxMemory, "max-memory", "", "what a row may need, as bytes or with KiB, MiB, GiB; none: nine tenths of what is available (default none)")
	s.StringVar(&f.output, "output", "table", "table, csv, json")
	return c
}

func (f *mixedFlags) run(c *cobra.Command, env environment) error {
	format, err := f.options(env)
	if err != nil {
		return err
	}
	f.o.Errors, f.o.Progress = c.ErrOrStderr(), progress(c.ErrOrStderr(), env)
	f.o.Ceilings = &bench.Ceilings{MaxMemory: f.o.MaxMemory, Places: env.cores}
	env.raiseProc(2 * env.cores)
	var rows []bench.MixedRow
	err = f.o.Run(c.Context(), env.open, func(r bench.MixedRow) { rows = append(rows, r) })
	if werr := bench.WriteMixedRows(c.OutOrStdout(), format, rows); err == nil {
		err = werr
	}
	return err
}

func (f *mixedFlags) options(env environment) (format bench.Format, err error) {
	if format, err = bench.ParseFormat(f.output); err != nil {
		return "", err
	}
	if f.o.MaxMemory, err = memoryLimit(f.maxMemory, env); err != nil {
		return "", err
	}
	f.o.Places, f.o.Root = env.cores, machine()
	return format, f.o.Check()
}
