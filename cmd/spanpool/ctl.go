package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/client"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
)

// ctl is what the commands under `ctl` share.
type ctl struct {
	socket, namespace, output string
	timeout                   time.Duration
}

func newCtl(env environment) *cobra.Command {
	f := &ctl{}
	c := &cobra.Command{
		Use:   "ctl",
		Short: "Ask the node of this host over its socket",
		Long: `Commands for the node whose socket is named. The exit status is 0 when all that was asked for is so, 1 when something is
not there or failed, 2 for a command line that cannot be run. An error names the key, its status and the reason.`,
		Args: noArgs,
		RunE: showHelp,
	}
	s := c.PersistentFlags()
	s.StringVar(&f.socket, "socket", env.socket(), "Unix socket of the node; SPANPOOL_SOCKET says so too")
	s.StringVar(&f.namespace, "namespace", "", "namespace of the keys (default none)")
	s.StringVar(&f.output, "output", outputTable, "table, json")
	s.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long the whole command may take")
	c.AddCommand(f.newPut(), f.newGet(), f.newExists(), f.newRemove(), f.newSize(), f.newStatus(), f.newPeers())
	return c
}

// socket is the default of --socket: the daemon's variable, then the daemon's default.
func (e environment) socket() string {
	for _, v := range e.environ {
		if path, ok := strings.CutPrefix(v, "SPANPOOL_SOCKET="); ok {
			return path
		}
	}
	return config.DefaultSocket
}

// withNode checks the common flags, and runs one command with the node.
func (f *ctl) withNode(run func(ctx context.Context, c *cobra.Command, node *client.Node, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		if err := bench.CheckAvailable("--output", f.output, []string{outputTable, outputJSON}); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
		defer cancel()
		node, err := client.OpenNode(f.socket)
		if err != nil {
			return err
		}
		defer node.Close()
		return f.orWhere(run(ctx, c, node, args))
	}
}

// orWhere adds what to do to the error of a call where no socket is: the daemon's default is seldom where somebody tries it out.
func (f *ctl) orWhere(err error) error {
	if !errors.Is(err, client.ErrUnavailable) {
		return err
	}
	conn, look := net.Dial("unix", f.socket)
	if look == nil {
		conn.Close()
	}
	switch {
	case errors.Is(look, fs.ErrNotExist):
		return fmt.Errorf("%w\nno node has its socket there: --socket or SPANPOOL_SOCKET names another place, `spanpool serve --socket %s` starts a node",
			err, f.socket)
	case errors.Is(look, fs.ErrPermission):
		return fmt.Errorf("%w\nthe socket is for the user who runs the node, and root", err)
	}
	return err
}

// args wants lo to hi arguments; hi of -1 is any number.
func args(lo, hi int, want string) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		if len(a) < lo || hi >= 0 && len(a) > hi {
			return &usageError{fmt.Errorf("%s: %d arguments, want %s", c.CommandPath(), len(a), want)}
		}
		return nil
	}
}
