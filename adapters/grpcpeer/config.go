package grpcpeer

import (
	"fmt"
	"net"
	"time"
	"unicode/utf8"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Config of a Client or a Server. Self, and either Secret or Insecure, must be set.
type Config struct {
	Self  ports.Peer
	Peers []Member // Client only: whom it can call. Self among them is left out

	// Secret is what all nodes of the pool share. It is copied.
	Secret []byte
	// Insecure lets a node do without a secret: whoever reaches the port is believed.
	Insecure bool

	DialTimeout  time.Duration // connection, proof of the secret and HTTP/2 together; default 1 s
	MaxCallBytes int           // of one request or reply, in parts or not; default 64 MiB
	MaxStreams   uint32        // calls at once on one connection; further ones wait at the asker; default 256
	MaxConns     int           // Server only; further ones are closed at once; default 1,024
}

// Member is a peer of a static list. Addr is host:port. A name is resolved anew for each connection, and all of its addresses are
// tried, IPv6 and IPv4; an IPv6 address stands in brackets.
type Member struct {
	ID   ports.PeerID
	Addr string
}

// The defaults. 64 MiB are the pages of 800 GiB of objects at 64 KiB a page, or 65,536 keys of 512 bytes and their columns; the other
// two are far above a pool's size and the width of its calls.
const (
	defaultDialTimeout  = time.Second
	defaultMaxCallBytes = 64 << 20
	defaultMaxStreams   = 256
	defaultMaxConns     = 1024
	maxIDBytes          = 255 // a greeting has at most 4,096 bytes
)

// settle checks a configuration and puts the defaults in.
func settle(c Config) (Config, error) {
	if err := CheckID(c.Self.ID); err != nil {
		return c, fmt.Errorf("own id: %w", err)
	}
	switch {
	case c.Self.Incarnation == 0:
		return c, fmt.Errorf("own incarnation is 0: %w", domain.ErrInvalid)
	case len(c.Secret) == 0 && !c.Insecure:
		return c, fmt.Errorf("no shared secret, and not told to do without one: %w", domain.ErrInvalid)
	case len(c.Secret) > 0 && c.Insecure:
		return c, fmt.Errorf("a shared secret, and told to do without one: %w", domain.ErrInvalid)
	case c.DialTimeout < 0 || c.MaxCallBytes < 0 || c.MaxConns < 0:
		return c, fmt.Errorf("dial timeout %v, call bytes %d, connections %d: %w: negative", c.DialTimeout, c.MaxCallBytes, c.MaxConns, domain.ErrInvalid)
	}
	c.Secret = append([]byte(nil), c.Secret...)
	def(&c.DialTimeout, defaultDialTimeout)
	def(&c.MaxCallBytes, defaultMaxCallBytes)
	def(&c.MaxStreams, defaultMaxStreams)
	def(&c.MaxConns, defaultMaxConns)
	return c, nil
}

func def[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// CheckID refuses the id of a node that a message cannot carry.
func CheckID(id ports.PeerID) error {
	switch {
	case id == "":
		return fmt.Errorf("empty: %w", domain.ErrInvalid)
	case len(id) > maxIDBytes:
		return &domain.LimitError{What: "bytes of a peer's id", Value: uint64(len(id)), Limit: maxIDBytes}
	case !utf8.ValidString(string(id)):
		return fmt.Errorf("%q is not UTF-8: %w", id, domain.ErrInvalid)
	}
	return nil
}

func checkMember(m Member) error {
	if err := CheckID(m.ID); err != nil {
		return fmt.Errorf("peer id: %w", err)
	}
	if host, port, err := net.SplitHostPort(m.Addr); err != nil || host == "" || port == "" {
		return fmt.Errorf("peer %s: address %q is not host:port: %w", m.ID, m.Addr, domain.ErrInvalid)
	}
	return nil
}
