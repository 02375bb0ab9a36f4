package app_test

import (
	"errors"
	"sync/atomic"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// errTest is an error that no rule knows.
var errTest = errors.New("injected")

// when is a fault at the calls of a method that pick picks.
func when(port, method string, pick func(faults.Call) bool, v faults.Verdict) faults.Plan {
	return func(c faults.Call) faults.Verdict {
		if c.Port == port && c.Method == method && pick(c) {
			return v
		}
		return faults.Verdict{}
	}
}

// next is a fault at the next n calls of a method that pick picks; nil picks all.
func next(n int64, port, method string, pick func(faults.Call) bool, v faults.Verdict) faults.Plan {
	var left atomic.Int64
	left.Store(n)
	return when(port, method, func(c faults.Call) bool { return (pick == nil || pick(c)) && left.Add(-1) >= 0 }, v)
}

// purpose picks ops.
func purpose(p ports.Purpose) func(faults.Call) bool {
	return func(c faults.Call) bool { return c.Op.Purpose == p }
}

// peerIs picks calls to a peer.
func peerIs(id ports.PeerID) func(faults.Call) bool {
	return func(c faults.Call) bool { return c.Peer.ID == id }
}

// hold is a verdict that holds something back before it happens.
func hold(g *faults.Gate) faults.Verdict { return faults.Verdict{Before: g.Hold} }

// holdAfter is a verdict that holds back the word that something has happened.
func holdAfter(g *faults.Gate) faults.Verdict { return faults.Verdict{After: g.Hold} }

// editResolve changes the answers to resolves.
func editResolve(f func(*ports.ResolveReply)) faults.Verdict {
	return faults.Verdict{Edit: func(reply any) { f(reply.(*ports.ResolveReply)) }}
}

// stale makes an answer say that nothing is renewed.
var stale = editResolve(func(r *ports.ResolveReply) {
	for i := range r.Status {
		r.Status[i] = ports.KeyStale
	}
})
