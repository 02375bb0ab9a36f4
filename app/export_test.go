package app

import "github.com/spanpool/spanpool/domain"

// LimitSessionKeysForTesting lowers a limit that a test could not reach in reasonable time. Call it before the first session.
func (n *Node) LimitSessionKeysForTesting(keys int) { n.sessionKeys = keys }

// LimitLinksForTesting lowers what is given to a link at once to what small objects fill. Call it before the first call.
func (n *Node) LimitLinksForTesting(bytes uint64) { n.linkBytes = bytes }

// TurnOffForTesting turns features off, for a test that shows what they are worth. Call it before the first call.
func (n *Node) TurnOffForTesting(singleFlight, dedupQueued, dedupRun bool) {
	n.off = features{singleFlight, dedupQueued, dedupRun}
}

// FlipForTesting turns a bit of an object's byte over, in its committed slot, or in its filling slot when there is no other.
func (n *Node) FlipForTesting(namespace, name string, off uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	space, err := n.mu.spaces.intern(namespace)
	if err != nil {
		return false
	}
	id, filling, _ := n.mu.table.Lookup(space, name)
	if id == 0 {
		id = filling
	}
	if id == 0 || off >= n.mu.table.Info(id).Size {
		return false
	}
	mustPlan(domain.ForEachRangePageFragment(n.mu.table.Layout(id), domain.Run{Off: off, Len: 1}, func(f domain.Fragment) bool {
		hostBytes(n.regions[f.Page.Buffer], f.Off, 1)[0] ^= 0x40
		return true
	}))
	return true
}

// LookForTesting takes the place of a look at a copy that somebody complained about, until over is called.
func (n *Node) LookForTesting() (over func()) {
	n.looking <- struct{}{}
	return func() { <-n.looking }
}

// UnverifiedForTesting is the bytes that the key's filling slot holds and that nobody has verified.
func (n *Node) UnverifiedForTesting(namespace, name string) []domain.Run {
	n.mu.Lock()
	defer n.mu.Unlock()
	space, err := n.mu.spaces.intern(namespace)
	if err != nil {
		return nil
	}
	_, id, _ := n.mu.table.Lookup(space, name)
	if n.mu.fills[id] == nil {
		return nil
	}
	var left []domain.Run
	for _, r := range n.mu.table.Held(id).Runs() {
		left = n.mu.fills[id].verified.AppendMissing(left, r)
	}
	return left
}

// GenerationForTesting names the committed copy of a key; zero when there is none.
func (n *Node) GenerationForTesting(namespace, name string) domain.Generation {
	n.mu.Lock()
	defer n.mu.Unlock()
	space, err := n.mu.spaces.intern(namespace)
	if err != nil {
		return domain.Generation{}
	}
	id, _, _ := n.mu.table.Lookup(space, name)
	if id == 0 {
		return domain.Generation{}
	}
	return n.mu.table.Info(id).Generation
}

// PlanRangesForTesting is how many ranges a call plans before it submits.
const PlanRangesForTesting = planRanges
