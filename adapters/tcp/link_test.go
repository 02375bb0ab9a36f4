//go:build linux

package tcp

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
)

// fakeOwner answers offers and proofs as an owner does, and then does with a connection what a test wants.
type fakeOwner struct {
	l   net.Listener
	wg  sync.WaitGroup
	mu  sync.Mutex
	key linkKey
	ans answer
}

func newFakeOwner(t testing.TB, serve func(c net.Conn)) *fakeOwner {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fakeOwner{l: l, ans: answer{features: ourFeatures, start: 5, link: 1, conns: 1, addresses: []string{l.Addr().String()}}}
	f.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				f.mu.Lock()
				key := f.key
				f.mu.Unlock()
				err := receive(c, func(laneHello) (linkKey, bool) { return key, true }, func(laneHello) bool { return true })
				if err == nil {
					serve(c)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.wg.Wait()
	})
	return f
}

func (f *fakeOwner) link(t testing.TB, asker *node) (*Link, error) {
	p, err := asker.Transport.Offer(t.Context(), "owner")
	require.NoError(t, err)
	f.mu.Lock()
	f.key = newLinkKey(nil, p.(*pendingLink).offer, f.ans)
	f.mu.Unlock()
	l, err := p.Link(t.Context(), f.ans.encode())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l.(*Link), nil
}

// takeRequest reads one request's header and segments.
func takeRequest(c net.Conn) request {
	var b [maxFrame]byte
	if _, err := io.ReadFull(c, b[:requestBytes]); err != nil {
		return request{}
	}
	r, _ := decodeRequest(b[:])
	_, _ = io.ReadFull(c, b[:r.size()-requestBytes])
	return r
}

// TestOwnersThatLieResetTheLink has the owner answer an 8-byte read, or a write, with something else.
func TestOwnersThatLieResetTheLink(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer response
		behind int // bytes that follow
		raw    []byte
		why    Reason
		dir    ports.Direction
	}{
		{name: "more bytes", answer: response{kind: kindRead, bytes: 9}, behind: 9, why: Garbage},
		{name: "fewer bytes", answer: response{kind: kindRead, bytes: 7}, behind: 7, why: Garbage},
		{name: "no bytes", answer: response{kind: kindRead}, why: Garbage},
		{name: "another id", answer: response{kind: kindRead, id: 1, bytes: 8}, behind: 8, why: Garbage},
		{name: "another kind", answer: response{kind: kindWrite}, why: Garbage},
		{name: "bytes with a refusal", answer: response{kind: kindRead, status: statusBounds, bytes: 8}, behind: 8, why: Garbage},
		{name: "an unknown status", answer: response{kind: kindRead, status: 200, bytes: 8}, behind: 8, why: Garbage},
		{name: "2^32-1 bytes", answer: response{kind: kindRead, bytes: 1<<32 - 1}, why: Oversized},
		{name: "half a payload", answer: response{kind: kindRead, bytes: 8}, behind: 3, why: Truncated},
		{name: "half a header", raw: []byte{version, byte(kindRead), 0}, why: Truncated},
		{name: "text", raw: []byte("HTTP/1.1 200 OK\r\n\r\n"), why: Garbage},
		{name: "a write's answer before its payload is sent", answer: response{kind: kindWrite}, why: Garbage, dir: ports.Write},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asker := listen(t, "asker", Config{})
			hold := make(chan struct{})
			f := newFakeOwner(t, func(c net.Conn) {
				takeRequest(c)
				b := tt.raw
				if b == nil {
					b = make([]byte, responseBytes+tt.behind)
					tt.answer.encode(b)
				}
				_, _ = c.Write(b)
				if tt.dir == ports.Write { // its payload is more than sockets hold, and nobody takes it
					<-hold
				}
			})
			end := sync.OnceFunc(func() { close(hold) })
			t.Cleanup(end)
			l, err := f.link(t, asker)
			require.NoError(t, err)
			require.NoError(t, l.lanes[0].sock.conn.SetWriteBuffer(4096))
			q := ports.NewCompletions()
			b := &ports.Batch{Ops: []ports.Op{{Count: 1, Dir: tt.dir}}}
			b.Segments = []ports.Segment{{Local: heap(t, 8), Len: 8}}
			if tt.dir == ports.Write {
				b.Segments[0].Local, b.Segments[0].Len = heap(t, 64<<20), 64<<20
			}
			require.NoError(t, l.Submit(b, q))
			require.ErrorIs(t, take(t, q, 1)[0].Err, ports.ErrReset)
			end()
			<-l.Done()
			require.EqualValues(t, 1, asker.tcp().Stats().Ended[tt.why], "%v", asker.tcp().Stats().Ended)
			require.ErrorIs(t, l.Submit(b, q), ports.ErrReset)
		})
	}
}

// TestAResponseThatNobodyAskedForResetsTheLink sends one at once.
func TestAResponseThatNobodyAskedForResetsTheLink(t *testing.T) {
	asker := listen(t, "asker", Config{})
	f := newFakeOwner(t, func(c net.Conn) {
		var b [responseBytes]byte
		response{kind: kindRead}.encode(b[:])
		_, _ = c.Write(b[:])
		_, _ = io.Copy(io.Discard, c)
	})
	l, err := f.link(t, asker)
	require.NoError(t, err)
	<-l.Done()
	require.EqualValues(t, 1, asker.tcp().Stats().Ended[Garbage])
}

// through is an owner behind a relay, and an asker.
func through(t *testing.T, cfg Config) (asker, owner *node, between *proxy.Proxy) {
	owner, _ = exposing(t, Config{})
	between = proxy.New(t, owner.cfg.Listen[0], 1, proxy.Way{})
	owner.behind(t, between)
	return listen(t, "asker", cfg), owner, between
}

// batchOf reads whole buffers, one an op, into pieces of dst.
func batchOf(dst ports.HostRegion, ops int, until domain.Instant) *ports.Batch {
	b := &ports.Batch{}
	for i := range uint64(ops) {
		b.Ops = append(b.Ops, ports.Op{Tag: i, First: uint32(i), Count: 1, Deadline: until})
		b.Segments = append(b.Segments, ports.Segment{Local: dst, LocalOff: i * testBuffer, Len: testBuffer})
	}
	return b
}

// TestACancelledCallCostsItsNeighboursNothing cancels one call while everything is held: it completes at once, though its bytes
// are on their way; the neighbour behind it on the same connection gets its own, and the link stays.
func TestACancelledCallCostsItsNeighboursNothing(t *testing.T) {
	asker, owner, between := through(t, Config{Conns: 1})
	l := dial(t, asker, owner)
	const ops = 12 // three windows
	gone, kept := heap(t, ops*testBuffer), heap(t, testBuffer)
	goneQ, keptQ := ports.NewCompletions(), ports.NewCompletions()
	between.Hold(true)
	require.NoError(t, l.Submit(batchOf(gone, ops, 0), goneQ))
	require.NoError(t, l.Submit(batchOf(kept, 1, 0), keptQ))
	drawn(t, l)
	l.Cancel(goneQ, []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	for _, c := range take(t, goneQ, ops) {
		require.ErrorIs(t, c.Err, ports.ErrCancelled)
	}
	content.Poison(gone.Bytes())
	between.Hold(false)
	require.NoError(t, take(t, keptQ, 1)[0].Err)
	require.Equal(t, -1, content.Check(kept.Bytes(), 0, 0))
	require.Equal(t, -1, content.CheckPoison(gone.Bytes()), "bytes that landed after their op had completed")
	thrown := l.Wire().Thrown
	require.NotZero(t, thrown)
	require.LessOrEqual(t, thrown, uint64(window+chunkBytes), "what was never asked for costs nothing")
	require.Equal(t, thrown+testBuffer, l.Counts().Bytes[ports.PurposeGet])
	require.NoError(t, readInto(t, l, kept, 0))
}

// drawn waits until the lanes have asked for something.
func drawn(t testing.TB, l *Link) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.lanes[0].asked >= window || l.mu.backlog == 0
	}, patience, time.Millisecond)
}

// TestCancelInMidPayload cancels again and again when a part of the bytes has passed, and poisons at once.
func TestCancelInMidPayload(t *testing.T) {
	asker, owner, between := through(t, Config{Conns: 2})
	between.Set(proxy.Way{Piece: 999})
	l := dial(t, asker, owner)
	dst, neighbour := heap(t, 2*testBuffer), heap(t, 3*1728)
	q, nq := ports.NewCompletions(), ports.NewCompletions()
	good := uint64(0)
	for range 60 {
		before := l.Counts().Bytes[ports.PurposeGet]
		between.HoldAfter(proxy.ToDialler, 3000)
		require.NoError(t, l.Submit(batchOf(dst, 2, 0), q))
		require.NoError(t, l.Submit(&ports.Batch{Ops: []ports.Op{{Count: 1}}, Segments: []ports.Segment{{RemoteOff: 5, Local: neighbour, Len: 3 * 1728}}}, nq))
		require.Eventually(t, func() bool { return l.Counts().Bytes[ports.PurposeGet] > before+2000 }, patience, time.Millisecond)
		l.Cancel(q, []uint64{0, 1})
		for _, c := range take(t, q, 2) {
			if c.Err == nil {
				good += testBuffer
			}
		}
		good += 3 * 1728
		content.Poison(dst.Bytes())
		between.Hold(false)
		require.NoError(t, take(t, nq, 1)[0].Err)
		require.Equal(t, -1, content.Check(neighbour.Bytes(), 0, 5))
		require.Equal(t, -1, content.CheckPoison(dst.Bytes()))
	}
	require.NotZero(t, l.Wire().Thrown)
	require.NoError(t, l.Close())
	s := l.Counts()
	require.Equal(t, s.Bytes[ports.PurposeGet], good+s.Thrown[ports.PurposeGet], "what crossed was needed or thrown away")
}

// halfSent is a lane that is in the middle of sending a write, which goes on when the relay lets go; more wait behind it. Op 0
// has a source of its own.
func halfSent(t *testing.T, ops int) (l *Link, owner *node, between *proxy.Proxy, q *ports.Completions, src ports.HostRegion) {
	owner, _ = exposing(t, Config{})
	between = proxy.New(t, owner.cfg.Listen[0], 1, proxy.Way{})
	owner.behind(t, between)
	asker := listen(t, "asker", Config{Conns: 1})
	l = dial(t, asker, owner)
	require.NoError(t, l.lanes[0].sock.conn.SetWriteBuffer(4096))
	pages := make([]domain.PageRef, 64)
	for i := range pages {
		pages[i].Page = uint32(i)
	}
	_, token, err := owner.Transport.Grant(asker.Self, testPage, pages)
	require.NoError(t, err)
	src, q = heap(t, 2*testBuffer), ports.NewCompletions()
	content.Fill(src.Bytes()[:testBuffer], 0, 0) // what is there already, so that what is applied is seen only if it is something else
	content.Fill(src.Bytes()[testBuffer:], 0, 0)
	b := &ports.Batch{Segments: []ports.Segment{{Local: src, Len: testBuffer}, {Local: src, LocalOff: testBuffer, Len: testBuffer}}}
	for i := range uint64(ops) {
		b.Ops = append(b.Ops, ports.Op{Tag: i, First: uint32(min(i, 1)), Count: 1, Dir: ports.Write, Purpose: ports.PurposePut, Grant: token})
	}
	between.Hold(true)
	require.NoError(t, l.Submit(b, q))
	require.Eventually(t, func() bool {
		c := l.lanes[0]
		c.out.Lock()
		defer c.out.Unlock()
		return c.out.left > 0 && c.out.left < testBuffer
	}, patience, time.Millisecond)
	return l, owner, between, q, src
}

// TestACancelledWriteIsQuietWhenItIsSent cancels one that is half sent, and those behind it, which complete at once.
func TestACancelledWriteIsQuietWhenItIsSent(t *testing.T) {
	const ops = 5
	l, owner, between, q, src := halfSent(t, ops)
	l.Cancel(q, []uint64{0, 1, 2, 3, 4})
	for _, c := range take(t, q, ops-1) {
		require.ErrorIs(t, c.Err, ports.ErrCancelled)
		require.NotZero(t, c.Tag, "its memory is still to be sent")
	}
	content.Poison(src.Bytes()[testBuffer:])
	between.Hold(false)
	last := take(t, q, 1)[0]
	require.ErrorIs(t, last.Err, ports.ErrCancelled)
	require.Zero(t, last.Tag)
	content.Poison(src.Bytes())
	got := heap(t, testBuffer)
	require.NoError(t, readInto(t, l, got, 0), "the link stays")
	require.Equal(t, -1, content.Check(got.Bytes(), 0, 0))
	require.EqualValues(t, testBuffer, owner.tcp().Stats().AppliedBytes)
}

// TestNothingIsSentAfterTheEnd ends a link in the middle of sending.
func TestNothingIsSentAfterTheEnd(t *testing.T) {
	l, owner, between, q, src := halfSent(t, 2)
	l.end(ports.ErrClosed)
	take(t, q, 2)
	_, err := l.lanes[0].sendStep(-1)
	require.ErrorIs(t, err, errAborted)
	content.Poison(src.Bytes())
	require.NoError(t, l.Close())
	between.Hold(false)
	require.Eventually(t, func() bool { return owner.tcp().Stats().Inbound == 0 }, patience, time.Millisecond)
	require.Zero(t, owner.tcp().Stats().AppliedBytes)
}

// TestADeadlineOfWhatWasNotSentEndsNoLink has an op behind a full window.
func TestADeadlineOfWhatWasNotSentEndsNoLink(t *testing.T) {
	asker, owner, between := through(t, Config{Conns: 1})
	l := dial(t, asker, owner)
	const ops = 8
	dst, late := heap(t, ops*testBuffer), heap(t, 100)
	q, lateQ := ports.NewCompletions(), ports.NewCompletions()
	between.Hold(true)
	require.NoError(t, l.Submit(batchOf(dst, ops, 0), q))
	drawn(t, l)
	until := asker.cfg.Clock.Now().Add(20 * time.Millisecond)
	require.NoError(t, l.Submit(&ports.Batch{Ops: []ports.Op{{Count: 1, Deadline: until}}, Segments: []ports.Segment{{Local: late, Len: 100}}}, lateQ))
	c := take(t, lateQ, 1)[0]
	require.ErrorIs(t, c.Err, ports.ErrTimeout)
	require.GreaterOrEqual(t, c.At, until)
	between.Hold(false)
	for _, c := range take(t, q, ops) {
		require.NoError(t, c.Err)
		require.Equal(t, -1, content.Check(dst.Bytes()[c.Tag*testBuffer:][:testBuffer], 0, 0))
	}
	require.Equal(t, make([]byte, 100), late.Bytes())
}

// TestADeadlineOfWhatIsUnderWayEndsTheLink resets the neighbours, which may try again on a new one.
func TestADeadlineOfWhatIsUnderWayEndsTheLink(t *testing.T) {
	late := &setForward{Clock: newClock()}
	asker, owner, between := through(t, Config{Clock: late, OpTimeout: 2 * time.Hour})
	l := dial(t, asker, owner)
	dst, q := heap(t, 2*testBuffer), ports.NewCompletions()
	b := batchOf(dst, 2, 0)
	b.Ops[1].Deadline = late.Now().Add(time.Minute)
	between.Hold(true)
	require.NoError(t, l.Submit(b, q))
	drawn(t, l)
	late.by.Store(int64(time.Hour))
	signal(l.wake)
	for _, c := range take(t, q, 2) {
		require.ErrorIs(t, c.Err, []error{ports.ErrReset, ports.ErrTimeout}[c.Tag])
	}
	content.Poison(dst.Bytes())
	<-l.Done()
	between.Hold(false)
	works(t, asker, owner)
	require.Equal(t, -1, content.CheckPoison(dst.Bytes()))
}

// setForward is a clock that is set forward. Whoever waits for an instant of it is to be woken.
type setForward struct {
	ports.Clock
	by atomic.Int64 // nanoseconds
}

func (c *setForward) Now() domain.Instant { return c.Clock.Now().Add(time.Duration(c.by.Load())) }

// TestAnOpWithoutADeadlineIsBounded as every wait is.
func TestAnOpWithoutADeadlineIsBounded(t *testing.T) {
	asker, owner, between := through(t, Config{OpTimeout: 30 * time.Millisecond})
	l := dial(t, asker, owner)
	between.Hold(true)
	require.ErrorIs(t, readInto(t, l, heap(t, 100), 0), ports.ErrTimeout)
}

// TestCutsAnywhereNeverShowWrongBytes cuts the way at growing distances, in both directions, under reads and writes.
func TestCutsAnywhereNeverShowWrongBytes(t *testing.T) {
	for way, name := range map[proxy.Direction]string{proxy.ToTarget: "to the owner", proxy.ToDialler: "to the asker"} {
		t.Run(name, func(t *testing.T) {
			owner, mem := exposing(t, Config{})
			asker := listen(t, "asker", Config{Conns: 2})
			between := proxy.New(t, owner.cfg.Listen[0], 1, proxy.Way{})
			between.Set(proxy.Way{Piece: 3000})
			owner.behind(t, between)
			fine := 0
			for cut := int64(1); cut < 400_000; cut = cut*5/4 + 1 {
				between.CutAfter(way, -1)
				l, err := tryDial(t.Context(), asker, owner)
				require.NoError(t, err)
				between.CutAfter(way, cut)
				fine += mixed(t, l, asker, owner, mem)
				require.NoError(t, l.Close())
			}
			require.NotZero(t, fine, "some were let through")
		})
	}
}

// TestALinkThatEndedKeepsNoBuffers: who still has the link has not the half of a megabyte that it worked with.
func TestALinkThatEndedKeepsNoBuffers(t *testing.T) {
	owner, _ := exposing(t, Config{})
	l := dial(t, listen(t, "asker", Config{}), owner)
	var buffers []weak.Pointer[byte]
	for _, c := range l.lanes {
		buffers = append(buffers, weak.Make(&c.buf[0]), weak.Make(&c.frames[0]))
	}
	require.NoError(t, l.Close())
	runtime.GC()
	for _, b := range buffers {
		require.Nil(t, b.Value())
	}
	runtime.KeepAlive(l)
}

// mixed submits reads and writes, and counts those that were a success. Page 63 is written.
func mixed(t *testing.T, l *Link, asker, owner *node, mem ports.HostRegion) (fine int) {
	const ops, each = 16, 15_000
	id, token := grantPage(t, owner, asker.Self, 63)
	dst, src, q := heap(t, ops*each), heap(t, testPage), ports.NewCompletions()
	content.Poison(dst.Bytes())
	content.Fill(src.Bytes(), 99, 0)
	b := &ports.Batch{}
	for i := range uint64(ops) {
		op := ports.Op{Tag: i, First: uint32(len(b.Segments)), Count: 1}
		s := ports.Segment{RemoteOff: i * 37, Local: dst, LocalOff: i * each, Len: each}
		if i%4 == 3 {
			op.Dir, op.Grant, op.Purpose = ports.Write, token, ports.PurposePut
			s = ports.Segment{RemoteOff: 63 * testPage, Local: src, Len: testPage}
		}
		b.Ops, b.Segments = append(b.Ops, op), append(b.Segments, s)
	}
	if err := l.Submit(b, q); err != nil {
		require.ErrorIs(t, err, ports.ErrReset)
		return 0
	}
	written := false
	for _, c := range take(t, q, ops) {
		if c.Err != nil {
			require.ErrorIs(t, c.Err, ports.ErrReset)
			continue
		}
		fine++
		if s := b.Segments[c.Tag]; b.Ops[c.Tag].Dir == ports.Read {
			require.Equal(t, -1, content.Check(dst.Bytes()[s.LocalOff:][:s.Len], 0, s.RemoteOff))
		} else {
			written = true
		}
	}
	require.NoError(t, owner.Transport.Revoke(t.Context(), id, false))
	if written {
		require.Equal(t, -1, content.Check(mem.Bytes()[63*testPage:], 99, 0))
	}
	content.Fill(mem.Bytes()[63*testPage:], 0, 63*testPage)
	return fine
}

// TestOurCountIsTheKernels for reads, small and large and refused, and for writes.
func TestOurCountIsTheKernels(t *testing.T) {
	owner, _ := exposing(t, Config{})
	asker := listen(t, "asker", Config{})
	l := dial(t, asker, owner)
	id, token := grantPage(t, owner, asker.Self, 3)
	defer func() { require.NoError(t, owner.Transport.Revoke(context.Background(), id, true)) }()
	dst, small, src, q := heap(t, 20*testBuffer), heap(t, 300*1728), heap(t, testPage), ports.NewCompletions()
	b := batchOf(dst, 20, 0)
	for i := range uint64(300) {
		op := ports.Op{Tag: 20 + i, First: uint32(len(b.Segments)), Count: 1, Purpose: ports.Purpose(i % 2)}
		b.Ops, b.Segments = append(b.Ops, op), append(b.Segments, ports.Segment{RemoteOff: i, Local: small, LocalOff: i * 1728, Len: 1728})
	}
	b.Segments[7].Remote = 9 // refused
	for i := range uint64(5) {
		op := ports.Op{Tag: 320 + i, First: uint32(len(b.Segments)), Count: 1, Purpose: ports.PurposePut, Dir: ports.Write, Grant: token}
		b.Ops, b.Segments = append(b.Ops, op), append(b.Segments, ports.Segment{RemoteOff: 3 * testPage, Local: src, Len: testPage})
	}
	require.NoError(t, l.Submit(b, q))
	take(t, q, len(b.Ops))
	require.NoError(t, l.Close())
	ours, w := l.Counts(), l.Wire()
	require.EqualValues(t, 19*testBuffer+150*1728, ours.Bytes[ports.PurposeGet])
	require.EqualValues(t, 150*1728, ours.Bytes[ports.PurposePull])
	require.EqualValues(t, 5*testPage, ours.Bytes[ports.PurposePut])
	read := ours.Bytes[ports.PurposeGet] + ours.Bytes[ports.PurposePull]
	const hellos = defaultConns * (challengeBytes + welcomeBytes)
	require.Equal(t, read+w.Framing+hellos, w.Kernel.Received)
	require.Less(t, float64(w.Framing), 0.01*float64(read))
	require.Greater(t, w.Kernel.Acked, ours.Bytes[ports.PurposePut])
	s := owner.tcp().Stats()
	require.Equal(t, read, s.ServedBytes)
	require.EqualValues(t, 5*testPage, s.AppliedBytes)
}

func TestSteadyTransfersAllocateNothing(t *testing.T) {
	owner, _ := exposing(t, Config{})
	asker := listen(t, "asker", Config{})
	l := dial(t, asker, owner)
	_, token := grantPage(t, owner, asker.Self, 3)
	const ops = 32
	dst, q := heap(t, testBuffer), ports.NewCompletions()
	b := &ports.Batch{}
	for i := range uint64(ops) {
		op := ports.Op{Tag: i, First: uint32(len(b.Segments)), Count: 3}
		s := ports.Segment{RemoteOff: i * 5, Local: dst, LocalOff: i * testPage, Len: 1200}
		if i%8 == 7 {
			op.Dir, op.Grant, s.RemoteOff = ports.Write, token, 3*testPage
		}
		b.Ops, b.Segments = append(b.Ops, op), append(b.Segments, s, s, s)
	}
	done := make([]ports.Completion, 0, 2*ops)
	round := func() {
		_ = l.Submit(b, q)
		for done = done[:0]; len(done) < ops; {
			done, _ = q.Take(context.Background(), patience, done)
		}
	}
	for range 20 {
		round()
	}
	require.Less(t, testing.AllocsPerRun(200, round), 1.0)
}

// TestABigOpUsesEveryLane reads one op of many chunks.
func TestABigOpUsesEveryLane(t *testing.T) {
	asker, owner, between := through(t, Config{})
	l := dial(t, asker, owner)
	between.Hold(true)
	const pieces = 64
	dst, q := heap(t, pieces*testBuffer), ports.NewCompletions()
	b := &ports.Batch{Ops: []ports.Op{{Count: pieces}}}
	for i := range uint64(pieces) {
		b.Segments = append(b.Segments, ports.Segment{Local: dst, LocalOff: i * testBuffer, Len: testBuffer})
	}
	require.NoError(t, l.Submit(b, q))
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range l.lanes {
			if c.asked < window {
				return false
			}
		}
		return true
	}, patience, time.Millisecond)
	between.Hold(false)
	require.NoError(t, take(t, q, 1)[0].Err)
	for i := range pieces {
		require.Equal(t, -1, content.Check(dst.Bytes()[i*testBuffer:][:testBuffer], 0, 0))
	}
}

// TestTwoReadsGoBeforeAWrite: a read does not stand behind all that is being put, nor a put behind all that is read.
func TestTwoReadsGoBeforeAWrite(t *testing.T) {
	var l Link
	for tag := range uint64(3) {
		l.enqueueLocked(&op{tag: tag, dir: ports.Write, left: 10})
	}
	for tag := range uint64(5) {
		l.enqueueLocked(&op{tag: 10 + tag, dir: ports.Read, left: 1})
	}
	require.EqualValues(t, 35, l.mu.backlog)
	var order []uint64
	for l.mu.backlog > 0 {
		o := l.nextLocked()
		order = append(order, o.tag)
		l.dequeueLocked(o)
	}
	require.Equal(t, []uint64{10, 11, 0, 12, 13, 1, 14, 2}, order)
	require.Equal(t, [2]opQueue{}, l.mu.queues)
}
