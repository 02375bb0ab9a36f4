//go:build linux && cgo && rdma

package rdma

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
	"github.com/spanpool/spanpool/ports"
)

// pendingLink is an offer that waits for its answer. It holds the queue pairs of a link.
type pendingLink struct {
	link  *Link
	offer offer
	bytes []byte
	once  sync.Once
}

func (t *Transport) offer(to ports.PeerID) (*pendingLink, error) {
	l, err := newLink(t, to)
	if err != nil {
		return nil, err
	}
	p := &pendingLink{link: l, offer: offer{at: t.portAddr(), reads: uint8(t.cfg.ReadPairs), writes: uint8(t.cfg.WritePairs)}}
	_, _ = rand.Read(p.offer.nonce[:]) // never fails: crypto/rand ends the program instead
	for _, g := range t.gids {
		p.offer.gids = append(p.offer.gids, g.raw)
	}
	p.offer.pairs = append(p.offer.pairs, end{l.ctl.qp.Num, l.ctl.psn})
	for _, q := range l.pairs {
		p.offer.pairs = append(p.offer.pairs, end{q.qp.Num, q.psn})
	}
	p.bytes = p.offer.encode()
	return p, nil
}

func (t *Transport) portAddr() portAddr {
	return portAddr{mtu: uint8(t.attr.ActiveMTU), reads: uint8(t.cfg.MaxReads), lid: t.attr.LID}
}

func newPSN() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.LittleEndian.Uint32(b[:]) & (1<<24 - 1)
}

func (p *pendingLink) Bytes() []byte { return p.bytes }

// Close frees the queue pairs.
func (p *pendingLink) Close() error {
	var err error
	p.once.Do(func() { err = p.drop() })
	return err
}

func (p *pendingLink) drop() error {
	err := p.link.free()
	p.link.t.mu.Lock()
	defer p.link.t.mu.Unlock()
	delete(p.link.t.mu.pending, p)
	return err
}

// Link connects the pairs to the answer's, and returns when the owner has answered over them.
func (p *pendingLink) Link(ctx context.Context, answered []byte) (ports.Link, error) {
	var l ports.Link
	err := errors.New("was linked or closed already")
	p.once.Do(func() { l, err = p.connect(ctx, answered) })
	if err != nil {
		return nil, fail("link", p.link.to, err)
	}
	return l, nil
}

func (p *pendingLink) connect(ctx context.Context, answered []byte) (ports.Link, error) {
	l := p.link
	a, err := decodeAnswer(answered)
	if err == nil {
		err = p.take(&a)
	}
	if err == nil && !l.t.keep(p) {
		err = ports.ErrClosed
	}
	if err != nil {
		return nil, errors.Join(err, p.drop())
	}
	l.start = a.start
	go l.run()
	ctx, cancel := context.WithTimeout(ctx, l.t.cfg.DialTimeout)
	defer cancel()
	if err := l.greet(ctx); err != nil {
		l.end(ports.ErrReset)
		<-l.done
		return nil, err
	}
	return l, nil
}

// take checks the answer and connects to what it names.
func (p *pendingLink) take(a *answer) error {
	l, t := p.link, p.link.t
	if a.nonce != p.offer.nonce {
		return fmt.Errorf("an answer to another offer: %w", ports.ErrPeer)
	}
	if len(a.pairs) != len(p.offer.pairs) || int(a.chosen) >= len(t.gids) || a.at.reads == 0 {
		return fmt.Errorf("an answer with %d pairs, GID %d, %d reads to an offer of %d pairs and %d GIDs: %w", len(a.pairs), a.chosen, a.at.reads,
			len(p.offer.pairs), len(t.gids), ports.ErrPeer)
	}
	l.path = t.pathTo(t.gids[a.chosen].index, a.gid, a.at)
	for i := range a.buffers {
		l.remote[a.buffers[i].id] = &a.buffers[i]
	}
	if err := l.connect(l.ctl.qp, l.ctl.psn, a.pairs[0]); err != nil {
		return err
	}
	for i, q := range l.pairs {
		if err := l.connect(q.qp, q.psn, a.pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// pathTo is the way between a GID of ours and one of a peer, without the numbers of a queue pair.
func (t *Transport) pathTo(ours int, theirs [16]byte, at portAddr) verbs.Path {
	reads := min(t.cfg.MaxReads, int(at.reads))
	return verbs.Path{Port: t.port, SGID: ours, DGID: theirs, DLID: at.lid, MTU: max(1, min(t.attr.ActiveMTU, int(at.mtu))),
		ReadsIn: reads, ReadsOut: reads, Timeout: t.cfg.Timeout, Retry: t.cfg.Retry, RNRRetry: rnrRetry}
}

func connectPair(path verbs.Path, qp *verbs.QP, psn uint32, to end) error {
	path.QPN, path.PSN, path.OurPSN = to.qpn, to.psn&(1<<24-1), psn
	return qp.Connect(&path)
}

func (l *Link) connect(qp *verbs.QP, psn uint32, to end) error {
	return connectPair(l.path, qp, psn, to)
}
