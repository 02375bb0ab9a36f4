package app

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// guarded runs what reads a caller's memory, which may vanish under it (a client cuts its file short): then it ends with an error,
// and the process lives.
func guarded(read func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if fault, ok := r.(interface {
			runtime.Error
			Addr() uintptr
		}); ok {
			err = fmt.Errorf("memory fault at %#x", fault.Addr())
		} else if r != nil {
			panic(r)
		}
	}()
	read()
	return nil
}

// verifyDirect holds what a direct read has brought into the caller's memory to the sums of its object, as far as the key's ranges
// cover put-ranges whole; they may cut one in pieces that lie apart. It reports what did not match.
func (c *getCall) verifyDirect(k *getKey) (bad domain.Run, err error) {
	if !k.view.hasSums() || !c.intoHost(k) {
		return domain.Run{}, nil
	}
	c.runs = runsOf(c.spans[k.spanLo:k.spanHi], c.runs[:0])
	err = guarded(func() {
		o := c.spans[k.spanLo].First // the ranges of a key follow each other in the order
		domain.ForEachWhole(k.view.putLens, c.runs, func(i int, r domain.Run) bool {
			var sum uint32
			for at := r.Off; at < r.End(); {
				g := c.rangeAt(k, o)
				end := g.Off + g.Len
				if n := min(end, r.End()) - at; end > at {
					sum = crc32c.Update(sum, hostBytes(c.regions[g.Region].Region, g.RegionOff+at-g.Off, n))
					at += n
				}
				if end <= at {
					o++
				}
			}
			if sum != k.view.sums[i] {
				bad = r
			}
			return bad.Len == 0
		})
	})
	return bad, err
}

// intoHost reports whether a key is read into memory of the host.
func (c *getCall) intoHost(k *getKey) bool {
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		for _, o := range c.order[s.First : s.First+s.Count] {
			if _, host := c.regions[c.ranges[o].Region].Region.(ports.HostRegion); !host {
				return false
			}
		}
	}
	return true
}

// judgeDirectLocked turns the completion of a direct read whose bytes came in time and did not match into a failure.
func (c *getCall) judgeDirectLocked(o *getOp, done ports.Completion, late bool) ports.Completion {
	if done.Err != nil || late || o.bad.Len == 0 && o.unread == nil {
		return done
	}
	n, k := c.n, &c.keys[o.key]
	n.counters.duplicate.Add(o.bytes)
	if o.unread != nil {
		done.Err = o.unread
		return done
	}
	n.counters.corrupt.Add(1)
	n.complainLocked(o.view)
	if k.want.IsZero() {
		k.want = o.view.version
	}
	done.Err = &corruptError{run: o.bad, from: o.view.conn.peer.id}
	return done
}

// sumDirect adds a piece of an object that is written from where it is to the key's sums. Pieces of a key come in order.
func (p *remotePut) sumDirect(piece putPiece) error {
	k := &p.keys[piece.key]
	if p.n.cfg.NoChecksums || !p.fromHost(k) {
		return nil
	}
	if piece.run.Off == 0 { // again, after a reset
		k.summer = domain.NewSummer(p.putLens(k))
	}
	return guarded(func() {
		for _, o := range p.order[k.lo:k.hi] {
			r := &p.ranges[o]
			lo, hi := max(r.Off, piece.run.Off), min(r.Off+r.Len, piece.run.End())
			if lo < hi {
				k.summer.Add(hostBytes(p.regions[r.Region].Region, r.RegionOff+lo-r.Off, hi-lo))
			}
		}
	})
}

func (p *remotePut) fromHost(k *putKey) bool {
	for _, o := range p.order[k.lo:k.hi] {
		if _, host := p.regions[p.ranges[o].Region].Region.(ports.HostRegion); !host {
			return false
		}
	}
	return true
}
