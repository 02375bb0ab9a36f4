package app_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
)

func hostMemory(n int) ports.HostRegion { return ports.HostRegionOf(make([]byte, n)) }

func TestListsOfDifferentLengthFailEveryKey(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{})
		n.put(100, "k")
		mem := []ports.Memory{{Region: hostMemory(100)}}
		one := []domain.Range{{Len: 1}}
		for name, g := range map[string]*ports.GetBatch{
			"fewer ends":           {Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{1}, Ranges: one, Regions: mem},
			"more ends":            {Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{1, 1, 1}, Ranges: one, Regions: mem},
			"ends past ranges":     {Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{1, 2}, Ranges: one, Regions: mem},
			"ends before ranges":   {Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{0, 0}, Ranges: one, Regions: mem},
			"ends that go back":    {Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{2, 1}, Ranges: one, Regions: mem},
			"no ends":              {Namespace: namespace, Keys: []string{"k", "k"}, Ranges: one, Regions: mem},
			"unknown session":      {Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{1, 1}, Ranges: one, Regions: mem, Session: 77},
			"too long a namespace": {Namespace: strings.Repeat("n", domain.MaxKeyBytes+1), Keys: []string{"k", "k"}, End: []uint32{1, 1}, Ranges: one, Regions: mem},
		} {
			out := make([]ports.Result, 2)
			require.Error(t, n.BatchGetRanges(t.Context(), g, out), name)
			for _, r := range out {
				require.Equal(t, ports.Invalid, r.Status, name)
				require.Error(t, r.Err, name)
			}
		}
		for name, p := range map[string]*ports.PutBatch{
			"fewer sizes": {Namespace: namespace, Keys: []string{"l", "m"}, Sizes: []uint64{1}, End: []uint32{1, 1}, Ranges: one, Regions: mem},
			"fewer ends":  {Namespace: namespace, Keys: []string{"l", "m"}, Sizes: []uint64{1, 1}, End: []uint32{1}, Ranges: one, Regions: mem},
		} {
			out := make([]ports.Result, 2)
			require.ErrorIs(t, n.BatchPutRanges(t.Context(), p, out), domain.ErrInvalid, name)
			require.Equal(t, ports.Invalid, out[1].Status, name)
		}
		short := make([]ports.Result, 1)
		g := &ports.GetBatch{Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{1, 1}, Ranges: one, Regions: mem}
		require.ErrorIs(t, n.BatchGetRanges(t.Context(), g, short), domain.ErrInvalid)
		require.ErrorIs(t, n.BatchGet(t.Context(), &ports.WholeBatch{Namespace: namespace, Keys: []string{"k"}}, short), domain.ErrInvalid)
		require.ErrorIs(t, n.BatchPut(t.Context(), &ports.WholeBatch{Namespace: namespace, Keys: []string{"k"}}, short), domain.ErrInvalid)
		require.EqualValues(t, 1, n.committed())
	})
}

func TestErrorsOfLimitsNameValueAndLimit(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{})
		n.put(100, "k")
		mem := []ports.Memory{{Region: hostMemory(100)}}

		many := make([]string, domain.MaxCallKeys+1)
		out := make([]ports.Result, len(many))
		err := n.BatchGetRanges(t.Context(), &ports.GetBatch{Namespace: namespace, Keys: many, End: make([]uint32, len(many))}, out)
		require.ErrorContains(t, err, "keys of a call: 65537, limit 65536")
		require.Equal(t, ports.Invalid, out[len(out)-1].Status)
		_, err = n.BatchExists(t.Context(), namespace, many, 0, make([]bool, len(many)))
		require.ErrorContains(t, err, "65537, limit 65536")
		require.ErrorContains(t, n.Remove(t.Context(), namespace, many, make([]ports.Removal, len(many))), "65537, limit 65536")

		out = out[:1]
		g := &ports.GetBatch{Namespace: namespace, Keys: []string{"k"}, End: []uint32{domain.MaxCallRanges + 1}, Ranges: make([]domain.Range, domain.MaxCallRanges+1), Regions: mem}
		require.ErrorContains(t, n.BatchGetRanges(t.Context(), g, out), "ranges of a call: 1048577, limit 1048576")

		long := strings.Repeat("k", domain.MaxKeyBytes)
		n.put(10, long)
		n.mustGet(ports.FromLocal, part(long, 0, 10))
		r := n.get(part(long+"k", 0, 10))[0]
		require.Equal(t, ports.Invalid, r.Status)
		require.ErrorContains(t, r.Err, "513, limit 512")
		_, err = n.Size(t.Context(), namespace, long+"k")
		require.ErrorContains(t, err, "513, limit 512")
		_, err = n.BatchExists(t.Context(), namespace, []string{""}, 0, make([]bool, 1))
		require.ErrorContains(t, err, "0, limit 512")
		require.Equal(t, ports.Invalid, n.putAs(long+"k", 0, 10).Status)

		p := &ports.PutBatch{Namespace: namespace, Keys: []string{"l"}, Sizes: []uint64{domain.MaxPutRanges + 1}, Regions: []ports.Memory{{Region: hostMemory(domain.MaxPutRanges + 1)}}}
		for i := range uint64(domain.MaxPutRanges + 1) {
			p.Ranges = append(p.Ranges, domain.Range{Off: i, Len: 1, RegionOff: i})
		}
		p.End = []uint32{uint32(len(p.Ranges))}
		require.NoError(t, n.BatchPutRanges(t.Context(), p, out))
		require.Equal(t, ports.Invalid, out[0].Status)
		require.ErrorContains(t, out[0].Err, "4097, limit 4096")

		p = &ports.PutBatch{Namespace: namespace, Keys: []string{"l"}, Sizes: []uint64{domain.MaxObjectSize + 1}, End: []uint32{1},
			Ranges: []domain.Range{{Len: domain.MaxObjectSize + 1}}, Regions: mem}
		require.NoError(t, n.BatchPutRanges(t.Context(), p, out))
		require.Equal(t, ports.Invalid, out[0].Status)
		require.ErrorContains(t, out[0].Err, "1099511627777, limit 1099511627776")
	})
}

func TestSizesNear2To64AreErrors(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(objectSize, "k")
		for _, n := range []*node{a, b} {
			mem := []ports.Memory{{Region: hostMemory(100)}}
			for _, r := range []domain.Range{
				{Off: math.MaxUint64, Len: 1}, {Off: math.MaxUint64 - 1, Len: 1}, {Off: 1, Len: math.MaxUint64 - 1}, {Off: 1, Len: domain.Whole},
				{Off: objectSize, Len: 1}, {Len: 1, RegionOff: math.MaxUint64}, {Len: 100, RegionOff: math.MaxUint64 - 50}, {Len: 101}, {Len: 1, RegionOff: 100},
				{Len: 1, Region: 1}, {Len: 1, Region: math.MaxUint32}, {Len: math.MaxUint64 - 1}, {Off: 1 << 63, Len: 1 << 63},
			} {
				out := make([]ports.Result, 1)
				require.NoError(t, n.BatchGetRanges(t.Context(), &ports.GetBatch{Namespace: namespace, Keys: []string{"k"}, End: []uint32{1}, Ranges: []domain.Range{r}, Regions: mem}, out))
				require.Equal(t, ports.Invalid, out[0].Status, "%+v", r)
				require.ErrorIs(t, out[0].Err, domain.ErrInvalid, "%+v", r)
				p := &ports.PutBatch{Namespace: namespace, Keys: []string{"l"}, Sizes: []uint64{r.Off + r.Len}, End: []uint32{1}, Ranges: []domain.Range{r}, Regions: mem}
				if r.Off == 0 && r.Len == 1 && r.RegionOff == 0 && r.Region == 0 {
					continue
				}
				require.NoError(t, n.BatchPutRanges(t.Context(), p, out))
				require.Equal(t, ports.Invalid, out[0].Status, "%+v", r)
			}
			out := make([]ports.Result, 1)
			w := &ports.WholeBatch{Namespace: namespace, Keys: []string{"k"}, Regions: mem, Targets: []ports.Target{{Off: math.MaxUint64, Len: math.MaxUint64}}}
			require.NoError(t, n.BatchGet(t.Context(), w, out))
			require.Equal(t, ports.Invalid, out[0].Status)
			require.NoError(t, n.BatchPut(t.Context(), w, out))
			require.Equal(t, ports.Invalid, out[0].Status)
			found := make([]bool, 1)
			_, err := n.BatchExists(t.Context(), namespace, []string{"l"}, 0, found)
			require.NoError(t, err)
			require.False(t, found[0], "a refused put publishes nothing")
		}
	})
}

func TestWholeGetWithTooSmallADestinationSaysTheSize(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		c := w.node("c", place{Config: noPool})
		a.put(objectSize, "k")
		for _, n := range []*node{a, b, c} {
			for _, out := range [][]ports.Result{n.get(whole("k", objectSize-1), part("k", 0, 5)), n.getWhole(objectSize-1, "k")} {
				require.Equal(t, ports.TooLarge, out[0].Status)
				require.EqualValues(t, objectSize, out[0].Size)
				require.ErrorContains(t, out[0].Err, "200000, limit 199999")
				if len(out) > 1 {
					require.Equal(t, ports.Hit, out[1].Status)
				}
			}
			require.Equal(t, ports.Hit, n.get(whole("k", objectSize+10))[0].Status, "more room than needed is fine")
			require.Equal(t, ports.Invalid, n.get(want{key: "k", runs: []domain.Run{{Off: 1, Len: domain.Whole}}, room: 1})[0].Status)
		}
	})
}

func TestZeroRangesAreNoHit(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(100, "k")
		for _, n := range []*node{a, b} {
			r := n.get(want{key: "k"})[0]
			require.Equal(t, ports.Invalid, r.Status)
			require.ErrorIs(t, r.Err, domain.ErrInvalid)
		}
		require.NoError(t, a.BatchGetRanges(t.Context(), &ports.GetBatch{}, nil), "no keys, no trouble")
	})
}

func TestDuplicateKeysAreServedEach(t *testing.T) {
	overRoutes(t, objectSize, func(t *testing.T, w *world, a, b *node, from ports.Source) {
		a.put(objectSize, "k")
		b.mustGet(from, part("k", 0, 1_000), part("k", 500, 1_000), part("k", 0, 1_000), gapped("k", 4, 100))
	})
}

func TestImpossibleConfigurationsAreRefusedByName(t *testing.T) {
	good := app.Ports{Clock: virtual{time.Now()}, Copier: nowhereCopier{}}
	for name, tt := range map[string]struct {
		cfg  app.Config
		p    app.Ports
		says string
	}{
		"no id":             {app.Config{}, good, "ID"},
		"share":             {app.Config{ID: "a", FillingShare: 1.5}, good, "FillingShare: 1.5"},
		"negative share":    {app.Config{ID: "a", FillingShare: -1}, good, "FillingShare: -1"},
		"share of nothing":  {app.Config{ID: "a", FillingShare: math.NaN()}, good, "FillingShare: NaN"},
		"locality":          {app.Config{ID: "a", Locality: 9}, good, "Locality: 9"},
		"lease":             {app.Config{ID: "a", PeerLease: -1}, good, "PeerLease: -1ns"},
		"call":              {app.Config{ID: "a", CallTimeout: -1}, good, "CallTimeout"},
		"endless call":      {app.Config{ID: "a", CallTimeout: math.MaxInt64}, good, "CallTimeout: 2562047h47m16.854775807s, want"},
		"unbelieved lease":  {app.Config{ID: "a", PeerLease: 2 * time.Hour}, good, "PeerLease: 2h0m0s, want at most 1h0m0s"},
		"no watermark":      {app.Config{ID: "a", HighWatermark: math.NaN()}, good, "high NaN"},
		"no low watermark":  {app.Config{ID: "a", HighWatermark: 0.5, LowWatermark: math.NaN()}, good, "low NaN"},
		"watermarks":        {app.Config{ID: "a", HighWatermark: 0.5, LowWatermark: 0.6}, good, "high 0.5, low 0.6"},
		"no clock":          {app.Config{ID: "a"}, app.Ports{Copier: nowhereCopier{}}, "Clock"},
		"no copier":         {app.Config{ID: "a"}, app.Ports{Clock: virtual{time.Now()}}, "Copier"},
		"page size of zero": {app.Config{ID: "a"}, app.Ports{Clock: good.Clock, Copier: good.Copier, Medium: oddMedium{0, 64}}, "page size 0"},
		"torn pages":        {app.Config{ID: "a"}, app.Ports{Clock: good.Clock, Copier: good.Copier, Medium: oddMedium{10, 64}}, "64 bytes, want whole pages of 10"},
	} {
		_, err := app.New(tt.cfg, tt.p)
		require.ErrorContains(t, err, tt.says, name)
	}
}

// nowhereCopier copies nothing.
type nowhereCopier struct{}

func (nowhereCopier) Copy(context.Context, []ports.CopyOp, []error) {}

// oddMedium is a medium whose numbers do not fit.
type oddMedium struct {
	page uint64
	size int
}

func (m oddMedium) Kind() ports.MediumKind  { return ports.DRAM }
func (m oddMedium) PageSize() uint64        { return m.page }
func (m oddMedium) Buffers() []ports.Region { return []ports.Region{hostMemory(m.size)} }
func (m oddMedium) Close() error            { return nil }

func TestClosedNodeRefusesEveryCall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{})
		n.put(100, "k")
		n.stop()
		out := make([]ports.Result, 1)
		g := n.prepare(0, part("k", 0, 1))
		require.ErrorIs(t, n.BatchGetRanges(t.Context(), &g.batch, out), ports.ErrClosed)
		require.Equal(t, ports.Cancelled, out[0].Status)
		require.Equal(t, ports.Cancelled, n.Get(t.Context(), namespace, "k", hostMemory(100)).Status)
		require.Equal(t, ports.Cancelled, n.Put(t.Context(), namespace, "l", hostMemory(100)).Status)
		_, err := n.OpenRead(t.Context(), namespace)
		require.ErrorIs(t, err, ports.ErrClosed)
		_, err = n.BatchExists(t.Context(), namespace, []string{"k"}, 0, make([]bool, 1))
		require.ErrorIs(t, err, ports.ErrClosed)
		_, err = n.Size(t.Context(), namespace, "k")
		require.ErrorIs(t, err, ports.ErrClosed)
		require.ErrorIs(t, n.Remove(t.Context(), namespace, []string{"k"}, make([]ports.Removal, 1)), ports.ErrClosed)
		require.ErrorIs(t, n.Clear(t.Context()), ports.ErrClosed)
		_, err = n.RegisterMemory(t.Context(), hostMemory(1))
		require.ErrorIs(t, err, ports.ErrClosed)
		require.ErrorIs(t, n.Close(), ports.ErrClosed)
	})
}

func TestRegionsThatAreNotThereAreRefusedByName(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(100, "k")
		for _, n := range []*node{a, b} {
			out := make([]ports.Result, 2)
			g := &ports.GetBatch{Namespace: namespace, Keys: []string{"k", "k"}, End: []uint32{1, 2}, Ranges: []domain.Range{{Len: 10, Region: 1}, {Len: 10}},
				Regions: []ports.Memory{{}, {Region: hostMemory(100)}}}
			require.NoError(t, n.BatchGetRanges(t.Context(), g, out))
			require.Equal(t, ports.Hit, out[0].Status, "the other key of the call: %v", out[0].Err)
			require.Equal(t, ports.Invalid, out[1].Status)
			require.ErrorContains(t, out[1].Err, "region 0 of the call's table has no memory")
		}
	})
}

// TestRoomOfNothingIsNoRoom: a whole get has the room that its target says, not what its region has behind it.
func TestRoomOfNothingIsNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(100, "k")
		for _, n := range []*node{a, b} {
			mem := make([]byte, 200)
			pattern.Poison(mem)
			out := make([]ports.Result, 1)
			get := &ports.WholeBatch{Namespace: namespace, Keys: []string{"k"}, Targets: []ports.Target{{Off: 50}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(mem)}}}
			require.NoError(t, n.BatchGet(t.Context(), get, out))
			require.Equal(t, ports.TooLarge, out[0].Status)
			require.ErrorContains(t, out[0].Err, "100, limit 0")
			require.Equal(t, -1, pattern.CheckPoison(mem))
		}
	})
}
