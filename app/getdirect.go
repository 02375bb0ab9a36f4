package app

import (
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// registered reports whether all that the key is read into is registered memory that the link of its view reaches.
func (c *getCall) registered(k *getKey) bool {
	if len(c.memories) == 0 {
		return false
	}
	into := anywhere
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		for _, o := range c.order[s.First : s.First+s.Count] {
			m := c.memories[c.ranges[o].Region]
			if m == nil {
				return false
			}
			into &= m.reach
		}
	}
	if into&k.view.conn.over() == 0 {
		c.n.counters.downgrade(ports.DowngradeUnreached)
		return false
	}
	return true
}

// planDirectLocked reads a key's ranges from the peer's pages into the caller's memory: one op, no hop, and nothing shared.
func (c *getCall) planDirectLocked(i int) {
	n, k := c.n, &c.keys[i]
	k.source, k.version, k.stage = ports.FromDirect, k.view.version, stageFly
	var sum uint64
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		sum += s.Len
	}
	n.useLocked(k.view)
	k.waits++
	c.direct++
	b := c.beginOp(k.view.conn, getOp{key: uint32(i), unit: noUnit, direct: true, view: k.view, bytes: sum})
	buffer, begin, whole := k.view.layout.Contiguous()
	whole = whole && c.spans[k.spanHi-1].End() <= k.view.layout.Size
	b.Segments = slices.Grow(b.Segments, int(c.rangesOf(k)))
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		for o := s.First; o < s.First+s.Count; o++ {
			r := c.rangeAt(k, o)
			b.into &= c.memories[r.Region].reach
			if whole { // no walk: it lies in its memory, as every range was seen to when it was taken in
				b.Segments = append(b.Segments, ports.Segment{Remote: buffer, RemoteOff: begin + r.Off,
					Local: c.regions[r.Region].Region, LocalOff: r.RegionOff, Len: r.Len})
				continue
			}
			b.addFlat(&k.view.layout, domain.Run{Off: r.Off, Len: r.Len}, c.regions[r.Region].Region, &c.into[r.Region], r.RegionOff)
		}
	}
	c.endOp(b, c.spans[k.spanLo:k.spanHi])
}

// addFlat appends the pieces of a run of the peer's that are contiguous there; flat is the layout of the whole of local.
func (b *linkBatch) addFlat(there *domain.Layout, run domain.Run, local ports.Region, flat *domain.Layout, off uint64) {
	if p, ok := domain.OnePair(there, run, flat, domain.Run{Off: off, Len: run.Len}); ok {
		b.Segments = append(b.Segments, ports.Segment{Remote: p.A, RemoteOff: p.AOff, Local: local, LocalOff: p.BOff, Len: p.Len})
		return
	}
	mustPlan(domain.ForEachPair(*there, run, *flat, domain.Run{Off: off, Len: run.Len}, func(p domain.Pair) bool {
		b.Segments = append(b.Segments, ports.Segment{Remote: p.A, RemoteOff: p.AOff, Local: local, LocalOff: p.BOff, Len: p.Len})
		return true
	}))
}

// letGo returns when no transport touches the caller's memory any more, and gives it back. Links that were asked to cancel what
// is left do it soon; every op completes by its deadline.
func (c *getCall) letGo() {
	for c.direct > 0 {
		c.takeOwed()
	}
	c.n.returnMemory(c.memories)
	clear(c.memories)
	c.memories = c.memories[:0]
}
