//go:build linux

package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/internal/grants"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
)

var stranger = ports.Peer{ID: "liar", Incarnation: 7}

// TestBadFramesEndTheirConnectionOnly has a peer that knows the key and sends nonsense, behind a request that is right.
func TestBadFramesEndTheirConnectionOnly(t *testing.T) {
	owner, mem := exposing(t, Config{})
	asker := listen(t, "asker", Config{})
	one := []segment{{len: 8}}
	edit := func(at int, with ...byte) []byte {
		b := frameOf(request{kind: kindRead, id: 1}, nil, one)
		copy(b[at:], with)
		return b
	}
	le := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	counts := map[Reason]uint64{}
	for _, tt := range []struct {
		name  string
		frame []byte
		why   Reason
	}{
		{"another version", edit(0, 9), Garbage},
		{"another kind", edit(1, 3), Garbage},
		{"an id out of turn", edit(4, 5), Garbage},
		{"the id before", edit(4, 0), Garbage},
		{"something where zeros are", edit(12, 1), Garbage},
		{"no segments", edit(2, 0, 0), Garbage},
		{"a segment of no bytes", frameOf(request{kind: kindRead, id: 1}, nil, []segment{{len: 8}, {len: 0}}), Garbage},
		{"bytes that are not the segments'", edit(8, le(9)...), Garbage},
		{"lengths whose sum overflows 32 bits", frameOf(request{kind: kindRead, id: 1}, nil, []segment{{len: 1 << 31}, {len: 1 << 31}, {len: 8}}), Garbage},
		{"a header alone", edit(0)[:requestBytes], Truncated},
		{"too many segments", edit(2, 0xff, 0xff), Oversized},
		{"too many bytes", edit(8, le(maxRequestBytes+1)...), Oversized},
		{"2^32-1 bytes", edit(8, le(1<<32-1)...), Oversized},
		{"half a header", edit(0)[:7], Truncated},
		{"half a segment", edit(0)[:requestBytes+9], Truncated},
		{"text", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), Garbage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := rawLane(t, stranger, owner)
			write(t, c, frameOf(request{kind: kindRead}, nil, one))
			got := make([]byte, responseBytes+8)
			_, err := io.ReadFull(c, got)
			require.NoError(t, err)
			require.Equal(t, mem.Bytes()[:8], got[responseBytes:])
			write(t, c, tt.frame)
			if tt.why == Truncated {
				require.NoError(t, c.(*net.TCPConn).CloseWrite())
			}
			hungUp(t, c)
			counts[tt.why]++
			ended(t, owner, tt.why, counts[tt.why])
		})
	}
	works(t, asker, owner)
}

// TestCallersThatSayNothingAreBounded: so many may be in the middle of their hello, the next is hung up on at once, and when one has gone
// there is room again.
func TestCallersThatSayNothingAreBounded(t *testing.T) {
	owner, _ := exposing(t, Config{DialTimeout: time.Minute})
	asker := listen(t, "asker", Config{})
	connect := func() net.Conn {
		c, err := net.Dial("tcp", owner.cfg.Listen[0])
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	var silent []net.Conn
	for range maxGreeting {
		silent = append(silent, connect())
	}
	hungUp(t, connect())
	ended(t, owner, TooMany, 1)
	for _, c := range silent {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return len(owner.tcp().greeting) == 0 }, patience, time.Millisecond)
	works(t, asker, owner)
}

func TestHellosWithoutAProofGetNowhere(t *testing.T) {
	owner, _ := exposing(t, Config{Secret: []byte("right"), DialTimeout: time.Minute})
	asker := listen(t, "asker", Config{Secret: []byte("right"), DialTimeout: patience})
	connectTo := func(n *node) net.Conn {
		c, err := net.Dial("tcp", n.cfg.Listen[0])
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	connect := func() net.Conn { return connectTo(owner) }
	t.Run("nothing at all", func(t *testing.T) {
		hasty, _ := exposing(t, Config{DialTimeout: 50 * time.Millisecond})
		begin := time.Now()
		hungUp(t, connectTo(hasty))
		require.Less(t, time.Since(begin), patience)
	})
	t.Run("text", func(t *testing.T) {
		c := connect()
		write(t, c, bytes.Repeat([]byte("hello "), helloBytes/6+1)[:helloBytes])
		hungUp(t, c)
		ended(t, owner, Garbage, 1)
	})
	t.Run("a link that is not there", func(t *testing.T) {
		require.ErrorIs(t, introduce(connect(), linkKey{}, laneHello{conns: 1, start: owner.tcp().start, link: 99}), ports.ErrRestarted)
		ended(t, owner, UnknownLink, 1)
	})

	// From here on there is a link to be had.
	o := offer{features: ourFeatures, nonce: newNonce()}
	b, err := owner.Transport.Answer(t.Context(), stranger, o.encode())
	require.NoError(t, err)
	a, err := decodeAnswer(b)
	require.NoError(t, err)
	h := laneHello{conns: 2, start: a.start, link: a.link}
	key := newLinkKey([]byte("right"), o, a)
	otherKey, otherNonce, otherStart := a, o, h
	otherKey.key[31] ^= 1
	otherNonce.nonce[0] ^= 1
	otherStart.start++
	for i, k := range []linkKey{
		newLinkKey([]byte("wrong"), o, a), newLinkKey(nil, o, a), newLinkKey([]byte("right"), otherNonce, a), newLinkKey([]byte("right"), o, otherKey), {},
	} {
		require.ErrorIs(t, introduce(connect(), k, h), ports.ErrPeer, "key %d", i)
		ended(t, owner, WrongProof, uint64(i)+1)
	}
	require.ErrorIs(t, introduce(connect(), key, otherStart), ports.ErrRestarted)
	require.Zero(t, owner.tcp().Stats().Inbound)
	good := connect()
	require.NoError(t, introduce(good, key, h), "what was refused spoils nothing")
	require.Equal(t, 1, owner.tcp().Stats().Inbound)
	require.ErrorIs(t, introduce(connect(), key, h), ports.ErrRestarted, "the same lane again")
	require.NoError(t, introduce(connect(), key, laneHello{index: 1, conns: 2, start: a.start, link: a.link}))
	works(t, asker, owner)
}

// TestAPeerThatDoesNotKnowTheKeyIsNoOwner has somebody else at the owner's address, who takes any proof.
func TestAPeerThatDoesNotKnowTheKeyIsNoOwner(t *testing.T) {
	c, o := socketPair(t)
	defer c.Close()
	defer o.Close()
	for _, end := range []net.Conn{c, o} {
		require.NoError(t, end.SetDeadline(time.Now().Add(patience)))
	}
	go func() {
		var b [helloBytes]byte
		_, _ = io.ReadFull(o, b[:])
		_, _ = o.Write(append([]byte{byte(accepted), version}, make([]byte, challengeBytes-2)...))
		_, _ = io.ReadFull(o, b[:proofBytes])
		_, _ = o.Write(append([]byte{byte(accepted)}, make([]byte, welcomeBytes-1)...))
	}()
	require.ErrorContains(t, introduce(c, linkKey{1}, laneHello{conns: 1}), "does not know the key")
}

func TestAnAnswerIsGoodForOneLinkAndOneOffer(t *testing.T) {
	owner, _ := exposing(t, Config{})
	asker := listen(t, "asker", Config{})
	p, err := asker.Transport.Offer(t.Context(), "owner")
	require.NoError(t, err)
	other, err := asker.Transport.Offer(t.Context(), "owner")
	require.NoError(t, err)
	b, err := owner.Transport.Answer(t.Context(), asker.Self, p.Bytes())
	require.NoError(t, err)
	_, err = other.Link(t.Context(), b)
	require.ErrorIs(t, err, ports.ErrPeer, "of another offer")
	l, err := p.Link(t.Context(), b)
	require.NoError(t, err)
	_, err = p.Link(t.Context(), b)
	require.ErrorIs(t, err, ports.ErrRestarted, "again")
	require.NoError(t, l.Close())
	require.Eventually(t, func() bool { return owner.tcp().Stats().Inbound == 0 }, patience, time.Millisecond)
	_, err = p.Link(t.Context(), b)
	require.ErrorIs(t, err, ports.ErrRestarted, "after its end")
	owner.tcp().mu.Lock()
	defer owner.tcp().mu.Unlock()
	require.Empty(t, owner.tcp().mu.inbound)
	require.Empty(t, owner.tcp().mu.askers["asker"].links)
}

func TestAnswersThatNobodyLinksAreBounded(t *testing.T) {
	owner, _ := exposing(t, Config{})
	asker := listen(t, "asker", Config{})
	p, err := asker.Transport.Offer(t.Context(), "owner")
	require.NoError(t, err)
	first, err := owner.Transport.Answer(t.Context(), asker.Self, p.Bytes())
	require.NoError(t, err)
	works(t, asker, owner)
	for range maxPending {
		_, err := owner.Transport.Answer(t.Context(), asker.Self, p.Bytes())
		require.NoError(t, err)
	}
	_, err = p.Link(t.Context(), first)
	require.ErrorIs(t, err, ports.ErrRestarted)
	owner.tcp().mu.Lock()
	n := len(owner.tcp().mu.inbound)
	owner.tcp().mu.Unlock()
	require.LessOrEqual(t, n, maxPending+1)
	works(t, asker, owner)
}

// TestRevokeDoesNotWaitForAWriterInMidFragment stops a writer after half a fragment, gives the page to another key, and lets it
// go on.
func TestRevokeDoesNotWaitForAWriterInMidFragment(t *testing.T) {
	owner, mem := exposing(t, Config{StallTimeout: time.Minute})
	page := mem.Bytes()[testPage:][:testPage]
	id, token := grantPage(t, owner, stranger, 1)
	for _, half := range []int{1, 100, testPage - 1} {
		c := rawLane(t, stranger, owner)
		payload := bytes.Repeat([]byte{0xee}, testPage)
		write(t, c, append(frameOf(request{kind: kindWrite}, token[:], []segment{{off: testPage, len: testPage}}), payload[:half]...))
		under := owner.tcp().grants.Find(&token, stranger)
		require.Eventually(t, func() bool { return readUnder(under, page[half-1:half])[0] == 0xee }, patience, time.Millisecond)

		begin := time.Now()
		require.NoError(t, owner.Transport.Revoke(t.Context(), id, false))
		require.Less(t, time.Since(begin), patience)
		content.Fill(page, 0, testPage)
		write(t, c, payload[half:])
		r := responseOf(t, c)
		require.Equal(t, response{kind: kindWrite, status: statusRevoked}, r)
		require.Equal(t, -1, content.Check(mem.Bytes(), 0, 0), "bytes that landed after Revoke")

		write(t, c, frameOf(request{kind: kindRead, id: 1}, nil, []segment{{len: 8}})) // the connection goes on
		require.Equal(t, response{kind: kindRead, id: 1, bytes: 8}, responseOf(t, c))
		_ = c.Close()
		id, token = grantPage(t, owner, stranger, 1)
	}
}

// readUnder looks at memory that a lane may be writing under that grant.
func readUnder(g *grants.Grant, b []byte) []byte {
	g.Lock()
	defer g.Unlock()
	return append([]byte(nil), b...)
}

func responseOf(t testing.TB, c net.Conn) response {
	t.Helper()
	var b [responseBytes]byte
	_, err := io.ReadFull(c, b[:])
	require.NoError(t, err)
	r, err := decodeResponse(b[:])
	require.NoError(t, err)
	return r
}

func TestStalledPeersAreHungUpOn(t *testing.T) {
	owner, mem := exposing(t, Config{StallTimeout: 200 * time.Millisecond})
	asker := listen(t, "asker", Config{})
	_, token := grantPage(t, owner, stranger, 1)
	full := frameOf(request{kind: kindWrite}, token[:], []segment{{off: testPage, len: testPage}})
	for i, begun := range [][]byte{full[:3], full[:requestBytes], full[:requestBytes+70], append(full, 0xee)} {
		c := rawLane(t, stranger, owner)
		write(t, c, begun)
		hungUp(t, c)
		ended(t, owner, Stalled, uint64(i)+1)
	}
	mem.Bytes()[testPage] = content0(testPage)
	require.Equal(t, -1, content.Check(mem.Bytes(), 0, 0))

	deaf := rawLane(t, stranger, owner) // asks for more than all socket buffers hold, and takes nothing
	segs := []segment{{len: testBuffer}, {len: testBuffer}, {len: testBuffer}, {len: testBuffer}}
	for i := range uint32(200) {
		if _, err := deaf.Write(frameOf(request{kind: kindRead, id: i}, nil, segs)); err != nil {
			break
		}
	}
	ended(t, owner, Stalled, 5)
	works(t, asker, owner)
}

func content0(off uint64) byte {
	var b [1]byte
	content.Fill(b[:], 0, off)
	return b[0]
}

// TestIdleConnectionsAreNotStalled waits for several looks of the watch.
func TestIdleConnectionsAreNotStalled(t *testing.T) {
	owner, _ := exposing(t, Config{StallTimeout: 60 * time.Millisecond})
	asker := listen(t, "asker", Config{})
	l := dial(t, asker, owner)
	looks := time.NewTicker(60 * time.Millisecond)
	defer looks.Stop()
	for range 5 {
		<-looks.C
	}
	select {
	case <-l.Done():
		require.FailNow(t, "the link has ended")
	default:
	}
	require.Zero(t, owner.tcp().Stats().Ended[Stalled])
	require.Equal(t, defaultConns, owner.tcp().Stats().Inbound)
}

func TestWritersWithoutTheFeatureMayNotWrite(t *testing.T) {
	owner, mem := exposing(t, Config{})
	o := offer{nonce: newNonce()}
	b, err := owner.Transport.Answer(t.Context(), stranger, o.encode())
	require.NoError(t, err)
	a, err := decodeAnswer(b)
	require.NoError(t, err)
	require.Zero(t, a.features, "nothing that we did not offer")
	c, err := net.Dial("tcp", a.addresses[0])
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, introduce(c, newLinkKey(nil, o, a), laneHello{conns: 1, start: a.start, link: a.link}))
	_, token := grantPage(t, owner, stranger, 1)
	write(t, c, frameOf(request{kind: kindWrite}, token[:], []segment{{off: testPage, len: 3}}, 1, 2, 3))
	require.Equal(t, statusRevoked, responseOf(t, c).status)
	require.Equal(t, -1, content.Check(mem.Bytes(), 0, 0))
}

func TestListenSaysWhatIsWrong(t *testing.T) {
	taken := listen(t, "a", Config{}).cfg.Listen
	for name, tt := range map[string]struct {
		cfg  Config
		says string
	}{
		"no clock":             {Config{}, "clock"},
		"too many connections": {Config{Clock: newClock(), Conns: 17}, "17, limit 16"},
		"no connections":       {Config{Clock: newClock(), Conns: -1}, "limit 16"},
		"negative timeout":     {Config{Clock: newClock(), StallTimeout: -1}, "-1ns"},
		"no such address":      {Config{Clock: newClock(), Listen: []string{"127.0.0.1:0", "256.0.0.1:0"}}, "256.0.0.1"},
		"a taken port":         {Config{Clock: newClock(), Listen: taken}, taken[0]},
		"no address to name":   {Config{Clock: newClock(), Listen: []string{"0.0.0.0:0"}}, "advertise"},
		"a name too long":      {Config{Clock: newClock(), Listen: []string{"127.0.0.1:0"}, Advertise: []string{string(bytes.Repeat([]byte("x"), 300))}}, "limit 255"},
		"too many names":       {Config{Clock: newClock(), Listen: []string{"127.0.0.1:0"}, Advertise: make([]string, 17)}, "17, limit 16"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := Listen(tt.cfg)
			require.ErrorContains(t, err, tt.says)
			require.Nil(t, tr)
		})
	}
}

func TestAnswersNameWhatIsAdvertised(t *testing.T) {
	n := listen(t, "a", Config{Listen: []string{"127.0.0.1:0"}, Advertise: []string{"localhost", "127.0.0.1:0", "[::1]:9"}})
	_, port, err := net.SplitHostPort(n.cfg.Listen[0])
	require.NoError(t, err)
	require.Equal(t, []string{"localhost:" + port, "127.0.0.1:" + port, "[::1]:9"}, n.tcp().Addresses())
}

// TestTheFirstAddressThatWorksIsUsed has two before it: nobody listens at one, and the other swallows everything.
func TestTheFirstAddressThatWorksIsUsed(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	mute, err := net.Listen("tcp", "127.0.0.1:0") // the kernel connects, and nobody speaks
	require.NoError(t, err)
	defer mute.Close()
	owner, _ := exposing(t, Config{Advertise: []string{gone.Addr().String(), mute.Addr().String(), "127.0.0.1"}})
	works(t, listen(t, "asker", Config{DialTimeout: 3 * time.Second}), owner)
}

// TestWhatWasReadAheadIsAppliedUnderTheGrant revokes between the look at the token and the copy.
func TestWhatWasReadAheadIsAppliedUnderTheGrant(t *testing.T) {
	owner, mem := exposing(t, Config{})
	id, token := grantPage(t, owner, stranger, 1)
	seg := make([]byte, segmentBytes)
	segment{off: testPage, len: 3}.encode(seg)
	s := &served{t: owner.tcp(), in: &inbound{from: stranger, write: true}, buf: []byte{1, 2, 3}, w: 3, left: 3}
	require.Equal(t, statusOK, s.aim(token[:], seg))
	require.NoError(t, owner.Transport.Revoke(t.Context(), id, false))
	require.NoError(t, s.apply())
	require.Nil(t, s.under)
	require.Equal(t, -1, content.Check(mem.Bytes(), 0, 0))
}

func TestATransportThatListensNowhereAnswersNobody(t *testing.T) {
	tr, err := Listen(Config{Clock: newClock()})
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close()) }()
	_, err = tr.Answer(t.Context(), stranger, offer{}.encode())
	require.True(t, errors.Is(err, errors.ErrUnsupported))
	owner, _ := exposing(t, Config{})
	asker := &node{inner: tr}
	asker.Transport, asker.Self = tr, ports.Peer{ID: "asker", Incarnation: 1}
	works(t, asker, owner)
}

// TestLinkIsBoundedWhenNobodyAnswers has an owner behind a relay that passes nothing.
func TestLinkIsBoundedWhenNobodyAnswers(t *testing.T) {
	owner, _ := exposing(t, Config{})
	between := proxy.New(t, owner.cfg.Listen[0], 1, proxy.Way{})
	owner.behind(t, between)
	between.Hold(true)
	begin := time.Now()
	_, err := tryDial(t.Context(), listen(t, "asker", Config{DialTimeout: 50 * time.Millisecond}), owner)
	require.ErrorIs(t, err, ports.ErrPeer)
	require.Less(t, time.Since(begin), patience)
}
