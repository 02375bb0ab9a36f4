package app

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// viewID names what a lease is kept by.
type viewID struct {
	peer ports.PeerID
	gen  domain.Generation
}

// view is what a resolve told of one object at one peer. It is one shared value: whoever renews its lease moves it for every
// holder. All but the lease is fixed. until, renewAt, users, stale and renewing are guarded by Node.mu.
type view struct {
	id      viewID
	conn    *conn
	space   domain.Space
	name    string
	version domain.Version
	layout  domain.Layout
	putLens []uint64
	sums    []uint32

	until    domain.Instant // bytes seen complete before it count
	renewAt  domain.Instant
	users    int // calls and pulls that have or plan ops on it
	stale    bool
	renewing bool
	blamed   bool // its owner is being told that its bytes do not match
}

// isOf reports whether a slot holds the view's object. A version names its bytes, and so their number; but a peer that lies, or
// two that disagree, tell two sizes of one, and what was planned by the one has no place in the other.
func (v *view) isOf(s domain.SlotInfo) bool { return v.version == s.Version && v.layout.Size == s.Size }

// fresh reports whether half of the lease is left, so that ops may be planned without a word to the peer.
func (v *view) fresh(now domain.Instant) bool { return !v.stale && v.renewAt > now && v.conn.alive() }

// usable reports whether bytes that come now would count.
func (v *view) usable(now domain.Instant) bool { return !v.stale && v.until > now && v.conn.alive() }

// maxLease is the longest lease that is believed; the number is arbitrary, far above any that is configured.
const maxLease = time.Hour

// believable reports whether a peer can have meant a lease.
func believable(granted time.Duration) bool { return granted > 0 && granted <= maxLease }

// extend moves the lease; it never shortens.
func (v *view) extend(before domain.Instant, granted time.Duration) {
	v.until = max(v.until, domain.LeaseEnd(before, granted))
	v.renewAt = max(v.renewAt, domain.RenewAt(before, granted))
}

// extendLocked moves the lease of a view by an answer to a call. A view in use that was stale is not on the renewer's mind any more.
func (n *Node) extendLocked(v *view, before domain.Instant, granted time.Duration) {
	v.extend(before, granted)
	v.stale = false
	if v.users > 0 {
		n.renewer.kickFor(v.renewAt)
	}
}

// useLocked keeps a view's lease renewed until dropLocked.
func (n *Node) useLocked(v *view) {
	v.users++
	if v.users == 1 {
		n.mu.used = append(n.mu.used, v)
		n.renewer.kickFor(v.renewAt)
	}
}

func (n *Node) dropLocked(v *view) {
	v.users--
	if v.users > 0 {
		return
	}
	if i := slices.Index(n.mu.used, v); i >= 0 {
		last := len(n.mu.used) - 1
		n.mu.used[i] = n.mu.used[last]
		n.mu.used[last] = nil
		n.mu.used = n.mu.used[:last]
	}
}

// viewLocked makes row i of a resolve's reply the view of its generation, or moves the lease of the one that is there. It
// refuses what the peer cannot have meant: that is a malformed answer.
func (n *Node) viewLocked(c *conn, space domain.Space, name string, r *ports.ResolveReply, i int, before domain.Instant) (*view, error) {
	id := viewID{peer: c.peer.id, gen: r.Generations[i]}
	granted := time.Duration(r.LeaseNanos[i])
	if v := n.mu.views[id]; v != nil && believable(granted) && v.conn == c && v.version == r.Versions[i] && v.name == name && v.space == space && v.layout.Size == r.Sizes[i] {
		n.extendLocked(v, before, granted)
		return v, nil
	}
	v := &view{id: id, conn: c, space: space, name: name, version: r.Versions[i]}
	pages := rows(r.PageEnd, i)
	v.layout = domain.Layout{Pages: slices.Clone(r.Pages[pages.lo:pages.hi]), PageSize: c.page, Size: r.Sizes[i]}
	if err := c.checkLayout(v.layout); err != nil {
		return nil, err
	}
	if v.version.IsZero() || id.gen.Counter == 0 || id.gen.Incarnation != c.to.Incarnation || !believable(granted) {
		return nil, fmt.Errorf("resolve of %q: version %v, generation %v, lease %v: %w", name, v.version, id.gen, granted, domain.ErrInvalid)
	}
	lens, sums := rows(r.LenEnd, i), rows(r.SumEnd, i)
	v.putLens, v.sums = slices.Clone(r.PutLens[lens.lo:lens.hi]), slices.Clone(r.Sums[sums.lo:sums.hi])
	if n.cfg.NoChecksums {
		v.sums = nil // sent though nobody asked
	}
	if err := checkSums(v.putLens, v.sums, v.layout.Size); err != nil {
		return nil, err
	}
	v.extend(before, granted)
	n.mu.views[id] = v
	return v, nil
}

// checkLayout refuses pages outside of the buffers that the peer's hello named.
func (c *conn) checkLayout(l domain.Layout) error {
	if l.Size > domain.MaxObjectSize {
		return &domain.LimitError{What: "object bytes", Value: l.Size, Limit: domain.MaxObjectSize}
	}
	if err := l.Check(); err != nil {
		return err
	}
	for _, p := range l.Pages {
		if int(p.Buffer) >= len(c.buffers) || uint64(p.Page) >= c.buffers[p.Buffer]/c.page {
			return fmt.Errorf("layout of %s: page %d of buffer %d: %w", c.peer.id, p.Page, p.Buffer, ports.ErrBounds)
		}
	}
	return nil
}

// checkSums refuses boundaries that do not tile the object, and sums that are not one per boundary.
func checkSums(lens []uint64, sums []uint32, size uint64) error {
	if len(lens) == 0 && len(sums) == 0 {
		return nil
	}
	if len(lens) > domain.MaxPutRanges {
		return &domain.LimitError{What: "put-ranges", Value: uint64(len(lens)), Limit: domain.MaxPutRanges}
	}
	if len(sums) != 0 && len(sums) != len(lens) {
		return fmt.Errorf("%d sums for %d put-ranges: %w", len(sums), len(lens), domain.ErrInvalid)
	}
	left := size
	for _, l := range lens {
		if l == 0 || l > left {
			return fmt.Errorf("put-range of %d bytes with %d left of %d: %w", l, left, size, domain.ErrInvalid)
		}
		left -= l
	}
	if left != 0 {
		return fmt.Errorf("put-ranges leave %d of %d bytes: %w", left, size, domain.ErrInvalid)
	}
	return nil
}

// row is a half-open interval of a column.
type row struct{ lo, hi uint32 }

// rows is row i of a column of ends.
func rows(end []uint32, i int) row {
	var lo uint32
	if i > 0 {
		lo = end[i-1]
	}
	return row{lo, end[i]}
}

// checkResolve refuses a reply whose columns do not fit the request, before a row of it is read.
func checkResolve(keys int, r *ports.ResolveReply) error {
	for _, n := range []int{len(r.Status), len(r.Versions), len(r.Generations), len(r.Sizes), len(r.LeaseNanos), len(r.PageEnd), len(r.LenEnd), len(r.SumEnd)} {
		if n != keys {
			return fmt.Errorf("resolve answered %d rows for %d keys: %w", n, keys, domain.ErrInvalid)
		}
	}
	return errJoin(checkEnds(r.PageEnd, len(r.Pages)), checkEnds(r.LenEnd, len(r.PutLens)), checkEnds(r.SumEnd, len(r.Sums)))
}

func errJoin(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkEnds refuses ends that go back or do not end with the column.
func checkEnds(end []uint32, n int) error {
	var last uint32
	for _, e := range end {
		if e < last {
			return fmt.Errorf("row ends at %d after %d: %w", e, last, domain.ErrInvalid)
		}
		last = e
	}
	if uint64(last) != uint64(n) {
		return fmt.Errorf("rows end at %d of a column of %d: %w", last, n, domain.ErrInvalid)
	}
	return nil
}

// renewer renews the leases of views that are in use, at half of what was granted, one request per peer. Calls and pulls only
// say that they use a view; so a call that is busy copying, or waits for the arena, loses no lease.
type renewer struct {
	n    *Node
	wake chan struct{} // capacity 1: "something is due earlier than you think"
	next domain.Instant
}

func newRenewer(n *Node) *renewer {
	return &renewer{n: n, wake: make(chan struct{}, 1), next: math.MaxInt64}
}

// kickFor is called with Node.mu held.
func (r *renewer) kickFor(at domain.Instant) {
	if at >= r.next {
		return
	}
	r.next = at
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *renewer) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-r.n.stop.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
		timer.Reset(r.renewDue())
	}
}

// renewDue sends what is due and says when to look again.
func (r *renewer) renewDue() time.Duration {
	n := r.n
	now := n.now()
	byConn := make(map[*conn][]*view)
	n.mu.Lock()
	r.next = math.MaxInt64
	for _, v := range n.mu.used {
		switch {
		case v.stale || v.renewing:
		case v.renewAt <= now:
			v.renewing = true
			byConn[v.conn] = append(byConn[v.conn], v)
		default:
			r.next = min(r.next, v.renewAt)
		}
	}
	wait := time.Hour
	if r.next != math.MaxInt64 {
		wait = r.next.Sub(now)
	}
	n.mu.Unlock()
	for c, views := range byConn {
		n.wg.Go(func() { r.renew(c, views) })
	}
	return wait
}

// renew asks one peer. A view whose renewal failed is stale: its bytes in flight still count until the old end.
func (r *renewer) renew(c *conn, views []*view) {
	n := r.n
	req := ports.ResolveRequest{}
	for _, v := range views {
		req.Keys = append(req.Keys, ports.Key{Space: uint32(v.space), Name: v.name})
		req.Versions = append(req.Versions, v.version)
		req.Held = append(req.Held, v.id.gen)
	}
	var reply ports.ResolveReply
	ctx, cancel := n.control()
	defer cancel()
	before := n.now()
	err := n.resolveAt(ctx, c, &req, &reply)
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, v := range views {
		v.renewing = false
		switch {
		case err == nil && reply.Status[i] == ports.KeyHere && believable(time.Duration(reply.LeaseNanos[i])):
			v.extend(before, time.Duration(reply.LeaseNanos[i]))
			v.stale = v.renewAt <= n.now() // an answer that took half of the lease
			n.counters.leasesRenewed.Add(1)
		default:
			v.stale = true
			n.counters.leasesStale.Add(1)
		}
		if v.users > 0 {
			r.kickFor(v.renewAt)
		}
	}
}

// resolveAt asks that start of a peer and checks the shape of its answer.
func (n *Node) resolveAt(ctx context.Context, c *conn, req *ports.ResolveRequest, reply *ports.ResolveReply) error {
	err := n.p.Resolver.Resolve(ctx, c.to, req, reply)
	if err == nil {
		return checkResolve(len(req.Keys), reply)
	}
	c.failed(err)
	return err
}
