package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/ports"
)

// GPU is a runtime of the caller's, and what of a workload lies on its device.
type GPU struct {
	*hip.Runtime
	Ordinal     int
	Medium      bool // the nodes' media
	Destination bool // what ranks read to
}

// onGPU says whether the nodes' media are in HBM.
func (g *GPU) onGPU() bool { return g != nil && g.Medium }

// toGPU says whether ranks read to device memory.
func (g *GPU) toGPU() bool { return g != nil && g.Destination }

// medium is a node's: in HBM where the workload says so.
func (g *GPU) medium(bytes, page uint64) (ports.Medium, error) {
	if g.onGPU() {
		return g.OpenMedium(hip.MediumConfig{Bytes: bytes, PageSize: page, Ordinals: []int{g.Ordinal}})
	}
	return dram.Open(dram.Config{Bytes: bytes, PageSize: page})
}

// copier stands in for a node's own, which knows host memory only.
func (g *GPU) copier(outer func(ports.Copier) ports.Copier) func(ports.Copier) ports.Copier {
	if g == nil {
		return outer
	}
	return func(ports.Copier) ports.Copier {
		if outer == nil {
			return g.Copier()
		}
		return outer(g.Copier())
	}
}

// copiers are a transport's; nil without a GPU.
func (g *GPU) copiers() (copier, background ports.Copier) {
	if g == nil {
		return nil, nil
	}
	return g.Copier(), g.Background()
}

// checkGPU refuses what cannot lie on a device.
func (o *Layerwise) checkGPU() error {
	switch {
	case o.GPU == nil:
		return nil
	case o.Transport == TransportSHM:
		return badOption("--transport", o.Transport, "not available with --medium hbm or --destination gpu: it reads host memory into host memory")
	case o.Fetch == FetchWhole:
		return badOption("--fetch", "whole", "not available with --medium hbm or --destination gpu: the comparison knows host memory only")
	case o.GPU.Medium && o.pageBytes()%hip.PageAlign != 0:
		return badOption("--page-bytes", o.pageBytes(), "in HBM want a multiple of %d", hip.PageAlign)
	}
	return nil
}

// mirror is a rank's destination on a device. The host's buffer is what it should hold before a request, and what it held after one: it
// is carried over and back outside of what is measured.
type mirror struct {
	gpu    *GPU
	medium ports.Medium
	host   ports.HostRegion
}

func newMirror(g *GPU, host ports.HostRegion) (*mirror, error) {
	n := roundUp(host.Len(), hip.PageAlign)
	m, err := g.OpenMedium(hip.MediumConfig{Bytes: n, PageSize: n, Ordinals: []int{g.Ordinal}})
	if err != nil {
		return nil, err
	}
	return &mirror{gpu: g, medium: m, host: host}, nil
}

func (m *mirror) region() ports.Region { return m.medium.Buffers()[0] }

func (m *mirror) carry(dst, src ports.Region) error {
	return copyOnce(m.gpu, ports.CopyOp{Dst: dst, Src: src, Len: m.host.Len()})
}

// toDevice and back are nil-safe: without a device there is nothing to carry.
func (m *mirror) toDevice() error {
	if m == nil {
		return nil
	}
	return m.carry(m.region(), m.host)
}

func (m *mirror) back() error {
	if m == nil {
		return nil
	}
	return m.carry(m.host, m.region())
}

func (m *mirror) close() error {
	if m == nil {
		return nil
	}
	return m.medium.Close()
}

// errCarry is a copy of the workload's own that failed.
var errCarry = errors.New("carry a destination between host and device")

func copyOnce(g *GPU, ops ...ports.CopyOp) error {
	errs := make([]error, len(ops))
	g.Copier().Copy(context.Background(), ops, errs)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", errCarry, err)
	}
	return nil
}
