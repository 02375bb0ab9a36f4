package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
