package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/client"
)

func newEngine(env environment) *cobra.Command {
	o := &bench.Engine{}
	var maxMemory, output string
	c := &cobra.Command{
		Use:   "engine",
		Short: "Measure reads from another process through the node into its own memory, beside the bare copy loop",
		Long: fmt.Sprintf(`A node runs as a process of its own, unless --socket names one (its medium has to have %d MiB free). This process registers memory,
puts objects, and reads them layer group by layer group; in turns with that it copies the same bytes to the same places by itself. What was
read is checked, outside of the times.

Columns:
`, bench.EngineBytes()>>20) + bench.EngineColumnMeanings(),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			format, err := bench.ParseFormat(output)
			if err != nil {
				return err
			}
			if o.MaxMemory, err = memoryLimit(maxMemory, env); err != nil {
				return err
			}
			o.Progress = progress(c.ErrOrStderr(), env)
			if err = o.Check(); err != nil {
				return err
			}
			if o.Socket == "" {
				n, serr := startNode(c.Context(), bench.EngineBytes())
				if serr != nil {
					return serr
				}
				o.Socket = n.socket
				defer func() { err = errors.Join(err, n.stop()) }()
			}
			var rows []bench.EngineRow
			err = o.Run(c.Context(), func(r bench.EngineRow) error { rows = append(rows, r); return nil })
			if werr := bench.WriteEngineRows(c.OutOrStdout(), format, rows); err == nil {
				err = werr
			}
			return err
		},
	}
	s := c.Flags()
	s.SortFlags = false
	s.StringVar(&o.Socket, "socket", "", "Unix socket of a node that runs; none: one is started (default none)")
	s.IntVar(&o.Runs, "runs", 7, "pairs of a row, of which each figure is the median")
	s.StringVar(&maxMemory, "max-memory", "", "what a run may need, as bytes or with KiB, MiB, GiB; none: nine tenths of what is available (default none)")
	s.StringVar(&output, "output", "table", "table, csv, json")
	return c
}

// child is a node that runs for a benchmark.
type child struct {
	cmd    *exec.Cmd
	dir    string
	socket string
	said   bytes.Buffer
}

// nodeWithin bounds the start of a node, which gives every page its memory first, and its end.
const nodeWithin = 30 * time.Second

// startNode runs this binary as a node without peers, and waits until it answers.
func startNode(ctx context.Context, medium uint64) (n *child, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n = &child{}
	if n.dir, err = os.MkdirTemp("", "spanpool-bench"); err != nil {
		return nil, err
	}
	n.socket = filepath.Join(n.dir, "engine.sock")
	n.cmd = exec.Command(self, "serve", "--node-id", "bench", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--http", "off",
		"--socket", n.socket, "--dram-bytes", fmt.Sprint(medium), "--arena-get-bytes", "1MiB", "--arena-put-bytes", "1MiB", "--log-level", "warn")
	n.cmd.Env = withoutSettings(os.Environ())
	n.cmd.Stdout, n.cmd.Stderr = &n.said, &n.said
	if err := n.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(n.dir))
	}
	if err := n.answers(ctx); err != nil {
		err = errors.Join(err, n.stop())
		return nil, fmt.Errorf("the node does not answer: %w\n%s", err, &n.said)
	}
	return n, nil
}

// withoutSettings leaves out what the environment says of some other node.
func withoutSettings(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool { return strings.HasPrefix(v, "SPANPOOL_") })
}

func (n *child) answers(ctx context.Context) error {
	node, err := client.OpenNode(n.socket)
	if err != nil {
		return err
	}
	defer node.Close()
	ctx, cancel := context.WithTimeout(ctx, nodeWithin)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err = node.Status(ctx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// stop ends the node, by force when it does not end by itself.
func (n *child) stop() error {
	kill := time.AfterFunc(nodeWithin, func() { _ = n.cmd.Process.Kill() })
	defer kill.Stop()
	err := n.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return errors.Join(err, n.cmd.Wait(), os.RemoveAll(n.dir))
}
