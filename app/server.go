package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// server is a Node as its peers see it: the owner of its pages. The Peer argument of every method is the one that asks.
type server Node

var _ ports.PeerServer = (*server)(nil)

func (s *server) node() *Node { return (*Node)(s) }

// Hello takes in a start of a peer: its namespaces, and the offers of its transports. Another start than the last one voids what the
// last one holds here.
func (s *server) Hello(ctx context.Context, from ports.Peer, h *ports.Hello, out *ports.HelloReply) error {
	n := s.node()
	*out = ports.HelloReply{From: n.self, Protocol: min(h.Protocol, ports.ProtocolVersion), PageSize: n.page}
	if h.Protocol == 0 {
		return fmt.Errorf("hello of %s: protocol 0: %w", from.ID, domain.ErrInvalid)
	}
	if from != h.From || from.ID == "" || from.Incarnation == 0 {
		return fmt.Errorf("hello of %q names %q: %w", from.ID, h.From.ID, domain.ErrInvalid)
	}
	old, err := n.admit(from, h.Namespaces)
	if err != nil {
		return err
	}
	if old.Incarnation != 0 {
		for _, t := range n.p.Transports {
			t.Drop(old)
		}
	}
	n.peers.heard(from.ID)
	for _, r := range n.regions {
		out.Buffers = append(out.Buffers, r.Len())
	}
	for _, offer := range h.Offers {
		answer, err := n.answer(ctx, from, offer)
		if err != nil {
			out.Refused = append(out.Refused, ports.Refusal{Kind: offer.Kind, Reason: err.Error()})
			continue
		}
		out.Answers = append(out.Answers, ports.Offer{Kind: offer.Kind, Bytes: answer})
	}
	return nil
}

func (n *Node) answer(ctx context.Context, from ports.Peer, offer ports.Offer) ([]byte, error) {
	t := n.transport(offer.Kind)
	if t == nil {
		return nil, fmt.Errorf("transport %q is not configured here", offer.Kind)
	}
	if err := n.blind[offer.Kind]; err != nil {
		return nil, fmt.Errorf("it does not reach the pool here: %w", err)
	}
	return t.Answer(ctx, from, offer.Bytes)
}

func (n *Node) transport(kind ports.TransportKind) ports.Transport {
	for _, t := range n.p.Transports {
		if t.Kind() == kind {
			return t
		}
	}
	return nil
}

// admit remembers the asker's namespaces, and dooms the reservations of its start before, which it returns.
func (n *Node) admit(from ports.Peer, namespaces []string) (old ports.Peer, err error) {
	if err := checkNamespaces(namespaces); err != nil {
		return old, fmt.Errorf("hello of %s: %w", from.ID, err)
	}
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.mu.askers[from.ID]
	if known != nil && known.start == from.Incarnation {
		if len(namespaces) > len(known.names) { // a hello that was overtaken tells fewer
			known.tells(namespaces)
		}
		return old, nil
	}
	a := &asker{start: from.Incarnation}
	a.tells(namespaces)
	n.mu.askers[from.ID] = a
	if known == nil {
		return old, nil
	}
	a.made = known.made
	old = ports.Peer{ID: from.ID, Incarnation: known.start}
	for id, r := range n.mu.reserved {
		if r.writer == old {
			n.doomLocked(id, domain.DoomAbort, now)
		}
	}
	return old, nil
}

// askerLocked finds the start that asks. One that this start of ours does not know has to say hello first.
func (n *Node) askerLocked(from ports.Peer) (*asker, error) {
	a := n.mu.askers[from.ID]
	if a == nil || a.start != from.Incarnation {
		return nil, fmt.Errorf("%s, start %d, has said no hello: %w", from.ID, from.Incarnation, ports.ErrRestarted)
	}
	return a, nil
}

func checkRows(what string, rows int) error {
	if rows > domain.MaxCallKeys {
		return &domain.LimitError{What: what, Value: uint64(rows), Limit: domain.MaxCallKeys}
	}
	return nil
}

// Probe says which keys are here.
func (s *server) Probe(_ context.Context, from ports.Peer, keys []ports.Key, out *ports.ProbeReply) error {
	n := s.node()
	if err := checkRows("keys of a probe", len(keys)); err != nil {
		return err
	}
	out.Status, out.Versions = out.Status[:0], out.Versions[:0]
	n.mu.Lock()
	defer n.mu.Unlock()
	a, err := n.askerLocked(from)
	if err != nil {
		return err
	}
	for _, k := range keys {
		status, version := ports.KeyAbsent, domain.Version{}
		if space, ok := n.mu.spaces.of(a, k); !ok {
			status = ports.KeyRefused
		} else if id, _, _ := n.mu.table.Lookup(space, k.Name); id != 0 {
			status, version = ports.KeyHere, n.mu.table.Info(id).Version
		}
		out.Status = append(out.Status, status)
		out.Versions = append(out.Versions, version)
	}
	return nil
}

// Resolve grants leases: until they end, the pages that it names are not reused.
func (s *server) Resolve(_ context.Context, from ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	n := s.node()
	if err := errJoin(checkRows("keys of a resolve", len(req.Keys)), checkColumn("versions", len(req.Versions), len(req.Keys)),
		checkColumn("held", len(req.Held), len(req.Keys))); err != nil {
		return err
	}
	out.Reset()
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	a, err := n.askerLocked(from)
	if err != nil {
		return err
	}
	for i, k := range req.Keys {
		n.resolveLocked(a, k, req.Versions[i], req.Held[i], now, req.WantChecksums, out)
	}
	return nil
}

// resolveLocked answers one row.
func (n *Node) resolveLocked(a *asker, k ports.Key, want domain.Version, held domain.Generation, now domain.Instant, sums bool, out *ports.ResolveReply) {
	t := n.mu.table
	space, ok := n.mu.spaces.of(a, k)
	id, status := domain.SlotID(0), ports.KeyRefused
	if ok {
		id, status = n.leaseLocked(space, k.Name, want, held, now)
	}
	var info domain.SlotInfo
	var lease int64
	if status == ports.KeyHere {
		info = t.Info(id)
		lease = int64(n.cfg.PeerLease)
		t.Lease(id, now.Add(n.cfg.PeerLease))
		if held.IsZero() {
			t.Touch(id)
			lens, crcs := t.Sums(id)
			out.Pages = append(out.Pages, t.Layout(id).Pages...)
			out.PutLens = append(out.PutLens, lens...)
			if sums {
				out.Sums = append(out.Sums, crcs...)
			}
		}
	}
	out.Status = append(out.Status, status)
	out.Versions = append(out.Versions, info.Version)
	out.Generations = append(out.Generations, info.Generation)
	out.Sizes = append(out.Sizes, info.Size)
	out.LeaseNanos = append(out.LeaseNanos, lease)
	out.PageEnd = append(out.PageEnd, uint32(len(out.Pages)))
	out.LenEnd = append(out.LenEnd, uint32(len(out.PutLens)))
	out.SumEnd = append(out.SumEnd, uint32(len(out.Sums)))
}

// leaseLocked decides whether a lease is granted. A renewal is granted only while that generation is committed and its lease has not
// ended: a gap between leases is a time in which the pages were anyone's.
func (n *Node) leaseLocked(space domain.Space, name string, want domain.Version, held domain.Generation, now domain.Instant) (domain.SlotID, ports.KeyStatus) {
	id, _, _ := n.mu.table.Lookup(space, name)
	if !held.IsZero() {
		if id == 0 || n.mu.table.Info(id).Generation != held || n.mu.table.Info(id).LeaseUntil <= now {
			return 0, ports.KeyStale
		}
		return id, ports.KeyHere
	}
	if id == 0 || !want.IsZero() && n.mu.table.Info(id).Version != want {
		return 0, ports.KeyAbsent
	}
	return id, ports.KeyHere
}

// Complain verifies the copies that are named, and drops those that are bad.
func (s *server) Complain(ctx context.Context, from ports.Peer, held []domain.Generation) error {
	n := s.node()
	if err := checkRows("complaints", len(held)); err != nil {
		return err
	}
	n.mu.Lock()
	_, err := n.askerLocked(from)
	n.mu.Unlock()
	for i := 0; i < len(held) && err == nil; i++ {
		err = n.heed(ctx, held[i])
	}
	return err
}

// Reserve makes pending slots that the asker may write.
func (s *server) Reserve(ctx context.Context, from ports.Peer, req *ports.ReserveRequest, out *ports.ReserveReply) error {
	n := s.node()
	if err := errJoin(checkRows("keys of a reserve", len(req.Keys)), checkColumn("versions", len(req.Versions), len(req.Keys)),
		checkColumn("sizes", len(req.Sizes), len(req.Keys))); err != nil {
		return err
	}
	via := n.transport(req.Via)
	if via == nil || !via.Caps().Write {
		return fmt.Errorf("reserve over %q, which takes no writes here: %w", req.Via, domain.ErrInvalid)
	}
	out.Reset()
	for i := range req.Keys {
		if ctx.Err() != nil { // the asker has left, and its abort may have been here before the rest of the rows
			return context.Cause(ctx)
		}
		r, status, err := n.reserve(from, req, i, via)
		if err != nil {
			return err
		}
		var token ports.GrantToken
		var left int64
		if status == ports.Reserved || status == ports.ReservedYours {
			n.mu.Lock()
			token = r.token
			if r.slot != 0 && n.mu.reserved[r.slot] == r {
				out.Pages = append(out.Pages, n.mu.table.Layout(r.slot).Pages...)
				left = int64(n.mu.table.Info(r.slot).Deadline - n.now())
			} else {
				status = ports.ReserveRefused // it was doomed before it was told
			}
			n.mu.Unlock()
		}
		out.Status = append(out.Status, status)
		out.Tokens = append(out.Tokens, token)
		out.EndNanos = append(out.EndNanos, left)
		out.PageEnd = append(out.PageEnd, uint32(len(out.Pages)))
	}
	return nil
}

// reserve makes or finds the reservation of one row.
func (n *Node) reserve(from ports.Peer, req *ports.ReserveRequest, i int, via ports.Transport) (*reservation, ports.ReserveStatus, error) {
	now := n.now()
	n.mu.Lock()
	r, status, err := n.reserveLocked(from, req.Keys[i], req.Versions[i], req.Sizes[i], now)
	if err != nil || status != ports.Reserved {
		n.mu.Unlock()
		return r, status, err
	}
	r.via = via
	pages := n.mu.table.Layout(r.slot).Pages
	n.mu.Unlock()
	// Nobody reuses the pages meanwhile: a slot that is marked as granted keeps them whatever becomes of it.
	grant, token, err := via.Grant(from, n.page, pages)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		if n.mu.reserved[r.slot] == r {
			delete(n.mu.reserved, r.slot)
			n.mu.table.Doom(r.slot, domain.DoomFailed, now)
		}
		n.mu.table.SetGranted(r.slot, false, now)
		r.abandoned = true
		return r, ports.ReserveRefused, nil
	}
	r.grant, r.token, r.granted = grant, token, true
	return r, ports.Reserved, nil
}

func (n *Node) reserveLocked(from ports.Peer, k ports.Key, v domain.Version, size uint64, now domain.Instant) (*reservation, ports.ReserveStatus, error) {
	a, err := n.askerLocked(from)
	if err != nil {
		return nil, 0, err
	}
	t := n.mu.table
	space, ok := n.mu.spaces.of(a, k)
	if !ok || v.IsZero() || size == 0 || size > domain.MaxObjectSize {
		return nil, ports.ReserveRefused, nil
	}
	committed, _, pending := t.Lookup(space, k.Name)
	if n.expiredLocked(pending, now) {
		pending = 0
	}
	switch {
	case committed != 0 && t.Info(committed).Size != size:
		return nil, ports.ReserveConflict, nil
	case committed != 0:
		return nil, ports.ReserveExists, nil
	case pending != 0:
		r := n.mu.reserved[pending]
		if r != nil && r.granted && r.writer == from && r.version == v {
			return r, ports.ReservedYours, nil
		}
		return nil, ports.ReserveBusy, nil
	}
	if space == noSpace {
		if space, err = n.mu.spaces.makeFor(a, k); err != nil {
			n.counters.downgrade(ports.DowngradeNamespaces)
			return nil, ports.ReserveRefused, nil
		}
	}
	id, err := n.makeRoomLocked(domain.NewSlot{Space: space, Name: k.Name, Version: v, Size: size, State: domain.SlotPending, Origin: domain.PutHere,
		Deadline: now.Add(n.cfg.Reservation)}, now)
	if err != nil {
		return nil, ports.ReserveNoSpace, nil
	}
	t.SetGranted(id, true, now)
	r := &reservation{slot: id, writer: from, version: v}
	n.mu.reserved[id] = r
	return r, ports.Reserved, nil
}

// Commit publishes what was written. By asking for it the writer says that no write of it is outstanding; the grant ends first, so that
// nothing can land in a page that readers see.
func (s *server) Commit(ctx context.Context, from ports.Peer, req *ports.CommitRequest, out *[]ports.CommitStatus) error {
	n := s.node()
	if err := errJoin(checkRows("keys of a commit", len(req.Keys)), checkColumn("versions", len(req.Versions), len(req.Keys)),
		checkColumn("put-ranges", len(req.LenEnd), len(req.Keys)), checkColumn("sums", len(req.SumEnd), len(req.Keys)),
		checkEnds(req.LenEnd, len(req.PutLens)), checkEnds(req.SumEnd, len(req.Sums))); err != nil {
		return err
	}
	*out = (*out)[:0]
	for i := range req.Keys {
		status, err := n.commitOf(ctx, from, req, i)
		if err != nil {
			return err
		}
		*out = append(*out, status)
	}
	return nil
}

func (n *Node) commitOf(ctx context.Context, from ports.Peer, req *ports.CommitRequest, i int) (ports.CommitStatus, error) {
	lens, sums := rows(req.LenEnd, i), rows(req.SumEnd, i)
	n.mu.Lock()
	r, status, err := n.commitRowLocked(from, req.Keys[i], req.Versions[i])
	if r == nil || err != nil {
		n.mu.Unlock()
		return status, err
	}
	size := n.mu.table.Info(r.slot).Size
	if checkSums(req.PutLens[lens.lo:lens.hi], req.Sums[sums.lo:sums.hi], size) != nil {
		n.doomLocked(r.slot, domain.DoomAbort, n.now())
		n.mu.Unlock()
		return ports.CommitRefused, nil
	}
	r.committing = true
	n.mu.table.Pin(r.slot) // a clear may doom it meanwhile; its pages stay
	layout := n.mu.table.Layout(r.slot)
	n.mu.Unlock()

	n.counters.revokes.Add(1)
	err = r.via.Revoke(ctx, r.grant, true)
	var unlike error
	if err == nil {
		unlike = n.verifyPut(ctx, &layout, req.PutLens[lens.lo:lens.hi], req.Sums[sums.lo:sums.hi])
	}

	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.mu.table.Unpin(r.slot, now)
	r.committing = false
	switch {
	case n.mu.reserved[r.slot] != r:
		return ports.CommitRefused, nil // doomed meanwhile, and with the revoker
	case errors.Is(unlike, ports.ErrCorrupt):
		r.quiet = true
		n.doomLocked(r.slot, domain.DoomCorrupt, now)
		return ports.CommitRefused, nil
	case unlike != nil:
		return 0, unlike // the asker has left; it may ask again
	case err != nil:
		r.quiet = true
		n.doomLocked(r.slot, domain.DoomFailed, now)
		return ports.CommitRefused, nil
	}
	delete(n.mu.reserved, r.slot)
	n.mu.table.SetGranted(r.slot, false, now)
	n.mu.table.SetSums(r.slot, req.PutLens[lens.lo:lens.hi], req.Sums[sums.lo:sums.hi])
	if !n.commitLocked(r.slot, now) {
		return ports.CommitExists, nil
	}
	n.counters.putBytes.Add(size)
	return ports.CommitDone, nil
}

// commitRowLocked finds the reservation of a row, or the answer when there is none: the first one again when this version was committed.
func (n *Node) commitRowLocked(from ports.Peer, k ports.Key, v domain.Version) (*reservation, ports.CommitStatus, error) {
	a, err := n.askerLocked(from)
	if err != nil {
		return nil, 0, err
	}
	space, ok := n.mu.spaces.of(a, k)
	if !ok || v.IsZero() {
		return nil, ports.CommitRefused, nil
	}
	committed, _, pending := n.mu.table.Lookup(space, k.Name)
	if committed != 0 {
		if n.mu.table.Info(committed).Version == v {
			return nil, ports.CommitDone, nil
		}
		return nil, ports.CommitExists, nil
	}
	r := n.mu.reserved[pending]
	if pending == 0 || n.expiredLocked(pending, n.now()) || r == nil || !r.granted || r.committing || r.writer != from || r.version != v {
		return nil, ports.CommitRefused, nil
	}
	return r, 0, nil
}

// Abort ends reservations of the asker.
func (s *server) Abort(_ context.Context, from ports.Peer, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) error {
	n := s.node()
	if err := errJoin(checkRows("keys of an abort", len(keys)), checkColumn("versions", len(versions), len(keys))); err != nil {
		return err
	}
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	a, err := n.askerLocked(from)
	if err != nil {
		return err
	}
	for i, k := range keys {
		space, ok := n.mu.spaces.of(a, k)
		if !ok {
			continue
		}
		_, _, pending := n.mu.table.Lookup(space, k.Name)
		if r := n.mu.reserved[pending]; pending != 0 && r != nil && r.writer == from && r.version == versions[i] {
			r.quiet = quiet
			n.doomLocked(pending, domain.DoomAbort, now)
		}
	}
	return nil
}

// Remove dooms the copies here.
func (s *server) Remove(_ context.Context, from ports.Peer, keys []ports.Key, out *[]ports.KeyStatus) error {
	n := s.node()
	if err := checkRows("keys of a remove", len(keys)); err != nil {
		return err
	}
	*out = (*out)[:0]
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	a, err := n.askerLocked(from)
	if err != nil {
		return err
	}
	for _, k := range keys {
		status := ports.KeyRefused
		if space, ok := n.mu.spaces.of(a, k); ok {
			status = ports.KeyAbsent
			if n.removeLocked(space, k.Name, now) {
				status = ports.KeyHere
			}
		}
		*out = append(*out, status)
	}
	return nil
}

// removeLocked dooms a key's committed and filling slots, and reports whether it had a committed one.
func (n *Node) removeLocked(space domain.Space, name string, now domain.Instant) bool {
	committed, filling, _ := n.mu.table.Lookup(space, name)
	for _, id := range [2]domain.SlotID{committed, filling} {
		if id != 0 {
			n.doomLocked(id, domain.DoomRemoved, now)
		}
	}
	return committed != 0
}
