package app_test

import (
	"testing"
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
