package app_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// objectSize is that of most objects: on pages of 4 KiB and 64 KiB the last page is short.
const objectSize = 200_000

// TestLayerGroupsMoveEachByteOnce reads the same keys group by group.
func TestLayerGroupsOverTheSameKeysEndInTheWholeObject(t *testing.T) {
	overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
		a, b := w.pair(place{page: page, pages: 8 * pages}, place{page: page, pages: 64 * pages, Config: app.Config{NoRangedLocalityPrefetch: true}})
		names := keys("k", 4)
		a.put(objectSize, names...)
		const group = objectSize / 8
		for g := range uint64(8) {
			b.mustGet(ports.FromSlot, partsOf(names, g*group, group)...)
		}
		s := b.Stats()
		require.Equal(t, [ports.NumPurposes]uint64{ports.PurposeGet: 4 * objectSize}, s.Wire)
		require.Zero(t, s.DuplicateBytes)
		require.EqualValues(t, 4, s.InstalledObjects[domain.LocalByExtents])
		b.requireLocal(objectSize, names...)
	})
}
