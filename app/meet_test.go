package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
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
