package bench

import "github.com/spanpool/spanpool/ports"

// tally adds up what the results of measured requests say.
type tally struct {
	walk        *Walk
	calls       uint64
	remoteCalls uint64
	remoteKeys  uint64
	repeats     uint64
	wholeBytes  uint64
	pools       []PoolRow
}

func newTally(w *Walk) *tally {
	t := &tally{walk: w}
	for _, p := range w.Shape.Pools {
		t.pools = append(t.pools, PoolRow{Name: p.Name, RangeBytes: p.LayerBytes})
	}
	return t
}

// fetched says of which objects of one set of keys a byte came from a peer, by pool and page.
type fetched [][]bool

func newFetched(w *Walk) fetched {
	f := make(fetched, len(w.Shape.Pools))
	for i := range f {
		f[i] = make([]bool, w.Pages)
	}
	return f
}

// addRank adds one rank's request and returns what it fetched.
func (t *tally) addRank(r *rank) fetched {
	seen := newFetched(t.walk)
	for i := range r.reads {
		t.addCall(&r.reads[i], seen[r.reads[i].call.Pool])
	}
	return seen
}

func (t *tally) addCall(c *readCall, seen []bool) {
	pool := &t.pools[c.call.Pool]
	t.calls++
	pool.Calls++
	pool.Ranges += uint64(len(c.call.Ranges))
	remote := false
	for i, res := range c.out {
		if res.Status == ports.Hit {
			pool.Bytes += uint64(len(c.call.RangesOf(i))) * pool.RangeBytes
		}
		pool.WireBytes += res.Fetched
		if !res.Remote() {
			continue
		}
		remote = true
		t.remoteKeys++
		pool.RemoteKeys++
		if page := c.call.FirstPage + i; seen[page] {
			t.repeats++
		} else {
			seen[page] = true
		}
	}
	if remote {
		t.remoteCalls++
	}
}

// addWhole adds the sizes of the objects of a set of which somebody fetched a byte: what whole objects would have moved.
func (t *tally) addWhole(by ...fetched) {
	for pool := range t.walk.Shape.Pools {
		for page := range t.walk.Pages {
			for _, f := range by {
				if f[pool][page] {
					t.wholeBytes += t.walk.Shape.Pools[pool].ObjectBytes()
					break
				}
			}
		}
	}
}

// bytes is what ranks asked for and got.
func (t *tally) bytes() uint64 {
	var n uint64
	for _, p := range t.pools {
		n += p.Bytes
	}
	return n
}

// fromPeers is what results say came from peers for these calls.
func (t *tally) fromPeers() uint64 {
	var n uint64
	for _, p := range t.pools {
		n += p.WireBytes
	}
	return n
}

// poolRows fills in the shares.
func (t *tally) poolRows() []PoolRow {
	total := t.bytes()
	for i := range t.pools {
		if total > 0 {
			t.pools[i].Share = float64(t.pools[i].Bytes) / float64(total)
		}
	}
	return t.pools
}

func (t *tally) localHitPct() float64 {
	if t.calls == 0 {
		return 0
	}
	return 100 * float64(t.calls-t.remoteCalls) / float64(t.calls)
}
