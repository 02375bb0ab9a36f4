package tcp

import (
	"fmt"
	"net"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Config of a transport. Only Clock is required.
type Config struct {
	Clock ports.Clock // what deadlines and completions are told in

	// Listen are the addresses (host:port; port 0 is any) on which peers reach our memory. None: Answer refuses.
	Listen []string
	// Advertise is what answers name, in order of preference. An entry without a port, or with port 0, gets that of the first
	// listener. Default: the listeners' own addresses, which must then be specific ones.
	Advertise []string
	// Secret, when it is set, must be the same on both ends: a key that was overheard on the control connection is then of no use.
	Secret []byte

	// Copier moves bytes between host and device memory. nil: device memory is refused. Background is the one for pulls; nil: Copier.
	Copier, Background ports.Copier

	Conns        int           // connections of a link that we make; default 4, at most 16
	DialTimeout  time.Duration // for all that Link does, and for a peer's proof; default 1 s
	StallTimeout time.Duration // a connection that stands still in mid frame for so long is closed; default 10 s
	OpTimeout    time.Duration // of an op that names no deadline; default 30 s
}

const (
	defaultConns = 4
	maxConns     = 16
	maxAddresses = 16
	maxAddress   = 255 // bytes: a DNS name and a port
)

func (c Config) withDefaults() Config {
	if c.Conns == 0 {
		c.Conns = defaultConns
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.DialTimeout, time.Second)
	def(&c.StallTimeout, 10*time.Second)
	def(&c.OpTimeout, 30*time.Second)
	return c
}

func (c Config) check() error {
	switch {
	case c.Clock == nil:
		return fmt.Errorf("clock: none, and one is needed: %w", domain.ErrInvalid)
	case c.Conns < 1 || c.Conns > maxConns:
		return &domain.LimitError{What: "connections of a link (1 or more)", Value: uint64(c.Conns), Limit: maxConns}
	case c.DialTimeout < 0 || c.StallTimeout < 0 || c.OpTimeout < 0:
		return fmt.Errorf("timeouts %v, %v, %v, want more than 0: %w", c.DialTimeout, c.StallTimeout, c.OpTimeout, domain.ErrInvalid)
	}
	return nil
}

// advertised is what answers will name.
func advertised(c Config, listeners []net.Listener) ([]string, error) {
	var out []string
	if len(listeners) == 0 {
		return nil, nil
	}
	first := listeners[0].Addr().(*net.TCPAddr)
	for _, a := range c.Advertise {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			host, port = a, "0"
		}
		if port == "0" || port == "" {
			port = fmt.Sprint(first.Port)
		}
		out = append(out, net.JoinHostPort(host, port))
	}
	if len(c.Advertise) == 0 {
		for _, l := range listeners {
			a := l.Addr().(*net.TCPAddr)
			if a.IP.IsUnspecified() {
				return nil, fmt.Errorf("listen address %s names no interface, so an address to advertise is needed: %w", a, domain.ErrInvalid)
			}
			out = append(out, a.String())
		}
	}
	if len(out) > maxAddresses {
		return nil, &domain.LimitError{What: "advertised addresses", Value: uint64(len(out)), Limit: maxAddresses}
	}
	for _, a := range out {
		if len(a) > maxAddress {
			return nil, &domain.LimitError{What: "bytes of advertised address " + a, Value: uint64(len(a)), Limit: maxAddress}
		}
	}
	return out, nil
}
