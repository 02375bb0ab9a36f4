package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// stage is where a key of a get stands.
type stage uint8

const (
	stageAsk    stage = iota // a peer is, or is to be, asked
	stageReady               // has a view and is to be planned
	stageFly                 // ops, flights or arena units are outstanding
	stageLanded              // its slot holds what was asked for, pinned: to be copied out
	stageDone
)

// maxTries bounds how often one key is planned in one call; each turn is caused by another call's failure or by an eviction.
const maxTries = 16

// getKey is one key of a get, from look-up to result.
type getKey struct {
	stage  stage
	whole  bool // one range of length Whole
	routed bool // its candidates are known
	switched,
	installed, // from the arena, or tried to
	late, // an op of this attempt came after its lease
	matched, // the last direct read, by a sum that was made on its way
	missing, // a peer that may hold it did not answer
	verified bool // every byte was checked against a sum
	source        ports.Source
	failed        ports.Status // what the last failed attempt amounts to, when nobody else is left
	final         ports.Status // decided, as soon as nothing is outstanding
	tries         uint8
	lates, resets uint8
	spanLo,
	spanHi uint32
	candLo,
	candHi uint32
	waits   uint32 // own ops, joined flights and units that are not back
	slot    domain.SlotID
	fill    *fill // nil: the slot is committed
	layout  domain.Layout
	view    *view
	bound   *sessionKey    // the session has handed out bytes of want
	avoid   *peer          // failed this key before its candidates were known
	want    domain.Version // zero: any
	gone    domain.Version // given up for another one
	version domain.Version // of the bytes
	size    uint64
	room    uint64 // of a whole get
	row     uint64 // of a pattern
	opErr   error  // of a transfer of this attempt
	failErr error  // what failed is of
	askErr  error  // of a control call
	fetched uint64
	joined  uint64
}

// op tags: what came back is in the upper byte, its index below.
const (
	tagOp     uint64 = iota << 56 // c.ops
	tagFlight                     // c.keys: a flight that this key joined
	tagAsk                        // c.asks
	tagRound                      // c.rounds: an arena slice was granted
	tagKind   uint64 = 0xff << 56
)

// getOp is an op of this call that has not completed, or has.
type getOp struct {
	key    uint32
	unit   uint32  // arena; noUnit otherwise
	flight *flight // slot; nil once landed
	direct bool    // into the caller's memory
	view   *view
	bytes  uint64
	done   bool

	foretold            // direct, arena
	matched  bool       // by it, as the transport has summed the bytes
	bad      domain.Run // direct: what did not match its sum
	unread   error      // direct: the caller's memory went away before it was verified
}

// landedUnit is a unit that has arrived in the arena and is to be copied out.
type landedUnit struct {
	unit     uint32
	verified bool // on its way
}

// getRound is the slice of the arena that the units of one round share.
type getRound struct {
	first, count uint32 // units
	left         uint32 // units that still use the slice
	request      uint64
	off, len     uint64
	state        roundState
	deadline     domain.Instant // of the wait
}

type roundState uint8

const (
	roundQueued roundState = iota // not asked for yet
	roundWaiting
	roundGranted
	roundReleased
)

// copyJob is the copies of one key, or of one unit of it, or the install of a unit.
type copyJob struct {
	key     uint32
	unit    uint32 // noUnit: from the key's slot
	install *flight
	bad     domain.Run // of a unit: it did not match its sum, and nothing is copied
	lo, hi  uint32     // copies
}

// getCall is the scratch of one get, reused call after call. One goroutine uses it at a time: the caller's, then, when the caller
// left early, the one that drains it. Its queue is where everything that the call waits for comes back. It is reset in one place
// (reset), and recycled only when nothing that could post to its queue, or touch its columns, is outstanding.
type getCall struct {
	n *Node
	q *ports.Completions

	// The caller's; borrowed until it returns.
	ctx       context.Context
	namespace string
	names     []string
	ranges    []domain.Range
	regions   []ports.Memory
	out       []ports.Result

	space       domain.Space
	session     *session
	sessionID   ports.SessionID
	first       bool // of its session; a call without one is
	mayInstall  bool
	kind        ports.BatchKind
	moved       [ports.NumSources]uint64 // bytes of hits
	began       domain.Instant
	deadline    domain.Instant
	at          domain.Instant // when the step under way began; read once a step, for reading the clock costs a system call
	awaiting    bool           // counted in Node.awaiting
	abandoned   bool
	open        int // keys that are not done
	outstanding int // ops and asks that will post
	direct      int // ops of those that touch the caller's memory

	keys      []getKey
	order     []uint32
	spans     []domain.Span
	own       []domain.Range // of whole gets, and of patterns in row 0
	strides   []uint64       // of patterns, as long as own; empty in other calls
	flat      []domain.PageRef
	into      []domain.Layout // the caller's regions
	memories  []*memory       // of those, where registered; nil entries where not; empty when none is
	asking    []uint32
	ready     []uint32
	landed    []uint32
	arenaKeys []uint32

	cands    []candidate
	holders  ports.Holders
	askNames []string
	asks     []*ask
	launched int
	nasks    int

	ops       []getOp
	batches   []*getBatch
	pumps     []*conn // off whose links bytes were taken
	submitted int
	nbatches  int
	units     []domain.Unit
	rounds    []getRound
	nextRound int
	landUnits []landedUnit

	pulls []*pullJob // that this call asked for; held back until it ends

	copies   []ports.CopyOp
	copyErrs []error
	jobs     []copyJob
	checks   []check
	runs     []domain.Run
	missing  []domain.Run
	taken    []ports.Completion
	tags     []uint64
}

// maxFreeCalls bounds the scratch that is kept; the number is arbitrary, above the ranks of a node.
const maxFreeCalls = 64

// beginGet counts a call in and gives it scratch.
func (n *Node) beginGet() (*getCall, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.enterLocked(); err != nil {
		return nil, err
	}
	if last := len(n.mu.free) - 1; last >= 0 {
		c := n.mu.free[last]
		n.mu.free = n.mu.free[:last]
		return c, nil
	}
	return &getCall{n: n, q: ports.NewCompletions()}, nil
}

// endGet counts a call out and keeps its scratch. Precondition: nothing is outstanding.
func (n *Node) endGet(c *getCall) {
	c.reset()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaveLocked()
	if len(n.mu.free) < maxFreeCalls {
		n.mu.free = append(n.mu.free, c)
	}
}

// reset forgets the call and keeps the columns' room. It lets go of everything of the caller's, and of the connections to peers: what is
// kept is kept for longer than they live.
func (c *getCall) reset() {
	for _, b := range c.batches[:c.nbatches] {
		b.reset()
	}
	for _, a := range c.asks[:c.nasks] {
		a.reset()
	}
	c.ctx, c.namespace, c.names, c.ranges, c.regions, c.out = nil, "", nil, nil, nil, nil
	c.space, c.session, c.sessionID, c.first, c.mayInstall, c.awaiting, c.abandoned = 0, nil, 0, false, false, false, false
	c.moved = [ports.NumSources]uint64{}
	c.open, c.outstanding, c.direct, c.launched, c.nasks, c.submitted, c.nbatches, c.nextRound = 0, 0, 0, 0, 0, 0, 0, 0
	clear(c.keys)
	clear(c.cands)
	clear(c.ops)
	clear(c.copies)
	clear(c.copyErrs)
	clear(c.jobs)
	clear(c.askNames)
	c.keys, c.order, c.spans, c.own, c.strides, c.into = c.keys[:0], c.order[:0], c.spans[:0], c.own[:0], c.strides[:0], c.into[:0]
	c.asking, c.ready, c.landed, c.arenaKeys = c.asking[:0], c.ready[:0], c.landed[:0], c.arenaKeys[:0]
	c.cands, c.askNames, c.ops, c.units, c.rounds = c.cands[:0], c.askNames[:0], c.ops[:0], c.units[:0], c.rounds[:0]
	c.landUnits, c.copies, c.copyErrs, c.jobs = c.landUnits[:0], c.copies[:0], c.copyErrs[:0], c.jobs[:0]
	c.taken, _ = c.q.Take(context.Background(), 0, c.taken[:0])
	clear(c.taken)
	c.taken = c.taken[:0]
}

// BatchGetRanges reads ranges of many keys.
func (n *Node) BatchGetRanges(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
	if err := checkGet(g, len(out)); err != nil {
		return n.malformed(ports.BatchGetRanges, out, err)
	}
	c, err := n.beginGet()
	if err != nil {
		return refuseAll(out, ports.Cancelled, err)
	}
	c.namespace, c.names, c.ranges, c.regions, c.out, c.mayInstall = g.Namespace, g.Keys, g.Ranges, g.Regions, out, true
	c.kind = ports.BatchGetRanges
	if err := c.begin(g.Session); err != nil {
		n.endGet(c)
		return n.malformed(ports.BatchGetRanges, out, err)
	}
	if len(g.Patterns) > 0 {
		c.addPatterns(g.Patterns)
	} else {
		for i := range g.Keys {
			r := rows(g.End, i)
			c.addKey(r.lo, r.hi, nil)
		}
	}
	c.run(ctx)
	return nil
}

// BatchGet reads whole objects: ranges of length Whole. Only it asks cache_remote_fetches.
func (n *Node) BatchGet(ctx context.Context, w *ports.WholeBatch, out []ports.Result) error {
	if err := checkWhole(w, len(out)); err != nil {
		return n.malformed(ports.BatchGetWhole, out, err)
	}
	c, err := n.beginGet()
	if err != nil {
		return refuseAll(out, ports.Cancelled, err)
	}
	c.namespace, c.names, c.regions, c.out, c.mayInstall = w.Namespace, w.Keys, w.Regions, out, !n.cfg.NoCacheRemoteFetches
	c.kind = ports.BatchGetWhole
	if err := c.begin(0); err != nil {
		n.endGet(c)
		return n.malformed(ports.BatchGetWhole, out, err)
	}
	for _, t := range w.Targets {
		c.own = append(c.own, domain.Range{Len: domain.Whole, Region: t.Region, RegionOff: t.Off})
	}
	c.ranges = c.own
	for i := range w.Targets {
		c.addKey(uint32(i), uint32(i)+1, &w.Targets[i])
	}
	c.run(ctx)
	return nil
}

// Get reads one whole object.
func (n *Node) Get(ctx context.Context, namespace, name string, b ports.HostRegion) ports.Result {
	var out [1]ports.Result
	_ = n.BatchGet(ctx, wholeOf(namespace, name, b), out[:]) // the result says it all
	return out[0]
}

func wholeOf(namespace, name string, b ports.HostRegion) *ports.WholeBatch {
	return &ports.WholeBatch{Namespace: namespace, Keys: []string{name}, Regions: []ports.Memory{{Region: b}},
		Targets: []ports.Target{{Len: b.Len()}}}
}

// begin finds what the call as a whole is about: its namespace and its session.
func (c *getCall) begin(id ports.SessionID) error {
	n := c.n
	c.flatTable()
	c.began = c.step()
	c.deadline = c.began.Add(n.cfg.CallTimeout)
	n.counters.getCalls.Add(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if c.space, err = n.mu.spaces.intern(c.namespace); err != nil {
		return err
	}
	if err := c.findSessionLocked(id); err != nil {
		return err
	}
	c.memories = n.borrowLocked(c.regions, c.memories)
	return nil
}

func (c *getCall) findSessionLocked(id ports.SessionID) error {
	if id == 0 {
		c.first = true
		return nil
	}
	n := c.n
	if c.session = n.mu.sessions[id]; c.session == nil {
		return fmt.Errorf("session %d: %w", id, ports.ErrNotFound)
	}
	if c.session.space != c.space {
		return fmt.Errorf("session %d is of another namespace: %w", id, domain.ErrInvalid)
	}
	c.sessionID, c.first = id, !c.session.called
	c.session.called = true
	return nil
}

// run serves the call: look up, ask, fetch, copy. It returns when every key has its result and nothing touches the caller's
// memory any more.
func (c *getCall) run(ctx context.Context) {
	n := c.n
	c.ctx = ctx
	c.lookUp()
	c.askAll()
	c.plan()
	c.copyOut() // what is here already, while peers answer and bytes fly
	if c.open > 0 {
		c.awaiting = true
		n.awaiting.Add(1)
	}
	for c.open > 0 && c.wait() {
		c.askAll()
		c.plan()
		c.copyOut()
	}
	c.end()
}

// wait takes what has come, and reports false when the call is to end now: its context or its time is over.
func (c *getCall) wait() bool {
	now := c.n.now()
	limit := c.deadline
	if r := c.waitingRound(); r != nil {
		limit = min(limit, r.deadline)
	}
	atMost := max(limit.Sub(now), time.Nanosecond)
	if len(c.asking)+len(c.ready)+len(c.landed)+len(c.landUnits) > 0 {
		atMost = 0 // a failed copy or an arena that came too late left work
	}
	var err error
	c.taken, err = c.q.Take(c.ctx, atMost, c.taken[:0])
	c.handle()
	now = c.n.now()
	if r := c.waitingRound(); r != nil && r.deadline <= now {
		c.giveUpArena()
	}
	return err == nil && now < c.deadline
}

// step reads the clock for the step that begins.
func (c *getCall) step() domain.Instant {
	c.at = c.n.now()
	return c.at
}

// handle lands what was taken, all of it under one lock, before anything is copied out.
func (c *getCall) handle() {
	n := c.n
	c.refill()
	c.verifyTaken()
	now := c.step()
	n.mu.Lock()
	for _, done := range c.taken {
		i := uint32(done.Tag &^ tagKind)
		switch done.Tag & tagKind {
		case tagOp:
			c.opDoneLocked(i, done, now)
		case tagFlight:
			c.flightDoneLocked(i)
		case tagAsk:
			c.outstanding--
			if !c.abandoned {
				c.answeredLocked(c.asks[i], now)
			}
		case tagRound:
			c.grantedLocked(i, done.Err)
		}
	}
	finish := len(n.mu.complete) > 0
	n.mu.Unlock()
	clear(c.taken)
	if finish {
		n.finishFills()
	}
}
