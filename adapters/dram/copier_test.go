package dram

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// mappedMemory is what slots and arenas lie in.
func mappedMemory(backing Backing) porttest.Memory {
	return porttest.HostMemory(backing.String(), func(t testing.TB, n uint64) ports.HostRegion {
		m := openOrSkip(t, Config{Bytes: n, PageSize: n, Backing: backing})
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m.Buffers()[0].(ports.HostRegion)
	})
}

func TestCopierKeepsThePortsContract(t *testing.T) {
	for name, c := range copiers() {
		t.Run(name, func(t *testing.T) {
			porttest.RunCopier(t, porttest.CopierHarness{
				Copier:   c,
				Memories: []porttest.Memory{porttest.HostMemory("heap", nil), mappedMemory(Anonymous), mappedMemory(Memfd)},
				Foreign:  []ports.Region{ports.DeviceRegionOf(0, ports.DevAddrOf(0xdead0000), 4096)},
			})
		})
	}
}

// copiers is every way to copy that this machine has, and its twin, alone and with helpers.
func copiers() map[string]*Copier {
	return map[string]*Copier{
		"new":                     NewCopier(),
		"places=1/stream=twin":    newCopier(1, false),
		"places=1/stream=machine": newCopier(1, canStream),
		"places=4/stream=machine": newCopier(4, canStream),
	}
}

func BenchmarkCopier(b *testing.B) {
	porttest.BenchmarkCopier(b, porttest.CopierHarness{Copier: NewCopier(), Memories: []porttest.Memory{mappedMemory(Anonymous)}})
}

// TestCopyLooksAtItsContextBetweenOps: an op that was begun is finished, and one that is as long as lookBytes is looked before.
func TestCopyLooksAtItsContextBetweenOps(t *testing.T) {
	r := ports.HostRegionOf(make([]byte, 2*lookBytes))
	ops := make([]ports.CopyOp, 10)
	for i := range ops {
		ops[i] = ports.CopyOp{Dst: r, Src: r, DstOff: lookBytes, Len: lookBytes}
	}
	errs := make([]error, len(ops))
	newCopier(1, canStream).Copy(&endsAtLook{Context: t.Context(), left: 5}, ops, errs) // the first look is the batch's
	for i, err := range errs {
		require.Equal(t, i >= 4, err != nil, "op %d: %v", i, err)
	}
}

type endsAtLook struct {
	context.Context
	left int
}

func (c *endsAtLook) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestBigCopiesArePiecedTogether goes past turnBytes, with and without overlap in both directions.
func TestBigCopiesArePiecedTogether(t *testing.T) {
	const n = 5*turnBytes + 12_345
	whole := make([]byte, 2*n)
	for _, tt := range []struct{ dst, src uint64 }{{n, 0}, {0, n}, {4099, 0}, {0, 4099}, {0, 0}} {
		content.Poison(whole)
		content.Fill(whole[tt.src:tt.src+n], 1, 0)
		r := ports.HostRegionOf(whole)
		errs := make([]error, 1)
		NewCopier().Copy(t.Context(), []ports.CopyOp{{Dst: r, Src: r, DstOff: tt.dst, SrcOff: tt.src, Len: n}}, errs)
		require.NoError(t, errs[0])
		require.Equal(t, -1, content.Check(whole[tt.dst:tt.dst+n], 1, 0), "from %d to %d", tt.src, tt.dst)
		require.Equal(t, -1, content.CheckPoison(whole[max(tt.dst, tt.src)+n:]))
	}
}
