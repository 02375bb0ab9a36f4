package app

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// getArena and putArena index Node.arenas.
const (
	getArena = iota
	putArena
)

// plan turns keys that have a view into ops: first those that go to slots, all submitted before the call asks for the arena; then
// the arena's rounds.
func (c *getCall) plan() {
	if len(c.ready) > 0 {
		for rest := c.ready; len(rest) > 0; c.submit() {
			rest = c.planReady(rest)
		}
		c.ready = c.ready[:0]
		c.packArena()
	}
	c.nextRounds()
	c.askAll() // keys whose view ended meanwhile
}

// planRanges is how many ranges are planned before what they came to is submitted: the links are at work while the call plans on, and
// other calls have the lock in between. Planning so many takes some 10 us, several times what submitting takes.
const planRanges = 256

// planReady plans keys until there is enough to submit, and returns the rest of them.
func (c *getCall) planReady(ready []uint32) (rest []uint32) {
	n := c.n
	now := c.step()
	n.mu.Lock()
	defer n.mu.Unlock()
	for planned := uint32(0); len(ready) > 0 && planned < planRanges; ready = ready[1:] {
		if k := &c.keys[ready[0]]; k.stage == stageReady {
			c.planLocked(int(ready[0]), now)
			planned += c.rangesOf(k)
		}
	}
	return ready
}

// rangesOf is how many ranges of the caller's a key has.
func (c *getCall) rangesOf(k *getKey) (n uint32) {
	if k.spanLo < k.spanHi {
		last := &c.spans[k.spanHi-1]
		n = last.First + last.Count - c.spans[k.spanLo].First
	}
	return n
}

// planLocked chooses the destination of one key. It looks the key up again: between the first look-up and now it can have been
// committed, filled by others, or doomed.
func (c *getCall) planLocked(i int, now domain.Instant) {
	n, k := c.n, &c.keys[i]
	if k.slot != 0 && (n.mu.table.Info(k.slot).State == domain.SlotDoomed || k.layout.Size != k.view.layout.Size) {
		c.dropSlotLocked(k)
	}
	if k.slot == 0 {
		committed, filling, _ := n.mu.table.Lookup(c.space, c.names[i])
		if committed != 0 && c.takeCommittedLocked(i, committed) || k.stage == stageDone {
			return
		}
		c.joinSlotLocked(i, committed, filling, now)
	}
	if k.slot != 0 && c.coveredLocked(k, k.slot) {
		c.landedLocked(i) // by other calls, which need no view of ours
		return
	}
	if !k.view.usable(now) {
		c.againLocked(i)
		return
	}
	route := domain.RouteChoice{HasSlot: k.slot != 0, ArenaCapacity: capacityOf(n.arenas[getArena])}
	route.Registered = !route.HasSlot && c.registered(k)
	switch domain.DecideRoute(route) {
	case domain.RouteSlot:
		c.planSlotLocked(i, now)
	case domain.RouteDirect:
		c.planDirectLocked(i)
	case domain.RouteArena:
		k.source = ports.FromArena
		k.version = k.view.version
		k.stage = stageFly
		c.arenaKeys = append(c.arenaKeys, uint32(i))
	default:
		n.counters.downgrade(ports.DowngradeArenaOff)
		c.finishLocked(i, ports.NoSpace, fmt.Errorf("no slot, and the arena is off: %w", ports.ErrNoSpace))
	}
}

// joinSlotLocked gives the key the filling slot of its version, making one where that is wished and can be had.
func (c *getCall) joinSlotLocked(i int, committed, filling domain.SlotID, now domain.Instant) {
	n, k := c.n, &c.keys[i]
	use, create := domain.WantsSlot(c.wish(k))
	if !use {
		return
	}
	if c.unreached(k) {
		n.counters.downgrade(ports.DowngradeUnreached)
		return
	}
	if filling != 0 && k.switched && n.mu.table.Info(filling).Version == k.gone {
		n.doomLocked(filling, domain.DoomVersionGone, now)
		filling = 0
	}
	var f *fill
	switch {
	case filling != 0 && k.view.isOf(n.mu.table.Info(filling)):
		f = n.mu.fills[filling]
	case filling != 0 || committed != 0:
		n.counters.downgrade(ports.DowngradeOtherVersion)
		return
	case !create:
		return
	default:
		var err error
		if f, err = n.newFillLocked(k.view, now); err != nil {
			n.counters.downgrade(ports.DowngradeNoSlot)
			return
		}
	}
	c.pinLocked(k, f.slot, f, k.view.version)
	k.source = ports.FromSlot
	k.want = k.view.version
}

// unreached says that the link of the key's view brings nothing into the pool, while the arena takes each of its spans.
func (c *getCall) unreached(k *getKey) bool {
	if c.n.pool == anywhere || k.view.conn.over()&c.n.pool != 0 {
		return false
	}
	capacity := capacityOf(c.n.arenas[getArena])
	return !slices.ContainsFunc(c.spans[k.spanLo:k.spanHi], func(s domain.Span) bool { return s.Len > capacity })
}

// planSlotLocked takes what the slot lacks of the key's spans: it joins the flights that fetch it, and claims what nobody does.
func (c *getCall) planSlotLocked(i int, now domain.Instant) {
	n, k := c.n, &c.keys[i]
	f := k.fill
	if k.view.until > f.view.until || !f.view.usable(now) {
		f.view = k.view // which later calls on the key begin with
	}
	f.holdToLocked(k.view)
	held, claimed := n.mu.table.Held(k.slot), n.mu.table.Claimed(k.slot)
	c.runs, c.missing = c.runs[:0], c.missing[:0]
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		c.missing = held.AppendMissing(c.missing, s.Run)
	}
	if n.off.singleFlight {
		claimed = &domain.Extents{}
	}
	for _, m := range c.missing {
		c.runs = claimed.AppendMissing(c.runs, m)
	}
	k.stage = stageFly
	for _, fl := range f.flights {
		var joined uint64
		for _, m := range c.missing {
			joined += fl.overlap(m)
		}
		if joined == 0 || n.off.singleFlight {
			continue
		}
		fl.waiters = append(fl.waiters, waiter{q: c.q, tag: tagFlight | uint64(i)})
		k.waits++
		k.joined += joined
		n.counters.flightsJoined.Add(1)
	}
	if len(c.runs) == 0 {
		return
	}
	fl := n.newFlightLocked(f, k.view, c.runs)
	k.waits++
	b := c.beginOp(k.view.conn, getOp{key: uint32(i), unit: noUnit, flight: fl, view: k.view, bytes: fl.bytes})
	b.into &= n.pool
	for _, run := range fl.runs {
		b.addSegments(n.regions, k.layout, run, k.view.layout, run)
	}
	b.endOp(fl.foretell())
}

// beginOp opens an op in this step's batch to a peer; its deadline is given when it is sent.
func (c *getCall) beginOp(to *conn, o getOp) *getBatch {
	b := c.batchTo(to)
	tag := tagOp | uint64(len(c.ops))
	c.ops = append(c.ops, o)
	b.Ops = append(b.Ops, ports.Op{Tag: tag, First: uint32(len(b.Segments)), Purpose: ports.PurposeGet, Dir: ports.Read})
	b.bytes = append(b.bytes, o.bytes)
	return b
}

// batchTo is the batch to a peer that does not wait for its turn yet.
func (c *getCall) batchTo(to *conn) *getBatch {
	for _, b := range c.batches[c.submitted:c.nbatches] {
		if b.conn == to {
			return b
		}
	}
	if c.nbatches == len(c.batches) {
		c.batches = append(c.batches, &getBatch{})
	}
	b := c.batches[c.nbatches]
	c.nbatches++
	b.conn, b.into = to, anywhere
	return b
}

// addSegments appends the pieces of a run that are contiguous here and at the peer. Both layouts were checked, so a refusal is a
// bug of ours.
func (b *linkBatch) addSegments(regions []ports.Region, here domain.Layout, hr domain.Run, there domain.Layout, tr domain.Run) {
	err := domain.ForEachPair(here, hr, there, tr, func(p domain.Pair) bool {
		b.Segments = append(b.Segments, ports.Segment{Remote: p.B, RemoteOff: p.BOff, Local: regions[p.A], LocalOff: p.AOff, Len: p.Len})
		return true
	})
	if err != nil {
		panic("app: plan of a checked layout: " + err.Error())
	}
}

// endOp closes the op that beginOp opened, which is no flight's and reads these spans.
func (c *getCall) endOp(b *getBatch, spans []domain.Span) {
	o := &c.ops[len(c.ops)-1]
	c.runs = runsOf(spans, c.runs[:0])
	o.foretold = o.view.foretell(c.runs)
	b.endOp(o.foretold.known)
}

// endOp closes the op that beginOp opened. sum: its runs are in order, and their sum is known.
func (b *linkBatch) endOp(sum bool) {
	op := &b.Ops[len(b.Ops)-1]
	op.Count = uint32(len(b.Segments)) - op.First
	op.Sum = sum
}

// submit lets the batches that were built wait for their turn, which may have come.
func (c *getCall) submit() {
	for ; c.submitted < c.nbatches; c.submitted++ {
		b := c.batches[c.submitted]
		c.outstanding += len(b.Ops)
		for _, n := range b.bytes {
			b.conn.foreground.Add(n)
		}
		b.q, b.turn = c.q, domain.LinkTurn{Session: uint64(c.sessionID), First: c.first, Since: c.began}
		b.conn.order.add(b)
		b.conn.pump()
	}
}

// opDoneLocked takes in an op of this call: a flight lands, a unit arrived.
func (c *getCall) opDoneLocked(i uint32, done ports.Completion, now domain.Instant) {
	n, o := c.n, &c.ops[i]
	o.done = true
	c.outstanding--
	n.foregroundLandedLocked(o.view.conn, o.bytes)
	if done.Err == nil {
		c.stopAwaiting()
	}
	k := &c.keys[o.key]
	late := false
	if o.flight != nil {
		done = n.judgeLocked(o.flight, done, now)
		late = n.landLocked(o.flight, done, c.installsAs(k), now)
		o.flight = nil
	} else {
		late = done.Err == nil && done.At >= o.view.until
		done = c.judgeDirectLocked(o, done, late)
		n.dropLocked(o.view)
		switch {
		case o.direct:
			c.direct--
		case late || done.Err != nil:
			c.unitGoneLocked(o.unit)
		}
		if late {
			n.counters.duplicate.Add(o.bytes)
		}
	}
	if c.abandoned || k.stage == stageDone {
		if !late && done.Err == nil && (o.direct || o.unit != noUnit) {
			n.counters.duplicate.Add(o.bytes)
		}
		if o.unit != noUnit && !late && done.Err == nil {
			c.unitGoneLocked(o.unit)
		}
		return
	}
	switch {
	case late:
		k.late = true
	case done.Err != nil:
		k.opErr = done.Err
	default:
		k.fetched += o.bytes
		if o.direct {
			n.counters.needed.Add(o.bytes)
			k.matched = o.matched
		}
		if o.unit != noUnit {
			c.landUnits = append(c.landUnits, landedUnit{o.unit, o.matched})
			return // it counts as waiting until it is copied out
		}
	}
	k.waits--
	c.settleLocked(int(o.key))
}

// noUnit marks an op that is not of the arena.
const noUnit = ^uint32(0)

// installsAs is the way in which a slot becomes local when this call lands its last extent.
func (c *getCall) installsAs(k *getKey) domain.Locality {
	if k.size > 0 && c.spans[k.spanLo].Len == k.size {
		return domain.LocalBySlot
	}
	return domain.LocalByExtents
}

// flightDoneLocked takes in the word that a joined flight ended, well or not: settle looks at the slot.
func (c *getCall) flightDoneLocked(i uint32) {
	k := &c.keys[i]
	if c.abandoned || k.stage != stageFly {
		return
	}
	c.stopAwaiting()
	k.waits--
	c.settleLocked(int(i))
}

// settleLocked looks at a key that may have nothing outstanding any more: it is there, or it is planned again.
func (c *getCall) settleLocked(i int) {
	k := &c.keys[i]
	if k.waits > 0 || k.stage != stageFly {
		return
	}
	switch {
	case k.final != ports.StatusNone:
		c.finishLocked(i, k.final, k.opErr)
	case k.slot != 0 && c.coveredLocked(k, k.slot):
		k.late, k.opErr = false, nil
		c.landedLocked(i)
	case k.late || k.opErr != nil:
		c.failedLocked(i)
	case k.slot != 0:
		c.againLocked(i) // a flight of another call failed: the first to plan again claims
	default:
		c.hitLocked(i)
	}
}

// againLocked plans a key once more, by its view while that is fresh, else by asking.
func (c *getCall) againLocked(i int) {
	k := &c.keys[i]
	k.tries++
	if k.tries >= maxTries {
		c.finishLocked(i, ports.TransferFailed, fmt.Errorf("given up after %d attempts: %w", k.tries, ports.ErrTimeout))
		return
	}
	if k.view != nil && k.view.fresh(c.n.now()) {
		c.readyLocked(i)
		return
	}
	c.askAgainLocked(i)
}

// askAgainLocked sends the key back to the peer of its view, which is asked to renew or to resolve.
func (c *getCall) askAgainLocked(i int) {
	k := &c.keys[i]
	k.stage = stageAsk
	c.markLocked(k, candHere)
	c.asking = append(c.asking, uint32(i))
}

// markLocked says what the attempt on the view's peer has shown.
func (c *getCall) markLocked(k *getKey, s candState) {
	for j := k.candLo; j < k.candHi; j++ {
		if k.view != nil && c.cands[j].peer == k.view.conn.peer {
			c.cands[j].state = s
		}
	}
}

// failedLocked decides what follows a failed attempt: late bytes are fetched once more, a reset link is made anew once, everything
// else goes to the next holder.
func (c *getCall) failedLocked(i int) {
	n, k := c.n, &c.keys[i]
	late, err := k.late, k.opErr
	k.late = false
	switch {
	case late:
		k.lates++
		if k.lates > 1 {
			c.finishLocked(i, ports.Late, fmt.Errorf("lease of %s was over twice: %w", k.view.conn.peer.id, ports.ErrTimeout))
			return
		}
		n.counters.downgrade(ports.DowngradeLate)
		k.opErr = nil
		c.askAgainLocked(i)
	case isReset(err) && k.resets == 0:
		k.resets++
		n.counters.downgrade(ports.DowngradeReset)
		k.opErr = nil
		c.askAgainLocked(i)
	default:
		k.failed = failedAs(err)
		k.failErr, k.opErr = err, nil // the next attempt begins without it
		n.counters.downgrade(ports.DowngradeNextHolder)
		if !k.routed {
			c.askAgainLocked(i) // its candidates are not known yet; the view's own is taken out when they are
			k.avoid = k.view.conn.peer
			return
		}
		k.stage = stageAsk
		c.markLocked(k, candFailed)
		c.asking = append(c.asking, uint32(i))
	}
}

func isReset(err error) bool {
	return errors.Is(err, ports.ErrReset) || errors.Is(err, ports.ErrClosed) || errors.Is(err, ports.ErrRestarted)
}
