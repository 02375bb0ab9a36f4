package bench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/shm"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// TestARunOverShmReadsByShmAndWritesByTCP: the restore is verified, and says so itself.
func TestARunOverShmReadsByShmAndWritesByTCP(t *testing.T) {
	r := newRealRun(t, FetchRanged)
	r.Transport, r.OffloadRanks = TransportSHM, 1
	var stats ports.Stats
	require.NoError(t, r.runOver(t, func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
		c, err := openLasting(ctx, s)
		if err == nil {
			reader := c.Nodes[0].Pool
			c.Closers = append([]func() error{func() error { stats = reader.Stats(); return nil }}, c.Closers...)
		}
		return c, err
	}), r.errs.String())
	require.InDelta(t, float64(r.Requests*r.Ranks[0])*r.setMiB(), r.rows[0].Values[ColWireRange]+r.rows[0].Values[ColWireBackground], 1e-9)
	require.Positive(t, r.rows[0].Values[ColPutRate])
	by := stats.Peers[0].Transports
	require.Equal(t, shm.Kind, by[0].Kind)
	require.Positive(t, by[0].Wire[ports.PurposeGet])
	require.Zero(t, by[0].Wire[ports.PurposePut])
	require.Zero(t, by[1].Wire[ports.PurposeGet]+by[1].Wire[ports.PurposePull])
	require.Positive(t, by[1].Wire[ports.PurposePut])
}

func TestReadsThatWentByAnotherTransportFailARun(t *testing.T) {
	peer := ports.PeerStats{Peer: ports.Peer{ID: "b"}, Transport: "tcp", Transports: []ports.TransportStats{{Kind: shm.Kind}, {Kind: "tcp"}}}
	peer.Transports[0].Wire[ports.PurposeGet], peer.Transports[1].Wire[ports.PurposePut] = 5, 7
	require.NoError(t, readsOver([]ports.PeerStats{peer}, shm.Kind))
	peer.Transports[1].Wire[ports.PurposePull] = 1
	require.ErrorIs(t, readsOver([]ports.PeerStats{peer}, shm.Kind), ErrFailed)
	require.ErrorContains(t, readsByShm([]Node{{ID: "a", Pool: told{stats: ports.Stats{Peers: []ports.PeerStats{peer}}}}}), `"tcp"`)
}

// told is a pool that was told its counts.
type told struct {
	ports.Pool
	stats ports.Stats
}

func (t told) Stats() ports.Stats { return t.stats }

func TestServedNodesWithoutShmAreNoRunOverShm(t *testing.T) {
	_, remote := far(t, "a", nil)
	size := NodeSpec{MediumBytes: 1 << 20, PageBytes: 4 << 10}
	_, err := OpenNodes(t.Context(), ClusterSpec{Transport: TransportSHM, Nodes: []NodeSpec{size, size}, Remotes: []Remote{remote}})
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "not configured")
}

func TestTheComparisonDoesNotRunOverShm(t *testing.T) {
	r := newRealRun(t, FetchWhole)
	r.Transport = TransportSHM
	require.ErrorContains(t, r.runOver(t, OpenNodes), "shm")
}

// TestBarsOverShmReadIntoPlace: both sides of both bars, each byte looked at; and what they are called.
func TestBarsOverShmReadIntoPlace(t *testing.T) {
	o := Ratios{MaxMemory: 1 << 40, Places: 2}
	names := map[string]string{}
	var specs []ClusterSpec
	for _, b := range o.shmBars(func(_ context.Context, s ClusterSpec) (*Cluster, error) {
		specs = append(specs, s)
		return nil, errNoSample
	}) {
		names[b.name] = b.bars[0].target() + ", " + b.bars[1].target() + ", " + b.bars[2].target()
		_, err := b.ours(t.Context())
		require.ErrorIs(t, err, errNoSample)
		require.NoError(t, b.end())
	}
	require.Equal(t, map[string]string{"shm-groups": ">= 0.8, >= 0.8, reported", "shm-fragments": ">= 0.7, >= 0.7, reported"}, names)
	for _, s := range specs {
		require.Equal(t, TransportSHM, s.Transport)
		require.Equal(t, domain.LocalityOff, s.Locality)
	}
	for _, c := range []scatter{smallest.over(TransportSHM), group.over(TransportSHM)} {
		c.sets = 2
		if c.layer > smallest.layer {
			c.layer, c.keys = c.layer/8, 2
		}
		b := o.copiesBar(func(ctx context.Context, s ClusterSpec) (*Cluster, error) {
			require.Equal(t, c.object(), s.Nodes[1].PageBytes)
			return OpenNodes(ctx, s)
		}, c, "x", 0)
		for _, of := range []side{b.ours, b.theirs} {
			s, err := of(t.Context())
			require.NoError(t, err)
			require.Positive(t, s.figures[0])
			require.Positive(t, s.figures[1])
			require.Positive(t, s.figures[2])
		}
		require.NoError(t, b.end())
	}
}

// BenchmarkSHM is the calls of the bars over shm, over more objects than caches hold.
func BenchmarkSHM(b *testing.B) {
	for _, c := range []scatter{group.over(TransportSHM), smallest.over(TransportSHM)} {
		b.Run(c.name(), func(b *testing.B) {
			s, err := openScattered(b.Context(), OpenNodes, c, 1<<31)
			require.NoError(b, err)
			for by, calls := range map[string][]ports.GetBatch{"lists": s.calls, "pattern": s.pattern} {
				b.Run(by, func(b *testing.B) {
					b.SetBytes(int64(c.asked()) * int64(c.keys))
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						require.NoError(b, s.ours(b.Context(), calls, i%c.sets))
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.keys*c.layers), "ns/fragment")
				})
			}
			b.Run("bare", func(b *testing.B) {
				b.SetBytes(int64(c.asked()) * int64(c.keys))
				for i := 0; b.Loop(); i++ {
					s.m.copyCall(i%c.sets, 1)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.keys*c.layers), "ns/fragment")
			})
			require.NoError(b, s.close())
		})
	}
}
