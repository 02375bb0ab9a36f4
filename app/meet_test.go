package app_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// TestMembersAreMetBeforeACallNeedsThem: and one that failed says why, until it answers again.
func TestMembersAreMetBeforeACallNeedsThem(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		require.Empty(t, b.Stats().Peers)
		require.NoError(t, b.Meet(t.Context()))
		require.Len(t, b.Stats().Peers, 1)
		require.Equal(t, a.Self(), b.Stats().Peers[0].Peer)
		require.NotEmpty(t, b.Stats().Peers[0].Transport)
		require.NoError(t, b.Stats().Peers[0].Failure)

		a.stop()
		w.pass(time.Millisecond) // the link ends by itself
		require.ErrorContains(t, b.Meet(t.Context()), `peer "a"`)
		down := b.Stats().Peers[0]
		require.True(t, down.Down)
		require.ErrorIs(t, down.Failure, ports.ErrPeer)

		a.restart()
		w.pass(3 * time.Second)
		require.NoError(t, b.Stats().Peers[0].Failure)
		require.Equal(t, a.Self(), b.Stats().Peers[0].Peer)
	})
}

// TestACallDoesNotWaitForTheRedialOfAPeerThatFailed: a peer that takes hellos and answers none costs one call its time, and no other.
func TestACallDoesNotWaitForTheRedialOfAPeerThatFailed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, b := w.pair(place{}, place{})
		b.fail(faults.Every("PeerResolver", "Hello", faults.Verdict{Drop: true}))
		exists := func() time.Duration {
			began := time.Now()
			_, err := b.BatchExists(t.Context(), namespace, []string{"key"}, 0, make([]bool, 1))
			require.NoError(t, err)
			return time.Since(began)
		}
		require.Equal(t, time.Second, exists(), "the dial's bound")
		for range 100 {
			w.pass(50 * time.Millisecond)
			require.Zero(t, exists())
		}
	})
}

// TestPutToANameThatNoMemberHasMakesNoPeer: a slip of the pen would be dialled every second for ever.
func TestPutToANameThatNoMemberHasMakesNoPeer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, b := w.pair(place{}, place{})
		r := b.putTo(t.Context(), "typo", 0, 100, 1, "k")
		require.Equal(t, ports.PeerUnavailable, r[0].Status)
		require.ErrorContains(t, r[0].Err, "no member has this name")
		w.pass(3 * time.Second)
		for _, p := range b.Stats().Peers {
			require.NotEqual(t, ports.PeerID("typo"), p.Peer.ID)
		}
		require.Zero(t, b.faults.Count("PeerResolver", "Hello"))
	})
}

// TestAHelloOfAPeerThatFailedBringsItsDialForward: nodes that are started together do not leave each other out for a breaker's time.
func TestAHelloOfAPeerThatFailedBringsItsDialForward(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.stop()
		require.Error(t, b.Meet(t.Context()))
		require.True(t, b.Stats().Peers[0].Down)

		began := time.Now()
		a.start()
		a.put(objectSize, "k")
		require.NoError(t, a.Meet(t.Context()))
		synctest.Wait()
		require.False(t, b.Stats().Peers[0].Down)
		b.mustGet(ports.FromSlot, part("k", 0, 10))
		require.Zero(t, time.Since(began))
	})
}

// TestAHelloWhileItsPeerIsDialledIsHeardToo: the dial may have begun before the peer was there.
func TestAHelloWhileItsPeerIsDialledIsHeardToo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		b.fail(faults.At(faults.Call{Port: "PeerResolver", Method: "Hello", N: 1}, faults.Verdict{Drop: true}))
		met := make(chan error)
		go func() { met <- b.Meet(t.Context()) }()
		w.pass(500 * time.Millisecond)
		require.NoError(t, a.Meet(t.Context()))
		require.Error(t, <-met, "the first dial had its whole time")
		synctest.Wait()
		require.Equal(t, a.Self(), b.Stats().Peers[0].Peer)
	})
}

// TestHellosOfAPeerThatIsOutOfReachAreRateLimited: who says hello without an end adds one dial a second to the one that there is anyway,
// and no call waits for any of them.
func TestHellosOfAPeerThatIsOutOfReachAreRateLimited(t *testing.T) {
	for name, v := range map[string]faults.Verdict{"fails": {Err: ports.ErrPeer}, "black hole": {Drop: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{})
				b.fail(faults.Every("PeerResolver", "Hello", v))
				require.Error(t, b.Meet(t.Context()))
				before, began := b.faults.Count("PeerResolver", "Hello"), time.Now()
				for range 1_000 {
					var reply ports.HelloReply
					require.NoError(t, b.PeerServer().Hello(t.Context(), a.Self(), &ports.Hello{From: a.Self(), Protocol: 1}, &reply))
					_, err := b.BatchExists(t.Context(), namespace, []string{"key"}, 0, make([]bool, 1))
					require.NoError(t, err)
					w.pass(10 * time.Millisecond)
				}
				require.Equal(t, 10*time.Second, time.Since(began), "a call waited")
				require.LessOrEqual(t, b.faults.Count("PeerResolver", "Hello")-before, uint64(22))
			})
		})
	}
}
