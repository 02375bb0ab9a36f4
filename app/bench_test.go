package app_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// nullCopier copies nothing, so that what is left of a get is its planning, look-up and pins included.
type nullCopier struct{}

func (nullCopier) Copy(_ context.Context, _ []ports.CopyOp, errs []error) { clear(errs) }

// BenchmarkGetCommitted is a layer group over committed keys: plan (no byte is copied), get, and the bare copy loop over the same
// addresses. Issue 3's bars are plan/copy.
func BenchmarkGetCommitted(b *testing.B) {
	const layers, group, keys = 61, 8, 32
	for _, shape := range []struct {
		layer, page uint64
		gap         bool
	}{{73_728, 61 * 73_728, false}, {73_728, 64 << 10, false}, {1_728, 61 * 1_728, true}} {
		object := layers * shape.layer
		pages := (object + shape.page - 1) / shape.page * keys
		get := ports.GetBatch{Namespace: "n"}
		var dst uint64
		for k := range keys {
			get.Keys = append(get.Keys, fmt.Sprint("key-", k))
			for l := range group {
				off := uint64(l) * shape.layer
				if shape.gap {
					off *= 2
				}
				get.Ranges = append(get.Ranges, domain.Range{Off: off, Len: shape.layer, RegionOff: dst})
				dst += shape.layer
			}
			get.End = append(get.End, uint32(len(get.Ranges)))
		}
		into, err := dram.OpenArena(dst)
		require.NoError(b, err)
		get.Regions = []ports.Memory{{Region: into.Buffers()[0]}}
		out := make([]ports.Result, keys)
		name := fmt.Sprintf("range=%dB/page=%dB", shape.layer, shape.page)
		for _, copier := range []struct {
			name string
			c    ports.Copier
		}{{"plan", nullCopier{}}, {"get", dram.NewCopier()}} {
			b.Run(copier.name+"/"+name, func(b *testing.B) {
				m, err := dram.Open(dram.Config{Bytes: pages * shape.page, PageSize: shape.page})
				require.NoError(b, err)
				n, err := app.New(app.Config{ID: "n"}, app.Ports{Clock: boottime.New(), Medium: m, Copier: copier.c})
				require.NoError(b, err)
				whole := make([]byte, object)
				for _, k := range get.Keys {
					require.Equal(b, ports.Stored, n.Put(b.Context(), "n", k, ports.HostRegionOf(whole)).Status)
				}
				b.SetBytes(int64(dst))
				b.ReportAllocs()
				for b.Loop() {
					_ = n.BatchGetRanges(b.Context(), &get, out)
				}
				require.NoError(b, n.Close())
				require.NoError(b, m.Close())
			})
		}
		b.Run("copy/"+name, func(b *testing.B) {
			src, err := dram.OpenArena(object * keys)
			require.NoError(b, err)
			from, to := src.Buffers()[0].(ports.HostRegion).Bytes(), into.Buffers()[0].(ports.HostRegion).Bytes()
			b.SetBytes(int64(dst))
			for b.Loop() {
				for i, r := range get.Ranges {
					at := uint64(i/group)*object + r.Off
					copy(to[r.RegionOff:r.RegionOff+r.Len], from[at:at+r.Len])
				}
			}
			require.NoError(b, src.Close())
		})
	}
}
