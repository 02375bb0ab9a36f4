package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/ports"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the Go release and the protocol",
		Args:  noArgs,
		RunE:  printVersion,
	}
}

func printVersion(c *cobra.Command, _ []string) error {
	info, _ := debug.ReadBuildInfo()
	return writeVersion(c.OutOrStdout(), info)
}

// version is what the build recorded, for those who ask the daemon.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// writeVersion prints what the build recorded; a build outside of a repository records no commit.
func writeVersion(w io.Writer, info *debug.BuildInfo) error {
	version, settings := "unknown", map[string]string{}
	if info != nil {
		version = info.Main.Version
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	commit := settings["vcs.revision"]
	switch {
	case commit == "":
		commit = "unknown"
	case settings["vcs.modified"] == "true":
		commit += " with changes"
	}
	_, err := fmt.Fprintf(w, "spanpool %s\ncommit   %s\ngo       %s %s/%s\nprotocol %d\n", version, commit,
		runtime.Version(), runtime.GOOS, runtime.GOARCH, ports.ProtocolVersion)
	return err
}
