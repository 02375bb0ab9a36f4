//go:build linux && cgo && rdma

package rdma

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

const (
	page     = 4096
	pages    = 256
	patience = 30 * time.Second // of a machine that is emulated, and busy
)

// couple is an owner with one exposed buffer of content 0, an asker on the other device, and the asker's registered memory.
type couple struct {
	owner, asker *node
	mem, local   ports.HostRegion
}

func newCouple(t *testing.T, cfg Config) *couple {
	cfg.Clock = newClock()
	c := &couple{owner: start(t, "owner", devices[0], cfg), asker: start(t, "asker", devices[1], cfg), mem: offHeap(t, pages*page), local: offHeap(t, pages*page)}
	content.Fill(c.mem.Bytes(), 0, 0)
	content.Poison(c.local.Bytes())
	require.NoError(t, c.owner.Transport.Expose(0, c.mem))
	_, err := c.asker.Transport.Register(c.local)
	require.NoError(t, err)
	return c
}

// op of segments; every one names buffer 0.
func (c *couple) op(tag uint64, dir ports.Direction, token ports.GrantToken, segs ...ports.Segment) *ports.Batch {
	return &ports.Batch{Ops: []ports.Op{{Tag: tag, Count: uint32(len(segs)), Dir: dir, Grant: token, Deadline: c.asker.cfg.Clock.Now().Add(patience)}}, Segments: segs}
}

func (c *couple) piece(remote, local, n uint64) ports.Segment {
	return ports.Segment{RemoteOff: remote, Local: c.local, LocalOff: local, Len: n}
}

// do submits a batch of one op and returns what became of it.
func do(t *testing.T, l ports.Link, b *ports.Batch) error {
	t.Helper()
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(b, q))
	return take(t, q)
}

func take(t *testing.T, q *ports.Completions) error {
	t.Helper()
	done, err := q.Take(t.Context(), patience, nil)
	require.NoError(t, err)
	require.Len(t, done, 1)
	return done[0].Err
}

// readRight reads a piece in odd parts, and looks at every byte.
func (c *couple) readRight(t *testing.T, l ports.Link) {
	t.Helper()
	content.Poison(c.local.Bytes())
	var segs []ports.Segment
	for off := uint64(3); off < 70_000; off += 1009 { // adjacent at the owner, with gaps here
		segs = append(segs, c.piece(off, 5+(off-3)/1009*1013, 1009))
	}
	require.NoError(t, do(t, l, c.op(1, ports.Read, ports.GrantToken{}, segs...)))
	due := make([]byte, c.local.Len())
	content.Poison(due)
	for _, s := range segs {
		content.Fill(due[s.LocalOff:][:s.Len], 0, s.RemoteOff)
	}
	require.Equal(t, due, c.local.Bytes())
}

// writeRight writes over some pages, and looks at every byte of the owner's memory.
func (c *couple) writeRight(t *testing.T, l ports.Link) {
	t.Helper()
	refs := []domain.PageRef{{Page: 3}, {Page: 4}, {Page: 9}}
	id, token, err := c.owner.Transport.Grant(c.asker.Self, page, refs)
	require.NoError(t, err)
	content.Fill(c.local.Bytes(), 1, 0)
	segs := []ports.Segment{c.piece(3*page+7, 100, page+50), c.piece(9*page, 0, page)}
	require.NoError(t, do(t, l, c.op(2, ports.Write, token, segs...)))
	due := append([]byte(nil), c.mem.Bytes()...)
	content.Fill(due, 0, 0)
	for _, s := range segs {
		content.Fill(due[s.RemoteOff:][:s.Len], 1, s.LocalOff)
	}
	require.Equal(t, due, c.mem.Bytes())
	require.NoError(t, c.owner.Transport.Revoke(t.Context(), id, true))
	content.Fill(c.mem.Bytes(), 0, 0)
}

func (n *node) events(e Event) uint64 { return n.rdma().Stats().Events[e] }

// TestSmallCapsAreEnough runs one request, one scatter entry and one outstanding read at a time, over chunks and requests that every
// op crosses.
func TestSmallCapsAreEnough(t *testing.T) {
	cfg := slow()
	cfg.SendDepth, cfg.MaxSGE, cfg.MaxReads, cfg.ReadPairs, cfg.ChunkBytes, cfg.MaxRequest, cfg.GID = 16, 1, 1, 1, 1<<16, 4096, "ipv4"
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	require.EqualValues(t, 2*pages*page/(1<<16), c.owner.rdma().Stats().Regions, "each chunk for reads and for writes")
	c.readRight(t, l)
	c.writeRight(t, l)
	b := c.op(1, ports.Read, ports.GrantToken{}, c.piece(1, 1, pages*page-1)) // many times the depth
	require.NoError(t, do(t, l, b))
	require.Equal(t, -1, content.Check(c.local.Bytes()[1:], 0, 1))
}

func TestWhatTheDeviceCannotDoIsLoweredAndTold(t *testing.T) {
	cfg := slow()
	cfg.SendDepth, cfg.MaxSGE, cfg.MaxReads, cfg.MaxLinks = maxDepth, 256, maxReads, 1<<16
	c := newCouple(t, cfg)
	clamps := fmt.Sprint(c.asker.rdma().Clamps())
	for _, what := range []string{"completion queue", "scatter entries", "outstanding reads", "links of peers"} {
		require.Contains(t, clamps, what)
	}
	require.EqualValues(t, len(c.asker.rdma().Clamps()), c.asker.events(EventClamped))
	l := dial(t, c.asker, c.owner)
	c.readRight(t, l)
}

func TestWrongNamesAreAnsweredWithRightOnes(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		says []string
		is   error
	}{
		"device": {Config{Device: "mlx5_9"}, []string{"mlx5_9", devices[0], devices[1]}, syscall.ENODEV},
		"port":   {Config{Device: devices[0] + "/7"}, []string{`"7"`, "1 to 1"}, syscall.ENODEV},
		"GID":    {Config{Device: devices[0], GID: "200"}, []string{"200", "there are"}, domain.ErrInvalid},
	} {
		tt.cfg.Clock = newClock()
		_, err := Open(tt.cfg)
		require.ErrorIs(t, err, tt.is, name)
		for _, s := range tt.says {
			require.ErrorContains(t, err, s, name)
		}
	}
	all, err := Devices()
	require.NoError(t, err)
	found := 0
	for _, d := range all {
		if slices.Contains(devices, d.Name) {
			require.NoError(t, d.Err)
			require.True(t, d.Ports[0].Active)
			require.True(t, slices.ContainsFunc(d.Ports[0].GIDs, func(g GIDInfo) bool { return g.Used }), "%v", d.Ports[0].GIDs)
			found++
		}
	}
	require.Equal(t, 2, found)
	require.NotEmpty(t, LockedMemoryLimit())
}

// TestRegistrationRollsBackWhatFails: the last chunk of the memory is not there.
func TestRegistrationRollsBackWhatFails(t *testing.T) {
	cfg := slow()
	cfg.ChunkBytes = 1 << 16
	n := start(t, "n", devices[0], cfg)
	b, err := syscall.Mmap(-1, 0, 1<<18, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(b)) }()
	require.NoError(t, syscall.Mprotect(b[3<<16:], syscall.PROT_NONE))
	_, err = n.Transport.Register(ports.HostRegionOf(b))
	require.ErrorIs(t, err, syscall.EFAULT)
	require.ErrorContains(t, err, "chunk at 196608")
	require.Error(t, n.Transport.Expose(0, ports.HostRegionOf(b)))
	require.EqualValues(t, 2, n.events(EventRegisterFail))
	_, err = n.Transport.Register(ports.HostRegionOf(nil))
	require.ErrorIs(t, err, domain.ErrInvalid)
	for range 300 { // nothing of them stays
		r, err := n.Transport.Register(ports.HostRegionOf(b[:1<<17]))
		require.NoError(t, err)
		again, err := n.Transport.Register(ports.HostRegionOf(b[:1<<17]))
		require.NoError(t, err)
		require.EqualValues(t, 2, n.rdma().Stats().Regions, "the same memory twice is one registration")
		require.NoError(t, n.Transport.Deregister(r))
		require.NoError(t, n.Transport.Deregister(again))
	}
	s := n.rdma().Stats()
	require.Zero(t, s.Regions)
	require.Zero(t, s.Registered)
}

// TestDeviceMemoryIsRegisteredByItsDescriptor: this device takes none, and says so.
func TestDeviceMemoryIsRegisteredByItsDescriptor(t *testing.T) {
	cfg := slow()
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	asked := 0
	cfg.DMABuf = func(r ports.DeviceRegion) (*os.File, uint64, error) {
		asked++
		if r.Ordinal() == 1 {
			return nil, 0, errors.New("no such accelerator")
		}
		return f, 0, nil
	}
	n := start(t, "n", devices[0], cfg)
	require.True(t, n.Transport.Caps().Device)
	require.ErrorContains(t, n.rdma().TryDMABuf(f, 0, 4096), "ibv_reg_dmabuf_mr")
	_, err = n.Transport.Register(ports.DeviceRegionOf(0, ports.DevAddrOf(1<<40), 4096))
	require.ErrorContains(t, err, "ibv_reg_dmabuf_mr")
	require.ErrorIs(t, err, errors.ErrUnsupported, "a node goes by other ways then")
	require.ErrorIs(t, f.Close(), os.ErrClosed, "the adapter has closed it")
	require.ErrorIs(t, n.Transport.Expose(0, ports.DeviceRegionOf(1, ports.DevAddrOf(1<<40), 4096)), errors.ErrUnsupported)
	_, err = n.Transport.Register(ports.DeviceRegionOf(1, ports.DevAddrOf(1<<40), 4096))
	require.ErrorContains(t, err, "no such accelerator")
	require.Equal(t, 3, asked)
	require.Zero(t, n.rdma().Stats().Regions)
}

// TestABadKeyFailsItsOpAndNoOther: the pair that it took down carried others, which are read again; another link saw nothing of it.
func TestABadKeyFailsItsOpAndNoOther(t *testing.T) {
	cfg := slow()
	cfg.ReadPairs = 1
	c := newCouple(t, cfg)
	l, other := dial(t, c.asker, c.owner), dial(t, c.asker, c.owner)
	bad := *l.remote[0]
	bad.id, bad.keys = 1, []uint32{l.remote[0].keys[0] ^ 0xff00}
	l.mu.Lock()
	l.remote[1] = &bad
	l.mu.Unlock()
	b := &ports.Batch{}
	for i := range uint64(9) {
		s := c.piece(i*page, i*page, page)
		if i == 4 {
			s.Remote = 1
		}
		b.Segments = append(b.Segments, s)
		b.Ops = append(b.Ops, ports.Op{Tag: i, First: uint32(i), Count: 1, Deadline: c.asker.cfg.Clock.Now().Add(patience)})
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(b, q))
	var done []ports.Completion
	for len(done) < len(b.Ops) {
		var err error
		done, err = q.Take(t.Context(), patience, done)
		require.NoError(t, err)
	}
	for _, d := range done {
		if d.Tag == 4 {
			require.ErrorIs(t, d.Err, StatusRemAccess)
			require.ErrorIs(t, d.Err, ports.ErrPeer)
			require.ErrorContains(t, d.Err, `"owner"`)
			require.ErrorContains(t, d.Err, "deregistered")
			continue
		}
		require.NoError(t, d.Err, "op %d", d.Tag)
		require.Equal(t, -1, content.Check(c.local.Bytes()[d.Tag*page:][:page], 0, d.Tag*page))
	}
	s := c.asker.rdma().Stats()
	require.EqualValues(t, 1, s.Completions[StatusRemAccess])
	require.EqualValues(t, 1, s.Events[EventPairFailed])
	require.EqualValues(t, 1, s.Events[EventPairRevived])
	require.Positive(t, s.Events[EventReadRetried])
	c.readRight(t, l)
	c.readRight(t, other)
}

// TestPairsForReadsTakeNoWrites: what carries the reads of anyone is no way around a grant, whatever key is used.
func TestPairsForReadsTakeNoWrites(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	_, token, err := c.owner.Transport.Grant(c.asker.Self, page, []domain.PageRef{{Page: 3}})
	require.NoError(t, err)
	l.mu.Lock()
	l.pairs[0].writes, l.pairs[l.t.cfg.ReadPairs].writes = true, false
	l.mu.Unlock()
	require.ErrorIs(t, do(t, l, c.op(1, ports.Write, token, c.piece(3*page, 0, page))), statusRemInvalid)
	require.EqualValues(t, 1, c.asker.rdma().Stats().Completions[statusRemInvalid])
	require.Equal(t, -1, content.Check(c.mem.Bytes(), 0, 0))
}

// TestARevokeLeavesOtherGrantsOfTheWriter: their writes share the pair that was fenced, and go on over its successor.
func TestARevokeLeavesOtherGrantsOfTheWriter(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	content.Fill(c.local.Bytes(), 1, 0)
	_, kept, err := c.owner.Transport.Grant(c.asker.Self, page, []domain.PageRef{{Page: 8}})
	require.NoError(t, err)
	for round := range 5 {
		id, token, err := c.owner.Transport.Grant(c.asker.Self, page, []domain.PageRef{{Page: 1}})
		require.NoError(t, err)
		require.NoError(t, do(t, l, c.op(1, ports.Write, token, c.piece(page, 0, page))))
		require.NoError(t, c.owner.Transport.Revoke(t.Context(), id, false))
		require.EqualValues(t, round+1, c.owner.events(EventFenced))
		content.Poison(c.mem.Bytes()[page:][:page])
		require.NoError(t, do(t, l, c.op(2, ports.Write, kept, c.piece(8*page, 0, page))))
		require.ErrorIs(t, do(t, l, c.op(3, ports.Write, token, c.piece(page, 0, page))), ports.ErrRevoked)
		require.Equal(t, -1, content.CheckPoison(c.mem.Bytes()[page:][:page]))
	}
	require.Equal(t, -1, content.Check(c.mem.Bytes()[8*page:][:page], 1, 0))
}

// TestWhatWasOpenedBeforeAFenceIsOpenedAgain: most of the writes wait for room when their grant is revoked. None of them may go over the
// pair's successor, since the pages are another key's by then.
func TestWhatWasOpenedBeforeAFenceIsOpenedAgain(t *testing.T) {
	cfg := slow()
	cfg.SendDepth = 16
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	content.Fill(c.local.Bytes(), 1, 0)
	refs := make([]domain.PageRef, pages)
	for i := range refs {
		refs[i].Page = uint32(i)
	}
	id, token, err := c.owner.Transport.Grant(c.asker.Self, page, refs)
	require.NoError(t, err)
	const ops = 8 * pages
	b := &ports.Batch{}
	for i := range uint64(ops) {
		b.Segments = append(b.Segments, c.piece(i%pages*page, i%pages*page, page))
		b.Ops = append(b.Ops, ports.Op{Tag: i, First: uint32(i), Count: 1, Dir: ports.Write, Purpose: ports.PurposePut, Grant: token, Deadline: c.asker.cfg.Clock.Now().Add(2 * patience)})
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(b, q))
	var done []ports.Completion
	for len(done) < 3*cfg.SendDepth {
		done, err = q.Take(t.Context(), patience, done)
		require.NoError(t, err)
	}
	require.NoError(t, c.owner.Transport.Revoke(t.Context(), id, false))
	content.Fill(c.mem.Bytes(), 2, 0)
	refused := 0
	for len(done) < ops {
		held := len(done)
		done, err = q.Take(t.Context(), patience, done)
		require.NoError(t, err)
		require.Greater(t, len(done), held, "ops do not complete")
	}
	for _, d := range done {
		if d.Err != nil {
			require.ErrorIs(t, d.Err, ports.ErrRevoked)
			refused++
		}
	}
	require.Positive(t, refused, "every write was through before the revoke")
	require.Equal(t, -1, content.Check(c.mem.Bytes(), 2, 0), "first byte that landed after the revoke")
}

// TestAGrantThatNobodyOpenedIsRevokedWithoutAFence: its writer was told no key.
func TestAGrantThatNobodyOpenedIsRevokedWithoutAFence(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	id, token, err := c.owner.Transport.Grant(c.asker.Self, page, []domain.PageRef{{Page: 1}})
	require.NoError(t, err)
	require.NoError(t, c.owner.Transport.Revoke(t.Context(), id, false))
	require.Zero(t, c.owner.events(EventFenced))
	require.ErrorIs(t, do(t, l, c.op(1, ports.Write, token, c.piece(page, 0, page))), ports.ErrRevoked)
}

// TestARevokeBesideADropWaitsForThePairsEnd: while Drop is still at it, the writer's pairs are there, and its pages are not free.
func TestARevokeBesideADropWaitsForThePairsEnd(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	id, token, err := c.owner.Transport.Grant(c.asker.Self, page, []domain.PageRef{{Page: 1}})
	require.NoError(t, err)
	require.NoError(t, do(t, l, c.op(1, ports.Write, token, c.piece(page, 0, page))))
	owner := c.owner.rdma()
	owner.mu.Lock()
	g, in := owner.mu.grants[id], slices.Collect(maps.Values(owner.mu.inbound))[0]
	owner.mu.Unlock()
	in.mu.Lock() // as while its pairs are being destroyed
	dropped, revoked := make(chan struct{}), make(chan error, 1)
	go func() { defer close(dropped); owner.Drop(c.asker.Self) }()
	require.Eventually(t, func() bool { owner.mu.Lock(); defer owner.mu.Unlock(); return g.revoked }, patience, time.Millisecond)
	go func() { revoked <- owner.Revoke(t.Context(), id, false) }()
	early := false
	select {
	case err = <-revoked:
		early = true
	case <-time.After(100 * time.Millisecond): // a revoke that does not wait is done in microseconds
	}
	in.mu.Unlock()
	<-dropped
	require.False(t, early, "revoked while the pairs are there: %v", err)
	require.NoError(t, <-revoked)
	require.Zero(t, owner.Stats().Inbound)
}

// TestALinkWhoseOwnerIsGoneEnds, though nobody uses it.
func TestALinkWhoseOwnerIsGoneEnds(t *testing.T) {
	cfg := slow()
	cfg.Keepalive, cfg.Timeout = 100*time.Millisecond, 12
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	c.owner.rdma().Drop(c.asker.Self)
	select {
	case <-l.Done():
	case <-time.After(patience):
		require.FailNow(t, "the link lives on")
	}
	require.ErrorIs(t, l.Submit(&ports.Batch{}, ports.NewCompletions()), ports.ErrReset)
	s := c.asker.rdma().Stats()
	require.Positive(t, s.Completions[StatusRetryExc]+s.Events[EventSilent], "Soft-RoCE does not always count its retries")
}

// TestALinkThatStandsStillIsForgotten: its asker never says goodbye.
func TestALinkThatStandsStillIsForgotten(t *testing.T) {
	cfg := slow()
	cfg.Keepalive, cfg.IdleTimeout = time.Hour, 200*time.Millisecond
	c := newCouple(t, cfg)
	dial(t, c.asker, c.owner)
	require.Eventually(t, func() bool { return c.owner.events(EventForgotten) == 1 && c.owner.rdma().Stats().Inbound == 0 }, patience, 10*time.Millisecond)
}

// TestAGoodbyeFreesTheOwnersHalf, long before it would be forgotten.
func TestAGoodbyeFreesTheOwnersHalf(t *testing.T) {
	cfg := slow()
	cfg.IdleTimeout = time.Hour
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	require.Equal(t, 1, c.owner.rdma().Stats().Inbound)
	require.NoError(t, l.Close())
	require.Eventually(t, func() bool { return c.owner.rdma().Stats().Inbound == 0 }, patience, 10*time.Millisecond)
}

func TestMoreLinksThanTheLimitAreRefused(t *testing.T) {
	cfg := slow()
	cfg.MaxLinks = 2
	c := newCouple(t, cfg)
	dial(t, c.asker, c.owner)
	dial(t, c.asker, c.owner)
	_, err := tryDial(t.Context(), c.asker, c.owner)
	require.ErrorIs(t, err, ports.ErrRefused)
	require.EqualValues(t, 1, c.owner.events(EventTooMany))
}

// TestCloseFreesOffersThatWereLeft: nobody linked or closed them.
func TestCloseFreesOffersThatWereLeft(t *testing.T) {
	n := start(t, "n", devices[0], slow())
	p, err := n.Transport.Offer(t.Context(), "owner")
	require.NoError(t, err)
	require.NoError(t, n.Transport.Close())
	require.NoError(t, p.Close())
	_, err = p.Link(t.Context(), nil)
	require.Error(t, err)
	_, err = n.Transport.Offer(t.Context(), "owner")
	require.ErrorIs(t, err, ports.ErrClosed)
}

// TestGarbageOverControlEndsThatLink and no other.
func TestGarbageOverControlEndsThatLink(t *testing.T) {
	c := newCouple(t, slow())
	l, other := dial(t, c.asker, c.owner), dial(t, c.asker, c.owner)
	l.mu.Lock()
	err := l.ctl.post(&message{kind: 99}, sendSlot)
	l.mu.Unlock()
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.owner.events(EventGarbage) == 1 && c.owner.rdma().Stats().Inbound == 1 }, patience, 10*time.Millisecond)
	c.readRight(t, other)
}

// TestADeadlineTakesThePairDownAndTheNextOpIsServed: the requests of the late op are flushed before its memory is given back.
func TestADeadlineTakesThePairDownAndTheNextOpIsServed(t *testing.T) {
	needsVeth(t)
	cfg := slow()
	cfg.ControlTimeout, cfg.Keepalive = patience, patience
	cfg.Timeout = 18 // the device does not give up before the op does
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	t.Cleanup(func() { netem(t) })
	partition(t, true)
	b := c.op(1, ports.Read, ports.GrantToken{}, c.piece(0, 0, 8*page))
	b.Ops[0].Deadline = c.asker.cfg.Clock.Now().Add(100 * time.Millisecond)
	require.ErrorIs(t, do(t, l, b), ports.ErrTimeout)
	content.Poison(c.local.Bytes())
	partition(t, false)
	require.Positive(t, c.asker.events(EventDeadline))
	c.readRight(t, l)                                                                                                 // it looks at every byte, so what lands late shows
	require.Eventually(t, func() bool { return c.asker.events(EventPairRevived) > 0 }, patience, 10*time.Millisecond) // the other one served that
}

// TestALinkIsMadeAnewWhenTheWayIsThereAgain, and not before.
func TestALinkIsMadeAnewWhenTheWayIsThereAgain(t *testing.T) {
	needsVeth(t)
	cfg := slow()
	cfg.Keepalive, cfg.Timeout = 100*time.Millisecond, 12
	c := newCouple(t, cfg)
	l := dial(t, c.asker, c.owner)
	program(t, "tc", "qdisc", "add", "dev", "veth1", "root", "netem", "loss", "100%")
	t.Cleanup(func() { netem(t) })
	<-l.Done()
	_, err := tryDial(t.Context(), c.asker, c.owner)
	require.ErrorIs(t, err, ports.ErrPeer)
	netem(t)
	c.readRight(t, dial(t, c.asker, c.owner))
}

// TestReadsAllocateNothing in steady state.
func TestReadsAllocateNothing(t *testing.T) {
	c := newCouple(t, slow())
	l := dial(t, c.asker, c.owner)
	b := c.op(1, ports.Read, ports.GrantToken{}, c.piece(1, 1, 1728), c.piece(5000, 9000, 1728))
	q := ports.NewCompletions()
	done := make([]ports.Completion, 0, 8)
	once := func() {
		b.Ops[0].Deadline = c.asker.cfg.Clock.Now().Add(patience)
		if err := l.Submit(b, q); err != nil {
			panic(err)
		}
		for done = done[:0]; len(done) == 0; {
			done, _ = q.Take(t.Context(), patience, done)
		}
	}
	require.Less(t, testing.AllocsPerRun(300, once), 1.0)
	require.NoError(t, done[0].Err)
}

// TestManyLinksLeaveNothing: queue pairs, memory and links of both ends are as before.
func TestManyLinksLeaveNothing(t *testing.T) {
	c := newCouple(t, slow())
	before := descriptors(t)
	for range 20 {
		l, err := tryDial(t.Context(), c.asker, c.owner)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		p, err := c.asker.Transport.Offer(t.Context(), "owner")
		require.NoError(t, err)
		require.NoError(t, p.Close())
	}
	require.Eventually(t, func() bool { return c.owner.rdma().Stats().Inbound == 0 }, patience, 10*time.Millisecond)
	require.Zero(t, c.asker.rdma().Stats().Links)
	require.LessOrEqual(t, descriptors(t), before)
}

func descriptors(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(d)
}

func TestVerbsNameTheCallThatFailed(t *testing.T) {
	_, err := verbs.Open("nothing")
	require.ErrorIs(t, err, syscall.ENODEV)
	c, err := verbs.Open(devices[0])
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = c.Port(9)
	require.ErrorContains(t, err, "ibv_query_port")
	pd, err := c.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	_, err = pd.Register(0, 4096, verbs.LocalWrite)
	require.ErrorContains(t, err, "ibv_reg_mr")
}
