package app_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// A call of two keys has one of them and waits for the other. What its hit lacks would come in front of that; what a call that
// has ended asked for comes beside it, as much as the pull has earned with what landed.
func TestThePullWaitsForTheCallThatAskedAndEarnsItsShareBesideOthers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const piece, size = domain.PullPieceBytes, 16 * domain.PullPieceBytes
		at := place{page: piece, pages: 64, Config: app.Config{FillingShare: 1}}
		a, b := w.pair(at, at)
		a.put(size, "stalls", "lands", "k")
		var g faults.Gate
		b.fail(next(1, "Link", "Op", purpose(ports.PurposeGet), hold(&g)))
		first := b.begin(t.Context(), 0, part("stalls", 0, 8*piece), part("lands", 0, 8*piece))
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		require.EqualValues(t, 8*piece, b.Stats().Wire[ports.PurposeGet])
		require.EqualValues(t, 1, b.Stats().PullQueued)
		require.Zero(t, b.Stats().Wire[ports.PurposePull], "its call has not ended")

		b.mustGet(ports.FromSlot, part("k", 0, 8*piece))
		synctest.Wait()
		require.EqualValues(t, 2, b.Stats().PullQueued)
		require.EqualValues(t, piece, b.Stats().Wire[ports.PurposePull], "an eighth of what moved, in pieces")

		g.Open()
		first.wait()
		w.settle()
		b.requireLocal(size, "stalls", "lands", "k")
		require.EqualValues(t, 3*8*piece, b.Stats().Wire[ports.PurposePull])
	})
}
