package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/spanpool/spanpool/ports"
)

// Meet says hello to every member of the directory, all at once, so that no call pays for it. One that does not answer is dialled
// again as any peer that failed is: outside of calls, until it answers. The error names each of them.
func (n *Node) Meet(ctx context.Context) error {
	if n.p.Directory == nil {
		return nil
	}
	if err := n.enter(); err != nil {
		return err
	}
	defer n.leave()
	members, err := n.p.Directory.Members(ctx)
	if err != nil {
		return fmt.Errorf("members: %w", err)
	}
	var wg sync.WaitGroup
	failed := make([]error, len(members))
	for i, id := range members {
		if id != n.self.ID {
			wg.Go(func() { _, failed[i] = n.peers.get(id).connect(ctx) })
		}
	}
	wg.Wait()
	return errors.Join(failed...)
}

// checkMember refuses a name that no member has before it becomes a peer: one that does would be dialled for ever. A peer that was
// met is not asked about again, and without a directory there is nobody to ask.
func (n *Node) checkMember(caller context.Context, id ports.PeerID) error {
	if n.p.Directory == nil || n.peers.known(id) {
		return nil
	}
	ctx, cancel := n.control()
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	members, err := n.p.Directory.Members(ctx)
	if err != nil {
		return fmt.Errorf("members: %w", err)
	}
	if !slices.Contains(members, id) {
		return fmt.Errorf("%w: no member has this name", ports.ErrPeer)
	}
	return nil
}
