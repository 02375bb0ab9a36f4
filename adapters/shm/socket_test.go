//go:build linux

package shm

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/ports"
)

func refusedOf(n *node, r Reason) func() bool {
	return func() bool { return n.inner.Stats().Refused[r] > 0 }
}

// TestOnlyWhoProvesTheKeyIsShownMemory: and each refusal is counted by its reason.
func TestOnlyWhoProvesTheKeyIsShownMemory(t *testing.T) {
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{})
	require.NoError(t, owner.inner.Expose(0, shared(t, 4096)))
	p, err := asker.inner.Offer(t.Context(), "owner")
	require.NoError(t, err)
	answered, err := owner.inner.Answer(t.Context(), asker.Self, p.Bytes())
	require.NoError(t, err)
	a, err := decodeAnswer(answered)
	require.NoError(t, err)
	right := proofOf(asking, nil, p.(*pendingLink).offer, a)
	wrong := right
	wrong[7] ^= 1
	for _, tt := range []struct {
		name string
		send []byte
		why  Reason
	}{
		{"garbage", bytes.Repeat([]byte{0xfe}, 500), Garbage},
		{"a short hello", encodeHello(a.link, right)[:helloBytes-1], Garbage},
		{"a proof of one bit off", encodeHello(a.link, wrong), Unproven},
		{"another link", encodeHello(a.link+1, right), Unproven},
		{"the owner's proof", encodeHello(a.link, proofOf(owning, nil, p.(*pendingLink).offer, a)), Unproven},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := owner.inner.Stats().Refused[tt.why]
			c, err := net.Dial("unixpacket", a.name)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
			_, err = c.Write(tt.send)
			require.NoError(t, err)
			var b, rights [256]byte
			n, r, _, _, err := c.(*net.UnixConn).ReadMsgUnix(b[:], rights[:])
			require.True(t, err != nil || n <= 1, "it was told something")
			require.Zero(t, r)
			require.Equal(t, before+1, owner.inner.Stats().Refused[tt.why])
		})
	}
	l, err := p.Link(t.Context(), answered)
	require.NoError(t, err, "the answer is still good")
	defer l.Close()
	_, err = p.Link(t.Context(), answered)
	require.ErrorIs(t, err, ports.ErrRestarted, "for one link")
}

func TestAnotherSecretIsRefused(t *testing.T) {
	owner, asker := open(t, "owner", Config{Secret: []byte("ours")}), open(t, "asker", Config{Secret: []byte("theirs")})
	require.NoError(t, owner.inner.Expose(0, shared(t, 4096)))
	_, err := tryDial(t.Context(), asker, owner)
	require.Error(t, err)
	require.Eventually(t, refusedOf(owner, Unproven), 10*time.Second, time.Millisecond)
}

// TestAReaderWantsTheOwnersProof: whoever took the name of a dead owner's socket knows none.
func TestAReaderWantsTheOwnersProof(t *testing.T) {
	asker := open(t, "asker", Config{})
	name := "@spanpool-test-" + t.Name()
	imposter, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	require.NoError(t, err)
	defer imposter.Close()
	mem := shared(t, 4096)
	a := answer{link: 1, name: name}
	for title, reply := range map[string]func(c *net.UnixConn){
		"a wrong proof": func(c *net.UnixConn) { _, _ = c.Write(encodeWelcome(proof{}, 1)) },
		"nothing":       func(c *net.UnixConn) {},
		"garbage":       func(c *net.UnixConn) { _, _ = c.Write(bytes.Repeat([]byte{7}, 99)) },
		"too many":      func(c *net.UnixConn) { _, _ = c.Write(encodeWelcome(proof{}, maxBuffers+1)) },
	} {
		served := make(chan struct{})
		go func() {
			defer close(served)
			c, err := imposter.AcceptUnix()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Read(make([]byte, 100))
			reply(c)
			_, _, _ = c.WriteMsgUnix(buffer{len: 4096}.encode(), unix.UnixRights(int(mem.File().FD)), nil)
		}()
		p, err := asker.inner.Offer(t.Context(), "owner")
		require.NoError(t, err)
		_, err = p.Link(t.Context(), a.encode())
		require.Error(t, err, title)
		<-served
	}
}

// TestBuffersComeWithOneDescriptorEach: what else comes is closed, and refused.
func TestBuffersComeWithOneDescriptorEach(t *testing.T) {
	mem := shared(t, 4096)
	fd := int(mem.File().FD)
	good := buffer{len: 4096}.encode()
	for name, send := range map[string]struct {
		message []byte
		fds     []int
	}{
		"none":              {good, nil},
		"two":               {good, []int{fd, fd}},
		"more than we read": {good, []int{fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd, fd}},
		"garbage":           {good[:9], []int{fd}},
		"a number too high": {binary.LittleEndian.AppendUint32(nil, 1<<31), []int{fd}},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			from, to := unixConn(t, pair[0]), unixConn(t, pair[1])
			before := holds(t, "spanpool-test")
			var rights []byte
			if send.fds != nil {
				rights = unix.UnixRights(send.fds...)
			}
			_, _, err = from.WriteMsgUnix(send.message, rights, nil)
			require.NoError(t, err)
			m := &mapping{}
			require.Error(t, receive(to, make([]byte, 100), m))
			require.Empty(t, m.whole)
			require.Equal(t, before, holds(t, "spanpool-test"), "a descriptor was left open")
		})
	}
}

func unixConn(t *testing.T, fd int) *net.UnixConn {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UnixConn)
}

// TestACrowdInMidHelloIsTurnedAway: and those that say nothing are let go after a while.
func TestACrowdInMidHelloIsTurnedAway(t *testing.T) {
	owner := open(t, "owner", Config{DialTimeout: 2 * time.Second})
	for range maxGreeting + 8 {
		c, err := net.Dial("unixpacket", owner.inner.listener.Addr().String())
		require.NoError(t, err)
		defer c.Close()
	}
	require.Eventually(t, refusedOf(owner, TooMany), 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return len(owner.inner.greeting) == 0 }, 30*time.Second, time.Millisecond)
}

// TestAPeerThatSaysMoreThanItShouldIsLetGo: after its hello the protocol has nothing more.
func TestAPeerThatSaysMoreThanItShouldIsLetGo(t *testing.T) {
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{})
	require.NoError(t, owner.inner.Expose(0, shared(t, 4096)))
	l := dial(t, asker, owner)
	_, err := l.conn.Write([]byte("more"))
	require.NoError(t, err)
	select {
	case <-l.Done():
	case <-time.After(10 * time.Second):
		require.FailNow(t, "the link lives")
	}
	require.EqualValues(t, 1, owner.inner.Stats().Refused[Garbage])
}

// TestAnswersThatAreNotLinkedGiveWay: a peer that asks and never comes costs a bounded number of them.
func TestAnswersThatAreNotLinkedGiveWay(t *testing.T) {
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{})
	l := dial(t, asker, owner)
	for range 3 * maxPending {
		p, err := asker.inner.Offer(t.Context(), "owner")
		require.NoError(t, err)
		_, err = owner.inner.Answer(t.Context(), asker.Self, p.Bytes())
		require.NoError(t, err)
	}
	owner.inner.mu.Lock()
	n := len(owner.inner.mu.inbound)
	owner.inner.mu.Unlock()
	require.Equal(t, maxPending+1, n)
	require.NoError(t, l.Close())
	_, err := net.Dial("unixpacket", "@spanpool-nobody")
	require.Error(t, err)
}

func FuzzMessages(f *testing.F) {
	a := answer{link: 3, name: "@spanpool-x"}
	for _, b := range [][]byte{nil, {version}, offer{}.encode(), a.encode(), encodeHello(1, proof{}), encodeWelcome(proof{}, 2), buffer{len: 5}.encode()} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := decodeOffer(b); err == nil && b[0] == version {
			require.Equal(t, b, o.encode())
		}
		if a, err := decodeAnswer(b); err == nil {
			require.Equal(t, b, a.encode())
		}
		if link, shown, err := decodeHello(b); err == nil {
			require.Equal(t, b, encodeHello(link, proof(shown)))
		}
		if shown, n, err := decodeWelcome(b); err == nil {
			require.LessOrEqual(t, n, maxBuffers)
			require.Equal(t, b, encodeWelcome(proof(shown), n))
		}
		if x, err := decodeBuffer(b); err == nil {
			require.Equal(t, b, x.encode())
		}
		_, _ = descriptors(b) // numbers, which nobody closes here
	})
}
