package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// remotePut is the part of a put that a peer has to answer for: reserve, write from registered memory or through the PUT arena,
// commit; abort what failed, only after our own transport is quiet.
type remotePut struct {
	*putCall
	conn   *conn
	way    *lane // which the owner granted on
	arena  *arena
	q      *ports.Completions
	turn   domain.LinkTurn // among puts to the peer
	rows   []int           // key of each row
	rounds []*putRound
	flying int // ops
	direct int // rounds of which some read the caller's memory
	taken  []ports.Completion

	scratch putScratch
}

// putPiece is a run of one object that goes through the arena at once.
type putPiece struct {
	key int
	run domain.Run
}

// putRound is the pieces that share one slice, or objects that are written from the caller's registered memory.
type putRound struct {
	linkBatch
	pieces []putPiece
	direct bool
	len    uint64
	off    uint64
	left   int

	room bool               // it counts as on the link; guarded by putOrder.mu
	told *ports.Completions // when there is room
}

// remote puts to a named peer.
func (c *putCall) remote(to ports.PeerID) {
	n := c.n
	p := &remotePut{putCall: c, arena: n.arenas[putArena], q: ports.NewCompletions(), turn: domain.LinkTurn{Session: n.puts.Add(1), Since: n.now()}}
	p.route()
	if n.p.Writer == nil {
		c.failRest(ports.PeerUnavailable, fmt.Errorf("put to %s: no writer: %w", to, ports.ErrPeer))
		return
	}
	if err := n.checkMember(c.ctx, to); err != nil {
		c.failRest(ports.PeerUnavailable, fmt.Errorf("put to %s: %w", to, err))
		return
	}
	for i := range c.keys {
		if c.pendingKey(i) {
			c.keys[i].version = n.drawVersion()
			p.rows = append(p.rows, i)
		}
	}
	p.attempt(n.peers.get(to), p.rows)
	if again := p.wasReset(); len(again) > 0 {
		n.counters.downgrade(ports.DowngradeReset)
		p.attempt(n.peers.get(to), again)
	}
	p.settle()
}

// route finds the keys whose ranges all lie in registered memory, and fails the others when there is no arena for them.
func (p *remotePut) route() {
	off := false
	for i := range p.keys {
		if !p.pendingKey(i) {
			continue
		}
		if p.keys[i].direct = p.registered(&p.keys[i], anywhere); p.keys[i].direct || capacityOf(p.arena) > 0 {
			continue
		}
		off = true
		p.finish(i, ports.NoSpace, fmt.Errorf("put: the memory is not registered, and the put arena is off: %w", ports.ErrNoSpace))
	}
	if off {
		p.n.counters.downgrade(ports.DowngradeArenaOff)
	}
}

// registered reports whether all of an object's ranges lie in registered memory that one of these transports reaches.
func (p *remotePut) registered(k *putKey, by reach) bool {
	if len(p.memories) == 0 {
		return false
	}
	for _, o := range p.order[k.lo:k.hi] {
		m := p.memories[p.ranges[o].Region]
		if m == nil {
			return false
		}
		by &= m.reach
	}
	return by != 0
}

// attempt reserves and writes some of the keys. The second time it names the same versions: what the owner answers, "yours" or a
// fresh reservation, says which pages are ours now, and everything is written to those.
func (p *remotePut) attempt(to *peer, keys []int) {
	if len(keys) == 0 {
		return
	}
	var reply ports.ReserveReply
	if err := p.reserveAll(to, keys, &reply); err != nil {
		s, err := p.failed(err)
		for _, i := range keys {
			p.keys[i].err = &putError{s, fmt.Errorf("reserve at %s: %w", to.id, err)}
		}
		return
	}
	for row, i := range keys {
		p.reserved(i, row, &reply)
	}
	p.rounds = nil
	p.packDirect(keys)
	p.pack(keys)
	p.write()
}

// wasReset takes back the failure of keys whose link was reset under their writes, which nothing is left of.
func (p *remotePut) wasReset() []int {
	if p.flying > 0 {
		return nil
	}
	var again []int
	for _, i := range p.rows {
		var known *putError
		if k := &p.keys[i]; !k.done && isReset(k.err) && !errors.As(k.err, &known) {
			k.err = nil
			again = append(again, i)
		}
	}
	return again
}

func (c *putCall) failRest(s ports.Status, err error) {
	for i := range c.keys {
		if c.pendingKey(i) {
			c.finish(i, s, err)
		}
	}
}

// control bounds a control call of the put: by its own time, by what is left of the call's, and by the caller's context.
func (p *remotePut) control() (context.Context, context.CancelFunc) {
	n := p.n
	ctx, cancel := context.WithTimeout(n.stop, min(n.cfg.ControlTimeout, p.deadline.Sub(n.now())))
	stop := context.AfterFunc(p.ctx, cancel)
	ctx = ports.WithTrace(ctx, ports.TraceOf(p.ctx))
	return ctx, func() { stop(); cancel() }
}

// over reports whether the caller has left or the call's time has passed: then a control call that failed says nothing of the peer.
func (p *remotePut) over() bool { return context.Cause(p.ctx) != nil || p.n.now() >= p.deadline }

// failed says what the failure of a control call amounts to.
func (p *remotePut) failed(err error) (ports.Status, error) {
	if cause := context.Cause(p.ctx); cause != nil {
		return ports.Cancelled, fmt.Errorf("%w: %w", ports.ErrCancelled, cause)
	}
	return ports.PeerUnavailable, err
}

// reserveAll asks for the keys in one call.
func (p *remotePut) reserveAll(to *peer, keys []int, reply *ports.ReserveReply) error {
	n := p.n
	var reserve ports.ReserveRequest
	reserve.Keys, reserve.Versions = p.columns(keys)
	for _, i := range keys {
		reserve.Sizes = append(reserve.Sizes, p.keys[i].size)
	}
	ctx, cancel := p.control()
	defer cancel()
	conn, err := n.askFor(ctx, to, toWrite, func(ctx context.Context, c *conn) error {
		if p.way = c.way(ports.Write, anywhere); p.way == nil {
			return fmt.Errorf("link for writes: %w", ports.ErrReset) // it died this moment
		}
		reserve.Via = p.way.kind
		if err := n.p.Writer.Reserve(ctx, c.to, &reserve, reply); err != nil {
			return err
		}
		return checkReserve(len(keys), reply)
	})
	if conn != nil {
		p.conn = conn
	}
	return err
}

func checkReserve(rows int, r *ports.ReserveReply) error {
	return errJoin(checkColumn("reserve", len(r.Status), rows), checkColumn("tokens", len(r.Tokens), rows), checkColumn("pages", len(r.PageEnd), rows),
		checkEnds(r.PageEnd, len(r.Pages)))
}

// reserved takes in one row of the answer.
func (p *remotePut) reserved(i, r int, reply *ports.ReserveReply) {
	k := &p.keys[i]
	switch reply.Status[r] {
	case ports.Reserved, ports.ReservedYours:
		pages := rows(reply.PageEnd, r)
		k.token = reply.Tokens[r]
		k.layout = domain.Layout{Pages: reply.Pages[pages.lo:pages.hi], PageSize: p.conn.page, Size: k.size}
		if err := p.conn.checkLayout(k.layout); err != nil {
			k.err = fmt.Errorf("reserve at %s: %w", p.conn.peer.id, err)
		}
	case ports.ReserveExists:
		p.finish(i, ports.Exists, nil)
	case ports.ReserveConflict:
		p.finish(i, ports.Conflict, fmt.Errorf("exists at %s with another size: %w", p.conn.peer.id, domain.ErrInvalid))
	case ports.ReserveBusy:
		p.finish(i, ports.Busy, fmt.Errorf("another writer has reserved the key at %s: %w", p.conn.peer.id, ports.ErrBusy))
	case ports.ReserveNoSpace:
		p.finish(i, ports.NoSpace, fmt.Errorf("%d bytes at %s: %w", k.size, p.conn.peer.id, ports.ErrNoSpace))
	default:
		p.finish(i, ports.Refused, fmt.Errorf("reserve at %s: %w", p.conn.peer.id, ports.ErrRefused))
	}
}

// putRoundBytes bounds a round, of which two are on a link at once. The arena is first come first served by rounds, so a round is
// what a call waits for behind each of the others: with halves of 256 MiB, 8 ranks that put 137 MiB each over 16 Gbit/s waited up
// to half of the bound on an idle machine, and past it on a busy one. 16 MiB is 8 ms there, and far more than it takes to keep a
// link busy.
const putRoundBytes = 16 << 20

// packDirect makes rounds of the objects that are written from where they are.
func (p *remotePut) packDirect(keys []int) {
	var r *putRound
	for _, i := range keys {
		k := &p.keys[i]
		if k.done || k.err != nil || !k.direct {
			continue
		}
		if k.direct = p.registered(k, p.way.at); !k.direct {
			p.n.counters.downgrade(ports.DowngradeUnreached)
			continue
		}
		k.route = ports.FromDirect
		for off := uint64(0); off < k.size; {
			if r == nil || r.len == putRoundBytes {
				r = &putRound{direct: true}
				p.rounds = append(p.rounds, r)
			}
			n := min(k.size-off, putRoundBytes-r.len)
			r.pieces = append(r.pieces, putPiece{key: i, run: domain.Run{Off: off, Len: n}})
			r.len += n
			off += n
		}
	}
}

// pack cuts the objects into pieces of at most half of the arena and the pieces into rounds, so that one round is written while the
// next is copied in. An object larger than the arena goes in rounds into its reservation.
func (p *remotePut) pack(keys []int) {
	capacity := capacityOf(p.arena)
	half := max(capacity/2/domain.ArenaAlign*domain.ArenaAlign, domain.ArenaAlign)
	half = min(half, capacity, putRoundBytes)
	var r *putRound
	for _, i := range keys {
		k := &p.keys[i]
		if k.done || k.err != nil || k.direct {
			continue
		}
		if capacityOf(p.arena) == 0 {
			p.n.counters.downgrade(ports.DowngradeArenaOff)
			k.err = &putError{ports.NoSpace, fmt.Errorf("the link to %s cannot read that memory, and the put arena is off: %w", p.conn.peer.id, ports.ErrNoSpace)}
			continue
		}
		k.route = ports.FromArena
		for off := uint64(0); off < k.size; {
			if r == nil || r.len >= half {
				r = &putRound{}
				p.rounds = append(p.rounds, r)
			}
			n := min(k.size-off, half-r.len)
			r.pieces = append(r.pieces, putPiece{key: i, run: domain.Run{Off: off, Len: n}})
			r.len += (n + domain.ArenaAlign - 1) / domain.ArenaAlign * domain.ArenaAlign
			off += n
		}
	}
}

// write sends the rounds as there is room for them, and returns when none of our ops is outstanding or the call's time is over.
func (p *remotePut) write() {
	for i, r := range p.rounds {
		if !p.begin(r, i) {
			p.conn.leave(r)
			return
		}
		p.send(r, i)
	}
	for p.flying > 0 {
		if !p.take() {
			return
		}
	}
}

// begin waits for room on the link, so that no op spends its time in a queue, and takes in what is written: from where it is, or into
// a slice.
func (p *remotePut) begin(r *putRound, i int) bool {
	r.told = p.q
	for granted := p.conn.ask(r, p.turn); !granted; granted = p.conn.hasRoom(r) {
		if !p.take() {
			return false
		}
	}
	if !r.direct {
		if !p.acquire(r, uint64(i)) {
			return false
		}
		p.copyIn(r)
		return true
	}
	for _, piece := range r.pieces {
		if k := &p.keys[piece.key]; k.err == nil {
			if err := p.sumDirect(piece); err != nil {
				k.err = &putError{ports.CopyFailed, fmt.Errorf("read the source: %w", err)}
			}
		}
	}
	return true
}

// acquire waits for a round's slice, landing what was written meanwhile.
func (p *remotePut) acquire(r *putRound, i uint64) bool {
	n := p.n
	id, off, granted := p.arena.request(r.len, p.q, tagRound|i)
	until := n.now().Add(n.cfg.ArenaWait)
	for !granted {
		if n.now() >= until {
			n.counters.downgrade(ports.DowngradeArenaTimeout)
			p.arena.withdraw(id)
			p.stopWith(ports.Busy, fmt.Errorf("no put arena slice of %d bytes within %v: %w", r.len, n.cfg.ArenaWait, ports.ErrBusy))
			return false
		}
		if !p.takeUntil(until) {
			p.arena.withdraw(id)
			return false
		}
		off, granted = p.arena.claim(id)
	}
	r.off = off
	return true
}

// copyIn assembles a round's pieces in its slice.
func (p *remotePut) copyIn(r *putRound) {
	n := p.n
	summed := n.sumsPuts(p.arena.regions[:])
	arena := domain.Flat(p.flat[:1], p.arena.capacity)
	at := r.off
	for _, piece := range r.pieces {
		k := &p.keys[piece.key]
		if k.err == nil {
			if piece.run.Off == 0 && summed { // again, after a reset
				k.summer = domain.NewSummer(p.putLens(k))
			}
			if err := p.copyPiece(piece, summed, arena, at); err != nil {
				k.err = &putError{copyStatus(p.ctx, err), fmt.Errorf("copy in: %w", err)}
			}
		}
		at += (piece.run.Len + domain.ArenaAlign - 1) / domain.ArenaAlign * domain.ArenaAlign
	}
}

// copyPiece copies one piece to its place in the arena, and sums it there.
func (p *remotePut) copyPiece(piece putPiece, summed bool, arena domain.Layout, at uint64) error {
	k := &p.keys[piece.key]
	if summed {
		return p.copyRun(&p.scratch, k, piece.run, p.arena.regions[:], arena, at)
	}
	copies := p.addCopies(nil, k, piece.run, p.arena.regions[:], arena, at)
	errs := make([]error, len(copies))
	p.n.p.Copier.Copy(p.ctx, copies, errs)
	return firstError(errs)
}

// putError carries the status that a key's failure amounts to.
type putError struct {
	status ports.Status
	err    error
}

func (e *putError) Error() string { return e.err.Error() }
func (e *putError) Unwrap() error { return e.err }

// send submits a round: one op a piece.
func (p *remotePut) send(r *putRound, index int) {
	arena := domain.Flat(p.flat[:1], capacityOf(p.arena))
	deadline := p.n.now().Add(p.n.cfg.TransferTimeout)
	r.conn = p.conn
	at := r.off
	for j, piece := range r.pieces {
		k := &p.keys[piece.key]
		if k.err == nil {
			r.Ops = append(r.Ops, ports.Op{Tag: tagOp | uint64(index)<<24 | uint64(j), First: uint32(len(r.Segments)), Purpose: ports.PurposePut,
				Dir: ports.Write, Grant: k.token, Deadline: deadline})
			if r.direct {
				p.addDirect(r, k, piece.run)
			} else {
				r.addSegments(p.arena.regions[:], arena, domain.Run{Off: at, Len: piece.run.Len}, k.layout, piece.run)
			}
			r.endOp(false)
		}
		at += (piece.run.Len + domain.ArenaAlign - 1) / domain.ArenaAlign * domain.ArenaAlign
	}
	r.left = len(r.Ops)
	if r.direct {
		p.direct++
	}
	if r.left == 0 {
		p.roundGone(r)
		return
	}
	p.flying += r.left
	r.submit(p.way, p.q)
}

// roundGone gives back what a round of which nothing is outstanding has borrowed.
func (p *remotePut) roundGone(r *putRound) {
	p.conn.leave(r)
	if r.direct {
		p.direct--
	} else {
		p.arena.release(r.off)
	}
}

// addDirect appends the pieces of a run of an object that are contiguous in the caller's memory and at the peer.
func (p *remotePut) addDirect(r *putRound, k *putKey, run domain.Run) {
	for _, o := range p.order[k.lo:k.hi] {
		from := p.ranges[o]
		lo, hi := max(from.Off, run.Off), min(from.Off+from.Len, run.End())
		if lo >= hi {
			continue
		}
		memory := p.regions[from.Region].Region
		flat := domain.Flat(p.flat[from.Region:from.Region+1], memory.Len())
		r.addFlat(&k.layout, domain.Run{Off: lo, Len: hi - lo}, memory, &flat, from.RegionOff+lo-from.Off)
	}
}

func (p *remotePut) take() bool { return p.takeUntil(p.deadline) }

// takeUntil lands what has come. It reports false when the call is to end now.
func (p *remotePut) takeUntil(until domain.Instant) bool {
	now := p.n.now()
	var err error
	p.taken, err = p.q.Take(p.ctx, max(min(until, p.deadline).Sub(now), time.Nanosecond), p.taken[:0])
	p.land()
	if err != nil {
		p.stopWith(ports.Cancelled, fmt.Errorf("%w: %w", ports.ErrCancelled, err))
		return false
	}
	if p.n.stop.Err() != nil {
		p.stopWith(ports.Cancelled, fmt.Errorf("put: %w", ports.ErrClosed))
		return false
	}
	if p.n.now() >= p.deadline {
		p.stopWith(ports.TransferFailed, fmt.Errorf("whole call: %w", ports.ErrTimeout))
		return false
	}
	return true
}

func (p *remotePut) land() {
	for _, done := range p.taken {
		if done.Tag&tagKind != tagOp {
			continue
		}
		r := p.rounds[done.Tag&^tagKind>>24]
		k := &p.keys[r.pieces[done.Tag&(1<<24-1)].key]
		if done.Err != nil && k.err == nil {
			k.err = fmt.Errorf("write to %s: %w", p.conn.peer.id, done.Err)
		}
		p.flying--
		r.left--
		if r.left == 0 {
			p.roundGone(r)
		}
	}
}

// stopWith fails every key that has not failed already.
func (p *remotePut) stopWith(s ports.Status, err error) {
	for _, i := range p.rows {
		if k := &p.keys[i]; !k.done && k.err == nil {
			k.err = &putError{s, err}
		}
	}
}

// settle commits what was written whole, and aborts the rest by a goroutine, which waits until our transport is quiet. The caller
// waits for that only when it is quiet now, and not past its time (its memory is not touched by then: the arena's is).
func (p *remotePut) settle() {
	var abort []int
	var commit []int
	for _, i := range p.rows {
		switch k := &p.keys[i]; {
		case k.done:
		case k.err != nil:
			abort = append(abort, i)
		default:
			commit = append(commit, i)
		}
	}
	for _, i := range abort {
		p.finish(i, putStatus(p.keys[i].err), p.keys[i].err)
	}
	if p.commit(commit) { // what the owner has not committed by now it is not to wait for
		abort = append(abort, commit...)
	}
	if len(abort) == 0 || p.conn == nil {
		return
	}
	keys, versions := p.columns(abort)
	if p.flying > 0 {
		p.cancelFlying()
	}
	for p.direct > 0 { // the caller's memory is its own again when we return
		p.takeOwed()
	}
	late := &remotePut{putCall: &putCall{n: p.n, ctx: context.Background(), keys: p.keys, deadline: p.n.now().Add(2 * p.n.cfg.TransferTimeout)},
		conn: p.conn, arena: p.arena, q: p.q, rounds: p.rounds, flying: p.flying}
	p.n.mu.Lock()
	p.n.mu.calls++ // counted until it has ended, as an abandoned get is
	p.n.mu.Unlock()
	told := make(chan struct{})
	p.n.wg.Go(func() {
		defer p.n.leave()
		defer close(told)
		late.drain()
		late.abort(keys, versions)
	})
	if p.flying == 0 {
		p.await(told)
	}
}

// await waits for what a goroutine does in the call's place, for as long as the call may take.
func (p *remotePut) await(done <-chan struct{}) {
	left := time.NewTimer(p.deadline.Sub(p.n.now()))
	defer left.Stop()
	select {
	case <-done:
	case <-left.C:
	case <-p.ctx.Done():
	}
}

// drain waits until none of our writes is outstanding; every op completes by its deadline.
func (p *remotePut) drain() {
	for p.flying > 0 {
		p.takeOwed()
	}
}

func (p *remotePut) takeOwed() {
	p.taken, _ = p.q.Take(context.Background(), time.Second, p.taken[:0])
	p.land()
}

func (p *remotePut) cancelFlying() {
	var tags []uint64
	for _, r := range p.rounds {
		if r.left == 0 {
			continue
		}
		tags = tags[:0]
		for _, op := range r.Ops {
			tags = append(tags, op.Tag)
		}
		r.cancel(p.q, tags)
	}
}

func (p *remotePut) columns(keys []int) ([]ports.Key, []domain.Version) {
	var k []ports.Key
	var v []domain.Version
	for _, i := range keys {
		k = append(k, ports.Key{Space: uint32(p.space), Name: p.names[i]})
		v = append(v, p.keys[i].version)
	}
	return k, v
}

// abort tells the owner that our transport is quiet. One that is not told ends the reservation by its deadline.
func (p *remotePut) abort(keys []ports.Key, versions []domain.Version) {
	if p.conn == nil || !p.conn.alive() {
		return
	}
	ctx, cancel := p.n.control()
	defer cancel()
	if err := p.n.p.Writer.Abort(ctx, p.conn.to, keys, versions, true); err != nil {
		p.conn.failed(err)
	}
}

// commit publishes keys whose bytes are all written. A reply that was lost is asked for once more: commit is idempotent. It reports
// whether the call was over before the answer came.
func (p *remotePut) commit(keys []int) (left bool) {
	if len(keys) == 0 {
		return false
	}
	n := p.n
	var req ports.CommitRequest
	req.Keys, req.Versions = p.columns(keys)
	for _, i := range keys {
		req.PutLens = append(req.PutLens, p.putLens(&p.keys[i])...)
		req.LenEnd = append(req.LenEnd, uint32(len(req.PutLens)))
		req.Sums = append(req.Sums, p.keys[i].summer.Sums()...)
		req.SumEnd = append(req.SumEnd, uint32(len(req.Sums)))
	}
	var status []ports.CommitStatus
	var err error
	for range 2 {
		ctx, cancel := p.control()
		err = n.p.Writer.Commit(ctx, p.conn.to, &req, &status)
		cancel()
		if err == nil {
			err = checkColumn("commit", len(status), len(keys))
		}
		if err == nil || errors.Is(err, ports.ErrRestarted) || p.over() {
			break
		}
	}
	if err != nil {
		if left = p.over(); !left {
			p.conn.failed(err)
		}
		_, err = p.failed(err) // whatever ended the wait, what was not answered may have been done: no word of the caller's undoes that
	}
	for r, i := range keys {
		switch {
		case err != nil:
			p.finish(i, ports.PeerUnavailable, fmt.Errorf("commit at %s: %w", p.conn.peer.id, err))
		case status[r] == ports.CommitDone:
			p.finish(i, ports.Stored, nil)
		case status[r] == ports.CommitExists:
			p.finish(i, ports.Exists, nil)
		default:
			p.finish(i, ports.TransferFailed, fmt.Errorf("commit at %s: %w: the reservation has ended", p.conn.peer.id, ports.ErrRevoked))
		}
	}
	return left
}

// putStatus is what a failed write amounts to.
func putStatus(err error) ports.Status {
	var known *putError
	switch {
	case errors.As(err, &known):
		return known.status
	case isReset(err), errors.Is(err, ports.ErrTimeout), errors.Is(err, ports.ErrPeer):
		return ports.PeerUnavailable
	default:
		return ports.TransferFailed
	}
}
