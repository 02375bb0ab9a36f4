package main

import (
	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

// replayFlags is what the command line says before it is made into options.
type replayFlags struct {
	o         bench.Replay
	assign    string
	locality  string
	maxMemory string
	remotes   remoteFlags
	output    string
}

func newReplay(env environment) *cobra.Command {
	f := &replayFlags{}
	c := &cobra.Command{
		Use:   "replay --trace FILE",
		Short: "Replay a trace of requests: find the longest prefix, read it by layer group, put the rest",
		Long: `Each line of the trace is a request: a JSON object whose hash_ids name the blocks of its prompt, an equal id meaning an
equal prefix up to and including the block. Nodes run in this process. Every byte that is read is verified; a failed or
wrong read makes the exit status 1.

` + remoteHelp + `

Columns:
` + bench.ReplayColumnMeanings(),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, env) },
	}
	s := c.Flags()
	s.SortFlags = false
	s.StringVar(&f.o.Trace, "trace", "", "the file, which may be compressed by gzip (required)")
	s.IntVar(&f.o.Nodes, "nodes", 1, "nodes of the pool")
	s.IntSliceVar(&f.o.Capacities, "capacity-blocks", []int{10000}, "blocks of a node's medium; a row for each number")
	s.IntVar(&f.o.BlockBytes, "block-bytes", 4096, "bytes of a block, scaled down from 512 tokens of a model; a multiple of --layers")
	s.IntVar(&f.o.Layers, "layers", 8, "layers of a block")
	s.IntVar(&f.o.Grouping.Size, "layer-group", 2, "layers of a group")
	s.StringVar(&f.assign, "assign", "round-robin", "which node a request goes to: round-robin, first")
	s.IntVar(&f.o.Limit, "limit", 0, "replay this many requests; 0: all (default 0)")
	s.StringVar(&f.o.Transport, "transport", "inproc", "between the nodes: inproc, tcp, shm (reads; writes by tcp)")
	f.remotes.define(s)
	s.StringVar(&f.locality, "locality", "fill", "how far reads make objects local: off, pull, fill")
	s.BoolVar(&f.o.NoPrefetch, "no-prefetch", false, "switch the background pull off (default false)")
	s.BoolVar(&f.o.Verify, "verify", true, "check every byte; false marks the rows")
	s.IntVar(&f.o.ScratchMiB, "scratch-mib", 16, "MiB of each arena of a node; 0 turns the arena routes off")
	s.StringVar(&f.maxMemory, "max-memory", "", "what a row may need, as bytes or with KiB, MiB, GiB; none: nine tenths of what is available (default none)")
	s.StringVar(&f.output, "output", "table", "table, csv, json")
	return c
}

func (f *replayFlags) run(c *cobra.Command, env environment) error {
	format, err := f.options(env)
	if err != nil {
		return err
	}
	f.o.Errors, f.o.Progress = c.ErrOrStderr(), progress(c.ErrOrStderr(), env)
	env.raiseProc(2 * env.cores)
	var rows []bench.ReplayRow
	err = f.o.Run(c.Context(), env.open, func(r bench.ReplayRow) { rows = append(rows, r) })
	if werr := bench.WriteReplayRows(c.OutOrStdout(), format, rows); err == nil {
		err = werr
	}
	return err
}

func (f *replayFlags) options(env environment) (format bench.Format, err error) {
	if format, err = bench.ParseFormat(f.output); err != nil {
		return "", err
	}
	if f.o.Locality, err = bench.ParseLocality(f.locality); err != nil {
		return "", err
	}
	if f.o.Assign, err = bench.ParseAssign(f.assign); err != nil {
		return "", err
	}
	if f.o.Remotes, f.o.Secret, err = f.remotes.parse(); err != nil {
		return "", err
	}
	if f.o.MaxMemory, err = memoryLimit(f.maxMemory, env); err != nil {
		return "", err
	}
	f.o.Places = env.cores
	return format, f.o.Check()
}
