package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/ports"
)

// accept takes connections until the listener is closed. Of an error that is not that (out of descriptors, say) it waits a while.
func (t *Transport) accept() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		c, err := t.listener.AcceptUnix()
		if err == nil {
			t.greet(c)
			continue
		}
		if t.stop.Err() != nil {
			return
		}
		pause.Reset(10 * time.Millisecond)
		select {
		case <-pause.C:
		case <-t.stop.Done():
			return
		}
	}
}

// greet starts the goroutine of a peer's connection, unless too many are in the middle of their hello.
func (t *Transport) greet(c *net.UnixConn) {
	select {
	case t.greeting <- struct{}{}:
	default:
		t.note(TooMany)
		_ = c.Close() // it was promised nothing
		return
	}
	t.wg.Go(func() {
		defer c.Close()
		in, err := t.welcome(c)
		<-t.greeting
		if err != nil {
			return
		}
		t.lend(c)
		t.leave(in)
	})
}

// welcome hears a connection's hello and shows it our buffers. What fails here is counted, and told to nobody.
func (t *Transport) welcome(c *net.UnixConn) (in *inbound, err error) {
	lift := within(t.stop, c, t.cfg.DialTimeout)
	defer func() {
		if !lift() && err == nil {
			hangUp([]*net.UnixConn{c}) // Close may have come before this one was lent to
		}
	}()
	b := make([]byte, helloBytes+1)
	n, err := c.Read(b)
	if err != nil {
		return nil, err
	}
	id, shown, err := decodeHello(b[:n])
	if err != nil {
		t.note(Garbage)
		return nil, err
	}
	var all map[uint32]ports.HostRegion
	if in, all = t.join(id, shown, c); in == nil {
		t.note(Unproven)
		_, _ = c.Write([]byte{version}) // so that it can tell a restart from a dead peer
		return nil, errUnproven
	}
	if err := t.show(c, in, all); err != nil {
		t.leave(in)
		return nil, err
	}
	return in, nil
}

var errUnproven = errors.New("no such link, or a wrong proof")

// join makes a connection that proved the key its link's.
func (t *Transport) join(id uint64, shown []byte, c *net.UnixConn) (*inbound, map[uint32]ports.HostRegion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.mu.inbound[id]
	if t.mu.closed || in == nil || in.conn != nil || !proofOf(asking, t.cfg.Secret, in.offer, in.ans).is(shown) {
		return nil, nil
	}
	in.conn = c
	t.mu.lent[c] = struct{}{}
	return in, t.mu.exposed
}

// show sends the buffers, a message with one descriptor for each.
func (t *Transport) show(c *net.UnixConn, in *inbound, all map[uint32]ports.HostRegion) error {
	if _, err := c.Write(encodeWelcome(proofOf(owning, t.cfg.Secret, in.offer, in.ans), len(all))); err != nil {
		return err
	}
	for _, number := range slices.Sorted(maps.Keys(all)) {
		r := all[number]
		b := buffer{number: number, off: r.File().Off, len: r.Len()}
		if _, _, err := c.WriteMsgUnix(b.encode(), unix.UnixRights(int(r.File().FD)), nil); err != nil {
			return fmt.Errorf("buffer %d: %w", number, err)
		}
	}
	return nil
}

// lend waits until the peer hangs up, which says that it has our memory mapped no more.
func (t *Transport) lend(c *net.UnixConn) {
	_, err := c.Read(make([]byte, 1))
	switch {
	case err == nil:
		t.note(Garbage)
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.note(Lingered)
	}
}

func (t *Transport) leave(in *inbound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.lent, in.conn)
	t.forgetLocked(in)
}

// within bounds what is done on a connection, until lift is called: by a time and by a context. lift says false when the context was
// first.
func within(ctx context.Context, c *net.UnixConn, limit time.Duration) (lift func() bool) {
	_ = c.SetDeadline(time.Now().Add(limit)) // an error says that it has ended
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() bool {
		lifted := stop()
		if lifted {
			_ = c.SetDeadline(time.Time{})
		}
		return lifted
	}
}

// pendingLink is an offer that waits for its answer. It holds nothing.
type pendingLink struct {
	t     *Transport
	to    ports.PeerID
	offer offer
}

func (p *pendingLink) Bytes() []byte { return p.offer.encode() }

// Close has nothing to free.
func (p *pendingLink) Close() error { return nil }

// Link connects to the socket that the answer named, and maps what comes. Another start than the one that gave the answer refuses
// (ErrRestarted, or ErrPeer when its socket is gone), and an answer is good for one link.
func (p *pendingLink) Link(ctx context.Context, answered []byte) (ports.Link, error) {
	l, err := p.link(ctx, answered)
	if err != nil {
		return nil, fail("link", p.to, err)
	}
	return l, nil
}

func (p *pendingLink) link(ctx context.Context, answered []byte) (*Link, error) {
	a, err := decodeAnswer(answered)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.t.cfg.DialTimeout)
	defer cancel()
	dialled, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", a.name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ports.ErrPeer, err)
	}
	c := dialled.(*net.UnixConn)
	lift := within(ctx, c, p.t.cfg.DialTimeout)
	m := &mapping{}
	err = p.meet(c, a, m)
	lift()
	if err == nil {
		l := newLink(p.t, p.to, c, m)
		if p.t.keep(l) {
			go l.watch()
			return l, nil
		}
		err = ports.ErrClosed
	}
	return nil, errors.Join(err, m.unmap(), c.Close())
}

// meet shows our proof, wants to see the owner's, and maps its buffers.
func (p *pendingLink) meet(c *net.UnixConn, a answer, m *mapping) error {
	if _, err := c.Write(encodeHello(a.link, proofOf(asking, p.t.cfg.Secret, p.offer, a))); err != nil {
		return fmt.Errorf("%w: %w", ports.ErrPeer, err)
	}
	b := make([]byte, max(welcomeBytes, bufferBytes)+1)
	n, err := c.Read(b)
	switch {
	case errors.Is(err, io.EOF), err == nil && n == 1:
		return fmt.Errorf("the answer is not taken: %w", ports.ErrRestarted)
	case err != nil:
		return fmt.Errorf("%w: %w", ports.ErrPeer, err)
	}
	shown, buffers, err := decodeWelcome(b[:n])
	if err != nil {
		return err
	}
	if !proofOf(owning, p.t.cfg.Secret, p.offer, a).is(shown) {
		return fmt.Errorf("its proof does not match: %w", ports.ErrPeer)
	}
	for range buffers {
		if err := receive(c, b, m); err != nil {
			return err
		}
	}
	return nil
}

// receive maps one buffer. Descriptors never outlive it: the mapping holds the file.
func receive(c *net.UnixConn, b []byte, m *mapping) error {
	var rights [64]byte // room for a few descriptors more than there should be
	n, r, _, _, err := c.ReadMsgUnix(b, rights[:])
	if err != nil {
		return fmt.Errorf("%w: buffer: %w", ports.ErrPeer, err)
	}
	fds, err := descriptors(rights[:r])
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd) // nothing was written by it
		}
	}()
	if err != nil {
		return err
	}
	what, err := decodeBuffer(b[:n])
	if err != nil {
		return err
	}
	if len(fds) != 1 {
		return fmt.Errorf("buffer %d comes with %d descriptors, want 1: %w", what.number, len(fds), ports.ErrPeer)
	}
	return m.add(what, fds[0])
}

func descriptors(rights []byte) (fds []int, err error) {
	all, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	for i := range all {
		if n := len(all[i].Data); n%4 != 0 { // which no kernel sends, and ParseUnixRights panics of
			return fds, fmt.Errorf("control message: %d bytes of descriptors: %w", n, unix.EINVAL)
		}
		got, err := unix.ParseUnixRights(&all[i])
		if err != nil {
			return fds, fmt.Errorf("control message: %w", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}
