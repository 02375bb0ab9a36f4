package faults

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

type transport struct {
	i     *Injector
	inner ports.Transport
	mu    struct { // guards the books that Deregister needs; never held across a call
		sync.Mutex
		links   map[*link]bool
		regions map[ports.Registration]ports.Region
	}
}

// Transport wraps a Transport, its pending links and its links. What closes always closes, whatever the caller is told; and
// what an Effect made that the caller never hears of, and could not end, is ended here: links, offers, grants, registrations.
// What an unheard Answer made stays, as it would over a network.
func (i *Injector) Transport(inner ports.Transport) ports.Transport {
	t := &transport{i: i, inner: inner}
	t.mu.links, t.mu.regions = map[*link]bool{}, map[ports.Registration]ports.Region{}
	return t
}

func (t *transport) Kind() ports.TransportKind { return t.inner.Kind() }
func (t *transport) Caps() ports.Caps          { return t.inner.Caps() }

func (t *transport) Expose(buffer uint32, r ports.Region) error {
	return t.i.call(context.Background(), Call{Port: "Transport", Method: "Expose"}, nil, func() error { return t.inner.Expose(buffer, r) })
}

func (t *transport) Register(r ports.Region) (ports.Registration, error) {
	var reg ports.Registration
	made := false
	err := t.i.call(context.Background(), Call{Port: "Transport", Method: "Register"}, nil, func() (err error) {
		reg, err = t.inner.Register(r)
		made = err == nil
		return err
	})
	if err != nil && made {
		_ = t.inner.Deregister(reg)
	}
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.regions[reg] = r
	return reg, nil
}

// Deregister gives up the ops on that memory which are held back before the inner transport, since it knows nothing of them.
func (t *transport) Deregister(reg ports.Registration) error {
	return t.i.call(context.Background(), Call{Port: "Transport", Method: "Deregister"}, nil, func() error {
		t.giveUp(reg)
		return t.inner.Deregister(reg)
	})
}

func (t *transport) giveUp(reg ports.Registration) {
	t.mu.Lock()
	region := t.mu.regions[reg]
	delete(t.mu.regions, reg)
	links := slices.Collect(maps.Keys(t.mu.links))
	t.mu.Unlock()
	if region == nil {
		return
	}
	for _, l := range links {
		l.finish(ports.ErrCancelled, func(_ uint64, o *op) bool { return o.state == held && o.names(region) })
	}
}

// adopt makes a link of this transport, until it is done.
func (t *transport) adopt(inner ports.Link, peer ports.Peer) ports.Link {
	l := newLink(t.i, inner, peer)
	t.mu.Lock()
	t.mu.links[l] = true
	t.mu.Unlock()
	l.start(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.mu.links, l)
	})
	return l
}

func (t *transport) Grant(w ports.Peer, pageSize uint64, pages []domain.PageRef) (ports.GrantID, ports.GrantToken, error) {
	var id ports.GrantID
	var token ports.GrantToken
	made := false
	err := t.i.call(context.Background(), Call{Port: "Transport", Method: "Grant", Peer: w}, nil, func() (err error) {
		id, token, err = t.inner.Grant(w, pageSize, pages)
		made = err == nil
		return err
	})
	if err != nil && made {
		_ = t.inner.Revoke(context.Background(), id, true) // nobody has the token
	}
	if err != nil {
		return 0, ports.GrantToken{}, err
	}
	return id, token, nil
}

func (t *transport) Revoke(ctx context.Context, g ports.GrantID, quiet ports.Quiet) error {
	return t.i.call(ctx, Call{Port: "Transport", Method: "Revoke"}, nil, func() error { return t.inner.Revoke(ctx, g, quiet) })
}

func (t *transport) Offer(ctx context.Context, to ports.PeerID) (ports.PendingLink, error) {
	peer := ports.Peer{ID: to}
	var p ports.PendingLink
	err := t.i.call(ctx, Call{Port: "Transport", Method: "Offer", Peer: peer}, nil, func() (err error) {
		p, err = t.inner.Offer(ctx, to)
		return err
	})
	if err != nil {
		if p != nil {
			_ = p.Close()
		}
		return nil, err
	}
	return pending{t.i, t, p, peer}, nil
}

func (t *transport) Answer(ctx context.Context, from ports.Peer, offer []byte) ([]byte, error) {
	var answer []byte
	err := t.i.call(ctx, Call{Port: "Transport", Method: "Answer", Peer: from}, &answer, func() (err error) {
		answer, err = t.inner.Answer(ctx, from, offer)
		return err
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (t *transport) Drop(from ports.Peer) {
	v := t.i.decide(Call{Port: "Transport", Method: "Drop", Peer: from})
	_ = v.Before.wait(context.Background())
	t.inner.Drop(from)
	_ = v.After.wait(context.Background())
}

func (t *transport) Close() error {
	return t.i.closing(Call{Port: "Transport", Method: "Close"}, t.inner.Close)
}

// closing closes in any case: a thing that a fault keeps open would be nobody's.
func (i *Injector) closing(c Call, inner func() error) error {
	v := i.decide(c)
	_ = v.Before.wait(context.Background())
	err := inner()
	_ = v.After.wait(context.Background())
	return orElse(v.Err, err)
}

type pending struct {
	i     *Injector
	of    *transport
	inner ports.PendingLink
	peer  ports.Peer
}

func (p pending) Bytes() []byte { return p.inner.Bytes() }

// Link is the one call that the caller may make, so whatever becomes of it the inner pending link has ended afterwards.
func (p pending) Link(ctx context.Context, answer []byte) (ports.Link, error) {
	var l ports.Link
	asked := false
	err := p.i.call(ctx, Call{Port: "PendingLink", Method: "Link", Peer: p.peer}, nil, func() (err error) {
		asked = true
		l, err = p.inner.Link(ctx, answer)
		return err
	})
	switch {
	case err == nil:
		return p.of.adopt(l, p.peer), nil
	case !asked:
		_ = p.inner.Close()
	case l != nil:
		_ = l.Close()
	}
	return nil, err
}

func (p pending) Close() error {
	return p.i.closing(Call{Port: "PendingLink", Method: "Close", Peer: p.peer}, p.inner.Close)
}
