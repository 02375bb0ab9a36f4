package shm

import (
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Kind is the name of this transport.
const Kind ports.TransportKind = "shm"

// Config of a transport. Only Clock is required.
type Config struct {
	Clock ports.Clock // what deadlines and completions are told in

	// Secret, when it is set, must be the same on both ends: a key that was overheard on the control connection is then of no use.
	Secret []byte

	// Copier copies out of a peer's memory; nil: the runtime's copy. A fault, in either memory, must fail its op and nothing else.
	Copier ports.Copier

	// Workers is how many goroutines copy at once; default as many as there are cores, and less than GOMAXPROCS, so that
	// copies never hold every P: the network poller would starve. At most 256.
	Workers     int
	DialTimeout time.Duration // for all that Link does, and for a peer's proof; default 1 s
}

const maxWorkers = 256 // far above the cores that memory bandwidth is worth

func (c Config) check() error {
	switch {
	case c.Clock == nil:
		return fmt.Errorf("clock: none, and one is needed: %w", domain.ErrInvalid)
	case c.Workers < 0 || c.Workers > maxWorkers:
		return &domain.LimitError{What: "workers (0 or more)", Value: uint64(c.Workers), Limit: maxWorkers}
	case c.DialTimeout < 0:
		return fmt.Errorf("dial timeout %v, want more than 0: %w", c.DialTimeout, domain.ErrInvalid)
	}
	return nil
}

// Reason is why a connection of a peer ended that should not have, or not so.
type Reason uint8

// The reasons.
const (
	Garbage  Reason = iota // what came makes no sense
	Unproven               // unknown link, or a proof that does not match
	TooMany                // too many connections in the middle of their hello
	Lingered               // did not let go of the mapping in time
	Faulted                // ops of ours that met memory that is not there
	NumReasons
)

func (r Reason) String() string {
	return [NumReasons]string{"garbage", "unproven", "too_many", "lingered", "faulted"}[r]
}

// Stats counts from the start on.
type Stats struct {
	Refused  [NumReasons]uint64
	Inbound  int    // gauge: peers that have our buffers mapped
	Outbound int    // gauge: peers whose buffers we have mapped
	Mapped   uint64 // gauge: bytes of those
}
