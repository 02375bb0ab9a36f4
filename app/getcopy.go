package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// copyOut copies what has landed to the caller's memory, and whole units of the arena into slots of their own, in one batch. The
// slots are pinned and the arena's slices held meanwhile; no lock is.
func (c *getCall) copyOut() {
	if len(c.landed) == 0 && len(c.landUnits) == 0 {
		return
	}
	c.verifyLanded()
	n := c.n
	c.copies, c.jobs = c.copies[:0], c.jobs[:0]
	for _, i := range c.landed {
		if c.keys[i].stage == stageLanded {
			c.addSlotCopies(i)
		}
	}
	for _, u := range c.landUnits {
		c.addUnitCopies(u)
	}
	c.landed, c.landUnits = c.landed[:0], c.landUnits[:0]
	for len(c.copyErrs) < len(c.copies) {
		c.copyErrs = append(c.copyErrs, nil)
	}
	errs := c.copyErrs[:len(c.copies)]
	n.p.Copier.Copy(c.ctx, c.copies, errs)
	now := c.step()
	n.mu.Lock()
	defer n.mu.Unlock()
	for j := range c.jobs {
		c.copiedLocked(&c.jobs[j], firstError(errs[c.jobs[j].lo:c.jobs[j].hi]), now)
	}
	clear(errs)
}

func firstError(errs []error) error { return errJoin(errs...) }

// addSlotCopies plans the copies of a key whose slot holds its spans.
func (c *getCall) addSlotCopies(i uint32) {
	k := &c.keys[i]
	lo := len(c.copies)
	if len(k.layout.Pages) == 1 {
		c.addPageCopies(k)
	} else {
		for _, s := range c.spans[k.spanLo:k.spanHi] {
			for o := s.First; o < s.First+s.Count; o++ {
				r := c.rangeAt(k, o)
				c.addCopies(c.n.regions, &k.layout, domain.Run{Off: r.Off, Len: r.Len}, &r)
			}
		}
	}
	c.jobs = append(c.jobs, copyJob{key: i, unit: noUnit, lo: uint32(lo), hi: uint32(len(c.copies))})
}

// addPageCopies is addSlotCopies of an object on one page: its ranges lie in it as they say, which sizedLocked has checked.
func (c *getCall) addPageCopies(k *getKey) {
	page := k.layout.Pages[0]
	src, base := c.n.regions[page.Buffer], uint64(page.Page)*k.layout.PageSize
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		for _, o := range c.order[s.First : s.First+s.Count] {
			r := &c.ranges[o]
			op := ports.CopyOp{Dst: c.regions[r.Region].Region, DstOff: r.RegionOff, Src: src, SrcOff: base + r.Off, Len: r.Len}
			if k.whole {
				op.Len = k.size
			}
			if len(c.strides) > 0 {
				op.DstOff += k.row * c.strides[o]
			}
			if r.Off+op.Len > k.layout.Size {
				panic("app: plan of a checked layout: past its end")
			}
			c.copies = append(c.copies, op)
		}
	}
}

// addUnitCopies plans the copies of a unit that has arrived, and its install when the slice is the object.
func (c *getCall) addUnitCopies(landed landedUnit) {
	u := landed.unit
	n, unit := c.n, c.units[u]
	k := &c.keys[unit.Key]
	a := n.arenas[getArena]
	if !landed.verified {
		if bad, found := c.verifyUnit(u); found {
			c.jobs = append(c.jobs, copyJob{key: unit.Key, unit: u, bad: bad})
			return
		}
	}
	arena := domain.Flat(c.flat[:1], a.capacity)
	at := c.rounds[unit.Round].off + unit.Off
	if fl := c.installFromArena(unit, k); fl != nil {
		lo := len(c.copies)
		n.mu.Lock()
		slot := n.mu.table.Layout(fl.fill.slot)
		n.mu.Unlock()
		err := domain.ForEachPair(slot, domain.Run{Len: k.size}, arena, domain.Run{Off: at, Len: k.size}, func(p domain.Pair) bool {
			c.copies = append(c.copies, ports.CopyOp{Dst: n.regions[p.A], DstOff: p.AOff, Src: a.region, SrcOff: p.BOff, Len: p.Len})
			return true
		})
		mustPlan(err)
		c.jobs = append(c.jobs, copyJob{key: unit.Key, unit: u, install: fl, lo: uint32(lo), hi: uint32(len(c.copies))})
	}
	lo := len(c.copies)
	for _, s := range c.spans[unit.First : unit.First+unit.Count] {
		for o := s.First; o < s.First+s.Count; o++ {
			r := c.rangeAt(k, o)
			c.addCopies(a.regions[:], &arena, domain.Run{Off: at, Len: r.Len}, &r)
			at += r.Len
		}
	}
	c.jobs = append(c.jobs, copyJob{key: unit.Key, unit: u, lo: uint32(lo), hi: uint32(len(c.copies))})
}

// addCopies plans one range: a run of src, a layout over regions, to where the range says.
func (c *getCall) addCopies(regions []ports.Region, src *domain.Layout, run domain.Run, r *domain.Range) {
	dst := c.regions[r.Region].Region
	if p, ok := domain.OnePair(src, run, &c.into[r.Region], domain.Run{Off: r.RegionOff, Len: r.Len}); ok {
		c.copies = append(c.copies, ports.CopyOp{Dst: dst, DstOff: p.BOff, Src: regions[p.A], SrcOff: p.AOff, Len: p.Len})
		return
	}
	err := domain.ForEachPair(*src, run, c.into[r.Region], domain.Run{Off: r.RegionOff, Len: r.Len}, func(p domain.Pair) bool {
		c.copies = append(c.copies, ports.CopyOp{Dst: dst, DstOff: p.BOff, Src: regions[p.A], SrcOff: p.AOff, Len: p.Len})
		return true
	})
	mustPlan(err)
}

// mustPlan panics on a plan over layouts and ranges that were checked before: a bug of ours.
func mustPlan(err error) {
	if err != nil {
		panic("app: plan of a checked layout: " + err.Error())
	}
}

// copiedLocked takes in the outcome of one job. A copy that failed fails its key; the object stays what it is.
func (c *getCall) copiedLocked(j *copyJob, err error, now domain.Instant) {
	k := &c.keys[j.key]
	switch {
	case j.install != nil:
		c.installedLocked(j.install, err, now)
		return
	case j.bad.Len > 0:
		c.unitCorruptLocked(j)
		return
	}
	if err != nil {
		k.final, k.opErr = ports.CopyFailed, fmt.Errorf("copy out: %w", err)
		if !errors.Is(err, ports.ErrBounds) && context.Cause(c.ctx) != nil {
			k.final = ports.Cancelled
		}
	}
	switch {
	case j.unit != noUnit:
		c.n.counters.arrived(c.units[j.unit].Len, err)
		c.unitGoneLocked(j.unit)
		k.waits--
		c.settleLocked(int(j.key))
	case k.final != ports.StatusNone:
		c.finishLocked(int(j.key), k.final, k.opErr)
	default:
		c.hitLocked(int(j.key))
	}
}

// hitLocked ends a key whose bytes are all with the caller, and sees to it that the rest of the object comes here too.
func (c *getCall) hitLocked(i int) {
	k := &c.keys[i]
	if c.outrunLocked(i) {
		return
	}
	var sum uint64
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		sum += s.Len
	}
	c.n.counters.callerBytes.Add(sum)
	k.verified = c.countVerifiedLocked(k, sum)
	c.moved[k.source] += sum
	if c.localityLocked(k) == domain.LocalByPull {
		if j := c.n.pullLocked(k.view, k.fill); j != nil {
			j.held = true
			c.pulls = append(c.pulls, j)
		}
	}
	c.finishLocked(i, ports.Hit, nil)
}

// localityLocked says how a key that was just read becomes local, other than by what was done already.
func (c *getCall) localityLocked(k *getKey) domain.Locality {
	n := c.n
	cas := domain.LocalityCase{Route: domain.RouteArena, CanInstall: n.canInstall() && c.mayInstall, Admits: n.admits(k.size) && c.mayInstall}
	switch {
	case k.source == ports.FromDirect:
		cas.Route = domain.RouteDirect
	case k.slot == 0:
		cas.Whole = k.installed
	case k.fill == nil || n.mu.table.Info(k.slot).State != domain.SlotFilling:
		return domain.LocalNot // it is local, or was doomed meanwhile
	default:
		cas.Route = domain.RouteSlot
	}
	return domain.DecideLocality(cas)
}

func (n *Node) admits(size uint64) bool {
	return domain.LocalityPrefetchAdmits(!n.cfg.NoRangedLocalityPrefetch, n.cfg.Admission, size)
}

// installFromArena reserves a slot for a unit that is the whole object in object order; nil when it is not, or may not be
// installed, or is here already. The copy is a flight: whoever wants the bytes meanwhile joins it.
func (c *getCall) installFromArena(u domain.Unit, k *getKey) *flight {
	n := c.n
	whole := u.Len == k.size && u.Count == 1
	cas := domain.LocalityCase{Route: domain.RouteArena, Whole: whole, CanInstall: n.canInstall() && c.mayInstall, Admits: n.admits(k.size)}
	if domain.DecideLocality(cas) != domain.LocalFromArena {
		return nil
	}
	k.installed = true
	n.mu.Lock()
	defer n.mu.Unlock()
	committed, filling, _ := n.mu.table.Lookup(c.space, c.names[u.Key])
	if committed != 0 || filling != 0 {
		return nil
	}
	f, err := n.newFillLocked(k.view, n.now())
	if err != nil {
		return nil
	}
	c.runs = append(c.runs[:0], domain.Run{Len: k.size})
	fl := n.newFlightLocked(f, k.view, c.runs)
	if fl.sums != nil { // the unit was verified
		fl.good = append(fl.good, c.runs...)
	}
	return fl
}

// installedLocked lands what was copied from the arena, or gives the slot up. The bytes came in time, whenever the copy ended.
func (c *getCall) installedLocked(fl *flight, err error, now domain.Instant) {
	if err != nil {
		c.n.counters.installFailure(ports.InstallArenaFailed)
		c.n.doomLocked(fl.fill.slot, domain.DoomFailed, now)
	}
	c.n.landLocked(fl, ports.Completion{Err: err}, domain.LocalFromArena, now)
}
