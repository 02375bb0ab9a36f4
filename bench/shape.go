package bench

import (
	"fmt"
	"slices"

	"github.com/spanpool/spanpool/domain"
)

// Shape is a model as a restore sees it: how many layers it computes, and which pools hold them.
type Shape struct {
	Layers int
	Pools  []Pool
}

// NewShape checks that every pool's layers are among the model's. Zero layers stands for as many as the pools name.
func NewShape(layers int, pools []Pool) (Shape, error) {
	if len(pools) == 0 {
		return Shape{}, fmt.Errorf("no pools, want 1 or more")
	}
	named := 0
	for _, p := range pools {
		named = max(named, slices.Max(p.Layers)+1)
	}
	if layers == 0 {
		layers = named
	}
	if named > layers {
		return Shape{}, fmt.Errorf("a pool names layer %d of a model of %d layers", named-1, layers)
	}
	return Shape{Layers: layers, Pools: pools}, nil
}

// ObjectBytes is the size of one page's objects over all pools.
func (s Shape) ObjectBytes() uint64 {
	var n uint64
	for _, p := range s.Pools {
		n += p.ObjectBytes()
	}
	return n
}

// Placements is how many layers the pools hold together: the ranges of one page.
func (s Shape) Placements() int {
	n := 0
	for _, p := range s.Pools {
		n += len(p.Layers)
	}
	return n
}

// LargestObject is the size of the largest object.
func (s Shape) LargestObject() uint64 {
	var n uint64
	for _, p := range s.Pools {
		n = max(n, p.ObjectBytes())
	}
	return n
}

// Grouping says how a walk cuts the layers into groups.
type Grouping struct {
	Size       int
	Interleave bool // deal the layers round-robin: same number of groups, nothing adjacent
}

// Groups returns the layers of each group of n layers.
func (g Grouping) Groups(n int) [][]int {
	groups := make([][]int, (n+g.Size-1)/g.Size)
	for l := range n {
		at := l / g.Size
		if g.Interleave {
			at = l % len(groups)
		}
		groups[at] = append(groups[at], l)
	}
	return groups
}

// Call is one BatchGetRanges of a walk: a chunk of a pool's pages, with one range per layer of the group that the pool holds.
// It is the same for every rank and request but for its keys and its region.
type Call struct {
	Pool      int
	FirstPage int
	Pages     int
	End       []uint32
	Ranges    []domain.Range // Region is 0; RegionOff is as Layout says
}

// Group is the calls after which a layer group is readable.
type Group struct {
	Layers int // what the forward thread computes, layers of no pool included
	Calls  []Call
}

// Walk is a whole restore of some pages: the groups in order.
type Walk struct {
	Shape  Shape
	Pages  int
	Layout Layout
	Groups []Group
}

// PlanWalk lays out a restore. A call has at most rangesPerCall ranges and never parts a page's. Precondition: rangesPerCall
// is at least LargestPageRanges.
func PlanWalk(s Shape, g Grouping, pages, rangesPerCall int) *Walk {
	w := &Walk{Shape: s, Pages: pages, Layout: NewLayout(s, pages)}
	for _, layers := range g.Groups(s.Layers) {
		group := Group{Layers: len(layers)}
		for pool := range s.Pools {
			held := heldLayers(s.Pools[pool], layers)
			if len(held) == 0 {
				continue
			}
			chunk := min(rangesPerCall/len(held), domain.MaxCallKeys)
			for first := 0; first < pages; first += chunk {
				n := min(chunk, pages-first)
				group.Calls = append(group.Calls, w.call(pool, held, first, n))
			}
		}
		w.Groups = append(w.Groups, group)
	}
	return w
}

// heldLayers is where the group's layers lie in the pool's objects, in the objects' order.
func heldLayers(p Pool, group []int) []int {
	var held []int
	for i, l := range p.Layers {
		if slices.Contains(group, l) {
			held = append(held, i)
		}
	}
	return held
}

func (w *Walk) call(pool int, held []int, first, pages int) Call {
	c := Call{Pool: pool, FirstPage: first, Pages: pages,
		End: make([]uint32, 0, pages), Ranges: make([]domain.Range, 0, pages*len(held))}
	bytes := w.Shape.Pools[pool].LayerBytes
	for page := first; page < first+pages; page++ {
		for _, i := range held {
			c.Ranges = append(c.Ranges, domain.Range{Off: uint64(i) * bytes, Len: bytes, RegionOff: w.Layout.Off(pool, i, page)})
		}
		c.End = append(c.End, uint32(len(c.Ranges)))
	}
	return c
}

// RangesOf returns the ranges of the call's i-th key.
func (c *Call) RangesOf(i int) []domain.Range {
	lo := uint32(0)
	if i > 0 {
		lo = c.End[i-1]
	}
	return c.Ranges[lo:c.End[i]]
}

// Ranges is how many ranges the walk issues.
func (w *Walk) Ranges() int {
	n := 0
	for _, g := range w.Groups {
		for i := range g.Calls {
			n += len(g.Calls[i].Ranges)
		}
	}
	return n
}

// Tiles reports whether some call asks for whole objects.
func (w *Walk) Tiles() bool {
	for _, g := range w.Groups {
		for i := range g.Calls {
			if len(g.Calls[i].RangesOf(0)) == len(w.Shape.Pools[g.Calls[i].Pool].Layers) {
				return true
			}
		}
	}
	return false
}

// LargestPageRanges is the most ranges of one page in a call: what --ranges-per-call must allow.
func LargestPageRanges(s Shape, g Grouping) int {
	most := 0
	for _, layers := range g.Groups(s.Layers) {
		for _, p := range s.Pools {
			most = max(most, len(heldLayers(p, layers)))
		}
	}
	return most
}
