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

// reset forgets the call and keeps the columns' room. It lets go of everything of the caller's.
func (c *getCall) reset() {
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

// addKey takes in one key: what can be checked without its size is checked here. A bad key fails alone. A target says how much
// room a whole read has; without one it has the rest of its region.
func (c *getCall) addKey(lo, hi uint32, room *ports.Target) {
	i, k := c.openKey()
	status := ports.Invalid
	err := c.layOut(k, c.names[i], c.ranges[lo:hi], lo, room)
	if err == nil {
		status, err = ports.NotRegistered, checkMemories(c.regions, c.memories, c.ranges[lo:hi])
	}
	if err != nil {
		c.spans = c.spans[:k.spanLo]
		c.fail(i, status, err)
		return
	}
	k.spanHi = uint32(len(c.spans))
}

// openKey begins with the next key; it has no spans yet.
func (c *getCall) openKey() (int, *getKey) {
	i := len(c.keys)
	c.keys = append(c.keys, getKey{spanLo: uint32(len(c.spans)), spanHi: uint32(len(c.spans))})
	c.out[i] = ports.Result{}
	c.open++
	return i, &c.keys[i]
}

// layOut checks a key's ranges and appends its spans.
func (c *getCall) layOut(k *getKey, name string, ranges []domain.Range, base uint32, room *ports.Target) error {
	if err := domain.CheckKey(name); err != nil {
		return err
	}
	if len(ranges) == 1 && ranges[0].Len == domain.Whole {
		return c.layOutWhole(k, ranges[0], base, room)
	}
	first := len(c.order)
	var err error
	if c.order, c.spans, err = domain.AppendSpans(ranges, c.order, c.spans); err != nil {
		return err
	}
	for j := first; j < len(c.order); j++ {
		c.order[j] += base
	}
	for j := range ranges {
		r := &ranges[j]
		if int(r.Region) < len(c.into) && r.RegionOff <= c.into[r.Region].Size && r.Len <= c.into[r.Region].Size-r.RegionOff {
			continue
		}
		if err := inRegion(c.regions, r.Region, r.RegionOff, r.Len); err != nil { // it has the last word, and the words
			return err
		}
	}
	return nil
}

// layOutWhole lays out [0, size) of a size that is not known yet: sizedLocked fills in the span's length.
func (c *getCall) layOutWhole(k *getKey, r domain.Range, base uint32, room *ports.Target) error {
	if r.Off != 0 {
		return &domain.LimitError{What: "offset of a whole read", Value: r.Off, Limit: 0}
	}
	switch {
	case room != nil:
		k.room = room.Len
	case int(r.Region) < len(c.regions) && c.regions[r.Region].Region != nil:
		if all := c.regions[r.Region].Region.Len(); all > r.RegionOff {
			k.room = all - r.RegionOff
		}
	}
	if err := inRegion(c.regions, r.Region, r.RegionOff, k.room); err != nil {
		return err
	}
	k.whole = true
	c.spans = append(c.spans, domain.Span{First: uint32(len(c.order)), Count: 1})
	c.order = append(c.order, base)
	return nil
}

// inRegion refuses memory outside of the call's region table.
func inRegion(regions []ports.Memory, region uint32, off, n uint64) error {
	if int(region) >= len(regions) {
		return &domain.LimitError{What: "region of the call's table", Value: uint64(region), Limit: uint64(len(regions))}
	}
	if regions[region].Region == nil {
		return fmt.Errorf("region %d of the call's table has no memory: %w", region, domain.ErrInvalid)
	}
	if all := regions[region].Region.Len(); off > all || n > all-off {
		return fmt.Errorf("region %d: %d bytes at %d of %d: %w", region, n, off, all, domain.ErrInvalid)
	}
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

// flatTable makes the pages by which the caller's regions and the arena are laid out.
func (c *getCall) flatTable() {
	for len(c.flat) < len(c.regions)+1 {
		c.flat = append(c.flat, domain.PageRef{Buffer: uint32(len(c.flat))})
	}
	for i := range c.regions {
		var n uint64
		if r := c.regions[i].Region; r != nil { // no range names one that is not there: inRegion refused it
			n = r.Len()
		}
		c.into = append(c.into, domain.Flat(c.flat[i:i+1], n))
	}
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

// end gives back what the call holds. When peers or links still owe it something, another goroutine waits for that.
func (c *getCall) end() {
	n := c.n
	c.stopAwaiting()
	c.releasePulls()
	if c.open > 0 {
		c.abandon()
	}
	c.abandoned = true
	c.letGo()
	n.observe(c.kind, c.began, &c.moved)
	c.ctx, c.out, c.names, c.ranges, c.regions = nil, nil, nil, nil, nil
	if c.outstanding == 0 {
		n.endGet(c)
		return
	}
	n.wg.Go(c.drain)
}

func (c *getCall) stopAwaiting() {
	if c.awaiting {
		c.awaiting = false
		if c.n.awaiting.Add(-1) == 0 {
			c.n.kickPull()
		}
	}
}

// releasePulls lets the pull begin with what the call's hits lack. Until the call ended it had nothing to gain: these bytes
// would have come in front of bytes that the caller waits for.
func (c *getCall) releasePulls() {
	if len(c.pulls) == 0 {
		return
	}
	c.n.mu.Lock()
	for _, j := range c.pulls {
		j.held = false
	}
	c.n.mu.Unlock()
	clear(c.pulls)
	c.pulls = c.pulls[:0]
	c.n.kickPull()
}

// abandon fails the keys that are not done, leaves their flights, and asks the links to let go of the arena's slices and of the
// caller's memory. Slot flights
// go on: they belong to the node.
func (c *getCall) abandon() {
	n := c.n
	cause := context.Cause(c.ctx)
	n.mu.Lock()
	dropped := ports.Busy
	if cause != nil {
		dropped = ports.Cancelled
	}
	c.dropRoundsLocked(dropped, errAtEnd(cause))
	for _, u := range c.landUnits { // they came with the last word, and nobody copies them out
		n.counters.duplicate.Add(c.units[u.unit].Len)
		c.unitGoneLocked(u.unit)
	}
	c.landUnits = c.landUnits[:0]
	for i := range c.keys {
		k := &c.keys[i]
		if k.stage == stageDone {
			continue
		}
		if k.fill != nil {
			k.fill.leaveFlightsLocked(c.q)
		}
		c.finishLocked(i, c.statusAtEnd(k, cause), errAtEnd(cause))
	}
	n.mu.Unlock()
	for _, b := range c.batches[:c.nbatches] {
		c.tags = c.tags[:0]
		for i := range b.Ops { // of which others may be sending one: no look at its deadline
			tag := b.Ops[i].Tag
			if o := &c.ops[tag&^tagKind]; !o.done && o.flight == nil {
				c.tags = append(c.tags, tag)
			}
		}
		if len(c.tags) > 0 {
			b.cancel(c.tags)
		}
	}
}

// statusAtEnd says what a key that is not done amounts to when its call ends.
func (c *getCall) statusAtEnd(k *getKey, cause error) ports.Status {
	switch {
	case cause != nil || c.n.stop.Err() != nil:
		return ports.Cancelled
	case k.failed != ports.StatusNone:
		return k.failed
	case k.stage == stageAsk:
		return ports.PeerUnavailable
	default:
		return ports.TransferFailed
	}
}

func errAtEnd(cause error) error {
	if cause != nil {
		return fmt.Errorf("%w: %w", ports.ErrCancelled, cause)
	}
	return fmt.Errorf("whole call: %w", ports.ErrTimeout)
}

// drain waits for what a call that ended early is still owed: every op completes by its deadline, every ask by its own.
func (c *getCall) drain() {
	for c.outstanding > 0 {
		c.takeOwed()
	}
	c.n.endGet(c)
}

// takeOwed waits for some of what an ended call is owed.
func (c *getCall) takeOwed() {
	c.taken, _ = c.q.Take(context.Background(), time.Second, c.taken[:0])
	c.handle()
}

// fail ends key i with a status; for use without the lock, before anything is held.
func (c *getCall) fail(i int, s ports.Status, err error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.finishLocked(i, s, err)
}

// finishLocked gives key i its result and lets go of its slot and its view.
func (c *getCall) finishLocked(i int, s ports.Status, err error) {
	n, k := c.n, &c.keys[i]
	k.stage = stageDone
	c.open--
	c.out[i] = ports.Result{Status: s, Size: k.size, Fetched: k.fetched, Joined: k.joined, Err: err}
	if s == ports.Hit {
		c.out[i].Source, c.out[i].Verified = k.source, k.verified
		n.counters.getSources[k.source].Add(1)
		c.rememberLocked(i, k)
	}
	n.counters.keys(c.kind, k.source, s, 1)
	c.dropSlotLocked(k)
	c.setViewLocked(k, nil)
}

// rememberLocked binds the session to the version whose bytes were handed out.
func (c *getCall) rememberLocked(i int, k *getKey) {
	if c.session == nil {
		return
	}
	e := k.bound
	if e == nil {
		e = c.session.keyOf(c.names[i])
	}
	e.version = k.version
	if k.view != nil && k.view.version == k.version { // it is of another one when the bytes were here by the time that a peer had answered
		e.view = k.view
	}
}

func (c *getCall) dropSlotLocked(k *getKey) {
	if k.slot != 0 {
		c.n.mu.table.Unpin(k.slot, c.at)
	}
	k.slot, k.fill, k.layout = 0, nil, domain.Layout{}
}

// setViewLocked changes the view that a key uses; the leases of views in use are renewed.
func (c *getCall) setViewLocked(k *getKey, v *view) {
	if k.view == v {
		return
	}
	if k.view != nil {
		c.n.dropLocked(k.view)
	}
	if v != nil {
		c.n.useLocked(v)
	}
	k.view = v
}

// rangeAt is the range at place o of the order, of key k.
func (c *getCall) rangeAt(k *getKey, o uint32) domain.Range {
	r := c.ranges[c.order[o]]
	if k.whole {
		r.Len = k.size
	}
	if len(c.strides) > 0 {
		r.RegionOff += k.row * c.strides[c.order[o]]
	}
	return r
}

func (c *getCall) tiles(k *getKey) bool {
	return domain.Tiles(c.spans[k.spanLo:k.spanHi], k.size)
}

// sizedLocked takes in a key's size, and fails the key when its ranges or its room do not fit.
func (c *getCall) sizedLocked(i int, size uint64) bool {
	k := &c.keys[i]
	k.size = size
	if k.whole {
		if size > k.room {
			c.finishLocked(i, ports.TooLarge, &domain.LimitError{What: "object bytes for the room given", Value: size, Limit: k.room})
			return false
		}
		c.spans[k.spanLo].Len = size
		return true
	}
	if err := domain.SpansInBounds(c.spans[k.spanLo:k.spanHi], size); err != nil {
		c.finishLocked(i, ports.Invalid, err)
		return false
	}
	return true
}
