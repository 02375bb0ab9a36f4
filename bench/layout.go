package bench

// guardBytes is the least room between two destinations; it also keeps them on cache lines of their own.
const guardBytes = 64

// Layout is where a rank's layers of a walk lie in its destination: per pool and layer one row of pages, as an engine keeps
// its KV buffers. Every byte that belongs to no destination is a guard: before the first, between any two, behind the last.
type Layout struct {
	pools []poolLayout
	total uint64
}

type poolLayout struct {
	base       uint64
	stride     uint64 // from one destination to the next
	layerBytes uint64
	layers     int
	pages      int
}

// NewLayout lays out the destinations of a shape.
func NewLayout(s Shape, pages int) Layout {
	l := Layout{total: guardBytes}
	for _, p := range s.Pools {
		at := poolLayout{base: l.total, stride: roundUp(p.LayerBytes, guardBytes) + guardBytes, layerBytes: p.LayerBytes,
			layers: len(p.Layers), pages: pages}
		l.pools = append(l.pools, at)
		l.total += at.stride * uint64(at.layers) * uint64(pages)
	}
	return l
}

// Bytes is the size of the destination.
func (l Layout) Bytes() uint64 { return l.total }

// Off is where layer i of the pool's object of a page goes.
func (l Layout) Off(pool, i, page int) uint64 {
	p := l.pools[pool]
	return p.base + (uint64(i)*uint64(p.pages)+uint64(page))*p.stride
}

// Guard returns the half-open interval of guard bytes behind a destination.
func (l Layout) Guard(pool, i, page int) (lo, hi uint64) {
	off := l.Off(pool, i, page)
	return off + l.pools[pool].layerBytes, off + l.pools[pool].stride
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }
