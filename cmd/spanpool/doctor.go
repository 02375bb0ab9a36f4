package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// newDoctor looks at the host and gives advice. It changes nothing.
func newDoctor(env environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host has for spanpool, and what is in the way",
		Args:  noArgs,
		RunE:  showHelp,
	}
	c.AddCommand(newDoctorGPU(env), newDoctorRDMA())
	return c
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
