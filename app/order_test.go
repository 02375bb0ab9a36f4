package app_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

const mib = 1 << 20

// TestFirstCallsComeEarlyAndSessionsEndOneAfterTheOther: three sessions ask for more than a link is given at once, in two calls each.
func TestFirstCallsComeEarlyAndSessionsEndOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOver(t, false, &inproc.LinkModel{BytesPerSecond: 1e9, Delay: 50 * time.Microsecond})
		// The pull would have its share, and what is here is not read from a link.
		a, b := w.pair(place{page: mib, pages: 80}, place{get: 80 * mib, Config: app.Config{Locality: domain.LocalityOff}})
		var names []string
		for s := range 3 {
			names = append(names, keys(fmt.Sprintf("s%d/", s), 24)...)
		}
		a.put(mib, names...)
		ended := make(chan string, 6)
		var end [2][3]time.Duration
		begin := time.Now()
		for s := range 3 {
			id, err := b.OpenRead(t.Context(), namespace)
			require.NoError(t, err)
			own := names[s*24:]
			calls := []*read{b.prepare(id, partsOf(own[:12], 0, mib)...), b.prepare(id, partsOf(own[12:24], 0, mib)...)}
			go func() {
				for i, r := range calls {
					r.run(t.Context())
					end[i][s] = time.Since(begin)
					ended <- fmt.Sprintf("call %d of %d", i, s)
				}
			}()
			w.pass(time.Millisecond) // they ask in this order
			defer func() {
				for _, r := range calls {
					r.check()
					require.Equal(t, ports.Hit, r.out[11].Status, "%v", r.out[11].Err)
				}
				require.NoError(t, b.CloseRead(id))
			}()
		}
		for i := range 2 {
			for s := range 3 {
				require.Equal(t, fmt.Sprintf("call %d of %d", i, s), <-ended)
			}
		}
		// 12.6 ms a call: by turns all of the second calls would end in the last third.
		require.Less(t, end[1][0], end[1][2]*3/4)
		require.Less(t, end[0][0], end[0][2]/2)
	})
}

// TestWhatWaitsForALinkIsWithdrawnAtOnce: a call that ends early leaves nothing of its own behind, and those behind it go on.
func TestWhatWaitsForALinkIsWithdrawnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		here := noHop
		a, b := w.pair(place{page: mib, pages: 40}, here)
		a.put(mib, keys("k", 40)...)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		first := b.begin(t.Context(), 0, partsOf(keys("k", 20), 0, mib)...)
		synctest.Wait()
		require.Equal(t, domain.LinkInFlight/mib, g.Held(), "no more than that is on a link")
		ctx, cancel := context.WithCancel(t.Context())
		second := b.begin(ctx, 0, partsOf(keys("k", 30), 0, 500)...)
		third := b.begin(t.Context(), 0, part("k7", 5, 10))
		synctest.Wait()
		require.Equal(t, domain.LinkInFlight/mib, g.Held())
		before := time.Now()
		cancel()
		for _, r := range second.wait() {
			require.Equal(t, ports.Cancelled, r.Status)
		}
		require.Equal(t, before, time.Now())
		for range 5 { // as often as what is held is followed by more, and once more
			g.Open()
			synctest.Wait()
		}
		for _, r := range append(first.wait(), third.wait()...) {
			require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
		}
		require.EqualValues(t, 20*mib+10, b.Stats().Wire[ports.PurposeGet], "nothing of the second call crossed")
	})
}

// TestAnOpHasItsTimeFromWhenItIsSent: what waits behind others for longer than an op may take is served all the same.
func TestAnOpHasItsTimeFromWhenItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOver(t, false, &inproc.LinkModel{BytesPerSecond: 40e6, Delay: 50 * time.Microsecond})
		here := noHop
		here.TransferTimeout, here.CallTimeout = 700*time.Millisecond, time.Minute
		a, b := w.pair(place{page: mib, pages: 64}, here)
		a.put(mib, keys("k", 64)...)
		first := b.begin(t.Context(), 0, partsOf(keys("k", 64), 0, mib)...)
		for _, r := range append(first.wait(), b.get(part("k3", 0, 10))...) {
			require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
		}
	})
}

func TestALinkThatEndsFailsWhatWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		here := noHop
		here.BreakerMin = time.Second
		a, b := w.pair(place{page: mib, pages: 40}, here)
		a.put(mib, keys("k", 40)...)
		var g faults.Gate
		b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		r := b.begin(t.Context(), 0, partsOf(keys("k", 40), 0, mib)...)
		synctest.Wait()
		a.stop()
		for _, res := range r.wait() {
			require.Equal(t, ports.PeerUnavailable, res.Status, "%v", res.Err)
		}
	})
}
