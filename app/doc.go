// Package app is the use cases: a Node serves byte ranges to its callers (ports.Pool) and owns pages for its peers
// (ports.PeerServer).
//
// # State and who may touch it
//
// Node.mu guards the slots, the fills, the flights, the views, the sessions and the pull's queue. It is held for look-ups and
// bookkeeping only, never across a port call, and one hold serves a whole batch. Calls keep their state in scratch of their own
// (getCall, putCall), which one goroutine uses at a time: the caller's, or after the caller left early the one that drains it.
//
// Lock order: Node.mu, then arena.mu, putOrder.mu or linkOrder.mu (which is held over a Submit, so it comes before a link's own locks), then a
// Completions' own lock, which is a leaf and never blocks: waiters are woken with Node.mu held, so that who leaves a flight under
// that lock gets no word of it later. peer.mu is never held with another lock.
//
// # A fetch into a slot
//
// A filling slot has two sets of bytes: held (landed in time, served to everyone) and claimed (a flight is fetching them). Who
// needs bytes takes what is held, joins the flights that fetch the rest, and claims what nobody fetches. The goroutine that takes
// a flight's completion lands it: it gives back the claim, marks the extents, wakes the joiners, and commits the slot when it is
// complete. Every flight pins its slot, every call pins the slots it reads; a reservation by readers is no pin.
//
// An early design woke joiners through a channel per flight; calls then waited in two places, and a call that waited for the
// arena landed nothing meanwhile.
package app
