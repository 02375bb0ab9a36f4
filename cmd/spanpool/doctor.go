package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
)

// newDoctor looks at the host and gives advice. It changes nothing.
func newDoctor(env environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host has for spanpool, and what is in the way",
		Long: `Without a command below: the host, and all of them, which may find nothing. A pool over TCP, and over shared memory within a
host, needs neither a GPU nor RDMA.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return doctorAll(c, env) },
	}
	c.AddCommand(newDoctorGPU(env), newDoctorRDMA())
	return c
}

// nothingUsable is a finding that fails a command which asks for that alone.
type nothingUsable string

func (n nothingUsable) Error() string { return string(n) }

func doctorAll(c *cobra.Command, env environment) error {
	limit, what := dram.Limit()
	w := c.OutOrStdout()
	if err := writeFindings(w, examineHost(env.cores, limit, what, defaultBytes())); err != nil {
		return err
	}
	for _, part := range c.Commands() {
		if _, err := fmt.Fprintf(w, "\n%s: %s\n", part.Name(), part.Short); err != nil {
			return err
		}
		part.SetContext(c.Context())
		var nothing nothingUsable
		if err := part.RunE(part, nil); err != nil && !errors.As(err, &nothing) {
			return err
		}
	}
	return nil
}

// defaultBytes is what a node takes that nothing is set for.
func defaultBytes() uint64 {
	f := pflag.NewFlagSet("defaults", pflag.ContinueOnError)
	config.Flags(f)
	s, err := config.Load(f, nil)
	if err != nil {
		return 0 // a host without a name; serve says so
	}
	return s.MediumBytes + s.GetArenaBytes + s.PutArenaBytes
}

// examineHost makes findings of what every node needs. A limit of 0 is not known.
func examineHost(cores int, limit uint64, what string, needs uint64) []finding {
	memory := finding{what: "memory", is: "its limit is not known"}
	if limit > 0 {
		memory.is = fmt.Sprintf("%d MiB at most (%s)", limit>>20, what)
	}
	if limit > 0 && limit < needs {
		memory.advice = fmt.Sprintf("a node takes %d MiB by default: lower dram.bytes, arena.get_bytes and arena.put_bytes", needs>>20)
	}
	return []finding{{what: "processors", is: strconv.Itoa(cores)}, memory}
}

// finding is one thing that doctor looked at. Advice is empty where all is well.
type finding struct{ what, is, advice string }

func writeFindings(w io.Writer, all []finding) error {
	for _, f := range all {
		if _, err := fmt.Fprintf(w, "%-28s %s\n", f.what, f.is); err != nil {
			return err
		}
		if f.advice != "" {
			if _, err := fmt.Fprintf(w, "%-28s -> %s\n", "", f.advice); err != nil {
				return err
			}
		}
	}
	return nil
}
