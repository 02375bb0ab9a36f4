package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
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
	s.StringVar(&f.namespace, "namespace", "", "namespace of the keys")
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

// withNode checks the common flags, connects, and runs one command.
func (f *ctl) withNode(run func(ctx context.Context, c *cobra.Command, node enginev1.EngineClient, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		if err := bench.CheckAvailable("--output", f.output, []string{outputTable, outputJSON}); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
		defer cancel()
		conn, err := grpc.NewClient("passthrough:///localhost",
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", f.socket)
			}))
		if err != nil {
			return fmt.Errorf("socket %q: %w", f.socket, err)
		}
		defer conn.Close()
		return run(ctx, c, enginev1.NewEngineClient(conn), args)
	}
}

// failed is a call that failed as a whole: the node refused it, or there is none.
func (f *ctl) failed(err error) error {
	s := status.Convert(err)
	return fmt.Errorf("node at %q: %s: %s", f.socket, snake(s.Code().String()), s.Message())
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

// snake makes DeadlineExceeded and KEY_STATUS_NOT_FOUND names as people see them elsewhere: deadline_exceeded, not_found.
func snake(name string) string {
	if name == strings.ToUpper(name) {
		return strings.ToLower(name)
	}
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

func statusName(s enginev1.KeyStatus) string {
	return snake(strings.TrimPrefix(s.String(), "KEY_STATUS_"))
}

func sourceName(s enginev1.Source) string {
	if s == enginev1.Source_SOURCE_UNSPECIFIED {
		return "nowhere"
	}
	return snake(strings.TrimPrefix(s.String(), "SOURCE_"))
}
