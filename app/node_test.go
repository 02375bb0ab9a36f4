package app_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

var seed = maphash.MakeSeed()

func content(key string, size int) []byte {
	b := make([]byte, size+8)
	base := maphash.String(seed, key)
	for i := 0; i < size; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], (base^uint64(i))*0x9e3779b97f4a7c15)
	}
	return b[:size:size]
}

func open(t *testing.T, net *inproc.Network, cfg app.Config, medium, page, arena uint64) *app.Node {
	t.Helper()
	ep := net.Endpoint(cfg.ID)
	p := app.Ports{Clock: boottime.New(), Copier: dram.NewCopier(), Transports: []ports.Transport{ep.Transport()}, Resolver: ep.Resolver(),
		Writer: ep.Writer(), Directory: ep.Directory()}
	if medium > 0 {
		m, err := dram.Open(dram.Config{Bytes: medium, PageSize: page, Backing: dram.HeapForTesting})
		require.NoError(t, err)
		p.Medium = m
	}
	for _, a := range []*ports.Medium{&p.GetArena, &p.PutArena} {
		m, err := dram.Open(dram.Config{Bytes: arena, PageSize: arena, Backing: dram.HeapForTesting})
		require.NoError(t, err)
		*a = m
	}
	n, err := app.New(cfg, p)
	require.NoError(t, err)
	require.NoError(t, ep.Start(n.Self(), n.PeerServer()))
	t.Cleanup(func() { ep.Stop(); _ = n.Close() })
	return n
}

func TestSmoke(t *testing.T) {
	for _, mode := range []domain.LocalityMode{domain.LocalityFill, domain.LocalityPullOnly, domain.LocalityOff} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			net := inproc.NewNetwork(inproc.Options{Clock: boottime.New()})
			t.Cleanup(func() { _ = net.Close() })
			a := open(t, net, app.Config{ID: "a"}, 64<<20, 4096, 1<<20)
			b := open(t, net, app.Config{ID: "b", Locality: mode}, 64<<20, 4096, 1<<20)
			const keys, size, groups = 8, 100_000, 10
			var names []string
			for i := range keys {
				k := fmt.Sprint("key", i)
				names = append(names, k)
				require.Equal(t, ports.Stored, a.Put(t.Context(), "ns", k, ports.HostRegionOf(content(k, size))).Status)
			}
			dst := make([]byte, keys*size)
			mem := []ports.Memory{{Region: ports.HostRegionOf(dst)}}
			out := make([]ports.Result, keys)
			for g := range groups {
				gb := ports.GetBatch{Namespace: "ns", Keys: names, Regions: mem}
				step := uint64(size / groups)
				for i := range keys {
					off := uint64(g) * step
					gb.Ranges = append(gb.Ranges, domain.Range{Off: off, Len: step, RegionOff: uint64(i)*size + off})
					gb.End = append(gb.End, uint32(i+1))
				}
				require.NoError(t, b.BatchGetRanges(t.Context(), &gb, out))
				for i := range out {
					require.Equal(t, ports.Hit, out[i].Status, "group %d key %d: %v", g, i, out[i].Err)
				}
			}
			for i := range keys {
				require.Equal(t, content(names[i], size), dst[i*size:(i+1)*size])
			}
			require.Eventually(t, func() bool { return b.Stats().PullWaiting == 0 }, 5e9, 1e6)
			s := b.Stats()
			t.Logf("wire %v dup %d installed %v failures %v down %v table %+v", s.Wire, s.DuplicateBytes, s.InstalledObjects, s.InstallFailures, s.Downgrades, s.Table)
			// remote put
			big := content("big", 3<<20)
			w := ports.WholeBatch{Namespace: "ns", Keys: []string{"big"}, Targets: []ports.Target{{Len: 3 << 20}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(big)}}, To: "a"}
			require.NoError(t, b.BatchPut(context.Background(), &w, out[:1]))
			require.Equal(t, ports.Stored, out[0].Status, "%v", out[0].Err)
			got := make([]byte, 3<<20)
			r := a.Get(t.Context(), "ns", "big", ports.HostRegionOf(got))
			require.Equal(t, ports.Hit, r.Status)
			require.Equal(t, big, got)
			clear(got)
			r = b.Get(t.Context(), "ns", "big", ports.HostRegionOf(got))
			t.Logf("%+v", r)
			require.Equal(t, ports.NotFound, b.Get(t.Context(), "ns", "nope", ports.HostRegionOf(got)).Status)
		})
	}
}
