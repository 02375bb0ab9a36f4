package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/cmd/spanpool/daemon"
)

const settingsHelp = `Every setting is a flag, a variable (SPANPOOL_ and the key in capitals, underscores for dots) and a key of the YAML file that
--config or SPANPOOL_CONFIG names; the flag wins, then the variable, then the file, then the default.`

func newServe(env environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `A node of the pool, until SIGTERM or SIGINT: then it takes no more calls, lets those in progress end for as long as the
setting drain says, and stops. A second signal ends it at once.

` + settingsHelp,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := settings(c.Flags(), env)
			if err != nil {
				return err
			}
			env.raiseProc(2 * env.cores) // cores, and as many workers that copy
			return daemon.Run(c.Context(), s, daemon.Options{Log: c.ErrOrStderr(), Version: version()})
		},
	}
	config.Flags(c.Flags())
	return c
}

// settings resolves the configuration; whatever is wrong with it is a command line that cannot be run.
func settings(flags *pflag.FlagSet, env environment) (*config.Settings, error) {
	s, err := config.Load(flags, env.environ)
	if err != nil {
		return nil, &usageError{fmt.Errorf("settings: %w", err)}
	}
	return s, nil
}

func newConfig(env environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Print or check the settings of a node",
		Long:  "What serve would do with the same flags, variables and file.\n\n" + settingsHelp,
		Args:  noArgs,
		RunE:  showHelp,
	}
	for _, sub := range []struct {
		use, short string
		run        func(*cobra.Command, *config.Settings) error
	}{
		{"print", "Print every setting, its value and where that came from; the secret is not printed", func(c *cobra.Command, s *config.Settings) error { return s.Print(c.OutOrStdout()) }},
		{"check", "Check the settings, and say what is wrong with them for this build; devices, memory and ports are not asked for", func(c *cobra.Command, s *config.Settings) error {
			if err := s.CheckBuild(config.Build{GPU: hip.Built, RDMA: rdma.Built}); err != nil {
				return &usageError{fmt.Errorf("settings: %w", err)}
			}
			for _, w := range s.Warnings() {
				fmt.Fprintln(c.OutOrStdout(), "warning:", w)
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), "ok")
			return err
		}},
	} {
		cmd := &cobra.Command{Use: sub.use, Short: sub.short, Args: noArgs, RunE: func(c *cobra.Command, _ []string) error {
			s, err := settings(c.Flags(), env)
			if err != nil {
				return err
			}
			return sub.run(c, s)
		}}
		config.Flags(cmd.Flags())
		c.AddCommand(cmd)
	}
	return c
}
