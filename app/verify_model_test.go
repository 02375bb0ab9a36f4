package app_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// spoiled is a world in which bits turn over, in copies, in filling slots and on the wire, under reads of any shape.
type spoiled struct {
	t       *rapid.T
	w       *world
	owners  []*node
	b       *node
	lens    []uint64 // of the put-ranges
	size    uint64
	flips   int
	sumless bool // the second owner knows no sums, so only what a hit says is verified has to be right
	reached map[string]uint64
}

// drawRead draws disjoint runs, in any order. Some are put-ranges, or several of them.
func (s *spoiled) drawRead() []domain.Run {
	edges := []uint64{0, s.size}
	var at uint64
	for _, n := range s.lens {
		at += n
		if rapid.IntRange(0, 2).Draw(s.t, "edge") > 0 {
			edges = append(edges, at)
		}
	}
	for range rapid.IntRange(0, 3).Draw(s.t, "cuts") {
		edges = append(edges, rapid.Uint64Range(0, s.size).Draw(s.t, "cut"))
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var runs []domain.Run
	for i := 1; i < len(edges); i++ {
		if rapid.Bool().Draw(s.t, "read") {
			runs = append(runs, domain.Run{Off: edges[i-1], Len: edges[i] - edges[i-1]})
		}
	}
	if len(runs) == 0 {
		runs = []domain.Run{{Len: s.size}}
	}
	return rapid.Permutation(runs).Draw(s.t, "order")
}

// readAtOnce makes reads that may join each other's flights.
func (s *spoiled) readAtOnce(all ...[]domain.Run) {
	var calls sync.WaitGroup
	reads := make([]*read, len(all))
	for i, runs := range all {
		reads[i] = s.b.prepare(0, parts("k", runs...))
		calls.Go(func() { reads[i].run(s.t.Context()) })
	}
	calls.Wait()
	for i, r := range reads {
		s.judge(r, all[i])
	}
}

// judge holds a hit to what its bytes must be: all right when it says so, and right wherever it covers a put-range whole.
func (s *spoiled) judge(r *read, runs []domain.Run) {
	require.NoError(s.t, r.err)
	res := r.out[0]
	s.reached[res.Status.String()]++
	if res.Status != ports.Hit {
		require.Contains(s.t, []ports.Status{ports.Corrupt, ports.NotFound, ports.PeerUnavailable}, res.Status, "%v", res.Err)
		require.Positive(s.t, s.flips, "%v, and nothing was spoiled: %v", res.Status, res.Err)
		return
	}
	got := make(map[uint64]byte)
	at := uint64(0)
	for _, run := range runs {
		at += guard
		for i := range run.Len {
			got[run.Off+i] = r.mem[at+i]
		}
		at += run.Len
	}
	want := bytesOf("k", 0, s.size)
	var off uint64
	for _, n := range s.lens {
		whole, right := true, true
		for i := off; i < off+n; i++ {
			b, asked := got[i]
			whole = whole && asked
			right = right && (!asked || b == want[i])
		}
		require.True(s.t, right || !whole || s.sumless, "put-range [%d, +%d) was read whole and is wrong; the hit says verified %v", off, n, res.Verified)
		require.True(s.t, right || !res.Verified, "put-range [%d, +%d) is wrong in a hit that says verified", off, n)
		require.True(s.t, right || s.flips > 0)
		off += n
	}
	if res.Verified {
		s.reached["verified"]++
	} else if s.sumless && len(runs) == 1 && runs[0].Len == s.size {
		s.reached["unverified"]++
	}
}

func (s *spoiled) rest() {
	s.w.settle()
	synctest.Wait()
}

// spoil turns a bit over somewhere, at rest. What the reader has verified is left alone: it is not verified again.
func (s *spoiled) spoil() {
	off := rapid.Uint64Range(0, s.size-1).Draw(s.t, "byte")
	switch rapid.SampledFrom([]string{"holder", "slot", "slot", "wire", "sum"}).Draw(s.t, "where") {
	case "holder":
		if rapid.SampledFrom(s.owners).Draw(s.t, "holder").FlipForTesting(namespace, "k", off) {
			s.flips++
		}
	case "slot":
		if left := s.b.UnverifiedForTesting(namespace, "k"); len(left) > 0 {
			r := rapid.SampledFrom(left).Draw(s.t, "run")
			s.b.flip("k", r.Off+off%r.Len)
			s.flips++
			s.reached["slot spoiled"]++
		}
	case "sum": // spoils no byte
		s.b.fail(next(rapid.Int64Range(1, 2).Draw(s.t, "ops"), "Link", "Op", nil, faults.Verdict{Missum: true}))
	default:
		s.flips++
		s.b.fail(next(rapid.Int64Range(1, 2).Draw(s.t, "ops"), "Link", "Op", nil, faults.Verdict{Flip: true}))
	}
}

// TestNoHitCoversAPutRangeWithWrongBytes reads an object in any pieces, on every route, while copies, slots and the wire are spoiled.
// Complaints drop only what is bad; what is local in the end is right.
func TestNoHitCoversAPutRangeWithWrongBytes(t *testing.T) {
	reached := map[string]uint64{}
	checkReaching(t, reached, []string{"hit", "corrupt", "verified", "local", "dropped", "kept", "unverified"}, func(r *rapid.T) {
		rapid.SyncTest(r, func(r *rapid.T) {
			s := &spoiled{t: r, w: newWorld(r, rapid.Bool().Draw(r, "scatter")), reached: reached}
			s.lens = rapid.SliceOfN(rapid.Uint64Range(1, 900), 1, 8).Draw(r, "put-ranges")
			for _, n := range s.lens {
				s.size += n
			}
			page := rapid.SampledFrom([]uint64{s.size, 64, 97, 256}).Draw(r, "page")
			p := place{page: page, pages: 8 * (s.size/page + 1)}
			s.owners = append(s.owners, s.w.node("a", p))
			if rapid.Bool().Draw(r, "two holders") {
				s.sumless = rapid.Bool().Draw(r, "one without sums")
				second := p
				second.NoChecksums = s.sumless
				s.owners = append(s.owners, s.w.node("c", second))
			}
			p.Config = rapid.SampledFrom([]app.Config{noPull, {FillingShare: 1}, noPool, {Locality: domain.LocalityPullOnly}}).Draw(r, "reader")
			p.registered = rapid.Bool().Draw(r, "registered")
			s.b = s.w.node("b", p)
			s.store()
			for range rapid.IntRange(2, 12).Draw(r, "steps") {
				if rapid.IntRange(0, 2).Draw(r, "step") == 0 {
					s.spoil()
				}
				all := [][]domain.Run{s.drawRead()}
				for rapid.Bool().Draw(r, "one more") && len(all) < 3 {
					all = append(all, s.drawRead())
				}
				s.readAtOnce(all...)
				s.rest()
				if rapid.Bool().Draw(r, "pause") {
					s.w.pass(time.Second)
				}
			}
			s.b.fail()
			s.rest()
			if s.b.committed() > 0 {
				n := guard
				got := s.b.prepare(0, whole("k", s.size)).run(r.Context())
				require.Equal(r, ports.Hit, got.out[0].Status)
				require.True(r, got.out[0].Verified || s.sumless)
				if got.out[0].Verified {
					require.Equal(r, -1, pattern.Check(got.mem[n:n+int(s.size)], pattern.KeyOf("k", 0), 0), "what was made local is wrong")
					reached["local"]++
				}
			}
			for _, o := range s.owners {
				st := o.Stats()
				reached["dropped"] += st.Complaints[ports.ComplaintDropped]
				reached["kept"] += st.Complaints[ports.ComplaintKept]
			}
		})
	})
}

// store puts the object on the first owner by its put-ranges; the second one reads it whole.
func (s *spoiled) store() {
	a := s.owners[0]
	s.w.note("k", put{pattern.KeyOf("k", 0), s.size})
	p := ports.PutBatch{Namespace: namespace, Keys: []string{"k"}, Sizes: []uint64{s.size}, End: []uint32{uint32(len(s.lens))},
		Regions: []ports.Memory{{Region: ports.HostRegionOf(bytesOf("k", 0, s.size))}}}
	var off uint64
	for _, n := range s.lens {
		p.Ranges = append(p.Ranges, domain.Range{Off: off, Len: n, RegionOff: off})
		off += n
	}
	out := make([]ports.Result, 1)
	require.NoError(s.t, a.BatchPutRanges(s.t.Context(), &p, out))
	require.Equal(s.t, ports.Stored, out[0].Status, "%v", out[0].Err)
	if len(s.owners) > 1 {
		require.Equal(s.t, ports.Hit, s.owners[1].get(whole("k", s.size))[0].Status)
	}
}
