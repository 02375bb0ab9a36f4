package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// writeSession is objects that one client writes in parts, each into a pending slot of its own. Guarded by Node.mu. A slot is pinned
// while bytes go into it, and only then: a client that stops writing keeps its pages for no longer than the reservation.
type writeSession struct {
	namespace string
	space     domain.Space
	keys      map[string]*writeKey
}

// writeKey is one object of a session.
type writeKey struct {
	version domain.Version // names the pending slot: its id may be another's by now
	size    uint64
	claimed domain.Extents // written, or being written
	runs    []writtenRun   // as they came: the put-ranges
	writing int            // calls that copy
	done    *ports.Result  // the answer of its commit
}

// writtenRun is a put-range and its sum, if the node makes sums.
type writtenRun struct {
	domain.Run
	sum uint32
}

// OpenWrite reserves a slot for each key.
func (n *Node) OpenWrite(_ context.Context, namespace string, names []string, sizes []uint64, out []ports.Result) (ports.WriteID, error) {
	if err := errJoin(checkCounts(len(names), 0, len(out)), checkColumn("sizes", len(sizes), len(names)), checkNames(names)); err != nil {
		return 0, n.malformed(ports.BatchPutRanges, out, err)
	}
	if err := n.enter(); err != nil {
		return 0, refuseAll(out, ports.Cancelled, err)
	}
	defer n.leave()
	n.counters.putCalls.Add(1)
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	space, err := n.mu.spaces.intern(namespace)
	if err == nil && len(n.mu.writes) >= maxSessions {
		err = fmt.Errorf("%w: %w", ports.ErrRefused, &domain.LimitError{What: "open write sessions", Value: uint64(len(n.mu.writes)) + 1, Limit: maxSessions})
	}
	if err != nil {
		return 0, n.malformed(ports.BatchPutRanges, out, err)
	}
	s := &writeSession{namespace: namespace, space: space, keys: make(map[string]*writeKey, len(names))}
	for i, name := range names {
		out[i] = n.openKeyLocked(s, name, sizes[i], now)
		if out[i].Status != ports.Hit {
			n.counters.keys(ports.BatchPutRanges, out[i].Source, out[i].Status, 1)
		}
	}
	n.mu.lastID++
	id := ports.WriteID(n.mu.lastID)
	n.mu.writes[id] = s
	return id, nil
}

func (n *Node) openKeyLocked(s *writeSession, name string, size uint64, now domain.Instant) ports.Result {
	refuse := func(st ports.Status, err error) ports.Result { return ports.Result{Status: st, Size: size, Err: err} }
	if size == 0 || size > domain.MaxObjectSize {
		return refuse(ports.Invalid, &domain.LimitError{What: "object bytes (1 or more)", Value: size, Limit: domain.MaxObjectSize})
	}
	committed, _, pending := n.mu.table.Lookup(s.space, name)
	if n.expiredLocked(pending, now) {
		pending = 0
	}
	switch {
	case s.keys[name] != nil:
		return refuse(ports.Invalid, fmt.Errorf("the key is named twice: %w", domain.ErrInvalid))
	case committed != 0:
		if have := n.mu.table.Info(committed).Size; have != size {
			return refuse(ports.Conflict, errOtherSize(have, size))
		}
		return ports.Result{Status: ports.Exists, Size: size}
	case pending != 0:
		return refuse(ports.Busy, fmt.Errorf("another writer has reserved the key: %w", ports.ErrBusy))
	}
	k := &writeKey{version: n.drawVersion(), size: size}
	_, err := n.makeRoomLocked(domain.NewSlot{Space: s.space, Name: name, Version: k.version, Size: size, State: domain.SlotPending,
		Origin: domain.PutHere, Deadline: now.Add(n.cfg.Reservation)}, now)
	if err != nil {
		return refuse(ports.NoSpace, n.errFullLocked(size))
	}
	s.keys[name] = k
	return ports.Result{Status: ports.Hit, Size: size}
}

// pendingOfLocked is the key's slot while its reservation holds.
func (n *Node) pendingOfLocked(s *writeSession, name string, k *writeKey, now domain.Instant) domain.SlotID {
	_, _, pending := n.mu.table.Lookup(s.space, name)
	if pending == 0 || n.mu.table.Info(pending).Version != k.version || n.expiredLocked(pending, now) {
		return 0
	}
	return pending
}

// partWrite is one key of a WriteRanges, from check to result.
type partWrite struct {
	key    *writeKey // nil: it is decided
	slot   domain.SlotID
	layout domain.Layout
	ranges row
	sums   []uint32 // of the ranges; nil: none are made
	err    error
}

// WriteRanges copies ranges into slots that are not visible yet.
func (n *Node) WriteRanges(ctx context.Context, id ports.WriteID, p *ports.PutBatch, out []ports.Result) error {
	err := errJoin(checkCounts(len(p.Keys), len(p.Ranges), len(out)), checkColumn("End", len(p.End), len(p.Keys)), checkEnds(p.End, len(p.Ranges)))
	if err != nil {
		return refuseAll(out, ports.Invalid, err)
	}
	if err := n.enter(); err != nil {
		return refuseAll(out, ports.Cancelled, err)
	}
	defer n.leave()
	parts := make([]partWrite, len(p.Keys))
	if err := n.claimParts(id, p, parts, out); err != nil {
		return refuseAll(out, ports.Invalid, err)
	}
	for i := range parts {
		if w := &parts[i]; w.key != nil {
			w.err = n.writePart(ctx, p.Regions, w, p.Ranges[w.ranges.lo:w.ranges.hi])
		}
	}
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range parts {
		if w := &parts[i]; w.key != nil {
			n.wrotePartLocked(ctx, w, p.Ranges[w.ranges.lo:w.ranges.hi], now, &out[i])
		}
	}
	return nil
}

// writePart copies the ranges of one key into its slot, and sums them there, step by step as a put does: short ranges together, a long
// one in pieces.
func (n *Node) writePart(ctx context.Context, regions []ports.Memory, w *partWrite, ranges []domain.Range) error {
	if !n.sumsPuts(n.regions) {
		return n.copyWrites(ctx, regions, w, ranges)
	}
	w.sums = make([]uint32, len(ranges))
	for lo := 0; lo < len(ranges); {
		hi, left := lo, uint64(putStep)
		for hi < len(ranges) && ranges[hi].Len <= left {
			left -= ranges[hi].Len
			hi++
		}
		if hi > lo {
			if err := n.copyWrites(ctx, regions, w, ranges[lo:hi]); err != nil {
				return err
			}
			for ; lo < hi; lo++ {
				w.sums[lo] = sumOf(n.regions, &w.layout, domain.Run{Off: ranges[lo].Off, Len: ranges[lo].Len})
			}
			continue
		}
		for r := ranges[lo]; r.Len > 0; {
			step := r
			step.Len = min(step.Len, putStep)
			if err := n.copyWrites(ctx, regions, w, []domain.Range{step}); err != nil {
				return err
			}
			w.sums[lo] = sumOn(w.sums[lo], n.regions, &w.layout, domain.Run{Off: step.Off, Len: step.Len})
			r.Off, r.RegionOff, r.Len = r.Off+step.Len, r.RegionOff+step.Len, r.Len-step.Len
		}
		lo++
	}
	return nil
}

// copyWrites copies ranges of one key into its slot in one batch.
func (n *Node) copyWrites(ctx context.Context, regions []ports.Memory, w *partWrite, ranges []domain.Range) error {
	var copies []ports.CopyOp
	for _, r := range ranges {
		copies = n.appendWrite(copies, regions, r, w.layout)
	}
	errs := make([]error, len(copies))
	n.p.Copier.Copy(ctx, copies, errs)
	return firstError(errs)
}

// claimParts checks every key, and pins the slots that bytes will go to.
func (n *Node) claimParts(id ports.WriteID, p *ports.PutBatch, parts []partWrite, out []ports.Result) error {
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.mu.writes[id]
	if s == nil {
		return fmt.Errorf("write session %d: %w", id, ports.ErrNotFound)
	}
	for i, name := range p.Keys {
		k, r := s.keys[name], rows(p.End, i)
		if k == nil || k.done != nil {
			out[i] = ports.Result{Status: ports.Invalid, Err: fmt.Errorf("the key is not open in this session: %w", domain.ErrInvalid)}
			continue
		}
		slot := n.pendingOfLocked(s, name, k, now)
		if slot == 0 {
			out[i] = reservationOver(k)
			continue
		}
		if err := k.claim(p.Ranges[r.lo:r.hi], p.Regions); err != nil {
			out[i] = ports.Result{Status: ports.Invalid, Size: k.size, Err: err}
			continue
		}
		k.writing++
		n.mu.table.Pin(slot)
		parts[i] = partWrite{key: k, slot: slot, layout: n.mu.table.Layout(slot), ranges: r}
	}
	return nil
}

func reservationOver(k *writeKey) ports.Result {
	return ports.Result{Status: ports.Cancelled, Size: k.size, Err: fmt.Errorf("the reservation has ended, or a copy failed: %w", ports.ErrRevoked)}
}

// claim takes ranges that nobody has written. On an error nothing is claimed.
func (k *writeKey) claim(ranges []domain.Range, regions []ports.Memory) error {
	_, spans, err := domain.AppendSpans(ranges, nil, nil)
	if err != nil {
		return err
	}
	if n := len(k.runs) + len(ranges); n > domain.MaxPutRanges {
		return &domain.LimitError{What: "put-ranges of an object", Value: uint64(n), Limit: domain.MaxPutRanges}
	}
	for _, s := range spans {
		if s.End() > k.size {
			return fmt.Errorf("a range ends at %d of %d bytes: %w", s.End(), k.size, domain.ErrInvalid)
		}
		if k.claimed.Overlap(s.Run) > 0 {
			return fmt.Errorf("bytes in [%d, %d) were written before: %w", s.Off, s.End(), domain.ErrInvalid)
		}
	}
	for _, r := range ranges {
		if err := inRegion(regions, r.Region, r.RegionOff, r.Len); err != nil {
			return err
		}
	}
	for _, s := range spans {
		k.claimed.Add(s.Run)
	}
	return nil
}

// appendWrite plans the copies of one range into a slot.
func (n *Node) appendWrite(copies []ports.CopyOp, regions []ports.Memory, r domain.Range, to domain.Layout) []ports.CopyOp {
	src := regions[r.Region].Region
	from := domain.Flat([]domain.PageRef{{Buffer: 0}}, src.Len())
	err := domain.ForEachPair(to, domain.Run{Off: r.Off, Len: r.Len}, from, domain.Run{Off: r.RegionOff, Len: r.Len}, func(p domain.Pair) bool {
		copies = append(copies, ports.CopyOp{Dst: n.regions[p.A], DstOff: p.AOff, Src: src, SrcOff: p.BOff, Len: p.Len})
		return true
	})
	mustPlan(err)
	return copies
}

func (n *Node) wrotePartLocked(ctx context.Context, w *partWrite, ranges []domain.Range, now domain.Instant, out *ports.Result) {
	w.key.writing--
	if w.err != nil {
		n.doomLocked(w.slot, domain.DoomFailed, now)
		*out = ports.Result{Status: copyStatus(ctx, w.err), Size: w.key.size, Err: fmt.Errorf("copy in: %w", w.err)}
	} else {
		for i, r := range ranges {
			run := writtenRun{Run: domain.Run{Off: r.Off, Len: r.Len}}
			if w.sums != nil {
				run.sum = w.sums[i]
			}
			w.key.runs = append(w.key.runs, run)
		}
		*out = ports.Result{Status: ports.Stored, Source: ports.FromLocal, Size: w.key.size}
	}
	n.mu.table.Unpin(w.slot, now)
}

// CommitWrite publishes what is whole.
func (n *Node) CommitWrite(_ context.Context, id ports.WriteID, names []string, out []ports.Result) error {
	if err := checkCounts(len(names), 0, len(out)); err != nil {
		return refuseAll(out, ports.Invalid, err)
	}
	if err := n.enter(); err != nil {
		return refuseAll(out, ports.Cancelled, err)
	}
	defer n.leave()
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.mu.writes[id]
	if s == nil {
		return refuseAll(out, ports.Invalid, fmt.Errorf("write session %d: %w", id, ports.ErrNotFound))
	}
	for i, name := range names {
		k := s.keys[name]
		if k == nil {
			out[i] = ports.Result{Status: ports.Invalid, Err: fmt.Errorf("the key is not open in this session: %w", domain.ErrInvalid)}
			continue
		}
		out[i] = n.commitKeyLocked(s, name, k, now)
	}
	return nil
}

// commitKeyLocked decides a key, unless it has bytes to come.
func (n *Node) commitKeyLocked(s *writeSession, name string, k *writeKey, now domain.Instant) ports.Result {
	if k.done != nil {
		return *k.done
	}
	slot := n.pendingOfLocked(s, name, k, now)
	switch {
	case k.writing > 0:
		return ports.Result{Status: ports.Busy, Size: k.size, Err: fmt.Errorf("a call still writes it: %w", ports.ErrBusy)}
	case slot != 0 && k.claimed.Bytes() < k.size:
		return ports.Result{Status: ports.Invalid, Size: k.size, Err: fmt.Errorf("%d of %d bytes were written: %w", k.claimed.Bytes(), k.size, domain.ErrInvalid)}
	}
	r := n.publishLocked(s, name, k, slot, now)
	n.counters.keys(ports.BatchPutRanges, r.Source, r.Status, 1)
	k.done = &r
	return r
}

func (n *Node) publishLocked(s *writeSession, name string, k *writeKey, slot domain.SlotID, now domain.Instant) ports.Result {
	if slot != 0 {
		slices.SortFunc(k.runs, func(a, b writtenRun) int {
			if a.Off < b.Off {
				return -1
			}
			return 1
		})
		lens, summed := make([]uint64, 0, len(k.runs)), n.sumsPuts(n.regions)
		var sums []uint32
		for _, r := range k.runs {
			lens = append(lens, r.Len)
			if summed {
				sums = append(sums, r.sum)
			}
		}
		n.mu.table.SetSums(slot, lens, sums)
		if n.commitLocked(slot, now) {
			n.counters.putBytes.Add(k.size)
			return ports.Result{Status: ports.Stored, Source: ports.FromLocal, Size: k.size}
		}
	}
	if committed, _, _ := n.mu.table.Lookup(s.space, name); committed != 0 { // a reader's or another peer's copy was first
		if have := n.mu.table.Info(committed).Size; have != k.size {
			return ports.Result{Status: ports.Conflict, Size: k.size, Err: errOtherSize(have, k.size)}
		}
		return ports.Result{Status: ports.Exists, Size: k.size}
	}
	return reservationOver(k)
}

// AbortWrite ends a session. What a call is still writing is doomed, and its pages return when that call has let go.
func (n *Node) AbortWrite(id ports.WriteID) error {
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.mu.writes[id]
	if s == nil {
		return fmt.Errorf("write session %d: %w", id, ports.ErrNotFound)
	}
	delete(n.mu.writes, id)
	for name, k := range s.keys {
		if k.done != nil {
			continue
		}
		if slot := n.pendingOfLocked(s, name, k, now); slot != 0 {
			n.doomLocked(slot, domain.DoomAbort, now)
			n.counters.keys(ports.BatchPutRanges, ports.FromNowhere, ports.Cancelled, 1)
		}
	}
	return nil
}
