package domain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFirstCallsThenOlderSessionsGoOnALink(t *testing.T) {
	var o LinkOrder[string]
	o.Add("third session", LinkTurn{Session: 3})
	o.Add("second session", LinkTurn{Session: 2})
	o.Add("no session", LinkTurn{First: true})
	o.Add("second session, later", LinkTurn{Session: 2})
	o.Add("first call", LinkTurn{Session: 4, First: true})
	for _, want := range []string{"no session", "first call", "second session", "second session, later", "third session"} {
		got, ok := o.Next(1)
		require.True(t, ok)
		require.Equal(t, want, got)
		o.Remove(got)
	}
	_, ok := o.Next(1)
	require.False(t, ok)
}

func TestWhoWaitedLongComesInTheOrderOfArrival(t *testing.T) {
	var o LinkOrder[int]
	o.Add(1, LinkTurn{Session: 9, Since: 0})
	o.Add(2, LinkTurn{Session: 1, Since: 1})
	o.Add(3, LinkTurn{First: true, Since: 2})
	for _, tt := range []struct {
		now  Instant
		want int
	}{{Instant(LinkPatience) - 1, 3}, {Instant(LinkPatience), 1}} {
		got, _ := o.Next(tt.now)
		require.Equal(t, tt.want, got)
	}
}

func TestALinkHasRoomForOneOpAlways(t *testing.T) {
	for _, tt := range []struct {
		inFlight, next uint64
		want           bool
	}{{0, 1 << 62, true}, {1, LinkInFlight - 1, true}, {1, LinkInFlight, false}, {LinkInFlight, 0, true}, {LinkInFlight + 5, 0, false}, {5, 1<<64 - 1, false}} {
		require.Equal(t, tt.want, LinkRoom(tt.inFlight, tt.next, LinkInFlight), "%+v", tt)
	}
}

// TestNoCallWaitsForEverAndNoSessionOvertakesItself draws arrivals, and a departure every 25 ms. Behind its patience a call waits only for
// those that came before it.
func TestNoCallWaitsForEverAndNoSessionOvertakesItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const tick = 25 * time.Millisecond
		var o LinkOrder[int]
		type call struct {
			LinkTurn
			ahead int // that wait and came before it, at its arrival
		}
		var calls []call
		waits := map[int]bool{}
		seen := map[uint64]bool{}
		now, last := Instant(0), map[uint64]int{}
		step := func() {
			got, ok := o.Next(now)
			require.Equal(t, len(waits) > 0, ok, "something waits and nothing goes")
			if !ok {
				return
			}
			require.True(t, waits[got])
			c := calls[got]
			if c.Session != 0 {
				require.Less(t, last[c.Session], got+1, "session %d", c.Session)
				last[c.Session] = got + 1
			}
			require.LessOrEqual(t, now.Sub(c.Since), LinkPatience+time.Duration(c.ahead+1)*tick)
			delete(waits, got)
			o.Remove(got)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			for range rapid.IntRange(0, 4).Draw(t, "arrivals") {
				c := call{LinkTurn{Session: rapid.Uint64Range(0, 4).Draw(t, "session"), Since: now}, len(waits)}
				c.First = c.Session == 0 || !seen[c.Session]
				seen[c.Session] = true
				waits[len(calls)] = true
				o.Add(len(calls), c.LinkTurn)
				calls = append(calls, c)
			}
			now = now.Add(tick)
			step()
		}
		for len(waits) > 0 {
			now = now.Add(tick)
			step()
		}
	})
}
