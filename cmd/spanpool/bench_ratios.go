package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

// ratiosFlags is what the command line says before it is made into options.
type ratiosFlags struct {
	o         bench.Ratios
	strict    bool
	checksum  string
	maxMemory string
	output    string
}

// checksumModes are the values of --checksum.
var checksumModes = []string{"off", "on"}

// errMissed is a bar that was not reached under --strict.
var errMissed = errors.New("not every bar was met")

func newRatios(env environment) *cobra.Command {
	f := &ratiosFlags{}
	c := &cobra.Command{
		Use:   "ratios",
		Short: "Measure what is promised of speed, as ratios of pairs taken in turns",
		Long: `Each bar measures two sides in this process, in turns, and takes the median of the pairs' ratios. A pair during which other
programs took over 10 % of the processors, or the modelled link fell short by over 5 % of its rate or by over
max(25 us, 20 %) of its delay, is repeated, at most 7 times a bar; after that it counts and is marked.

A missed bar is printed as missed and leaves the exit status 0, unless --strict: time depends on the machine. A failed or
wrong read makes the exit status 1.

Bars: ` + strings.Join(bench.BarNames(), ", ") + `

Columns:
` + bench.RatioColumnMeanings(),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, env) },
	}
	s := c.Flags()
	s.SortFlags = false
	s.StringSliceVar(&f.o.Bars, "bars", nil, "which bars to run (default all)")
	s.IntVar(&f.o.Pairs, "runs", bench.DefaultPairs, "pairs of a ratio; fewer than 7 are no figure to publish")
	s.StringVar(&f.checksum, "checksum", "on", "whether the nodes of all bars but tcp-checksum, which compares, verify: off, on")
	s.BoolVar(&f.strict, "strict", false, "exit with 1 when a bar is missed (default false)")
	s.StringVar(&f.maxMemory, "max-memory", "", "what a run may need, as bytes or with KiB, MiB, GiB; none: nine tenths of what is available (default none)")
	s.StringVar(&f.output, "output", "table", "table, csv, json (an object a line); rows are printed as they come")
	return c
}

func (f *ratiosFlags) run(c *cobra.Command, env environment) error {
	format, err := bench.ParseFormat(f.output)
	if err != nil {
		return err
	}
	if f.o.MaxMemory, err = memoryLimit(f.maxMemory, env); err != nil {
		return err
	}
	if err := bench.CheckAvailable("--checksum", f.checksum, checksumModes); err != nil {
		return err
	}
	if c.Flags().Changed("bars") && len(f.o.Bars) == 0 {
		return &bench.OptionError{Flag: "--bars", Want: "want 1 or more of their names; without it all of them run"}
	}
	f.o.NoChecksums = f.checksum == "off"
	f.o.Places, f.o.Root = env.cores, machine()
	f.o.Errors, f.o.Progress = c.ErrOrStderr(), progress(c.ErrOrStderr(), env)
	f.o.Ceilings = &bench.Ceilings{MaxMemory: f.o.MaxMemory, Places: env.cores}
	env.raiseProc(2 * env.cores)
	out := bench.NewRatioWriter(c.OutOrStdout(), format)
	missed := 0
	err = f.o.Run(c.Context(), env.open, func(r bench.RatioRow) error {
		if r.Verdict == bench.Missed {
			missed++
		}
		return out.Write(r)
	})
	if err == nil && f.strict && missed > 0 {
		return fmt.Errorf("%w: %d missed", errMissed, missed)
	}
	return err
}
