package app

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/domain"
)

// CheckForTesting holds a node's tables to what must hold between any two steps.
func (n *Node) CheckForTesting() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	errs := []error{n.mu.table.CheckInvariants()}
	for id, f := range n.mu.fills {
		if f.slot != id || f.doomed || n.mu.table.Info(id).State != domain.SlotFilling {
			errs = append(errs, fmt.Errorf("fill of slot %d: of slot %d, doomed %v, %v", id, f.slot, f.doomed, n.mu.table.Info(id).State))
			continue
		}
		errs = append(errs, n.checkFlightsLocked(f))
	}
	for id, r := range n.mu.reserved {
		if info := n.mu.table.Info(id); r.slot != id || info.State != domain.SlotPending {
			errs = append(errs, fmt.Errorf("reservation of slot %d: of slot %d, %v", id, r.slot, info.State))
		}
	}
	used := map[*view]bool{}
	for _, v := range n.mu.used {
		if used[v] || v.users <= 0 {
			errs = append(errs, fmt.Errorf("view %v: listed twice (%v) or unused (%d users)", v.id, used[v], v.users))
		}
		used[v] = true
	}
	return errors.Join(errs...)
}

// checkFlightsLocked: what flights fetch is claimed and not held, and no two fetch the same byte.
func (n *Node) checkFlightsLocked(f *fill) error {
	held, claimed := n.mu.table.Held(f.slot), n.mu.table.Claimed(f.slot)
	var sum uint64
	for _, fl := range f.flights {
		for _, r := range fl.runs {
			sum += r.Len
			if !claimed.Covers(r) || held.Overlap(r) > 0 {
				return fmt.Errorf("slot %d: a flight fetches %+v, held %v, claimed %v", f.slot, r, held.Runs(), claimed.Runs())
			}
		}
	}
	if len(f.flights) > 0 && sum != claimed.Bytes() {
		return fmt.Errorf("slot %d: flights fetch %d bytes, claimed %v", f.slot, sum, claimed.Runs())
	}
	return nil
}

// CheckIdleForTesting holds a node at which nothing is under way to having let go of everything.
func (n *Node) CheckIdleForTesting() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for id, f := range n.mu.fills {
		if c := n.mu.table.Claimed(id); len(f.flights) > 0 || c.Bytes() > 0 || f.pulled {
			errs = append(errs, fmt.Errorf("idle slot %d: %d flights, claimed %v, pulled %v", id, len(f.flights), c.Runs(), f.pulled))
		}
	}
	if len(n.mu.used) > 0 || len(n.mu.reserved) > 0 {
		errs = append(errs, fmt.Errorf("idle: %d views in use, %d reservations", len(n.mu.used), len(n.mu.reserved)))
	}
	if w := n.awaiting.Load(); w != 0 {
		errs = append(errs, fmt.Errorf("idle: %d calls await their first bytes", w))
	}
	for i, a := range n.arenas {
		if a == nil {
			continue
		}
		a.mu.Lock()
		if len(a.mu.asked) > 0 || a.mu.slices.Used() > 0 || a.mu.slices.Waiting() > 0 {
			errs = append(errs, fmt.Errorf("idle arena %d: %d requests, %d bytes used, %d waiting", i, len(a.mu.asked), a.mu.slices.Used(), a.mu.slices.Waiting()))
		}
		a.mu.Unlock()
	}
	for _, p := range n.peers.all() {
		p.mu.Lock()
		if c := p.mu.conn; c != nil && c.foreground.Load() != 0 {
			errs = append(errs, fmt.Errorf("idle: %d foreground bytes in flight to %s", c.foreground.Load(), p.id))
		}
		p.mu.Unlock()
	}
	return errors.Join(errs...)
}
