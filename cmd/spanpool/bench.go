package main

import (
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

func newBench(env environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure, and verify what is measured",
		Args:  noArgs,
		RunE:  showHelp,
	}
	c.AddCommand(newLayerwise(env), newMixed(env), newRatios(env), newReplay(env), newCeiling(env), newEngine(env), newRanges(env), newReport(), newBenchGPU(), newBenchRDMA())
	return c
}

// machine is where the system tells what time of its processors others take.
func machine() fs.FS { return os.DirFS("/") }

// progress is drawn where a person watches.
func progress(stderr io.Writer, env environment) *bench.Progress {
	if !env.watched {
		return nil
	}
	return bench.NewProgress(stderr)
}

// memoryLimit reads --max-memory.
func memoryLimit(text string, env environment) (uint64, error) {
	if text == "" {
		return env.maxMemory, nil
	}
	n, err := bench.ParseBytes(text)
	if err != nil {
		return 0, &bench.OptionError{Flag: "--max-memory", Value: text, Want: err.Error()}
	}
	return n, nil
}
