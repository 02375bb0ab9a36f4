package main

import (
	"os"
	"runtime"

	"github.com/spanpool/spanpool/bench"
)

// defaultEnvironment is this machine.
func defaultEnvironment() environment {
	memory, known := bench.AvailableMemory(os.DirFS("/"))
	if !known {
		memory = ^uint64(0)
	}
	self, _ := os.Executable() // without it one probe of doctor is left out, which it says
	return environment{open: bench.OpenNodes, maxMemory: memory, cores: runtime.NumCPU(), watched: isTerminal(os.Stderr), environ: os.Environ(), raiseProc: raiseProc, self: self}
}

// isTerminal reports whether a person watches f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// raiseProc leaves a GOMAXPROCS of the user's alone. With copying goroutines on every P the network poller waits for tens of
// milliseconds, so there are more of them than may copy at once.
func raiseProc(n int) {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < n {
		runtime.GOMAXPROCS(n)
	}
}
