package rdma

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Config of a transport. Only Clock is required. Sizes above what the device can do are lowered, which Clamps tells.
type Config struct {
	Clock ports.Clock // what deadlines and completions are told in

	// Device is a name as ibv_devices has it, or NAME/PORT. Default: the first with a port that is up.
	Device string
	// GID is which addresses peers are told: ipv4, ipv6, or an index of the port's table. Default: all that fit RoCE v2 (or
	// InfiniBand), of which the owner takes the pair that has most in common with one of its own.
	GID string

	ReadPairs  int // queue pairs of a link that carry reads; default 2, at most 16
	WritePairs int // and writes; default 1, at most 16
	SendDepth  int // work requests in flight on each; default 256
	MaxSGE     int // pieces of local memory in a work request; default 16
	MaxReads   int // outstanding reads of a queue pair; default 16
	// MaxRequest is the most bytes of a work request; default 512 KiB.
	MaxRequest uint64
	// ChunkBytes is the most bytes of one registration; a larger region takes several. Default 1 GiB.
	ChunkBytes uint64
	MaxLinks   int // links of peers into our memory; default 256

	// Timeout and Retry are when a queue pair gives up: 4.096 us x 2^Timeout (and up to four times that), Retry + 1 times. Default 14
	// and 6. Retry is at most 6, since there are devices for which 7 is for ever.
	Timeout, Retry int

	DialTimeout    time.Duration // for all that Link does; default 1 s
	OpTimeout      time.Duration // of an op that names no deadline; default 30 s
	Keepalive      time.Duration // a link that said nothing for so long is asked; default 1 s
	ControlTimeout time.Duration // a request that is not answered for so long ends its link; default 2 s
	IdleTimeout    time.Duration // an inbound link that asks nothing for so long is forgotten; default 30 s

	// DMABuf names device memory for the adapter: a file, which it closes when the memory is registered, and the region's offset in it.
	// nil: ops do not name device memory.
	DMABuf func(ports.DeviceRegion) (f *os.File, off uint64, err error)

	// Warn is told once, from a goroutine of its own, that a queue pair cannot be destroyed: memory that it may touch is in use until it can.
	// nil: nobody is told.
	Warn func(error)
}

const (
	maxPairs    = 16
	maxRetry    = 6
	rnrRetry    = 6 // a receive that is not posted yet is posted in a moment
	minDepth    = 16
	maxDepth    = 1 << 15
	maxReads    = 255
	controlRecv = 8 // receives of a control pair: an answer, and notices
	controlSend = 8
)

func (c Config) withDefaults() Config {
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	num(&c.ReadPairs, 2)
	num(&c.WritePairs, 1)
	num(&c.SendDepth, 256)
	num(&c.MaxSGE, 16)
	num(&c.MaxReads, 16)
	num(&c.MaxLinks, 256)
	num(&c.Timeout, 14)
	num(&c.Retry, maxRetry)
	size := func(n *uint64, v uint64) {
		if *n == 0 {
			*n = v
		}
	}
	size(&c.MaxRequest, 512<<10)
	size(&c.ChunkBytes, 1<<30)
	span := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	span(&c.DialTimeout, time.Second)
	span(&c.OpTimeout, 30*time.Second)
	span(&c.Keepalive, time.Second)
	span(&c.ControlTimeout, 2*time.Second)
	span(&c.IdleTimeout, 30*time.Second)
	return c
}

func (c Config) check() error {
	if c.Clock == nil {
		return fmt.Errorf("clock: none, and one is needed: %w", domain.ErrInvalid)
	}
	for _, n := range []struct {
		what          string
		value, lo, hi int
	}{
		{"pairs for reads", c.ReadPairs, 1, maxPairs}, {"pairs for writes", c.WritePairs, 1, maxPairs},
		{"send depth", c.SendDepth, minDepth, maxDepth}, {"scatter entries", c.MaxSGE, 1, 256}, {"outstanding reads", c.MaxReads, 1, maxReads},
		{"links of peers", c.MaxLinks, 1, 1 << 16}, {"timeout exponent", c.Timeout, 1, 31}, {"retries", c.Retry, 0, maxRetry},
	} {
		if n.value < n.lo || n.value > n.hi {
			return fmt.Errorf("%s: %d, want %d to %d: %w", n.what, n.value, n.lo, n.hi, domain.ErrInvalid)
		}
	}
	if c.MaxRequest < 4096 || c.MaxRequest > 1<<30 {
		return fmt.Errorf("bytes of a request: %d, want 4096 to 2^30: %w", c.MaxRequest, domain.ErrInvalid)
	}
	if c.ChunkBytes < 1<<16 || c.ChunkBytes%(1<<16) != 0 {
		return fmt.Errorf("bytes of a registration: %d, want a multiple of 65536: %w", c.ChunkBytes, domain.ErrInvalid)
	}
	for _, d := range []struct {
		what  string
		value time.Duration
	}{
		{"dial timeout", c.DialTimeout}, {"op timeout", c.OpTimeout}, {"keepalive", c.Keepalive}, {"control timeout", c.ControlTimeout},
		{"idle timeout", c.IdleTimeout},
	} {
		if d.value < 0 {
			return fmt.Errorf("%s: %v, want 0 (the default) or more: %w", d.what, d.value, domain.ErrInvalid)
		}
	}
	if _, err := strconv.ParseUint(c.GID, 10, 8); err != nil && c.GID != "" && c.GID != "ipv4" && c.GID != "ipv6" {
		return fmt.Errorf("GID %q: want ipv4, ipv6 or an index: %w", c.GID, domain.ErrInvalid)
	}
	return nil
}

// Clamp is a size that the device cannot do.
type Clamp struct {
	What       string
	Asked, Got uint64
}

// clamp lowers the sizes to the device's.
func (c *Config) clamp(d Caps) (out []Clamp) {
	lower := func(what string, v *int, most int) {
		if most > 0 && *v > most {
			out = append(out, Clamp{what, uint64(*v), uint64(most)})
			*v = most
		}
	}
	lower("work requests of a queue pair", &c.SendDepth, d.MaxQPWR)
	pairs := c.ReadPairs + c.WritePairs
	lower("work requests of a queue pair, for a completion queue's entries", &c.SendDepth, (d.MaxCQE-controlRecv-controlSend)/pairs)
	lower("scatter entries of a work request", &c.MaxSGE, d.MaxSGE)
	lower("outstanding reads of a queue pair", &c.MaxReads, min(d.MaxReadsAsTarget, d.MaxReadsAsInitiator))
	lower("links of peers", &c.MaxLinks, d.MaxCQE/(controlRecv+controlSend))
	if most := d.MaxMRBytes &^ (1<<16 - 1); most > 0 && c.ChunkBytes > most {
		out = append(out, Clamp{"bytes of a registration", c.ChunkBytes, most})
		c.ChunkBytes = most
	}
	if most := uint64(d.MaxMsg); most > 0 && c.MaxRequest > most {
		out = append(out, Clamp{"bytes of a work request", c.MaxRequest, most})
		c.MaxRequest = most
	}
	return out
}

// Caps of a device, as it tells them.
type Caps struct {
	MaxMRBytes, MaxMsg                    uint64
	MaxQP, MaxQPWR, MaxSGE, MaxCQE, MaxMR int
	MaxReadsAsTarget, MaxReadsAsInitiator int
}

// DeviceInfo is a device as Devices tells it, with what keeps it from being used.
type DeviceInfo struct {
	Name, Firmware string
	Caps           Caps
	Ports          []PortInfo
	Err            error // nil: it opens
}

// PortInfo is a port of a device. Ports count from 1.
type PortInfo struct {
	Number   int
	State    string
	Active   bool
	Ethernet bool // RoCE; else InfiniBand
	MTU      int  // bytes
	GIDs     []GIDInfo
}

// GIDInfo is an entry of a port's table.
type GIDInfo struct {
	Index int
	GID   string // as an address; IPv4 where it is one
	Type  string // IB, RoCE v1, RoCE v2
	Used  bool   // by a transport with the default settings
}
