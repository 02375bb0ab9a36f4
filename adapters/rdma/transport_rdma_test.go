//go:build linux && cgo && rdma

package rdma

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// soon is long enough for what must not happen to happen on most runs.
const soon = 300 * time.Millisecond

// stuck puts an op over the asker's local memory on a link, of which a request flies until it is landed.
func (c *couple) stuck(l *Link) (landed func()) {
	o := &op{live: true, flying: 1, q: ports.NewCompletions(), segs: []ports.Segment{c.piece(0, 0, page)}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.ops = append(l.mu.ops, o)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		o.flying = 0
		l.finishLocked(o, 0, nil)
	}
}

func (l *Link) waiters() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.waiters
}

// TestCloseWaitsForADeregisterOfAnOpInFlight, and does not give the same registration back a second time.
func TestCloseWaitsForADeregisterOfAnOpInFlight(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	id, err := c.asker.Transport.Register(offHeap(t, page))
	require.NoError(t, err)
	require.NoError(t, c.asker.Transport.Deregister(id)) // names nothing of the op's
	landed := c.stuck(l)
	var all sync.WaitGroup
	defer all.Wait()
	gone := make(chan error, 1)
	all.Go(func() { gone <- c.asker.Transport.Deregister(1) })
	require.Eventually(t, func() bool { return l.waiters() == 1 }, patience, time.Millisecond)
	closed := make(chan error, 1)
	all.Go(func() { closed <- c.asker.Transport.Close() })
	<-l.Done()
	select {
	case err = <-closed:
		t.Error("closed beside an op in flight")
		closed <- err
	case <-time.After(soon):
	}
	landed()
	all.Wait()
	require.NoError(t, <-gone)
	require.NoError(t, <-closed)
	require.Zero(t, c.asker.rdma().Stats().Regions)
	require.ErrorIs(t, c.asker.Transport.Deregister(1), ports.ErrNotFound)
}

// TestDeregisterDoesNotWaitForAnothersOps: the memory is registered twice, and the other's ops go on and on.
func TestDeregisterDoesNotWaitForAnothersOps(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	again, err := c.asker.Transport.Register(c.local)
	require.NoError(t, err)
	landed := c.stuck(l)
	done := make(chan error, 1)
	go func() { done <- c.asker.Transport.Deregister(again) }()
	require.Eventually(t, func() bool { return l.waiters() == 1 }, patience, time.Millisecond)
	require.NoError(t, do(t, l, c.op(1, ports.Read, ports.GrantToken{}, c.piece(0, 0, page)))) // takes the next number
	later := c.stuck(l)
	l.mu.Lock()
	l.mu.ops[len(l.mu.ops)-1].nth = l.mu.admitted
	l.mu.Unlock()
	landed()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Error("it waits for an op that came after it")
	}
	later()
}

// TestCloseBesideEverything has registrations, exposures and tries of device memory run into it: each is done or refused, and Close leaves
// nothing, of which the protection domain tells.
func TestCloseBesideEverything(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	mem := make([]ports.HostRegion, 3)
	for i := range mem {
		mem[i] = offHeap(t, pages*page)
	}
	for range 20 {
		n := start(t, "n", devices[0], slow())
		tr := n.rdma()
		var did atomic.Uint64
		var all sync.WaitGroup
		until := func(step func() error) {
			all.Go(func() {
				for {
					if err := step(); err != nil {
						if !errors.Is(err, ports.ErrClosed) {
							t.Errorf("beside Close: %v", err)
						}
						return
					}
					did.Add(1)
				}
			})
		}
		for _, m := range mem[:2] {
			until(func() error {
				id, err := tr.Register(m)
				if err == nil && tr.Deregister(id) != nil {
					return ports.ErrClosed // in between
				}
				return err
			})
		}
		buffer := uint32(0)
		until(func() error { buffer++; return tr.Expose(buffer, mem[2]) })
		until(func() error {
			if err := tr.TryDMABuf(f, 0, page); errors.Is(err, ports.ErrClosed) {
				return err
			}
			return nil // a file is no memory of a device
		})
		require.Eventually(t, func() bool { return did.Load() > 8 }, patience, time.Millisecond)
		require.NoError(t, tr.Close())
		all.Wait()
		s := tr.Stats()
		require.Zero(t, s.Regions)
		require.Zero(t, s.Registered)
		require.ErrorIs(t, tr.TryDMABuf(f, 0, page), ports.ErrClosed)
		require.ErrorIs(t, tr.Expose(1<<20, mem[2]), ports.ErrClosed)
		_, err := tr.Register(mem[0])
		require.ErrorIs(t, err, ports.ErrClosed)
	}
}

// TestABufferOfMoreKeysThanPeersTakeIsNotExposed: they would refuse the answer.
func TestABufferOfMoreKeysThanPeersTakeIsNotExposed(t *testing.T) {
	cfg := slow()
	cfg.ChunkBytes = 1 << 16
	n := start(t, "n", devices[0], cfg)
	b, err := syscall.Mmap(-1, 0, maxKeys<<16+page, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(b)) }()
	var limit *domain.LimitError
	require.ErrorAs(t, n.Transport.Expose(0, ports.HostRegionOf(b)), &limit)
	require.EqualValues(t, maxKeys+1, limit.Value)
}

// TestMemoryIsUsableWhileOneOfItsRegistrationsCloses: a smaller region in it is given back, of which an op still flies.
func TestMemoryIsUsableWhileOneOfItsRegistrationsCloses(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	content.Poison(c.local.Bytes())
	id, err := c.asker.Transport.Register(ports.HostRegionOf(c.local.Bytes()[page : 4*page])) // found before the larger one
	require.NoError(t, err)
	landed := c.stuck(l)
	l.mu.Lock()
	l.mu.ops[len(l.mu.ops)-1].segs = []ports.Segment{c.piece(0, page, page)}
	l.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- c.asker.Transport.Deregister(id) }()
	require.Eventually(t, func() bool { return l.waiters() == 1 }, patience, time.Millisecond)
	err = do(t, l, c.op(1, ports.Read, ports.GrantToken{}, c.piece(5, 2*page, page)))
	landed()
	require.NoError(t, <-done)
	require.NoError(t, err)
	require.Equal(t, -1, content.Check(c.local.Bytes()[2*page:][:page], 0, 5))
}
