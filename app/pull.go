package app

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// puller completes objects in the background: the lowest missing piece of every queued key before the next piece of any, keys in
// the order in which they were asked for, one resolve and one batch per peer and pass. It claims a piece when it submits it, so a
// reader takes over whatever is only queued. Its queue, its jobs and their fields are guarded by Node.mu; its columns are its own.
type puller struct {
	n    *Node
	q    *ports.Completions
	jobs map[pullKey]*pullJob // queued and active

	queue  []*pullJob  // waiting, in order
	active []*pullJob  // at most domain.PullPassKeys
	kicked atomic.Bool // a kick is in the queue already

	outstanding int
	taken       []ports.Completion
	ops         []pullOp
	freeOps     []uint32
	batches     []*pullBatch // in flight or free
	asks        []*pullAsk
	inFlight    map[*conn]uint64
}

type pullKey struct {
	space domain.Space
	name  string
}

// pullJob is one object on its way. slot is not pinned between pieces, so an idle one can give way; gen tells whether it did.
type pullJob struct {
	key    pullKey
	view   *view
	fill   *fill
	gen    domain.Generation
	size   uint64
	flying int // pieces
	asking bool
	held   bool // the call that asked for it has not ended
	told   bool // view is an answer that nothing was fetched by yet
	again  bool // a piece came late, or its link was reset: once
	ended  bool
}

type pullOp struct {
	job    *pullJob
	flight *flight
	batch  *pullBatch
	bytes  uint64
	conn   *conn
}

// pullBatch is one batch; free when left is 0.
type pullBatch struct {
	linkBatch
	left int
	sent bool
}

// pullAsk renews or resolves the views of jobs at one peer.
type pullAsk struct {
	peer   *peer
	jobs   []*pullJob
	req    ports.ResolveRequest
	reply  ports.ResolveReply
	conn   *conn
	before domain.Instant
	err    error
	sent   bool
}

const tagKick uint64 = 0x7f << 56

func newPuller(n *Node) *puller {
	return &puller{n: n, q: ports.NewCompletions(), jobs: make(map[pullKey]*pullJob), inFlight: make(map[*conn]uint64)}
}

// pullLocked asks for what an object lacks. f is its filling slot, or nil when the pull is to make one. Precondition: the pull was
// admitted, so it is there. It returns the job that it made, or nil.
func (n *Node) pullLocked(v *view, f *fill) *pullJob {
	p := n.puller
	if p == nil || n.mu.closed {
		return nil
	}
	if f != nil && (v == nil || v.layout.Size != f.view.layout.Size) {
		v = f.view
	}
	key := pullKey{v.space, v.name}
	if p.jobs[key] != nil && !n.off.dedupQueued {
		n.counters.pullDeduped.Add(1)
		return nil
	}
	if len(p.queue) >= domain.PullQueueKeys {
		n.counters.pullQueued.Add(1)
		n.counters.pullDrops.Add(1)
		n.counters.installFailure(ports.InstallQueueFull)
		return nil
	}
	j := &pullJob{key: key, view: v, size: v.layout.Size}
	if f != nil {
		j.attach(n, f)
	}
	p.jobs[key] = j
	p.queue = append(p.queue, j)
	n.counters.pullQueued.Add(1)
	n.kickPull()
	return j
}

func (j *pullJob) attach(n *Node, f *fill) {
	j.fill, j.gen = f, n.mu.table.Info(f.slot).Generation
	f.pulled = true
}

// kickPull makes the pull look again. It may be called with mu held: it posts, and posting is a leaf.
func (n *Node) kickPull() {
	if p := n.puller; p != nil && p.kicked.CompareAndSwap(false, true) {
		p.q.Post(ports.Completion{Tag: tagKick})
	}
}

// foregroundLandedLocked takes a call's bytes off a link, and gives the pull its share of them.
func (n *Node) foregroundLandedLocked(c *conn, bytes uint64) {
	left := c.foreground.Add(^(bytes - 1))
	if c.credit.Earn(bytes) || left == 0 {
		n.kickPull()
	}
}

func (p *puller) waitingLocked() uint64 { return uint64(len(p.jobs)) }

// run ends with the node, when every piece has landed: links complete their ops when they close.
func (p *puller) run() {
	n := p.n
	for n.stop.Err() == nil || p.outstanding > 0 {
		ctx := n.stop
		if n.stop.Err() != nil {
			ctx = context.Background()
		}
		p.taken, _ = p.q.Take(ctx, time.Second, p.taken[:0])
		p.kicked.Store(false) // before the state is read: a kick from now on is not lost
		p.verifyTaken()
		now := n.now()
		n.mu.Lock()
		for _, done := range p.taken {
			p.handleLocked(done, now)
		}
		if n.stop.Err() == nil {
			p.passLocked(now)
		}
		n.mu.Unlock()
		clear(p.taken)
		p.send()
		n.finishFills()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, j := range p.jobs {
		p.endLocked(j, false)
	}
}

// verifyTaken verifies the pieces among what was taken, without Node.mu. The ops are the puller's own.
func (p *puller) verifyTaken() {
	for i := range p.taken {
		if done := &p.taken[i]; done.Tag&tagKind == tagOp && done.Err == nil {
			p.n.verifyFlight(p.ops[done.Tag&^tagKind].flight, done)
		}
	}
}

// passLocked fills the active set, ends what is complete, and plans pieces breadth first.
func (p *puller) passLocked(now domain.Instant) {
	for len(p.queue) > 0 && len(p.active) < domain.PullPassKeys {
		p.active = append(p.active, p.queue[0])
		p.queue[0] = nil
		p.queue = p.queue[1:]
	}
	for more := true; more; {
		more = false
		for i := 0; i < len(p.active); i++ {
			j := p.active[i]
			if !p.stepLocked(j, now) {
				p.active = slices.Delete(p.active, i, i+1)
				i--
				continue
			}
			more = p.pieceLocked(j, now) || more
		}
	}
}

// stepLocked sees to a job's slot and view. It reports false when the job has ended.
func (p *puller) stepLocked(j *pullJob, now domain.Instant) bool {
	n := p.n
	if j.ended {
		return false
	}
	if j.flying > 0 || j.asking {
		return true
	}
	committed, filling, _ := n.mu.table.Lookup(j.key.space, j.key.name)
	switch {
	case committed != 0 && !(n.off.dedupRun && j.fill == nil): // by a reader, or by a put
		if j.fill == nil {
			n.counters.pullDeduped.Add(1)
		}
		p.endLocked(j, true)
		return false
	case j.fill != nil && j.fill.corrupt:
		p.endLocked(j, false) // counted where the slot was given up
		return false
	case j.fill != nil && !j.fillsLocked(n.mu.table):
		p.failLocked(j, ports.InstallSlotRefused) // it gave way, or was cleared or removed; others may have committed it before
		return false
	case j.fill == nil && filling != 0:
		if j.view.isOf(n.mu.table.Info(filling)) {
			j.attach(n, n.mu.fills[filling])
		} else {
			p.failLocked(j, ports.InstallCommitRefused)
			return false
		}
	case j.fill == nil:
		f, err := n.newFillLocked(j.view, now)
		if err != nil {
			p.endLocked(j, false) // counted where it was refused
			return false
		}
		j.attach(n, f)
	}
	// An answer that took half of its lease is used while it lasts: the next one would take as long.
	if !j.view.fresh(now) && !(j.told && j.view.usable(now)) {
		if j.fill.view != j.view && j.fill.view.fresh(now) {
			j.view = j.fill.view // a reader has resolved since
			return true
		}
		p.askLocked(j)
	}
	return true
}

// fillsLocked reports whether the job's slot is still the filling slot that it was. One that was doomed after it was committed keeps
// its number for as long as anyone has it pinned, and has no extents.
func (j *pullJob) fillsLocked(t *domain.Table) bool {
	info := t.Info(j.fill.slot)
	return info.State == domain.SlotFilling && info.Generation == j.gen
}

// pieceLocked claims the next piece of a job, as far as its link's allowance goes.
func (p *puller) pieceLocked(j *pullJob, now domain.Instant) bool {
	n := p.n
	if j.held || j.asking || j.fill == nil || !j.fillsLocked(n.mu.table) || !j.view.usable(now) {
		return false
	}
	t, c := n.mu.table, j.view.conn
	run, ok := domain.NextPiece(j.size, t.Held(j.fill.slot), t.Claimed(j.fill.slot))
	foreground := c.foreground.Load()
	if !ok || run.Len > domain.PullAllowance(p.inFlight[c], foreground, n.awaiting.Load() > 0) {
		return false
	}
	if foreground > 0 && !c.credit.Spend(run.Len) {
		return false
	}
	j.told = false
	fl := n.newFlightLocked(j.fill, j.view, []domain.Run{run})
	b := p.batchTo(c)
	op := p.newOp(pullOp{job: j, flight: fl, batch: b, bytes: run.Len, conn: c})
	b.Ops = append(b.Ops, ports.Op{Tag: tagOp | uint64(op), First: uint32(len(b.Segments)), Purpose: ports.PurposePull, Dir: ports.Read,
		Deadline: now.Add(n.cfg.TransferTimeout)})
	b.addSegments(n.regions, t.Layout(j.fill.slot), run, j.view.layout, run)
	b.endOp(fl.foretell())
	b.left++
	j.flying++
	p.inFlight[c] += run.Len
	p.outstanding++
	return true
}

func (p *puller) newOp(o pullOp) uint32 {
	if last := len(p.freeOps) - 1; last >= 0 {
		i := p.freeOps[last]
		p.freeOps = p.freeOps[:last]
		p.ops[i] = o
		return i
	}
	p.ops = append(p.ops, o)
	return uint32(len(p.ops) - 1)
}

// batchTo is the batch of this pass to a link: one that nothing borrows any more, or one that this pass has begun.
func (p *puller) batchTo(c *conn) *pullBatch {
	var free *pullBatch
	for _, b := range p.batches {
		if b.conn == c && !b.sent {
			return b
		}
		if b.left == 0 && b.sent {
			free = b
		}
	}
	if free == nil {
		free = &pullBatch{}
		p.batches = append(p.batches, free)
	}
	free.conn, free.sent = c, false
	return free
}

// reset forgets what the batch was and keeps its columns' room. All of its ops have completed.
func (b *pullBatch) reset() {
	clear(b.Segments)
	b.conn, b.by, b.Ops, b.Segments = nil, nil, b.Ops[:0], b.Segments[:0]
}

// send submits this pass's batches and asks, without the lock.
func (p *puller) send() {
	for _, b := range p.batches {
		if b.sent || len(b.Ops) == 0 {
			continue
		}
		b.sent = true
		b.submit(b.conn.way(ports.Read, p.n.pool), p.q)
	}
	for i, a := range p.asks {
		if a != nil && !a.sent {
			a.sent = true
			p.outstanding++
			p.n.wg.Go(func() { p.ask(a, uint64(i)) })
		}
	}
}

// handleLocked takes in one completion.
func (p *puller) handleLocked(done ports.Completion, now domain.Instant) {
	i := done.Tag &^ tagKind
	switch done.Tag & tagKind {
	case tagOp:
		p.outstanding--
		p.landedLocked(uint32(i), done, now)
	case tagAsk:
		p.outstanding--
		p.answeredLocked(p.asks[i], now)
		p.asks[i] = nil
	}
}

// landedLocked takes in a piece. One that came late, or on a link that was reset, is fetched once more.
func (p *puller) landedLocked(i uint32, done ports.Completion, now domain.Instant) {
	o := p.ops[i]
	p.ops[i] = pullOp{}
	p.freeOps = append(p.freeOps, i)
	if o.batch.left--; o.batch.left == 0 {
		o.batch.reset()
	}
	if p.inFlight[o.conn] -= o.bytes; p.inFlight[o.conn] == 0 {
		delete(p.inFlight, o.conn)
	}
	j := o.job
	j.flying--
	done = p.n.judgeLocked(o.flight, done, now)
	late := p.n.landLocked(o.flight, done, domain.LocalByPull, now)
	switch {
	case j.ended || done.Err == nil && !late:
	case !j.again && (late || isReset(done.Err)):
		j.again = true
		p.n.counters.downgrade(downgradeOf(late))
		j.view.stale = j.view.stale || late
	case errors.Is(done.Err, ports.ErrCorrupt):
		p.endLocked(j, false) // counted where the slot was given up
	case late:
		p.failLocked(j, ports.InstallLease)
	default:
		p.failLocked(j, ports.InstallPeerFailed)
	}
}

func downgradeOf(late bool) ports.Downgrade {
	if late {
		return ports.DowngradeLate
	}
	return ports.DowngradeReset
}

// askLocked puts a job into this pass's request to its peer.
func (p *puller) askLocked(j *pullJob) {
	j.asking = true
	a := p.askOf(j.view.conn.peer)
	a.jobs = append(a.jobs, j)
	a.req.Keys = append(a.req.Keys, ports.Key{Space: uint32(j.key.space), Name: j.key.name})
	a.req.Versions = append(a.req.Versions, j.view.version)
	a.req.Held = append(a.req.Held, domain.Generation{})
}

func (p *puller) askOf(to *peer) *pullAsk {
	free := -1
	for i, a := range p.asks {
		if a == nil {
			free = i
		} else if a.peer == to && !a.sent {
			return a
		}
	}
	a := &pullAsk{peer: to}
	a.req.WantChecksums = !p.n.cfg.NoChecksums
	if free < 0 {
		p.asks = append(p.asks, a)
	} else {
		p.asks[free] = a
	}
	return a
}

// ask is the goroutine of one request.
func (p *puller) ask(a *pullAsk, index uint64) {
	n := p.n
	ctx, cancel := n.control()
	defer cancel()
	a.conn, a.err = n.ask(ctx, a.peer, func(ctx context.Context, c *conn) error {
		a.before = n.now()
		if err := n.p.Resolver.Resolve(ctx, c.to, &a.req, &a.reply); err != nil {
			return err
		}
		return checkResolve(len(a.jobs), &a.reply)
	})
	p.q.Post(ports.Completion{Tag: tagAsk | index})
}

// answeredLocked gives jobs their new views. The version has to be the slot's.
func (p *puller) answeredLocked(a *pullAsk, now domain.Instant) {
	n := p.n
	for i, j := range a.jobs {
		j.asking = false
		err := a.err
		if err == nil && a.reply.Status[i] != ports.KeyHere {
			err = ports.ErrNotFound
		}
		var v *view
		if err == nil {
			v, err = n.viewLocked(a.conn, j.key.space, j.key.name, &a.reply, i, a.before)
		}
		if err == nil && (v.version != j.view.version || v.layout.Size != j.size) {
			err = ports.ErrStale
		}
		if err == nil && !v.usable(now) {
			p.failLocked(j, ports.InstallLease)
			continue
		}
		if err != nil {
			p.failLocked(j, ports.InstallPeerFailed)
			continue
		}
		j.view, j.told = v, true
		if j.fill != nil && !j.fill.doomed {
			j.fill.view = v
		}
	}
}

// failLocked ends a job without its object; the next pass takes it out of the active set.
func (p *puller) failLocked(j *pullJob, why ports.InstallFailure) {
	if !j.ended {
		p.n.counters.installFailure(why)
		p.endLocked(j, false)
	}
}

func (p *puller) endLocked(j *pullJob, done bool) {
	if j.ended {
		return
	}
	j.ended = true
	if j.fill != nil {
		j.fill.pulled = false
	}
	delete(p.jobs, j.key)
	if done {
		p.n.counters.pullDone.Add(1)
	} else {
		p.n.counters.pullFailed.Add(1)
	}
}
