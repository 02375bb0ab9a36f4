package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// lookUp finds what is here, in one hold of the lock: committed slots are pinned for copying, filling slots whose view is fresh
// are ready to be planned, the rest is to be asked for.
func (c *getCall) lookUp() {
	n := c.n
	now := c.step()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range c.keys {
		if c.keys[i].stage != stageDone {
			c.lookUpLocked(i, now)
		}
	}
}

// lookUpLocked finds what is here of one key.
func (c *getCall) lookUpLocked(i int, now domain.Instant) {
	n, k := c.n, &c.keys[i]
	if !c.bindLocked(i, k) {
		return
	}
	committed, filling, _ := n.mu.table.Lookup(c.space, c.names[i])
	switch {
	case committed != 0 && c.takeCommittedLocked(i, committed):
	case k.stage == stageDone: // here, and its ranges do not fit
	case filling != 0 && c.takeFillingLocked(i, filling, now):
	case k.stage == stageDone:
	case k.view != nil && k.view.fresh(now) && c.sizedLocked(i, k.view.layout.Size):
		c.readyLocked(i)
	case k.stage == stageDone:
	default:
		k.stage = stageAsk
		c.asking = append(c.asking, uint32(i))
	}
}

// outrunLocked reports whether another read of the session has handed out bytes of another version while this key was read; the
// key is then read again, in that version. After that it is bound, so this happens once.
func (c *getCall) outrunLocked(i int) bool {
	k := &c.keys[i]
	if c.session == nil || k.bound != nil {
		return false
	}
	if e := c.session.keys[c.names[i]]; e == nil || e.version == k.version {
		return false
	}
	c.dropSlotLocked(k)
	c.forgetAnswersLocked(k)
	c.lookUpLocked(i, c.n.now())
	return true
}

// bindLocked takes in what the session knows of a key. It reports false when the session is full.
func (c *getCall) bindLocked(i int, k *getKey) bool {
	if c.session == nil {
		return true
	}
	if e := c.session.keys[c.names[i]]; e != nil {
		k.want, k.bound = e.version, e
		c.setViewLocked(k, e.view)
		return true
	}
	if limit := c.n.sessionKeys; len(c.session.keys) >= limit {
		c.finishLocked(i, ports.Refused, &domain.LimitError{What: "keys of a session", Value: uint64(len(c.session.keys)) + 1, Limit: uint64(limit)})
		return false
	}
	return true
}

// takeCommittedLocked pins a committed slot for copying, if it has the version that the key wants.
func (c *getCall) takeCommittedLocked(i int, id domain.SlotID) bool {
	n, k := c.n, &c.keys[i]
	info := n.mu.table.Info(id)
	if !k.want.IsZero() && k.want != info.Version {
		return false
	}
	if !c.sizedLocked(i, info.Size) {
		return false
	}
	n.mu.table.Touch(id)
	c.pinLocked(k, id, nil, info.Version)
	k.source = ports.FromLocal
	c.landedLocked(i)
	return true
}

// takeFillingLocked joins a filling slot when the mode lets the key use one: its bytes are copied when they are all there, the
// rest is planned when the view is fresh. It reports false when a peer has to be asked first.
func (c *getCall) takeFillingLocked(i int, id domain.SlotID, now domain.Instant) bool {
	n, k := c.n, &c.keys[i]
	f, info := n.mu.fills[id], n.mu.table.Info(id)
	if f == nil || !k.want.IsZero() && k.want != info.Version {
		return false
	}
	if !c.sizedLocked(i, info.Size) {
		return false
	}
	if use, _ := domain.WantsSlot(c.wish(k)); !use {
		return false
	}
	n.mu.table.Touch(id)
	if c.coveredLocked(k, id) {
		c.pinLocked(k, id, f, info.Version)
		k.source = ports.FromSlot
		c.landedLocked(i)
		return true
	}
	k.want = info.Version
	if k.view == nil || !k.view.isOf(info) {
		c.setViewLocked(k, f.view)
	}
	if !k.view.fresh(now) {
		return false
	}
	c.readyLocked(i)
	return true
}

func (c *getCall) wish(k *getKey) domain.SlotWish {
	return domain.SlotWish{Mode: c.n.cfg.Locality, HasMedium: c.n.p.Medium != nil, Tiles: c.tiles(k), MayInstall: c.mayInstall}
}

// coveredLocked reports whether a slot that is, or was, filling has the key's spans.
func (c *getCall) coveredLocked(k *getKey, id domain.SlotID) bool {
	held := c.n.mu.table.Held(id)
	if held == nil { // committed, and perhaps doomed since: its pages are whole for as long as it is pinned
		return true
	}
	for _, s := range c.spans[k.spanLo:k.spanHi] {
		if !held.Covers(s.Run) {
			return false
		}
	}
	return true
}

// pinLocked keeps a slot's pages until the key is done.
func (c *getCall) pinLocked(k *getKey, id domain.SlotID, f *fill, v domain.Version) {
	t := c.n.mu.table
	t.Pin(id)
	k.slot, k.fill, k.layout, k.version = id, f, t.Layout(id), v
}

func (c *getCall) readyLocked(i int) {
	c.keys[i].stage = stageReady
	c.ready = append(c.ready, uint32(i))
}

func (c *getCall) landedLocked(i int) {
	c.keys[i].stage = stageLanded
	c.landed = append(c.landed, uint32(i))
}

// candidate is a peer that may hold a key.
type candidate struct {
	peer    *peer
	state   candState
	version domain.Version // zero: not known
}

type candState uint8

const (
	candUnknown candState = iota
	candProbing
	candHere // it said so, or the key's view is of it
	candAsked
	candAbsent
	candFailed
	candOut // the breaker is open: it was not asked
)

// ask is one control call to one peer for many keys of a get; a goroutine runs it and posts.
type ask struct {
	c     *getCall
	index int
	peer  *peer
	probe bool
	trace ports.Trace // that the call belongs to
	rows  []askRow

	req        ports.ResolveRequest
	reply      ports.ResolveReply
	probeReply ports.ProbeReply
	conn       *conn
	before     domain.Instant
	err        error
}

type askRow struct {
	key, cand uint32
	renews    *view
}

// askAll asks peers for every key that has to be: it routes those that are new, chooses for each the next holder, and sends one
// request per peer. It takes no arena and holds no lock while the directory answers.
func (c *getCall) askAll() {
	if len(c.asking) == 0 {
		return
	}
	c.routeNew()
	n := c.n
	cause := context.Cause(c.ctx)
	n.mu.Lock()
	for _, i := range c.asking {
		switch {
		case c.keys[i].stage != stageAsk: // answered by another peer since, or done
		case cause != nil: // a directory that was not waited for says nothing of the key
			c.finishLocked(int(i), ports.Cancelled, errAtEnd(cause))
		default:
			c.nextHolderLocked(int(i))
		}
	}
	c.asking = c.asking[:0]
	n.mu.Unlock()
	c.launch()
}

// launch starts the asks that were built.
func (c *getCall) launch() {
	for ; c.launched < c.nasks; c.launched++ {
		c.outstanding++
		a := c.asks[c.launched]
		a.trace = ports.TraceOf(c.ctx)
		c.n.wg.Go(a.run)
	}
}

// routeNew finds the candidates of keys that have none yet.
func (c *getCall) routeNew() {
	n := c.n
	c.askNames = c.askNames[:0]
	for _, i := range c.asking {
		if k := &c.keys[i]; !k.routed {
			c.askNames = append(c.askNames, c.names[i])
		}
	}
	if len(c.askNames) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.deadline.Sub(n.now()))
	err := n.holders(ctx, c.namespace, c.askNames, &c.holders)
	cancel()
	j := 0
	for _, i := range c.asking {
		k := &c.keys[i]
		if k.routed {
			continue
		}
		k.routed = true
		k.candLo = uint32(len(c.cands))
		if k.view != nil {
			own := candidate{peer: k.view.conn.peer, state: candHere, version: k.view.version}
			if k.avoid == own.peer {
				own.state = candFailed
			}
			c.cands = append(c.cands, own)
		}
		if k.missing = err != nil || !c.holders.Complete; k.missing {
			k.askErr = fmt.Errorf("directory does not know all holders: %w", orErr(err, ports.ErrPeer))
		}
		if err == nil {
			c.addHolders(k, rows(c.holders.End, j))
		}
		k.candHi = uint32(len(c.cands))
		j++
	}
}

func orErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

func (c *getCall) addHolders(k *getKey, r row) {
	n := c.n
	for h := r.lo; h < r.hi; h++ {
		id := c.holders.Peers[h]
		if id == n.self.ID || k.view != nil && k.view.conn.peer.id == id {
			continue // our own copies were looked up already; a directory may be behind
		}
		c.cands = append(c.cands, candidate{peer: n.peers.get(id), version: c.holders.Versions[h]})
	}
}

// holders asks the directory, for as long as the caller waits and a control call may take, and checks that its answer is one.
func (n *Node) holders(caller context.Context, namespace string, names []string, out *ports.Holders) error {
	out.Reset()
	if n.p.Directory == nil || n.p.Resolver == nil {
		for range names {
			out.End = append(out.End, 0)
		}
		out.Complete = true
		return nil
	}
	ctx, cancel := n.control()
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	if err := n.p.Directory.Holders(ctx, namespace, names, out); err != nil {
		return err
	}
	return errJoin(checkColumn("holders", len(out.End), len(names)), checkEnds(out.End, len(out.Peers)), checkColumn("versions", len(out.Versions), len(out.Peers)))
}

// nextHolderLocked asks the next peer that may hold a key: one that said it does, else the only one left, else all that are left
// at once (a probe). When none is left the key's fate is decided.
func (c *getCall) nextHolderLocked(i int) {
	k := &c.keys[i]
	k.stage = stageAsk
	unknown, probing := 0, false
	last, here := k.candHi, k.candHi
	for j := k.candLo; j < k.candHi; j++ {
		switch cand := &c.cands[j]; cand.state {
		case candAsked:
			return // its answer decides
		case candHere:
			if here == k.candHi && (k.want.IsZero() || cand.version.IsZero() || cand.version == k.want) {
				here = j
			}
		case candProbing:
			probing = true
		case candUnknown:
			unknown++
			last = j
		}
	}
	switch {
	case here < k.candHi:
		c.addRowLocked(i, here, candAsked)
	case unknown == 1 && !probing:
		c.addRowLocked(i, last, candAsked)
	case unknown > 0:
		for j := k.candLo; j < k.candHi; j++ {
			if c.cands[j].state == candUnknown {
				c.addRowLocked(i, j, candProbing)
			}
		}
	case !probing:
		c.exhaustedLocked(i)
	}
}

// addRowLocked puts key i into the request to candidate j.
func (c *getCall) addRowLocked(i int, j uint32, state candState) {
	k, cand := &c.keys[i], &c.cands[j]
	cand.state = state
	a := c.askOf(cand.peer, state == candProbing)
	r := askRow{key: uint32(i), cand: j}
	var held domain.Generation
	if v := k.view; !a.probe && v != nil && v.conn.peer == cand.peer && !v.stale && (k.want.IsZero() || v.version == k.want) {
		r.renews, held = v, v.id.gen
	}
	a.rows = append(a.rows, r)
	a.req.Keys = append(a.req.Keys, ports.Key{Space: uint32(c.space), Name: c.names[i]})
	a.req.Versions = append(a.req.Versions, k.want)
	a.req.Held = append(a.req.Held, held)
}

// askOf is the request to a peer that has not been sent yet.
func (c *getCall) askOf(p *peer, probe bool) *ask {
	for _, a := range c.asks[c.launched:c.nasks] {
		if a.peer == p && a.probe == probe {
			return a
		}
	}
	if c.nasks == len(c.asks) {
		c.asks = append(c.asks, &ask{c: c, index: c.nasks})
	}
	a := c.asks[c.nasks]
	c.nasks++
	a.peer, a.probe = p, probe
	a.req.WantChecksums = !c.n.cfg.NoChecksums
	return a
}

// reset forgets the request and keeps its columns' room.
func (a *ask) reset() {
	a.peer, a.conn, a.err, a.trace = nil, nil, nil, ports.Trace{}
	clear(a.rows)
	clear(a.req.Keys)
	a.rows = a.rows[:0]
	a.req.Keys, a.req.Versions, a.req.Held = a.req.Keys[:0], a.req.Versions[:0], a.req.Held[:0]
}

// run is the ask's goroutine. Its bound is its own, not the caller's: a caller that leaves lets it end by itself.
func (a *ask) run() {
	n := a.c.n
	ctx, cancel := n.control()
	defer cancel()
	ctx = ports.WithTrace(ctx, a.trace)
	a.conn, a.err = n.ask(ctx, a.peer, func(ctx context.Context, c *conn) error {
		if a.probe {
			if err := n.p.Resolver.Probe(ctx, c.to, a.req.Keys, &a.probeReply); err != nil {
				return err
			}
			return errJoin(checkColumn("probe", len(a.probeReply.Status), len(a.rows)), checkColumn("probe versions", len(a.probeReply.Versions), len(a.rows)))
		}
		a.before = n.now()
		for i, r := range a.rows {
			if r.renews != nil && r.renews.conn != c {
				a.req.Held[i] = domain.Generation{} // of another link: its bytes could not come any more
			}
		}
		if err := n.p.Resolver.Resolve(ctx, c.to, &a.req, &a.reply); err != nil {
			return err
		}
		return checkResolve(len(a.rows), &a.reply)
	})
	a.c.q.Post(ports.Completion{Tag: tagAsk | uint64(a.index)})
}

// answeredLocked takes in a peer's answer, row by row.
func (c *getCall) answeredLocked(a *ask, now domain.Instant) {
	for i, r := range a.rows {
		k, cand := &c.keys[r.key], &c.cands[r.cand]
		if a.err != nil {
			cand.state = candFailed
			if errors.Is(a.err, errBreakerOpen) {
				cand.state = candOut
			}
			k.missing = true
			k.askErr = a.err
		}
		if k.stage != stageAsk {
			if a.probe && a.err == nil {
				cand.state, cand.version = probed(a.probeReply.Status[i]), a.probeReply.Versions[i]
			}
			continue // another peer was faster
		}
		if a.err == nil {
			c.answerLocked(a, i, now)
		}
		if k.stage == stageAsk {
			c.asking = append(c.asking, r.key)
		}
	}
}

func probed(s ports.KeyStatus) candState {
	if s == ports.KeyHere {
		return candHere
	}
	return candAbsent
}

// answerLocked takes in one row. It leaves the key in stageAsk when the next holder is to be asked.
func (c *getCall) answerLocked(a *ask, i int, now domain.Instant) {
	r := a.rows[i]
	k, cand := &c.keys[r.key], &c.cands[r.cand]
	if a.probe {
		cand.state, cand.version = probed(a.probeReply.Status[i]), a.probeReply.Versions[i]
		return
	}
	renewal := !a.req.Held[i].IsZero()
	switch status := a.reply.Status[i]; {
	case status == ports.KeyHere && renewal && !believable(time.Duration(a.reply.LeaseNanos[i])):
		cand.state, k.missing = candFailed, true
		k.askErr = fmt.Errorf("renewal at %s: lease %v: %w", a.peer.id, time.Duration(a.reply.LeaseNanos[i]), domain.ErrInvalid)
	case status == ports.KeyHere && renewal:
		c.n.extendLocked(r.renews, a.before, time.Duration(a.reply.LeaseNanos[i]))
		cand.state = candHere
		c.n.counters.leasesRenewed.Add(1)
		c.viewedLocked(int(r.key), r.renews, now)
	case status == ports.KeyHere:
		c.resolvedLocked(a, i, now)
	case status == ports.KeyStale && renewal:
		r.renews.stale = true // ask it once more, anew
		cand.state = candHere
		c.n.counters.leasesStale.Add(1)
	case status == ports.KeyAbsent || status == ports.KeyStale:
		cand.state = candAbsent
	default:
		cand.state = candFailed
		k.missing = true
		k.askErr = fmt.Errorf("resolve at %s: %w", a.peer.id, ports.ErrRefused)
	}
}

// resolvedLocked takes in a row that carries an object. A malformed one counts as no answer.
func (c *getCall) resolvedLocked(a *ask, i int, now domain.Instant) {
	r := a.rows[i]
	k, cand := &c.keys[r.key], &c.cands[r.cand]
	v, err := c.n.viewLocked(a.conn, c.space, c.names[r.key], &a.reply, i, a.before)
	if err == nil && !k.want.IsZero() && v.version != k.want {
		err = fmt.Errorf("resolve at %s: version %v, asked for %v: %w", a.peer.id, v.version, k.want, domain.ErrInvalid)
	}
	if err != nil {
		cand.state, k.missing, k.askErr = candFailed, true, err
		return
	}
	cand.state, cand.version = candHere, v.version
	c.viewedLocked(int(r.key), v, now)
}

// viewedLocked makes a key ready to be planned by a view.
func (c *getCall) viewedLocked(i int, v *view, now domain.Instant) {
	k := &c.keys[i]
	if !v.usable(now) { // the answer took longer than the lease it brought
		k.tries++
		if k.tries >= maxTries {
			c.finishLocked(i, ports.Late, fmt.Errorf("lease of %s ends before its answer is here: %w", v.conn.peer.id, ports.ErrTimeout))
		}
		return
	}
	c.setViewLocked(k, v)
	if c.sizedLocked(i, v.layout.Size) {
		c.readyLocked(i)
	}
}

// exhaustedLocked decides a key that no peer is left for. A version that no peer has any more, or only one whose breaker is open,
// is given up once, for any other one, unless the session has handed out bytes of it.
func (c *getCall) exhaustedLocked(i int) {
	k := &c.keys[i]
	failedNow := k.failed != ports.StatusNone
	for j := k.candLo; j < k.candHi; j++ {
		failedNow = failedNow || c.cands[j].state == candFailed
	}
	switch {
	case !k.want.IsZero() && k.bound == nil && !k.switched && !failedNow:
		c.switchVersionLocked(i)
	case k.failed != ports.StatusNone:
		c.finishLocked(i, k.failed, k.failErr)
	case k.missing:
		c.finishLocked(i, ports.PeerUnavailable, k.askErr)
	case k.bound != nil:
		c.finishLocked(i, ports.Late, fmt.Errorf("version %v of the session is gone: %w", k.want, ports.ErrNotFound))
	default:
		c.doomGoneLocked(i)
		c.finishLocked(i, ports.NotFound, nil)
	}
}

// switchVersionLocked starts a key from nothing on whatever version there is. What was fetched of the old one is doomed when the
// other is there, or nobody has any.
func (c *getCall) switchVersionLocked(i int) {
	n, k := c.n, &c.keys[i]
	n.counters.downgrade(ports.DowngradeVersionSwitch)
	c.dropSlotLocked(k)
	c.setViewLocked(k, nil)
	k.switched, k.gone, k.want = true, k.want, domain.Version{}
	c.forgetAnswersLocked(k)
	c.nextHolderLocked(i)
}

// forgetAnswersLocked lets every peer that answered be asked again, for another version.
func (c *getCall) forgetAnswersLocked(k *getKey) {
	for j := k.candLo; j < k.candHi; j++ {
		if s := c.cands[j].state; s == candAbsent || s == candHere {
			c.cands[j].state, c.cands[j].version = candUnknown, domain.Version{}
		}
	}
}

// doomGoneLocked dooms the key's filling slot if it is of the version that was given up.
func (c *getCall) doomGoneLocked(i int) {
	n, k := c.n, &c.keys[i]
	if !k.switched {
		return
	}
	if _, filling, _ := n.mu.table.Lookup(c.space, c.names[i]); filling != 0 && n.mu.table.Info(filling).Version == k.gone {
		n.doomLocked(filling, domain.DoomVersionGone, n.now())
	}
}
