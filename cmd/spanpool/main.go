// Command spanpool pools KV-cache objects of LLM inference on a node and serves byte ranges of them. This file parses, runs
// and exits, once; what the commands do is in the packages below.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

// The exit statuses: 1 for a run that failed or was not right, 2 for a command line that cannot be run.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := untilSignal()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, defaultEnvironment())
	stop()
	os.Exit(code)
}

// untilSignal is a context that the first signal ends, which is its cause. A second one ends the process: by then nobody takes it in
// any more, which signal.NotifyContext would not promise to whoever sees that the first one had an effect.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	asked := make(chan os.Signal, 1) // for the one that is waited for
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case sig := <-asked:
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			cancel(fmt.Errorf("ended by signal: %v (%w)", sig, context.Canceled))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// environment is what the commands take from outside of their arguments, so that tests bring their own.
type environment struct {
	open      bench.OpenCluster
	maxMemory uint64 // what a run may plan with by default
	cores     int
	watched   bool      // a person sees standard error
	environ   []string  // as of os.Environ
	raiseProc func(int) // sets GOMAXPROCS to at least n
	self      string    // the program's file, for a second process of it; empty: none can be had
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer, env environment) int {
	return runRoot(ctx, newRoot(env), args, stdout, stderr)
}

func runRoot(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	out := &output{w: stdout}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	addCobras(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.err // of who does not look, as those do who print help
	}
	if err == nil {
		return exitOK
	}
	text := err.Error()
	if !strings.HasPrefix(text, root.Name()) { // what refuses a command line begins with the command's path
		text = root.Name() + ": " + text
	}
	fmt.Fprintln(stderr, text)
	var usage *usageError
	var option *bench.OptionError
	if errors.As(err, &usage) || errors.As(err, &option) {
		return exitUsage
	}
	return exitFailed
}

// output remembers the first error of a writer.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// addCobras adds the commands that cobra would add by itself, and has them refuse arguments as the others do.
func addCobras(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.RunE = func(_ *cobra.Command, args []string) error { return helpOf(root, args) }
		case "completion":
			c.Args, c.RunE = noArgs, showHelp
			for _, shell := range c.Commands() {
				shell.Args = noArgs
			}
		}
	}
}

func helpOf(root *cobra.Command, args []string) error {
	c, rest, err := root.Find(args)
	if err == nil {
		err = noArgs(c, rest)
	}
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	return c.Help()
}

// usageError is a command line that cobra refused.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func newRoot(env environment) *cobra.Command {
	var tellVersion bool
	root := &cobra.Command{
		Use:           "spanpool",
		Short:         "Pool KV-cache objects and serve byte ranges of them",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if tellVersion {
				return printVersion(c, args)
			}
			return showHelp(c, args)
		},
	}
	root.Flags().BoolVar(&tellVersion, "version", false, "do what the command version does")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%s: %w", c.CommandPath(), err)}
	})
	root.AddCommand(newServe(env), newCtl(env), newConfig(env), newBench(env), newDoctor(env), newVersion())
	return root
}

// noArgs refuses what is no flag and no command.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		hint := ""
		if c.Flags().Lookup("config") != nil {
			hint = " (a file with settings is named by --config)"
		}
		return &usageError{fmt.Errorf("%s: unknown argument %q%s", c.CommandPath(), args[0], hint)}
	}
	return nil
}

func showHelp(c *cobra.Command, _ []string) error { return c.Help() }
