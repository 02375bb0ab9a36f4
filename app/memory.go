package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// memory is a caller's registered region. users and leaving are guarded by Node.mu.
type memory struct {
	region  ports.Region
	reach   reach // of the transports that it is registered with
	regs    []registration
	users   int           // calls that were given it
	leaving chan struct{} // not nil: no further call may use it; closed when the last one has ended
}

type registration struct {
	with ports.Transport
	id   ports.Registration
}

func (m *memory) deregister() (err error) {
	for _, r := range m.regs {
		if e := r.with.Deregister(r.id); e != nil {
			err = fmt.Errorf("deregister with %s: %w", r.with.Kind(), e)
		}
	}
	return err
}

// RegisterMemory makes a region usable by every transport that reaches it; links of the others take other routes.
func (n *Node) RegisterMemory(_ context.Context, r ports.Region) (ports.Memory, error) {
	if r == nil || r.Len() == 0 {
		return ports.Memory{}, fmt.Errorf("register an empty region: %w", domain.ErrInvalid)
	}
	if err := n.enter(); err != nil {
		return ports.Memory{}, err
	}
	defer n.leave()
	m := &memory{region: r}
	for at, t := range n.p.Transports {
		id, err := t.Register(r)
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			_ = m.deregister() // the failure to register is what is said
			return ports.Memory{}, fmt.Errorf("register %d bytes with %s: %w", r.Len(), t.Kind(), err)
		}
		m.regs = append(m.regs, registration{t, id})
		m.reach |= reachOf(at)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lastID++
	id := ports.MemoryID(n.mu.lastID)
	n.mu.memories[id] = m
	return ports.Memory{Region: r, ID: id}, nil
}

// DeregisterMemory returns once the memory is quiet: no further call gets it, and those that have it end. When the context ends
// first the memory stays registered.
func (n *Node) DeregisterMemory(ctx context.Context, id ports.MemoryID) error {
	n.mu.Lock()
	m := n.mu.memories[id]
	if m == nil || m.leaving != nil {
		n.mu.Unlock()
		return fmt.Errorf("memory %d: %w", id, ports.ErrNotFound)
	}
	quiet := make(chan struct{})
	m.leaving = quiet
	if m.users == 0 {
		close(quiet)
	}
	n.mu.Unlock()
	select {
	case <-quiet:
	case <-ctx.Done():
		if users := n.keepUsed(m); users > 0 {
			return fmt.Errorf("memory %d: %d calls use it: %w", id, users, context.Cause(ctx))
		}
	}
	n.mu.Lock()
	delete(n.mu.memories, id)
	n.mu.Unlock()
	return m.deregister()
}

// keepUsed keeps memory registered that calls use, and returns how many do.
func (n *Node) keepUsed(m *memory) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.users > 0 {
		m.leaving = nil
	}
	return m.users
}

// borrowLocked appends the memory that a call's table names, an entry for each of its regions: nil where nothing is named, where no
// such memory is registered, and where it is other memory. A table that names none has no entries.
func (n *Node) borrowLocked(table []ports.Memory, to []*memory) []*memory {
	for i, named := range table {
		if named.ID == 0 {
			continue
		}
		for len(to) < len(table) {
			to = append(to, nil)
		}
		m := n.mu.memories[named.ID]
		if m == nil || m.leaving != nil || !sameMemory(m.region, named.Region) {
			continue
		}
		m.users++
		to[i] = m
	}
	return to
}

// checkMemories refuses ranges in memory that the table names as registered and that borrowLocked did not find.
func checkMemories(table []ports.Memory, borrowed []*memory, ranges []domain.Range) error {
	if len(borrowed) == 0 {
		return nil
	}
	for i := range ranges {
		r := ranges[i].Region
		if id := table[r].ID; id != 0 && borrowed[r] == nil {
			return fmt.Errorf("region %d of the call's table: no memory %d is registered, or it is another region: %w", r, id, ports.ErrNotFound)
		}
	}
	return nil
}

// returnMemory ends what borrowLocked began.
func (n *Node) returnMemory(all []*memory) {
	if len(all) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range all {
		if m == nil {
			continue
		}
		m.users--
		if m.users == 0 && m.leaving != nil {
			close(m.leaving)
		}
	}
}

// sameMemory reports whether two regions are the same bytes.
func sameMemory(a, b ports.Region) bool {
	switch a := a.(type) {
	case ports.HostRegion:
		b, ok := b.(ports.HostRegion)
		return ok && a.Len() == b.Len() && (a.Len() == 0 || &a.Bytes()[0] == &b.Bytes()[0])
	case ports.DeviceRegion:
		return a == b
	}
	return false
}
