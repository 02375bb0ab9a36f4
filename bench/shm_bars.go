package bench

import (
	"context"
	"fmt"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/ports"
)

// source is what bare loops copy from.
type source struct {
	b      []byte
	closes func() error
}

// openSource is memory as the medium of a node of that transport is: what it costs to read it is the same for both sides.
func openSource(n uint64, transport string) (*source, error) {
	if transport != TransportSHM {
		b, err := openBuffer(n)
		if err != nil {
			return nil, err
		}
		return &source{b.b, b.close}, nil
	}
	m, err := dram.Open(dram.Config{Bytes: n, PageSize: n, Backing: dram.Memfd})
	if err != nil {
		return nil, err
	}
	return &source{m.Buffers()[0].(ports.HostRegion).Bytes(), m.Close}, nil
}

func (s *source) close() error { return s.closes() }

const (
	refLocal = "the reference's local ranges: 5.4 GB/s at 1,728 B, 37.5 at 37,440 B"
	ofCopies = "get_gibps of bare copies by one goroutine"
)

// shmBars are reads out of the memory of another node of this host, into registered memory: one copy, as the bare loop makes over the
// same fragments, between memory of the same kinds.
func (o *Ratios) shmBars(open OpenCluster) []pairing {
	return []pairing{
		o.copiesBar(open, group.over(TransportSHM), "shm-groups", 0.8),
		o.copiesBar(open, smallest.over(TransportSHM), "shm-fragments", 0.7),
	}
}

func (o *Ratios) copiesBar(open OpenCluster, c scatter, name string, atLeast float64) pairing {
	s := o.shared(open, c, false)
	copies := func(goroutines int) func(context.Context, *shared) (float64, error) {
		return func(_ context.Context, s *shared) (float64, error) {
			return s.scattered.m.rate(scatteredTime, func(i int) error { s.scattered.m.copyCall(i, goroutines); return nil })
		}
	}
	places := max(o.Places, 1)
	return pairing{name: name, what: fmt.Sprintf("%d B ranges that are not adjacent, %d of each of %d keys, in a session, into registered memory over shm: against bare copies of the same fragments",
		c.layer, c.layers, c.keys),
		ours: s.side(o, rateOurs, rateByPattern, rateOurs), theirs: s.side(o, copies(1), copies(1), copies(places)), end: s.close, ceiling: o.ceilingOf(TransportSHM, c.layer),
		bars: []bar{{name: ofCopies, atLeast: atLeast, reference: refLocal},
			{name: ofCopies + " by pattern", figure: 1, atLeast: atLeast, reference: refLocal},
			{name: fmt.Sprintf("get_gibps of bare copies by %d", places), figure: 2, reference: refLocal}}}
}
