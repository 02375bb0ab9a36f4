package porttest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// RunMedium is the contract of ports.Medium. Each open is a medium of its own, with what the adapter is asked to offer (run
// the suite per configuration); the suite closes it. Keep it small: every byte is written and read.
func RunMedium(t *testing.T, open func(t *testing.T) ports.Medium) {
	use := func(name string, claim func(t *testing.T, m ports.Medium)) {
		t.Run(name, func(t *testing.T) {
			m := open(t)
			closed := false
			t.Cleanup(func() {
				if !closed {
					_ = m.Close()
				}
			})
			claim(t, m)
			closed = true
			require.NoError(t, m.Close())
		})
	}
	use("BuffersAreWholePages", buffersAreWholePages)
	use("BuffersAreTheSameAtEveryCall", buffersAreTheSameAtEveryCall)
	use("KindSaysWhatItsRegionsAre", kindSaysWhatItsRegionsAre)
	use("EveryByteIsItsOwn", everyByteIsItsOwn)
	t.Run("CloseGivesBackWhatOpenTook", func(t *testing.T) {
		for range 32 {
			require.NoError(t, open(t).Close())
		}
	})
}

func buffersAreWholePages(t *testing.T, m ports.Medium) {
	require.NotZero(t, m.PageSize())
	require.NotEmpty(t, m.Buffers())
	for i, r := range m.Buffers() {
		require.NotZero(t, r.Len(), "buffer %d", i)
		require.Zero(t, r.Len()%m.PageSize(), "buffer %d: %d bytes, pages of %d", i, r.Len(), m.PageSize())
		require.LessOrEqual(t, r.Len()/m.PageSize()-1, uint64(math.MaxUint32), "buffer %d: PageRef.Page has 32 bits", i)
	}
}

func buffersAreTheSameAtEveryCall(t *testing.T, m ports.Medium) {
	a, b := m.Buffers(), m.Buffers()
	require.Equal(t, len(a), len(b))
	require.Equal(t, len(a), cap(a), "an append to what Buffers returned would reach its next caller")
	require.Equal(t, m.PageSize(), m.PageSize())
	for i := range a {
		require.True(t, sameMemory(a[i], b[i]), "buffer %d: %v, then %v", i, a[i], b[i])
	}
}

// sameMemory compares where regions lie, not what lies there.
func sameMemory(a, b ports.Region) bool {
	ha, ok := a.(ports.HostRegion)
	if !ok {
		return a == b // device regions are comparable
	}
	hb, ok := b.(ports.HostRegion)
	return ok && a.Len() == b.Len() && &ha.Bytes()[0] == &hb.Bytes()[0] && ha.File() == hb.File()
}

func kindSaysWhatItsRegionsAre(t *testing.T, m ports.Medium) {
	require.Contains(t, []ports.MediumKind{ports.DRAM, ports.HBM}, m.Kind())
	for i, r := range m.Buffers() {
		_, host := r.(ports.HostRegion)
		require.Equal(t, m.Kind() == ports.DRAM, host, "buffer %d of kind %d is a %T", i, m.Kind(), r)
	}
}

// everyByteIsItsOwn fills all before it checks any: a page that two places map to cannot hold the content of both. It sees
// host memory only; device memory is reached through its node's Copier, whose suite does so.
func everyByteIsItsOwn(t *testing.T, m ports.Medium) {
	for i, r := range m.Buffers() {
		if h, ok := r.(ports.HostRegion); ok {
			require.Equal(t, h.Len(), uint64(len(h.Bytes())), "buffer %d", i)
			content.Fill(h.Bytes(), uint64(i), 0)
		}
	}
	for i, r := range m.Buffers() {
		if h, ok := r.(ports.HostRegion); ok {
			require.Equal(t, -1, content.Check(h.Bytes(), uint64(i), 0), "buffer %d: first byte that is another's", i)
		}
	}
}
