package app

import (
	"errors"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// check is a put-range of a filling slot that a read covers whole and that no flight fetched whole.
type check struct {
	key  uint32
	fill *fill
	run  domain.Run
	sum  uint32
	bad  bool
}

// verifyTaken verifies the flights among what was taken, without Node.mu and before any of them is landed.
func (c *getCall) verifyTaken() {
	for j := range c.taken {
		done := &c.taken[j]
		if done.Tag&tagKind != tagOp || done.Err != nil {
			continue
		}
		switch o := &c.ops[done.Tag&^tagKind]; {
		case o.flight != nil:
			c.n.verifyFlight(o.flight, done)
		case c.abandoned || c.keys[o.key].stage == stageDone:
		case o.foretold.matches(done):
			o.matched = true
		case o.direct:
			o.bad, o.unread = c.verifyDirect(&c.keys[o.key])
		}
	}
}

// verifyLanded verifies what is about to be copied out of filling slots and was not when it landed, for it came in parts. A key
// whose bytes do not match starts from nothing.
func (c *getCall) verifyLanded() {
	if !c.anyFilling() {
		return
	}
	n := c.n
	n.mu.Lock()
	for _, i := range c.landed {
		if k := &c.keys[i]; k.stage == stageLanded && k.fill != nil {
			c.gatherLocked(i)
		}
	}
	n.mu.Unlock()
	if len(c.checks) == 0 {
		return
	}
	for j := range c.checks {
		ch := &c.checks[j]
		ch.bad = sumOf(n.regions, &c.keys[ch.key].layout, ch.run) != ch.sum
	}
	now := c.step()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ch := range c.checks {
		c.checkedLocked(&ch, now)
	}
	clear(c.checks)
	c.checks = c.checks[:0]
}

func (c *getCall) anyFilling() bool {
	for _, i := range c.landed {
		if c.keys[i].fill != nil && c.keys[i].stage == stageLanded {
			return true
		}
	}
	return false
}

// gatherLocked lists what is to be verified of a key.
func (c *getCall) gatherLocked(i uint32) {
	n, k := c.n, &c.keys[i]
	f := k.fill
	switch {
	case f.corrupt && !c.coveredLocked(k, k.slot):
		c.startOverLocked(int(i), &corruptError{run: f.bad})
		return
	case f.sums == nil || !n.hostMedium || n.mu.table.Held(k.slot) == nil || c.unverifiedOf(k, &f.verified) == 0:
		return // committed, so all of it was verified; or there is nothing left to verify, or to do it by
	}
	c.runs = runsOf(c.spans[k.spanLo:k.spanHi], c.runs[:0])
	domain.ForEachWhole(f.sums.putLens, c.runs, func(j int, r domain.Run) bool {
		if !f.verified.Covers(r) {
			c.checks = append(c.checks, check{key: i, fill: f, run: r, sum: f.sums.sums[j]})
		}
		return true
	})
}

// unverifiedOf is how many bytes of a key's spans are not in a set.
func (c *getCall) unverifiedOf(k *getKey, verified *domain.Extents) uint64 {
	var sum uint64
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		sum += s.Len - verified.Overlap(s.Run)
	}
	return sum
}

// checkedLocked takes in the outcome of one check.
func (c *getCall) checkedLocked(ch *check, now domain.Instant) {
	if !ch.bad {
		ch.fill.verified.Add(ch.run)
		return
	}
	c.n.blameLocked(ch.fill)
	c.n.corruptLocked(ch.fill, ch.run, now)
	if c.keys[ch.key].stage == stageLanded {
		c.startOverLocked(int(ch.key), &corruptError{run: ch.run})
	}
}

// startOverLocked lets go of a slot with bad bytes and starts the key from nothing, at the next holder of the version when it is
// known whose bytes they were.
func (c *getCall) startOverLocked(i int, err error) {
	k := &c.keys[i]
	if k.want.IsZero() {
		k.want = k.version
	}
	c.dropSlotLocked(k)
	if k.view != nil {
		k.late, k.opErr = false, err
		c.failedLocked(i)
		return
	}
	k.failed, k.failErr = ports.Corrupt, err
	c.n.counters.downgrade(ports.DowngradeNextHolder)
	if k.tries++; k.tries >= maxTries {
		c.finishLocked(i, ports.Corrupt, err)
		return
	}
	c.askAgainLocked(i)
}

// failedAs is what a failed attempt amounts to when nobody else is left.
func failedAs(err error) ports.Status {
	switch {
	case errors.Is(err, ports.ErrCorrupt):
		return ports.Corrupt
	case isReset(err), errors.Is(err, ports.ErrTimeout):
		return ports.PeerUnavailable
	}
	return ports.TransferFailed
}

// verifyUnit holds a unit in the arena to the sums of its object, as far as its spans cover put-ranges whole: each span lies in one
// unit. It reports what did not match.
func (c *getCall) verifyUnit(u uint32) (bad domain.Run, found bool) {
	n, unit := c.n, c.units[u]
	k := &c.keys[unit.Key]
	a := n.arenas[getArena]
	if !k.view.hasSums() || !allHost(a.regions[:]) {
		return domain.Run{}, false
	}
	at := c.rounds[unit.Round].off + unit.Off
	spans := c.spans[unit.First : unit.First+unit.Count]
	c.runs = runsOf(spans, c.runs[:0])
	domain.ForEachWhole(k.view.putLens, c.runs, func(i int, r domain.Run) bool {
		for spans[0].End() < r.End() { // they lie back to back
			at += spans[0].Len
			spans = spans[1:]
		}
		bad, found = r, crc32c.Update(0, hostBytes(a.region, at+r.Off-spans[0].Off, r.Len)) != k.view.sums[i]
		return !found
	})
	return bad, found
}

// runsOf appends the runs of spans.
func runsOf(spans []domain.Span, runs []domain.Run) []domain.Run {
	for _, s := range spans {
		runs = append(runs, s.Run)
	}
	return runs
}

// unitCorruptLocked throws a unit away whose bytes do not match.
func (c *getCall) unitCorruptLocked(j *copyJob) {
	n, k := c.n, &c.keys[j.key]
	n.counters.corrupt.Add(1)
	n.counters.duplicate.Add(c.units[j.unit].Len)
	n.complainLocked(k.view)
	k.opErr = &corruptError{run: j.bad, from: k.view.conn.peer.id}
	if k.want.IsZero() {
		k.want = k.view.version
	}
	c.unitGoneLocked(j.unit)
	k.waits--
	c.settleLocked(int(j.key))
}

// countVerifiedLocked counts the bytes of a hit that were checked against no sum, and says whether there are none.
func (c *getCall) countVerifiedLocked(k *getKey, sum uint64) bool {
	why, left := c.unverifiedLocked(k, sum)
	if left > 0 {
		c.n.counters.unverified[why].Add(left)
	}
	return left == 0
}

func (c *getCall) unverifiedLocked(k *getKey, sum uint64) (ports.Unverified, uint64) {
	n, t := c.n, c.n.mu.table
	switch {
	case n.cfg.NoChecksums:
		return ports.UnverifiedOff, sum
	case k.slot != 0 && !n.hostMedium:
		return ports.UnverifiedDevice, sum
	case k.slot != 0 && t.Held(k.slot) == nil: // committed, and verified before that
		if _, sums := t.Sums(k.slot); len(sums) == 0 {
			return ports.UnverifiedNoSums, sum
		}
		return 0, 0
	case k.slot != 0 && k.fill.sums == nil:
		return ports.UnverifiedNoSums, sum
	case k.slot != 0:
		return ports.UnverifiedPartial, c.unverifiedOf(k, &k.fill.verified)
	case k.source == ports.FromDirect && k.matched:
		return 0, 0
	case !k.view.hasSums():
		return ports.UnverifiedNoSums, sum
	case k.source == ports.FromArena && !allHost(n.arenas[getArena].regions[:]):
		return ports.UnverifiedDevice, sum
	case k.source == ports.FromDirect && !c.intoHost(k):
		return ports.UnverifiedDevice, sum
	}
	return ports.UnverifiedPartial, sum - c.wholeBytes(k)
}

// wholeBytes is how many bytes of a key's spans are of put-ranges that they cover whole.
func (c *getCall) wholeBytes(k *getKey) (sum uint64) {
	c.runs = runsOf(c.spans[k.spanLo:k.spanHi], c.runs[:0])
	domain.ForEachWhole(k.view.putLens, c.runs, func(_ int, r domain.Run) bool {
		sum += r.Len
		return true
	})
	return sum
}
