package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

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
// caller's memory. Slot flights go on: they belong to the node.
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
