package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Config is how a node behaves. The zero value of every field but ID is its default, so a program sets what it means to change.
// Switches that are on by default are written as what turns them off.
type Config struct {
	ID          ports.PeerID
	Incarnation domain.Incarnation // zero: drawn at random, which is right outside of tests

	Locality                 domain.LocalityMode
	NoRangedLocalityPrefetch bool // ranged_locality_prefetch=false: no pull, no queue, no goroutine for it
	NoCacheRemoteFetches     bool // cache_remote_fetches=false: Get and BatchGet install nothing; ranged calls do not ask
	NoChecksums              bool // checksum=off: puts make no sums, gets ask for none and verify nothing
	Admission                domain.Admission
	FillingShare             float64 // of the medium that filling slots may hold; default 0.25
	Scatter                  bool    // scatter every allocation (tests)

	PeerLease       time.Duration // that this node grants; default 500 ms
	ControlTimeout  time.Duration // a control call; default 1 s
	DialTimeout     time.Duration // dial and hello; default 1 s
	TransferTimeout time.Duration // an op; default 2 s
	ArenaWait       time.Duration // default 1 s
	CallTimeout     time.Duration // a whole call; default 5 s
	Reservation     time.Duration // a peer's put; default 30 s
	HoldTime        time.Duration // the most that exists may hold; default 2 s
	BreakerMin      time.Duration // default 1 s
	BreakerMax      time.Duration // default 10 s
	SweepEvery      time.Duration // ended leases and reservations; default 100 ms

	// Background eviction: at High used it evicts to Low. Both zero (default): off, eviction is on demand and exact LRU.
	HighWatermark, LowWatermark float64

	// Random draws versions and incarnations; nil: crypto/rand.
	Random func() uint64
}

// Ports is what a node is plugged into. Transports are in the order of preference. A nil or empty Medium, Transports, Directory,
// arena is "none": a node without peers, without a pool of its own, or without that route.
type Ports struct {
	Clock      ports.Clock
	Medium     ports.Medium
	GetArena   ports.Medium // one buffer; nil: the route is off
	PutArena   ports.Medium
	Copier     ports.Copier
	Transports []ports.Transport
	Resolver   ports.PeerResolver
	Writer     ports.PeerWriter
	Directory  ports.Directory
	Observer   ports.Observer // nil: nobody is told, and no batch reads the clock for it
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.PeerLease, 500*time.Millisecond)
	def(&c.ControlTimeout, time.Second)
	def(&c.DialTimeout, time.Second)
	def(&c.TransferTimeout, 2*time.Second)
	def(&c.ArenaWait, time.Second)
	def(&c.CallTimeout, 5*time.Second)
	def(&c.Reservation, 30*time.Second)
	def(&c.HoldTime, 2*time.Second)
	def(&c.BreakerMin, time.Second)
	def(&c.BreakerMax, 10*time.Second)
	def(&c.SweepEvery, 100*time.Millisecond)
	if c.FillingShare == 0 {
		c.FillingShare = 0.25
	}
	return c
}

// maxDuration keeps sums of instants and durations from overflowing; the number is arbitrary.
const maxDuration = 10 * 365 * 24 * time.Hour

// check refuses what cannot work; every error names the field, its value and what is allowed.
func (c Config) check() error {
	if c.ID == "" {
		return errors.New("config ID: empty, want the node's stable name")
	}
	if !(c.FillingShare >= 0 && c.FillingShare <= 1) { // so that NaN is refused
		return fmt.Errorf("config FillingShare: %v, want more than 0 and at most 1", c.FillingShare)
	}
	if c.Locality > domain.LocalityOff {
		return fmt.Errorf("config Locality: %d, want 0 to %d", c.Locality, domain.LocalityOff)
	}
	for name, d := range map[string]time.Duration{"PeerLease": c.PeerLease, "ControlTimeout": c.ControlTimeout, "DialTimeout": c.DialTimeout,
		"TransferTimeout": c.TransferTimeout, "ArenaWait": c.ArenaWait, "CallTimeout": c.CallTimeout, "Reservation": c.Reservation,
		"HoldTime": c.HoldTime, "BreakerMin": c.BreakerMin, "BreakerMax": c.BreakerMax, "SweepEvery": c.SweepEvery} {
		if d < 0 || d > maxDuration {
			return fmt.Errorf("config %s: %v, want a positive duration of at most %v", name, d, maxDuration)
		}
	}
	if c.PeerLease > maxLease {
		return fmt.Errorf("config PeerLease: %v, want at most %v, which is all that peers believe", c.PeerLease, maxLease)
	}
	if !(c.HighWatermark >= 0 && c.HighWatermark <= 1 && c.LowWatermark >= 0 && c.LowWatermark <= c.HighWatermark) {
		return fmt.Errorf("config watermarks: high %v, low %v, want 0 <= low <= high <= 1", c.HighWatermark, c.LowWatermark)
	}
	return nil
}
