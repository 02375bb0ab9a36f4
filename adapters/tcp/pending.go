package tcp

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spanpool/spanpool/ports"
)

// pendingLink is an offer that waits for its answer. It holds nothing.
type pendingLink struct {
	t     *Transport
	to    ports.PeerID
	offer offer
	bytes []byte
}

func (p *pendingLink) Bytes() []byte { return p.bytes }

// Close has nothing to free.
func (p *pendingLink) Close() error { return nil }

// Link connects to what the answer named: with the first address that takes us. Another start than the one that gave the answer
// refuses (ErrRestarted), and an answer is good for one link.
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
	d := dialing{pendingLink: p, answer: a, key: newLinkKey(p.t.cfg.Secret, p.offer, a), conns: min(p.t.cfg.Conns, int(a.conns))}
	socks, err := d.all(ctx)
	if err == nil {
		l := newLink(p.t, p.to, socks)
		if p.t.keep(l) {
			l.begin()
			return l, nil
		}
		err = ports.ErrClosed
	}
	for _, s := range socks {
		if s != nil {
			s.close()
		}
	}
	return nil, err
}

// dialing is the making of one link's lanes.
type dialing struct {
	*pendingLink
	answer answer
	key    linkKey
	conns  int
}

// all connects the first lane to the first address that works, and the others, at once, to the same.
func (d *dialing) all(ctx context.Context) ([]*socket, error) {
	socks := make([]*socket, d.conns)
	address, err := d.first(ctx, socks)
	if err != nil {
		return nil, err
	}
	errs := make(chan error, d.conns) // one from each
	for i := 1; i < d.conns; i++ {
		go func() {
			var err error
			socks[i], err = d.one(ctx, address, i)
			errs <- err
		}()
	}
	for i := 1; i < d.conns; i++ {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	return socks, err
}

// first connects one lane. Each address gets an even share of the time that is left, so that one that swallows everything does
// not keep us from the next.
func (d *dialing) first(ctx context.Context, socks []*socket) (address string, err error) {
	end, _ := ctx.Deadline()
	for i, address := range d.answer.addresses {
		share := time.Until(end) / time.Duration(len(d.answer.addresses)-i)
		ctx, cancel := context.WithTimeout(ctx, share)
		socks[0], err = d.one(ctx, address, 0)
		cancel()
		if err == nil {
			return address, nil
		}
	}
	return "", err
}

func (d *dialing) one(ctx context.Context, address string, index int) (*socket, error) {
	c, err := (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ports.ErrPeer, err)
	}
	s, err := newSocket(c.(*net.TCPConn))
	if err == nil {
		err = tuned(s, d.t.cfg.StallTimeout)
	}
	if err != nil {
		_ = c.Close() // it is broken already
		return nil, fmt.Errorf("%w: %w", ports.ErrPeer, err)
	}
	lift := within(ctx, c, d.t.cfg.DialTimeout)
	err = introduce(c, d.key, laneHello{index: uint8(index), conns: uint8(d.conns), start: d.answer.start, link: d.answer.link, nonce: newNonce()})
	lift()
	if err != nil {
		s.close()
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return s, nil
}
