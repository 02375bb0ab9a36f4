package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// OpenRead begins a read session.
func (n *Node) OpenRead(_ context.Context, namespace string) (ports.SessionID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return 0, fmt.Errorf("node %s: %w", n.self.ID, ports.ErrClosed)
	}
	space, err := n.mu.spaces.intern(namespace)
	if err != nil {
		return 0, err
	}
	if len(n.mu.sessions) >= maxSessions {
		return 0, fmt.Errorf("%w: %w", ports.ErrRefused, &domain.LimitError{What: "open sessions", Value: uint64(len(n.mu.sessions)) + 1, Limit: maxSessions})
	}
	n.mu.lastID++
	id := ports.SessionID(n.mu.lastID)
	n.mu.sessions[id] = &session{space: space, keys: make(map[string]*sessionKey)}
	return id, nil
}

// maxSessions bounds what clients that never close can take; the number is arbitrary, far above one per request in flight.
const maxSessions = 65_536

// CloseRead ends a session. Calls that are under way in it go on.
func (n *Node) CloseRead(id ports.SessionID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.sessions[id] == nil {
		return fmt.Errorf("session %d: %w", id, ports.ErrNotFound)
	}
	delete(n.mu.sessions, id)
	return nil
}

// Clear dooms everything on this node. Peers with a lease go on reading until it ends.
func (n *Node) Clear(context.Context) error {
	if err := n.enter(); err != nil {
		return err
	}
	defer n.leave()
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	states := uint8(1<<domain.SlotPending | 1<<domain.SlotFilling | 1<<domain.SlotCommitted)
	for _, id := range n.mu.table.AppendSlots(states, nil) {
		n.doomLocked(id, domain.DoomCleared, now)
	}
	return nil
}

// Remove dooms the copies here, and asks every peer that may hold one. Where the directory does not know them all, what it names is done,
// and the error is ErrPeer.
func (n *Node) Remove(ctx context.Context, namespace string, names []string, out []ports.Removal) error {
	if err := errJoin(checkCounts(len(names), 0, len(out)), checkNames(names)); err != nil {
		return err
	}
	if err := n.enter(); err != nil {
		return err
	}
	defer n.leave()
	now := n.now()
	n.mu.Lock()
	space, err := n.mu.spaces.intern(namespace)
	for i, name := range names {
		out[i] = ports.Removal{}
		if err == nil {
			out[i].Found = n.removeLocked(space, name, now)
		}
	}
	n.mu.Unlock()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	return n.eachHolder(ctx, namespace, space, names, func(ctx context.Context, p *peer, rows []int, keys []ports.Key) (enough bool) {
		var status []ports.KeyStatus
		_, err := n.ask(ctx, p, func(ctx context.Context, c *conn) error {
			if err := n.p.Writer.Remove(ctx, c.to, keys, &status); err != nil {
				return err
			}
			return checkColumn("remove", len(status), len(keys))
		})
		mu.Lock()
		defer mu.Unlock()
		for r, i := range rows {
			if err != nil {
				out[i].Unanswered = append(out[i].Unanswered, p.id)
				continue
			}
			out[i].Found = out[i].Found || status[r] == ports.KeyHere
		}
		return false // every copy is to go
	})
}

func checkNames(names []string) error {
	for i, name := range names {
		if err := domain.CheckKey(name); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
	}
	return nil
}

// eachHolder calls ask for every peer that may hold some of the keys, all at once, and waits for all, for the caller's end, or until one
// of them says that it is enough: a peer that does not answer then keeps nobody. The error is errHolders, after all that, when there may be
// holders that the directory does not know.
func (n *Node) eachHolder(caller context.Context, namespace string, space domain.Space, names []string, ask func(ctx context.Context, p *peer, rows []int, keys []ports.Key) (enough bool)) error {
	var h ports.Holders
	if err := n.holders(caller, namespace, names, &h); err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	type request struct {
		rows []int
		keys []ports.Key
	}
	byPeer := make(map[ports.PeerID]*request)
	for i, name := range names {
		own := rows(h.End, i)
		for _, id := range h.Peers[own.lo:own.hi] {
			if id == n.self.ID {
				continue
			}
			r := byPeer[id]
			if r == nil {
				r = &request{}
				byPeer[id] = r
			}
			r.rows = append(r.rows, i)
			r.keys = append(r.keys, ports.Key{Space: uint32(space), Name: name})
		}
	}
	ctx, cancel := n.control()
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	ctx = ports.WithTrace(ctx, ports.TraceOf(caller))
	var wg sync.WaitGroup
	for id, r := range byPeer {
		wg.Go(func() {
			if ask(ctx, n.peers.get(id), r.rows, r.keys) {
				cancel()
			}
		})
	}
	wg.Wait()
	if !h.Complete {
		return errHolders
	}
	return nil
}

// errHolders is a directory that answered for what it knows.
var errHolders = fmt.Errorf("directory does not know all holders: %w", ports.ErrPeer)

// BatchExists says which keys are here or at a peer. A peer that does not answer within a control call's time counts as not having it,
// and so does one that the directory does not know of.
func (n *Node) BatchExists(ctx context.Context, namespace string, names []string, hold time.Duration, found []bool) (int, error) {
	clear(found)
	if err := errJoin(checkCounts(len(names), 0, len(found)), checkNames(names)); err != nil {
		return 0, err
	}
	if err := n.enter(); err != nil {
		return 0, err
	}
	defer n.leave()
	space, missing, rows, err := n.existsHere(namespace, names, hold, found)
	if err != nil {
		return 0, err
	}
	if len(missing) > 0 {
		var mu sync.Mutex
		unknown := len(missing)
		err = n.eachHolder(ctx, namespace, space, missing, func(ctx context.Context, p *peer, asked []int, keys []ports.Key) (enough bool) {
			var reply ports.ProbeReply
			_, err := n.ask(ctx, p, func(ctx context.Context, c *conn) error {
				if err := n.p.Resolver.Probe(ctx, c.to, keys, &reply); err != nil {
					return err
				}
				return checkColumn("probe", len(reply.Status), len(keys))
			})
			mu.Lock()
			defer mu.Unlock()
			for r, j := range asked {
				if err == nil && reply.Status[r] == ports.KeyHere && !found[rows[j]] {
					found[rows[j]] = true
					unknown--
				}
			}
			return unknown == 0
		})
		if errors.Is(err, errHolders) {
			err = nil
		}
	}
	leading := 0
	for leading < len(found) && found[leading] {
		leading++
	}
	return leading, err
}

// existsHere looks up and holds; it returns the keys that are not here.
func (n *Node) existsHere(namespace string, names []string, hold time.Duration, found []bool) (space domain.Space, missing []string, rows []int, err error) {
	now := n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if space, err = n.mu.spaces.intern(namespace); err != nil {
		return space, nil, nil, err
	}
	for i, name := range names {
		id, _, _ := n.mu.table.Lookup(space, name)
		if id == 0 {
			missing, rows = append(missing, name), append(rows, i)
			continue
		}
		found[i] = true
		if hold > 0 && !n.mu.table.Hold(id, now.Add(min(hold, n.cfg.HoldTime)), now) {
			n.counters.downgrade(ports.DowngradeHoldRefused)
		}
	}
	return space, missing, rows, nil
}

// Size is the size of an object here or at a peer.
func (n *Node) Size(ctx context.Context, namespace, name string) (uint64, error) {
	if err := checkNames([]string{name}); err != nil {
		return 0, err
	}
	if err := n.enter(); err != nil {
		return 0, err
	}
	defer n.leave()
	n.mu.Lock()
	space, err := n.mu.spaces.intern(namespace)
	if err != nil {
		n.mu.Unlock()
		return 0, err
	}
	if id, _, _ := n.mu.table.Lookup(space, name); id != 0 {
		size := n.mu.table.Info(id).Size
		n.mu.Unlock()
		return size, nil
	}
	n.mu.Unlock()
	return n.sizeElsewhere(ctx, namespace, space, name)
}

// sizeElsewhere asks all peers at once; the first that has it answers, and the others are not waited for. It takes leases, which end by themselves.
func (n *Node) sizeElsewhere(ctx context.Context, namespace string, space domain.Space, name string) (uint64, error) {
	var mu sync.Mutex
	var size uint64
	var failed error
	err := n.eachHolder(ctx, namespace, space, []string{name}, func(ctx context.Context, p *peer, _ []int, keys []ports.Key) (enough bool) {
		req := ports.ResolveRequest{Keys: keys, Versions: make([]domain.Version, 1), Held: make([]domain.Generation, 1)}
		var reply ports.ResolveReply
		_, err := n.ask(ctx, p, func(ctx context.Context, c *conn) error {
			if err := n.p.Resolver.Resolve(ctx, c.to, &req, &reply); err != nil {
				return err
			}
			return checkResolve(1, &reply)
		})
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			failed = err
		case reply.Status[0] == ports.KeyHere && size == 0:
			size = reply.Sizes[0]
		}
		return size > 0
	})
	switch {
	case size > 0:
		return size, nil
	case err != nil:
		return 0, fmt.Errorf("size of %q: %w", name, err)
	case failed != nil:
		return 0, fmt.Errorf("size of %q: %w: %w", name, ports.ErrPeer, failed)
	}
	return 0, fmt.Errorf("size of %q: %w", name, ports.ErrNotFound)
}
