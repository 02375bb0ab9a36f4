package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
)

// remoteFlags name nodes of other processes.
type remoteFlags struct {
	peers      []string
	secretFile string
}

const remoteHelp = `With --transport tcp the nodes are joined by sockets of loopback, with shm they read each other's memory besides. With --peer they are other processes, started by
"spanpool serve": this process is then one node, which puts on the others what it seeds, reads it from them, and removes it at the
end. They need no entry of it in their lists, and room for what is put.`

func (f *remoteFlags) define(s *pflag.FlagSet) {
	s.StringArrayVar(&f.peers, "peer", nil, "a node that is served, as ID=HOST:PORT of its listen; may be given more than once (default none)")
	s.StringVar(&f.secretFile, "secret-file", "", "file with the secret that those nodes share (default none)")
}

func (f *remoteFlags) parse() (remotes []bench.Remote, secret []byte, err error) {
	text := strings.Join(f.peers, ",")
	peers, err := config.ParsePeers(text)
	if err != nil {
		return nil, nil, &bench.OptionError{Flag: "--peer", Value: text, Want: err.Error()}
	}
	for _, p := range peers {
		remotes = append(remotes, bench.Remote{ID: p.ID, Addr: p.Addr})
	}
	if f.secretFile != "" {
		if secret, err = config.ReadSecret(f.secretFile); err != nil {
			return nil, nil, &bench.OptionError{Flag: "--secret-file", Value: f.secretFile, Want: err.Error()}
		}
	}
	return remotes, secret, nil
}
