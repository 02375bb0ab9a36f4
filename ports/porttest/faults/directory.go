package faults

import (
	"context"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

type directory struct {
	i     *Injector
	inner ports.Directory
}

// Directory wraps a Directory. Announce and Withdraw never block: Before and After run there, and hold nothing back.
func (i *Injector) Directory(inner ports.Directory) ports.Directory { return directory{i, inner} }

func (d directory) Members(ctx context.Context) ([]ports.PeerID, error) {
	var out []ports.PeerID
	err := d.i.call(ctx, Call{Port: "Directory", Method: "Members"}, &out, func() (err error) {
		out, err = d.inner.Members(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (d directory) Holders(ctx context.Context, namespace string, names []string, out *ports.Holders) error {
	return d.i.call(ctx, Call{Port: "Directory", Method: "Holders"}, out, func() error { return d.inner.Holders(ctx, namespace, names, out) })
}

func (d directory) Announce(namespace, name string, v domain.Version) {
	d.tell("Announce", func() { d.inner.Announce(namespace, name, v) })
}

func (d directory) Withdraw(namespace, name string, v domain.Version) {
	d.tell("Withdraw", func() { d.inner.Withdraw(namespace, name, v) })
}

func (d directory) tell(method string, inner func()) {
	v := d.i.decide(Call{Port: "Directory", Method: method})
	v.Before.run()
	if !v.fails() || v.Effect {
		inner()
	}
	v.After.run()
}

// run is for what may not be held back.
func (d Delay) run() {
	if d != nil {
		d(func() {})
	}
}

// Close always closes; Err is what the caller is told.
func (d directory) Close() error {
	return d.i.closing(Call{Port: "Directory", Method: "Close"}, d.inner.Close)
}

type clock struct {
	i     *Injector
	inner ports.Clock
}

// Clock wraps a Clock: Skew moves it ahead, and a plan sees each reading.
func (i *Injector) Clock(inner ports.Clock) ports.Clock { return clock{i, inner} }

func (c clock) Now() domain.Instant {
	v := c.i.decide(Call{Port: "Clock", Method: "Now"})
	v.Before.run()
	c.i.mu.Lock()
	skew := c.i.mu.skew
	c.i.mu.Unlock()
	return c.inner.Now().Add(skew)
}
