package app_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// blind is a transport that reaches the first memory it is shown, an arena, and no more: neither the pool nor callers' memory. A link
// of it that is given any other fails the test.
type blind struct {
	*cuttable
	t  testing.TB
	mu struct {
		sync.Mutex
		arenas []ports.Region
	}
}

var errBlind = fmt.Errorf("memory of another kind: %w", errors.ErrUnsupported)

func (b *blind) Caps() ports.Caps                  { return ports.Caps{Write: b.write, NeedsRegister: true} }
func (b *blind) Expose(uint32, ports.Region) error { return errBlind }

func (b *blind) Register(r ports.Region) (ports.Registration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.arenas) == 2 {
		return 0, errBlind
	}
	b.mu.arenas = append(b.mu.arenas, r)
	return b.Transport.Register(r)
}

func (b *blind) Offer(ctx context.Context, to ports.PeerID) (ports.PendingLink, error) {
	p, err := b.cuttable.Offer(ctx, to)
	return blindPending{p, b}, err
}

type blindPending struct {
	ports.PendingLink
	of *blind
}

func (p blindPending) Link(ctx context.Context, answer []byte) (ports.Link, error) {
	l, err := p.PendingLink.Link(ctx, answer)
	return blindLink{l, p.of}, err
}

type blindLink struct {
	ports.Link
	of *blind
}

func (l blindLink) Submit(b *ports.Batch, q *ports.Completions) error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	for i := range b.Ops {
		for _, s := range b.Segments[b.Ops[i].First:][:b.Ops[i].Count] {
			known := slices.ContainsFunc(l.of.mu.arenas, func(r ports.Region) bool { return sameStart(r, s.Local) })
			if !known {
				l.of.t.Errorf("op %d names %d bytes at %d of memory that the link does not reach", i, s.Len, s.LocalOff)
			}
		}
	}
	return l.Link.Submit(b, q)
}

func sameStart(a, b ports.Region) bool {
	return &a.(ports.HostRegion).Bytes()[0] == &b.(ports.HostRegion).Bytes()[0]
}

// blindAndFar is an owner that every transport reaches, and a reader of which near, the preferred one, reaches the arenas alone.
func blindAndFar(t *testing.T, w *world, reader place) (a, b *node, near *cuttable) {
	near = &cuttable{kind: "near", write: true}
	far := &cuttable{kind: "far", write: true}
	reader.ports = func(p *app.Ports) {
		near.Transport, far.Transport = p.Transports[0], p.Transports[0]
		p.Transports = []ports.Transport{&blind{cuttable: near, t: t}, exposing{far}}
	}
	a, b = w.pair(place{ports: func(p *app.Ports) {
		p.Transports = []ports.Transport{&cuttable{Transport: p.Transports[0], kind: "near", write: true}, exposing{&cuttable{Transport: p.Transports[0], kind: "far", write: true}}}
	}}, reader)
	return a, b, near
}

// TestWhatALinkDoesNotReachGoesByTheArena: a NIC that does not reach the GPU in which the pool lies brings bytes to the arena; from there
// whole objects become local, and others by the pull, over a link that reaches it.
func TestWhatALinkDoesNotReachGoesByTheArena(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, _ := blindAndFar(t, w, place{})
		a.put(objectSize, "whole", "part")
		b.mustGet(ports.FromArena, whole("whole", objectSize))
		b.requireLocal(objectSize, "whole")
		b.mustGet(ports.FromArena, part("part", 5, 1_000))
		w.settle()
		b.requireLocal(objectSize, "part")
		p := crossed(t, b, [ports.NumPurposes]uint64{ports.PurposeGet: objectSize + 1_000}, [ports.NumPurposes]uint64{ports.PurposePull: objectSize})
		require.EqualValues(t, "near", p.Transport)
		require.EqualValues(t, 2, b.Stats().Downgrades[ports.DowngradeUnreached])
		require.EqualValues(t, 1, b.Stats().InstalledObjects[domain.LocalFromArena])
	})
}

func TestRegisteredMemoryThatALinkDoesNotReachGoesByTheArena(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, near := blindAndFar(t, w, place{registered: true, Config: app.Config{Locality: domain.LocalityOff}})
		a.put(objectSize, "k")
		b.mustGet(ports.FromArena, part("k", 5, 1_000))
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeUnreached])
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, 500, 1, "l")[0].Status)
		require.EqualValues(t, 2, b.Stats().Downgrades[ports.DowngradeUnreached])
		crossed(t, b, [ports.NumPurposes]uint64{ports.PurposeGet: 1_000, ports.PurposePut: 500}, [ports.NumPurposes]uint64{})

		near.refuse(true)
		near.cut(t)
		b.mustGet(ports.FromDirect, part("k", 5, 1_000))
		require.EqualValues(t, 2, b.Stats().Downgrades[ports.DowngradeUnreached])
	})
}

// TestAReadThatWaitsForItsTurnGoesByALinkThatReachesItsMemory, and not by one that is preferred and has come back meanwhile.
func TestAReadThatWaitsForItsTurnGoesByALinkThatReachesItsMemory(t *testing.T) {
	for name, p := range map[string]place{
		"the caller's": {registered: true, link: 1_000, Config: app.Config{Locality: domain.LocalityOff}},
		"the pool's":   {link: 1_000, Config: noPull},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b, near := blindAndFar(t, w, p)
				a.put(objectSize, "k")
				near.refuse(true)
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, hold(&g)))
				first := b.begin(t.Context(), 0, part("k", 0, 1_000))
				second := b.begin(t.Context(), 0, part("k", 2_000, 1_000))
				synctest.Wait()
				near.refuse(false)
				w.pass(1500 * time.Millisecond)
				require.EqualValues(t, "near", b.Stats().Peers[0].Transport)
				g.Open()
				for _, r := range []*reading{first, second} {
					require.Equal(t, ports.Hit, r.wait()[0].Status)
				}
				crossed(t, b, [ports.NumPurposes]uint64{}, [ports.NumPurposes]uint64{ports.PurposeGet: 2_000})
			})
		})
	}
}

// TestWhatTheArenaDoesNotTakeGoesByTheLinkThatReaches the pool, though it is not the preferred one.
func TestWhatTheArenaDoesNotTakeGoesByTheLinkThatReaches(t *testing.T) {
	for name, p := range map[string]place{"arena off": {get: arenaOff}, "arena too small": {get: 1_000}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b, _ := blindAndFar(t, w, p)
				a.put(objectSize, "k")
				b.mustGet(ports.FromSlot, whole("k", objectSize))
				crossed(t, b, [ports.NumPurposes]uint64{}, [ports.NumPurposes]uint64{ports.PurposeGet: objectSize})
				require.Zero(t, b.Stats().Downgrades[ports.DowngradeUnreached])
			})
		})
	}
}

func TestAFillingSlotThatHoldsAllServesWhateverTheLinkReaches(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, near := blindAndFar(t, w, place{Config: noPull})
		a.put(objectSize, "k")
		near.refuse(true)
		b.mustGet(ports.FromSlot, part("k", 0, 2_000))
		near.refuse(false)
		w.pass(15 * time.Second)
		b.mustGet(ports.FromSlot, part("k", 500, 1_000))
		b.mustGet(ports.FromArena, part("k", 1_500, 1_000))
		crossed(t, b, [ports.NumPurposes]uint64{ports.PurposeGet: 1_000}, [ports.NumPurposes]uint64{ports.PurposeGet: 2_000})
	})
}

// TestAnOwnerIsNotReadByATransportThatDoesNotReachItsPool: the peer is told why, and goes by the next one.
func TestAnOwnerIsNotReadByATransportThatDoesNotReachItsPool(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, _ := blindAndFar(t, w, place{Config: noPull})
		b.put(objectSize, "k")
		a.mustGet(ports.FromSlot, whole("k", objectSize)) // which leaves nothing to pull
		p := crossed(t, a, [ports.NumPurposes]uint64{}, [ports.NumPurposes]uint64{ports.PurposeGet: objectSize})
		require.EqualValues(t, "near", p.Refused[0].Kind)
		require.Len(t, b.Unreached(), 1)
		require.EqualValues(t, "near", b.Unreached()[0].Kind)
		require.Empty(t, a.Unreached())
		require.Contains(t, p.Refused[0].Reason, errBlind.Error())
		require.Equal(t, ports.Stored, a.putTo(t.Context(), "b", 0, 500, 1, "l")[0].Status)
	})
}

func TestAPoolThatNoTransportReachesIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var p app.Ports
		w.node("b", place{ports: func(of *app.Ports) { p = *of }})
		p.Transports = []ports.Transport{&blind{cuttable: &cuttable{Transport: p.Transports[0]}, t: t}}
		_, err := app.New(app.Config{ID: "c"}, p)
		require.ErrorIs(t, err, errBlind)
	})
}
