package bench

import (
	"fmt"

	"github.com/spanpool/spanpool/ports/porttest/content"
)

// namespace of all keys of the layer-wise benchmark.
const namespace = "bench"

// sets names the objects that are read: one set of pages and pools for each rank and request, or one for each request when
// ranks share their keys. Request 0 is the warm-up.
type sets struct {
	walk     *Walk
	ranks    int
	requests int // the warm-up included
	shared   bool
}

// count is how many sets there are.
func (s sets) count() int {
	if s.shared {
		return s.requests
	}
	return s.ranks * s.requests
}

// objects is how many objects they have together.
func (s sets) objects() int { return s.count() * s.walk.Pages * len(s.walk.Shape.Pools) }

// object says which one number i is: sets in order, in each the pools, in each the pages.
func (s sets) object(i int) (name string, pool int) {
	page := i % s.walk.Pages
	i /= s.walk.Pages
	pool = i % len(s.walk.Shape.Pools)
	i /= len(s.walk.Shape.Pools)
	return s.name(i/s.requests, i%s.requests, pool, page), pool
}

func (s sets) name(rank, request, pool, page int) string {
	owner := fmt.Sprintf("r%d", rank)
	if s.shared {
		owner = "shared"
	}
	return fmt.Sprintf("%s/q%d/%s/p%d", owner, request, s.walk.Shape.Pools[pool].Name, page)
}

// offloadName is a key that nobody used before: n counts the sets that an offload rank has put.
func (s sets) offloadName(rank int, n uint64, pool, page int) string {
	return fmt.Sprintf("o%d/n%d/%s/p%d", rank, n, s.walk.Shape.Pools[pool].Name, page)
}

// contentKey is what the bytes of an object are made from.
func contentKey(name string) uint64 { return content.KeyOf(name, 0) }
