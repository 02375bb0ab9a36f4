package app

import (
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// packArena packs the spans of keys that go to the arena into units and rounds. What fits the arena at once is one round; what
// does not is packed into halves where its spans allow, so that one round is fetched while the one before is copied out.
func (c *getCall) packArena() {
	if len(c.arenaKeys) == 0 {
		return
	}
	n := c.n
	first, base := len(c.units), uint32(len(c.rounds))
	p := domain.Packing{Capacity: c.roundCapacity(n.arenas[getArena].capacity)}
	n.mu.Lock()
	for _, i := range c.arenaKeys {
		k := &c.keys[i]
		before := len(c.units)
		units, err := domain.AppendUnits(c.units, i, k.spanLo, c.spans[k.spanLo:k.spanHi], &p)
		if err != nil {
			n.counters.downgrade(ports.DowngradeTooLarge)
			c.finishLocked(int(i), ports.TooLarge, err)
			continue
		}
		c.units = units
		k.waits += uint32(len(c.units) - before)
	}
	n.mu.Unlock()
	c.arenaKeys = c.arenaKeys[:0]
	packed := c.units[first:]
	for lo := 0; lo < len(packed); {
		hi := lo
		for hi < len(packed) && packed[hi].Round == packed[lo].Round {
			hi++
		}
		count := uint32(hi - lo)
		c.rounds = append(c.rounds, getRound{first: uint32(first + lo), count: count, left: count, len: domain.RoundLen(packed, packed[lo].Round)})
		lo = hi
	}
	for u := range packed {
		packed[u].Round += base
	}
}

// roundCapacity is the arena's, or half of it when what is to be packed does not fit at once and no span needs more.
func (c *getCall) roundCapacity(capacity uint64) uint64 {
	half := capacity / 2 / domain.ArenaAlign * domain.ArenaAlign
	var total, longest uint64
	for _, i := range c.arenaKeys {
		k := &c.keys[i]
		var sum uint64
		for _, s := range c.spans[k.spanLo:k.spanHi] {
			sum += s.Len
			longest = max(longest, s.Len)
		}
		total += (sum + domain.ArenaAlign - 1) / domain.ArenaAlign * domain.ArenaAlign
	}
	if total <= capacity || longest > half {
		return capacity
	}
	return half
}

// waitingRound is the round whose slice the call waits for: at most one at a time.
func (c *getCall) waitingRound() *getRound {
	if c.nextRound < len(c.rounds) && c.rounds[c.nextRound].state == roundWaiting {
		return &c.rounds[c.nextRound]
	}
	return nil
}

// nextRounds asks for the slice of the next round as soon as the one before has its own, and sends what was granted. The call
// goes on taking completions meanwhile, so what it holds is released whatever it waits for.
func (c *getCall) nextRounds() {
	n := c.n
	for c.nextRound < len(c.rounds) {
		r := &c.rounds[c.nextRound]
		switch r.state {
		case roundWaiting:
			return
		case roundQueued:
			id, off, granted := n.arenas[getArena].request(r.len, c.q, tagRound|uint64(c.nextRound))
			if !granted {
				r.request, r.state, r.deadline = id, roundWaiting, n.now().Add(n.cfg.ArenaWait)
				return
			}
			r.off, r.state = off, roundGranted
		}
		if r.state == roundGranted {
			c.sendRound(c.nextRound)
		}
		c.nextRound++
	}
}

// grantedLocked takes the slice that the arena granted. A closed arena fails the keys that wait for it.
func (c *getCall) grantedLocked(i uint32, err error) {
	r := &c.rounds[i]
	if r.state != roundWaiting {
		return // given up meanwhile: withdraw returned the slice
	}
	if err != nil {
		c.dropRoundsLocked(ports.Cancelled, err)
		return
	}
	if off, ok := c.n.arenas[getArena].claim(r.request); ok {
		r.off, r.state = off, roundGranted
	}
}

// giveUpArena fails the keys that wait for the arena: the round that waited too long and those behind it.
func (c *getCall) giveUpArena() {
	n := c.n
	n.counters.downgrade(ports.DowngradeArenaTimeout)
	n.mu.Lock()
	defer n.mu.Unlock()
	c.dropRoundsLocked(ports.Busy, fmt.Errorf("no arena slice of %d bytes within %v: %w", c.rounds[c.nextRound].len, n.cfg.ArenaWait, ports.ErrBusy))
}

// dropRoundsLocked fails the keys of every round that was not sent.
func (c *getCall) dropRoundsLocked(s ports.Status, err error) {
	for ; c.nextRound < len(c.rounds); c.nextRound++ {
		r := &c.rounds[c.nextRound]
		switch r.state {
		case roundWaiting:
			c.n.arenas[getArena].withdraw(r.request)
		case roundGranted: // with the last word that the call took: nothing was sent into it
			c.n.arenas[getArena].release(r.off)
		}
		r.state = roundReleased
		for _, u := range c.units[r.first : r.first+r.count] {
			k := &c.keys[u.Key]
			if k.stage == stageDone {
				continue
			}
			k.final, k.opErr = s, err
			k.waits--
			c.settleLocked(int(u.Key))
		}
	}
}

// sendRound submits one op a unit: a key's spans from the peer's pages, back to back into the slice.
func (c *getCall) sendRound(i int) {
	n := c.n
	now := n.now()
	r := &c.rounds[i]
	n.mu.Lock()
	for u := r.first; u < r.first+r.count; u++ {
		key := c.units[u].Key
		k := &c.keys[key]
		if k.stage == stageDone || k.late || k.opErr != nil || !k.view.usable(now) {
			c.skipUnitLocked(u)
			continue
		}
		n.useLocked(k.view)
		b := c.beginOp(k.view.conn, getOp{key: key, unit: u, view: k.view, bytes: c.units[u].Len})
		at := r.off + c.units[u].Off
		arena := domain.Flat(c.flat[:1], capacityOf(n.arenas[getArena]))
		for _, s := range c.spans[c.units[u].First : c.units[u].First+c.units[u].Count] {
			b.addSegments(n.arenas[getArena].regions[:], arena, domain.Run{Off: at, Len: s.Len}, k.view.layout, s.Run)
			at += s.Len
		}
		c.endOp(b, c.spans[c.units[u].First:c.units[u].First+c.units[u].Count])
	}
	n.mu.Unlock()
	c.submit()
}

// skipUnitLocked leaves a unit out: its key has failed already, or its lease ended while the call waited for the arena.
func (c *getCall) skipUnitLocked(u uint32) {
	key := int(c.units[u].Key)
	k := &c.keys[key]
	c.unitGoneLocked(u)
	if k.stage == stageDone {
		return
	}
	if !k.late && k.opErr == nil {
		k.opErr = fmt.Errorf("lease or link of %s ended before the arena was free: %w", k.view.conn.peer.id, ports.ErrReset)
	}
	k.waits--
	c.settleLocked(key)
}

// unitGoneLocked says that nothing uses a unit's part of its slice any more; the last one of a round returns it.
func (c *getCall) unitGoneLocked(u uint32) {
	r := &c.rounds[c.units[u].Round]
	r.left--
	if r.left == 0 && r.state == roundGranted {
		r.state = roundReleased
		c.n.arenas[getArena].release(r.off)
	}
}
