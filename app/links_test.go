package app_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// cuttable is another transport over the same network, of which links can be cut and offers refused. It exposes nothing: the one that
// it wraps is another's too.
type cuttable struct {
	ports.Transport
	kind  ports.TransportKind
	write bool
	mu    struct {
		sync.Mutex
		refuses bool
		links   []ports.Link
	}
}

func (c *cuttable) Kind() ports.TransportKind         { return c.kind }
func (c *cuttable) Caps() ports.Caps                  { return ports.Caps{Write: c.write} }
func (c *cuttable) Expose(uint32, ports.Region) error { return nil }

func (c *cuttable) Offer(ctx context.Context, to ports.PeerID) (ports.PendingLink, error) {
	c.mu.Lock()
	refuses := c.mu.refuses
	c.mu.Unlock()
	if refuses {
		return nil, errTest
	}
	p, err := c.Transport.Offer(ctx, to)
	return cuttablePending{p, c}, err
}

type cuttablePending struct {
	ports.PendingLink
	of *cuttable
}

func (p cuttablePending) Link(ctx context.Context, answer []byte) (ports.Link, error) {
	l, err := p.PendingLink.Link(ctx, answer)
	if err == nil {
		p.of.mu.Lock()
		defer p.of.mu.Unlock()
		p.of.mu.links = append(p.of.mu.links, l)
	}
	return l, err
}

// refuse makes offers fail from now on, or not any more.
func (c *cuttable) refuse(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.refuses = on
}

// cut ends every link there is.
func (c *cuttable) cut(t *testing.T) {
	c.mu.Lock()
	links := c.mu.links
	c.mu.links = nil
	c.mu.Unlock()
	require.NotEmpty(t, links)
	for _, l := range links {
		require.NoError(t, l.Close())
	}
}

// twoWays is an owner and a reader with two transports: near, which only reads, before far, which writes too.
func twoWays(w *world, c app.Config) (a, b *node, near, far *cuttable) {
	over := func(p *app.Ports, near, far *cuttable) {
		near.Transport, far.Transport = p.Transports[0], p.Transports[0]
		p.Transports = []ports.Transport{near, exposing{far}}
	}
	near, far = &cuttable{kind: "near"}, &cuttable{kind: "far", write: true}
	a, b = w.pair(place{ports: func(p *app.Ports) { over(p, &cuttable{kind: "near"}, &cuttable{kind: "far", write: true}) }},
		place{Config: c, ports: func(p *app.Ports) { over(p, near, far) }})
	return a, b, near, far
}

// exposing is the one of two that exposes what both read.
type exposing struct{ *cuttable }

func (e exposing) Expose(i uint32, r ports.Region) error { return e.Transport.Expose(i, r) }

// crossed requires what a peer's links have moved, by transport.
func crossed(t *testing.T, n *node, near, far [ports.NumPurposes]uint64) ports.PeerStats {
	t.Helper()
	s := n.Stats()
	p := s.Peers[0]
	require.Equal(t, []ports.TransportKind{"near", "far"}, []ports.TransportKind{p.Transports[0].Kind, p.Transports[1].Kind})
	require.Equal(t, near, p.Transports[0].Wire, "by near")
	require.Equal(t, far, p.Transports[1].Wire, "by far")
	require.Equal(t, p.Wire, s.Wire)
	for i := range p.Wire {
		require.Equal(t, near[i]+far[i], p.Wire[i])
	}
	return p
}

func TestReadsAndWritesEachTakeTheFirstTransportThatCan(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, _, _ := twoWays(w, noPull)
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, 500, 1, "l")[0].Status)
		p := crossed(t, b, [ports.NumPurposes]uint64{ports.PurposeGet: 1_000}, [ports.NumPurposes]uint64{ports.PurposePut: 500})
		require.EqualValues(t, "near", p.Transport)
		require.EqualValues(t, "far", p.Writes)
		require.Empty(t, p.Refused)
		require.EqualValues(t, 1, b.faults.Count("PeerResolver", "Hello"))
		w.pass(time.Minute)
		require.EqualValues(t, 1, b.faults.Count("PeerResolver", "Hello"), "nothing is lacking")
	})
}

// TestALinkThatIsLostFallsBackAndComesBack: the call that is under way goes on by the next transport, and so do later ones until the
// preferred one can be had again. What was resolved stays so.
func TestALinkThatIsLostFallsBackAndComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, near, _ := twoWays(w, noPull)
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		var g faults.Gate
		b.fail(next(1, "Link", "Op", nil, hold(&g)))
		under := b.begin(t.Context(), 0, part("k", 10_000, 1_000))
		synctest.Wait()
		near.refuse(true)
		near.cut(t)
		require.Equal(t, ports.Hit, under.wait()[0].Status)
		b.fail()
		g.Open()
		w.pass(time.Second)
		b.mustGet(ports.FromSlot, part("k", 20_000, 1_000))
		p := crossed(t, b, [ports.NumPurposes]uint64{ports.PurposeGet: 1_000}, [ports.NumPurposes]uint64{ports.PurposeGet: 2_000})
		require.EqualValues(t, "far", p.Transport)
		require.False(t, p.Down)
		require.Len(t, p.Refused, 1)
		require.EqualValues(t, "near", p.Refused[0].Kind)
		require.Contains(t, p.Refused[0].Reason, errTest.Error())
		require.EqualValues(t, 1, p.Transports[0].Lost)
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeLinkLost])
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeTransport])

		w.pass(30 * time.Second)
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeTransport], "the same refusal is counted once")
		near.refuse(false)
		w.pass(11 * time.Second)
		b.mustGet(ports.FromSlot, part("k", 30_000, 1_000))
		p = crossed(t, b, [ports.NumPurposes]uint64{ports.PurposeGet: 2_000}, [ports.NumPurposes]uint64{ports.PurposeGet: 2_000})
		require.EqualValues(t, "near", p.Transport)
		require.Empty(t, p.Refused)
	})
}

// TestALostLinkForWritesIsMadeAnewByThePutThatNeedsIt, and nobody who reads notices.
func TestALostLinkForWritesIsMadeAnewByThePutThatNeedsIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, _, far := twoWays(w, app.Config{NoRangedLocalityPrefetch: true, SweepEvery: time.Hour}) // nobody else mends
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		far.cut(t)
		p := b.Stats().Peers[0]
		require.EqualValues(t, "near", p.Transport)
		require.Empty(t, p.Writes)
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, 500, 1, "l")[0].Status)
		b.mustGet(ports.FromSlot, part("k", 20_000, 1_000))
		p = crossed(t, b, [ports.NumPurposes]uint64{ports.PurposeGet: 2_000}, [ports.NumPurposes]uint64{ports.PurposePut: 500})
		require.EqualValues(t, "far", p.Writes)
		require.EqualValues(t, 1, p.Transports[1].Lost)

		far.refuse(true)
		far.cut(t)
		for range 2 { // the second does not even ask
			r := b.putTo(t.Context(), "a", 0, 500, 1, "m")[0]
			require.Equal(t, ports.PeerUnavailable, r.Status)
			b.mustGet(ports.FromSlot, part("k", 20_000, 1_000))
		}
		require.EqualValues(t, 3, b.faults.Count("PeerResolver", "Hello"))
		require.NotZero(t, b.Stats().Downgrades[ports.DowngradeBreakerOpen])
	})
}

func TestWithoutATransportThatWritesPutsAreRefusedAndReadsAreServed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, _, far := twoWays(w, noPull)
		far.refuse(true)
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		r := b.putTo(t.Context(), "a", 0, 500, 1, "l")[0]
		require.Equal(t, ports.PeerUnavailable, r.Status)
		p := b.Stats().Peers[0]
		require.EqualValues(t, "near", p.Transport)
		require.Empty(t, p.Writes)
		require.EqualValues(t, "far", p.Refused[0].Kind)
		far.refuse(false)
		w.pass(15 * time.Second)
		require.Equal(t, ports.Stored, b.putTo(t.Context(), "a", 0, 500, 1, "l")[0].Status)
	})
}

// TestALostLinkOfAPeerThatStartedAnewBelongsToTheOldStart: the hello that is to mend it finds another start.
func TestALostLinkOfAPeerThatStartedAnewBelongsToTheOldStart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b, near, _ := twoWays(w, noPull)
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		b.fail(faults.Every("PeerResolver", "Hello", faults.Verdict{Edit: func(r any) {
			h := r.(*ports.HelloReply)
			h.From.Incarnation += domain.Incarnation(1)
		}}))
		near.cut(t)
		w.pass(200 * time.Millisecond)
		require.Empty(t, b.Stats().Peers[0].Transport, "what it was connected to is no more")
		b.fail()
		w.pass(3 * time.Second)
		b.mustGet(ports.FromSlot, part("k", 20_000, 1_000))
		a.restart()
		a.put(objectSize, "l")
		b.mustGet(ports.FromSlot, part("l", 0, 1_000))
	})
}

// rememberedLinks is a transport that knows its links by pointers that do not keep them.
type rememberedLinks struct {
	ports.Transport
	links []weak.Pointer[rememberedLink]
}

type rememberedLink struct{ ports.Link }

type rememberedPending struct {
	ports.PendingLink
	t *rememberedLinks
}

func (r *rememberedLinks) Offer(ctx context.Context, to ports.PeerID) (ports.PendingLink, error) {
	p, err := r.Transport.Offer(ctx, to)
	return &rememberedPending{p, r}, err
}

func (p *rememberedPending) Link(ctx context.Context, answer []byte) (ports.Link, error) {
	l, err := p.PendingLink.Link(ctx, answer)
	if err != nil {
		return nil, err
	}
	kept := &rememberedLink{l}
	p.t.links = append(p.t.links, weak.Make(kept))
	return kept, nil
}

// TestLinksThatEndedAreForgotten: what is kept of calls and pulls for the next ones keeps no link, which has buffers and, over RDMA, queue
// pairs.
func TestLinksThatEndedAreForgotten(t *testing.T) {
	for name, p := range map[string]place{"slots and the pull": {}, "slots": {Config: noPull}, "the arena": {noMedium: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				var all *rememberedLinks
				p.ports = func(p *app.Ports) {
					all = &rememberedLinks{Transport: p.Transports[0]}
					p.Transports[0] = all
				}
				a, b := w.pair(place{}, p)
				for range 3 {
					a.put(objectSize, "k", "l")
					b.get(part("k", 0, 1_000), whole("l", objectSize))
					w.settle()
					w.pass(400 * time.Millisecond) // most of the lease
					b.get(part("k", 2_000, 1_000))
					b.putTo(t.Context(), "a", 0, objectSize, 2, "m")
					a.restart()
					require.NoError(t, b.Clear(t.Context()))
					w.pass(3 * time.Second)
				}
				a.stop()
				b.putTo(t.Context(), "a", 0, objectSize, 1, "n") // whoever needs the link first finds that it has ended
				w.pass(3 * time.Second)
				runtime.GC()
				require.GreaterOrEqual(t, len(all.links), 3)
				for i, l := range all.links {
					require.Nil(t, l.Value(), "link %d of %d", i, len(all.links))
				}
			})
		})
	}
}
