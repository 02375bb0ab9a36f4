package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Bytes that come from a peer are held to the sums that were put with them: a flight's before they are marked as held, what a read
// covers whole before it is copied out, the rest of a filling slot before it commits, a unit of the arena before it is copied
// anywhere, a peer's put before it is published. What a transport has summed on its way, and found right, is not read again; all
// else, what did not match included, is. So a committed slot with sums was verified, and its readers need not be. Sums are
// computed without Node.mu. Rejected: to verify at copy-out only, when the bytes are read anyway; then extents would be marked, and
// others served, before anyone has looked at them.

// hostBytes is n bytes of a region; nil when they are not in memory of the host.
func hostBytes(r ports.Region, off, n uint64) []byte {
	h, ok := r.(ports.HostRegion)
	if !ok {
		return nil
	}
	return h.Bytes()[off : off+n]
}

// sumOf is the sum of a run of a layout over regions that are memory of the host. The layout was checked.
func sumOf(regions []ports.Region, l *domain.Layout, r domain.Run) uint32 {
	return sumOn(0, regions, l, r)
}

// sumOn goes on with a sum by a run.
func sumOn(sum uint32, regions []ports.Region, l *domain.Layout, r domain.Run) uint32 {
	mustPlan(domain.ForEachRangePageFragment(*l, r, func(f domain.Fragment) bool {
		sum = crc32c.Update(sum, hostBytes(regions[f.Page.Buffer], f.Off, f.Len))
		return true
	}))
	return sum
}

// allHost reports whether regions are memory of the host.
func allHost(regions []ports.Region) bool {
	return !slices.ContainsFunc(regions, func(r ports.Region) bool { _, host := r.(ports.HostRegion); return !host })
}

// corruptError names the bytes that did not match.
type corruptError struct {
	run  domain.Run
	from ports.PeerID // empty: not from one peer
}

func (e *corruptError) Error() string {
	from := ""
	if e.from != "" {
		from = fmt.Sprintf(" from %q", e.from)
	}
	return fmt.Sprintf("put-range [%d, +%d)%s: %v", e.run.Off, e.run.Len, from, ports.ErrCorrupt)
}

func (e *corruptError) Unwrap() error { return ports.ErrCorrupt }

// sums is what a view's object is to be held to.
func (v *view) hasSums() bool { return len(v.sums) > 0 }

// firstBad is the first put-range of those that lie whole in runs and that skip does not name, whose bytes in a layout over regions,
// in which the object begins at base, do not match. Runs of what did are appended to good.
func (v *view) firstBad(regions []ports.Region, l *domain.Layout, runs []domain.Run, good []domain.Run) (bad domain.Run, found bool, _ []domain.Run) {
	domain.ForEachWhole(v.putLens, runs, func(i int, r domain.Run) bool {
		if found = sumOf(regions, l, r) != v.sums[i]; found {
			bad = r
			return false
		}
		good = domain.AppendJoined(good, r)
		return true
	})
	return bad, found, good
}

// foretold is what the bytes of an op sum to, by the sums of their object, where that is known: then it is worth asking a transport
// for the sum.
type foretold struct {
	sum   uint32
	known bool
}

// foretell takes runs in the order in which they are read.
func (v *view) foretell(runs []domain.Run) (f foretold) {
	if v.hasSums() {
		f.sum, f.known = domain.FoldSums(v.putLens, v.sums, runs)
	}
	return f
}

// matches reports whether a transport has summed the bytes on their way, and the sum is theirs. When it did not, or the sum is
// another, it says nothing: whoever looks at the bytes in memory decides, and can name those that are bad.
func (f foretold) matches(done *ports.Completion) bool {
	return done.Err == nil && done.Summed && f.known && done.Sum == f.sum
}

// verifyFlight holds the bytes of a flight whose op has completed well to the sums of its slot, as far as it fetched put-ranges whole.
// Whoever lands it calls this before, without Node.mu.
func (n *Node) verifyFlight(fl *flight, done *ports.Completion) {
	switch {
	case fl.sums == nil:
	case fl.foretold.matches(done):
		for _, r := range fl.runs {
			fl.good = domain.AppendJoined(fl.good, r)
		}
	default:
		fl.bad, fl.isBad, fl.good = fl.sums.firstBad(n.regions, &fl.layout, fl.runs, fl.good)
	}
}

// judgeLocked turns the completion of a flight whose bytes came in time and did not match into a failure. Late bytes may be another
// object's by now, and say nothing about this one.
func (n *Node) judgeLocked(fl *flight, done ports.Completion, now domain.Instant) ports.Completion {
	if done.Err != nil || done.At >= fl.view.until || !fl.isBad {
		return done
	}
	n.counters.duplicate.Add(fl.bytes)
	n.complainLocked(fl.view)
	n.corruptLocked(fl.fill, fl.bad, now)
	done.Err = &corruptError{run: fl.bad, from: fl.view.conn.peer.id}
	return done
}

// corruptLocked gives up a slot in which bytes do not match: its sums may be as wrong as its bytes. Who has joined it finds that it
// holds the bad bytes no more.
func (n *Node) corruptLocked(f *fill, bad domain.Run, now domain.Instant) {
	n.counters.corrupt.Add(1)
	if held := n.mu.table.Held(f.slot); held != nil {
		held.Remove(bad)
	}
	if f.corrupt, f.bad = true, bad; !f.doomed && n.mu.fills[f.slot] == f {
		n.counters.installFailure(ports.InstallCorrupt)
		n.doomLocked(f.slot, domain.DoomCorrupt, now)
	}
}

// verifiedLocked takes in what a flight brought and who is to be told if bytes that were not verified turn out to be bad.
func (f *fill) verifiedLocked(fl *flight) {
	var sum uint64
	for _, r := range fl.good {
		f.verified.Add(r)
		sum += r.Len
	}
	if sum < fl.bytes && f.sums != nil && !slices.Contains(f.from, fl.view) {
		f.from = append(f.from, fl.view)
	}
}

// finishing is a complete filling slot of which put-ranges were not verified. It is pinned.
type finishing struct {
	f      *fill
	layout domain.Layout
	by     domain.Locality
}

// completeLocked commits a filling slot that is complete, or has whoever landed its last extent verify the rest first.
func (n *Node) completeLocked(f *fill, info domain.SlotInfo, by domain.Locality, now domain.Instant) {
	if f.sums == nil || !n.hostMedium || f.verified.Complete(info.Size) {
		n.installLocked(f, info, by, now)
		return
	}
	if f.finishing {
		return
	}
	f.finishing = true
	n.mu.table.Pin(f.slot)
	n.mu.complete = append(n.mu.complete, finishing{f, n.mu.table.Layout(f.slot), by})
}

// finishFills verifies what is left of slots that are complete, and commits them. Whoever has landed flights calls it, without Node.mu.
func (n *Node) finishFills() {
	for {
		n.mu.Lock()
		last := len(n.mu.complete) - 1
		if last < 0 {
			n.mu.Unlock()
			return
		}
		w := n.mu.complete[last]
		n.mu.complete = slices.Delete(n.mu.complete, last, last+1)
		left := w.f.verified.AppendMissing(nil, domain.Run{Len: w.layout.Size})
		n.mu.Unlock()

		bad, found, _ := w.f.sums.firstBad(n.regions, &w.layout, left, nil)

		now := n.now()
		n.mu.Lock()
		n.finishedLocked(&w, bad, found, now)
		n.mu.Unlock()
	}
}

func (n *Node) finishedLocked(w *finishing, bad domain.Run, found bool, now domain.Instant) {
	t, f := n.mu.table, w.f
	defer t.Unpin(f.slot, now)
	info := t.Info(f.slot)
	switch {
	case found:
		n.blameLocked(f)
		n.corruptLocked(f, bad, now)
		return
	case info.State == domain.SlotFilling:
		f.verified.Add(domain.Run{Len: info.Size})
		n.installLocked(f, info, w.by, now)
	case info.State == domain.SlotDoomed && w.by != domain.LocalByPull:
		n.counters.installFailure(ports.InstallCommitRefused) // as when a flight lands in it
	}
	if f.pulled {
		n.kickPull()
	}
}

// blameLocked complains to everyone who may have sent what does not match.
func (n *Node) blameLocked(f *fill) {
	for _, v := range f.from {
		n.complainLocked(v)
	}
}

// complainLocked tells the owner of a view that its bytes do not match, unless it is being told. The next who wants the object asks
// anew: the owner may have dropped it by then.
func (n *Node) complainLocked(v *view) {
	v.stale = true
	if v.blamed {
		return
	}
	v.blamed = true
	n.counters.complained.Add(1)
	n.wg.Go(func() { n.complain(v) })
}

// complain is the goroutine of one complaint; its bound is that of a control call.
func (n *Node) complain(v *view) {
	ctx, cancel := n.control()
	defer cancel()
	if err := n.p.Resolver.Complain(ctx, v.conn.to, []domain.Generation{v.id.gen}); err != nil {
		n.counters.unheard.Add(1)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	v.blamed = false
}

// heed verifies a copy that a peer complained about, and drops it only if it is bad. A peer that is wrong, or lies, costs a look.
func (n *Node) heed(ctx context.Context, g domain.Generation) error {
	t := n.mu.table
	n.mu.Lock()
	id := t.Find(g)
	if id == 0 || !n.hostMedium {
		n.counters.complaint(ports.ComplaintGone)
		n.mu.Unlock()
		return nil
	}
	lens, sums := t.Sums(id)
	if len(sums) == 0 {
		n.counters.complaint(ports.ComplaintGone)
		n.mu.Unlock()
		return nil
	}
	t.Pin(id)
	layout := t.Layout(id)
	n.mu.Unlock()

	bad, err := n.badCopy(ctx, &layout, lens, sums)

	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	defer t.Unpin(id, now)
	switch {
	case err != nil:
		return err
	case bad:
		n.counters.corrupt.Add(1)
		n.counters.complaint(ports.ComplaintDropped)
		n.doomLocked(id, domain.DoomCorrupt, now)
	default:
		n.counters.complaint(ports.ComplaintKept)
	}
	return nil
}

// badCopy holds a pinned slot to its sums. One at a time: complaints are not to keep more than one core from the node's own work.
func (n *Node) badCopy(ctx context.Context, l *domain.Layout, lens []uint64, sums []uint32) (bad bool, err error) {
	select {
	case n.looking <- struct{}{}:
		defer func() { <-n.looking }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	domain.ForEachWhole(lens, []domain.Run{{Len: l.Size}}, func(i int, r domain.Run) bool {
		if err = context.Cause(ctx); err != nil {
			return false
		}
		bad = sumOf(n.regions, l, r) != sums[i]
		return !bad
	})
	return bad, err
}
