// Package inject composes nodes: one injector per composition, written by wire from the providers here. It joins app and the
// adapters, which do not know each other; only cmd, bench and examples import it. What it makes is plain constructor calls, with
// no container at run time.
package inject

import (
	"errors"
	"fmt"
	"math"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
)

// Off is the size of memory that is left out: a node without a pool of its own, or without the route that needs the arena.
const Off uint64 = math.MaxUint64

const (
	defaultBytes    = 256 << 20 // of the medium and of each arena
	defaultPageSize = 64 << 10
)

// Config is what Embedded builds from. The zero value of every field but Node.ID is its default.
type Config struct {
	Node          app.Config
	MediumBytes   uint64 // a multiple of PageSize; default 256 MiB, or a little less where the page size asks for it
	PageSize      uint64 // default 64 KiB; engines often set it to the size of their KV page
	GetArenaBytes uint64 // default 256 MiB; without peers, which alone need arenas, none
	PutArenaBytes uint64 // likewise
	// Medium is what objects lie in, in place of host memory of MediumBytes and PageSize; it stays the caller's. The network of Endpoint
	// and the copier have to reach it.
	Medium ports.Medium

	HugePages bool // for the medium; where they are not to be had it lies on ordinary ones

	// Copier makes what stands in front of the node's own copier, to bound it or to count. nil: nothing does.
	Copier func(ports.Copier) ports.Copier

	// Endpoint is the node's place in a network of this process: that of Node.ID, in a network whose clock is boottime's.
	// Embedded starts and stops it. nil: the node has no peers.
	Endpoint *inproc.Endpoint
}

// settings is a Config without a field that stands for its default.
type settings Config

func settle(c Config) settings {
	def := func(n *uint64, v uint64) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.PageSize, defaultPageSize)
	def(&c.MediumBytes, max(defaultBytes-defaultBytes%c.PageSize, c.PageSize))
	arena := uint64(defaultBytes)
	if c.Endpoint == nil {
		arena = Off
	}
	def(&c.GetArenaBytes, arena)
	def(&c.PutArenaBytes, arena)
	return settings(c)
}

// placeOf is the node's place among its peers: the configured one, or one in a network of its own.
func placeOf(c settings, clock boottime.Clock) (*inproc.Endpoint, func()) {
	if c.Endpoint != nil {
		return c.Endpoint, func() {}
	}
	alone := inproc.NewNetwork(inproc.Options{Clock: clock})
	return alone.Endpoint(c.Node.ID), func() { _ = alone.Close() }
}

// memory is what a node touches. A part that is off is nil.
type memory struct {
	medium, get, put ports.Medium
	lent             bool // the medium is the caller's
	inUse            bool // a transport did not let go of it: it stays mapped, since late bytes would land in another mapping
}

// openMemory maps all that the configuration names, or nothing.
func openMemory(c settings) (*memory, func(), error) {
	m := &memory{}
	if c.Medium != nil {
		m.medium, m.lent, c.MediumBytes = c.Medium, true, Off
	}
	for _, part := range []struct {
		what string
		into *ports.Medium
		as   dram.Config
	}{
		{"medium", &m.medium, dram.Config{Bytes: c.MediumBytes, PageSize: c.PageSize, HugePages: c.HugePages}},
		{"arena of gets", &m.get, dram.Config{Bytes: c.GetArenaBytes, PageSize: c.GetArenaBytes}},
		{"arena of puts", &m.put, dram.Config{Bytes: c.PutArenaBytes, PageSize: c.PutArenaBytes}},
	} {
		if part.as.Bytes == Off {
			continue
		}
		d, err := dram.Open(part.as)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", part.what, err), m.close())
		}
		*part.into = d
	}
	return m, func() { _ = m.close() }, nil
}

func (m *memory) close() error {
	if m.inUse {
		return nil
	}
	var parts []ports.Medium
	for i, d := range []ports.Medium{m.medium, m.get, m.put} {
		if d != nil && !(i == 0 && m.lent) {
			parts = append(parts, d)
		}
	}
	return closeAll(parts)
}

func closeAll[T interface{ Close() error }](parts []T) error {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

func newCopier(c settings) ports.Copier {
	own := dram.NewCopier()
	if c.Copier == nil {
		return own
	}
	return c.Copier(own)
}

func newPorts(clock boottime.Clock, copier ports.Copier, m *memory, e *inproc.Endpoint) app.Ports {
	return app.Ports{
		Clock:      clock,
		Medium:     m.medium,
		GetArena:   m.get,
		PutArena:   m.put,
		Copier:     copier,
		Transports: []ports.Transport{e.Transport()},
		Resolver:   e.Resolver(),
		Writer:     e.Writer(),
		Directory:  e.Directory(),
	}
}

// startNode opens the node to its peers. The function it returns ends what it began, from the outside in: no peer's call comes
// in any more, the node's own have ended, the transport is quiet. Then the memory may go.
func startNode(c app.Config, p app.Ports, m *memory, e *inproc.Endpoint) (*app.Node, func(), error) {
	letGo := func() { m.inUse = closeAll(p.Transports) != nil }
	n, err := app.New(c, p)
	if err != nil {
		letGo()
		return nil, nil, err
	}
	stop := func() {
		e.Stop()
		_ = n.Close()
		letGo()
	}
	if err := e.Start(n.Self(), n.PeerServer()); err != nil {
		stop()
		return nil, nil, err
	}
	return n, stop, nil
}
