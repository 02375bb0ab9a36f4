package domain

import "time"

// What goes on a link next. Links serve what they were given in turns, so that what is on one together ends together; with a bounded
// number of bytes on it the order is ours. A session's first call comes first, so that everyone's first layer group comes early;
// then calls of older sessions, so that restores end one after the other instead of all at the end.

const (
	// LinkInFlight is the most bytes that calls have on a link: much less than what several ranks ask for together (18 MiB each
	// in a layer group of the presets), for what is on it goes before the next call of the oldest session; and enough to keep a
	// link busy while the goroutine that would put more on it waits for a processor (4 ms at 16 Gbit/s). Of 8 ranks over such a
	// link half have restored after 406 ms with 16 MiB, 370 with 8 and 350 with 4; over TCP, beside 8 that put, the last of
	// them after 405, 415 and 465 ms.
	LinkInFlight = 8 << 20
	// LinkPatience is how long a call stands behind older sessions. After it it comes in the order of its arrival, as first
	// calls do: four fifths of the default bound of a call are left for it then.
	LinkPatience = time.Second
)

// LinkRoom says whether next bytes may go on a link beside those that are on it, of which there are to be at most most. One op is
// always let through.
func LinkRoom(inFlight, next, most uint64) bool {
	return inFlight == 0 || next <= most && inFlight <= most-next
}

// LinkTurn is what the order knows of a call. The zero Session is none.
type LinkTurn struct {
	Session uint64 // numbered in the order of their opening
	First   bool   // the first call of its session; a call without a session is one
	Since   Instant
}

// LinkOrder is what waits for a link. The zero value is empty. Not safe for parallel use.
type LinkOrder[T comparable] struct {
	waiting []linkWaiting[T] // in the order of arrival
}

type linkWaiting[T comparable] struct {
	what T
	turn LinkTurn
}

// Add lets something wait. Precondition: it does not wait yet.
func (o *LinkOrder[T]) Add(what T, t LinkTurn) {
	o.waiting = append(o.waiting, linkWaiting[T]{what, t})
}

// Next is what goes on the link next; ok is false when nothing waits. It waits until it is removed.
func (o *LinkOrder[T]) Next(now Instant) (what T, ok bool) {
	best := -1
	for i := range o.waiting {
		t := &o.waiting[i].turn
		if t.First || now.Sub(t.Since) >= LinkPatience {
			return o.waiting[i].what, true // the first to arrive of those that come first
		}
		if best < 0 || t.Session < o.waiting[best].turn.Session {
			best = i
		}
	}
	if best < 0 {
		return what, false
	}
	return o.waiting[best].what, true
}

// Remove takes something out; what does not wait is nothing to do.
func (o *LinkOrder[T]) Remove(what T) {
	for i := range o.waiting {
		if o.waiting[i].what == what {
			copy(o.waiting[i:], o.waiting[i+1:])
			o.waiting[len(o.waiting)-1] = linkWaiting[T]{}
			o.waiting = o.waiting[:len(o.waiting)-1]
			return
		}
	}
}

// Len is how many wait.
func (o *LinkOrder[T]) Len() int { return len(o.waiting) }
