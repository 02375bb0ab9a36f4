package bench

import (
	"errors"
	"sync"
	"time"
)

// Ceilings is what bare loops reach over what workloads move by: sockets, or copies by every processor. Each is measured once, when it
// is first asked for. Safe for parallel use.
type Ceilings struct {
	MaxMemory uint64
	Places    int

	cold  uint64        // bytes of source; 0: ceilingCold. Tests have less
	least time.Duration // of a loop; 0: tcpLeast

	mu    sync.Mutex // held while one is measured: two at once would measure each other
	known map[ceilingOf]float64
}

type ceilingOf struct {
	transport string
	fragment  uint64
}

// maxCeilingFragment is far above a layer group of any model; larger fragments are measured as that.
const maxCeilingFragment = ceilingCold / ceilingLeast

// rate is what the best bare loop over such fragments reaches, in GiB/s, at most what the modelled link gives. 0: not known, as
// nothing of it fits into memory, or nobody wants to know.
func (c *Ceilings) rate(transport string, link LinkSpec, fragment uint64) (float64, error) {
	if c == nil {
		return 0, nil
	}
	bare, err := c.bare(ceilingOf{transport, min(max(fragment, ceilingSmallest), maxCeilingFragment)})
	if err != nil || bare == 0 || !link.modelled() || link.Gbps == 0 {
		return bare, err
	}
	return min(bare, linkGibps(link)), nil
}

// linkGibps is what a modelled link carries in one direction.
func linkGibps(l LinkSpec) float64 { return l.Gbps * 1e9 / 8 / gibBytes }

func (c *Ceilings) bare(of ceilingOf) (rate float64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rate, ok := c.known[of]; ok {
		return rate, nil
	}
	cold, least := c.cold, c.least
	if cold == 0 {
		cold, least = ceilingCold, tcpLeast
	}
	m, needs := planCeiling(of.fragment, cold)
	if checkMemory("it", needs, c.MaxMemory) != nil {
		return 0, nil
	}
	src, dst, err := m.openBuffers(needs)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, src.close(), dst.close()) }()
	if of.transport == TransportTCP {
		rate, _, err = m.bareBest(least, bareConns, placing())
	} else {
		rate, err = m.rate(least, func(i int) error { m.copyCall(i, max(c.Places, 1)); return nil })
	}
	if err != nil {
		return 0, err
	}
	if c.known == nil {
		c.known = make(map[ceilingOf]float64)
	}
	c.known[of] = rate / gibBytes
	return c.known[of], nil
}

// openBuffers gives the moves their memory, all of it touched, and the source other than the pages of zeros that nobody wrote.
func (m *moves) openBuffers(needs []MemoryNeed) (src, dst *buffer, err error) {
	if src, err = openBuffer(needs[0].Bytes); err != nil {
		return nil, nil, err
	}
	if dst, err = openBuffer(needs[1].Bytes); err != nil {
		return nil, nil, errors.Join(err, src.close())
	}
	for i := range src.b {
		src.b[i] = byte(i)
	}
	clear(dst.b)
	m.src, m.dst = src.b, dst.b
	return src, dst, nil
}

// addShares tells what of the ceiling a row reached: its rate, and the time that the ceiling would have needed for the same bytes over
// the time that it took. Where it computes for longer than that, its restore could not be faster than its computing.
func (r *restoreRow) addShares(row *Row) error {
	rate, err := r.o.Ceilings.rate(r.o.Transport, r.o.Link, r.walk.fragmentBytes())
	if err != nil || rate == 0 {
		return err
	}
	need := func(bytes uint64) time.Duration {
		if !r.o.SharedKeys {
			bytes = times(bytes, uint64(r.sets.ranks))
		}
		return time.Duration(float64(bytes) / (rate * gibBytes) * float64(time.Second))
	}
	computing := time.Duration(r.o.Shape.Layers) * r.o.ComputePerLayer
	v := &row.Values
	v[ColCeiling] = rate
	v[ColGetShare] = percent(v[ColGetRate], rate)
	v[ColRestoreShare] = percent(milliseconds(max(need(r.walk.bytes(0, len(r.walk.Groups))), computing)), v[ColRestoreP50])
	v[ColTTFLShare] = percent(microseconds(need(r.walk.bytes(0, 1))), v[ColTTFLP50])
	return nil
}

func percent(part, of float64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * part / of
}

// bytes is what groups lo to hi ask for.
func (w *Walk) bytes(lo, hi int) (sum uint64) {
	for _, g := range w.Groups[lo:hi] {
		for i := range g.Calls {
			for _, r := range g.Calls[i].Ranges {
				sum += r.Len
			}
		}
	}
	return sum
}

// fragmentBytes is the mean length of what is adjacent in an object and asked for at once.
func (w *Walk) fragmentBytes() uint64 {
	var spans uint64
	for _, g := range w.Groups {
		for i := range g.Calls {
			c := &g.Calls[i]
			for key := range c.End {
				ranges := c.RangesOf(key)
				for j, r := range ranges {
					if j == 0 || ranges[j-1].Off+ranges[j-1].Len != r.Off {
						spans++
					}
				}
			}
		}
	}
	if spans == 0 {
		return 0
	}
	return w.bytes(0, len(w.Groups)) / spans
}
