package engine

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// names is a lookup of two handles (7 with rows, 8 without) and of regions 1 to 3.
type names struct{ lengths map[uint32]uint64 }

func (names) named(id uint64) (handle, bool) {
	h := handle{}
	for i := range 5 {
		h.keys = append(h.keys, fmt.Sprintf("h%d", i))
	}
	switch id {
	case 7:
		h.rows = []uint64{4, 3, 2, 1, 0}
		return h, true
	case 8:
		return h, true
	}
	return handle{}, false
}

func (n names) use(id uint32) (uint32, uint64, bool) {
	length, ok := n.lengths[id]
	return id - 1, length, ok
}

var memories = names{map[uint32]uint64{1: 1000, 2: 64, 3: 1 << 20}}

func lists(names []string, l *enginev1.RangeLists, sizes ...uint64) *enginev1.Part {
	p := &enginev1.Part{Keys: &enginev1.Keys{}, Where: &enginev1.Part_Lists{Lists: l}, Sizes: sizes}
	for _, n := range names {
		p.Keys.Names = append(p.Keys.Names, []byte(n))
	}
	return p
}

func TestPartsFollowEachOther(t *testing.T) {
	var w want
	require.NoError(t, w.fill([]*enginev1.Part{
		lists([]string{"a", "b"}, &enginev1.RangeLists{End: []uint32{1, 3}, Off: []uint64{5, 0, 9}, Len: []uint64{1, 2, 3}, Region: []uint32{1}, RegionOff: []uint64{10, 20, 30}}, 6, 12),
		{Keys: &enginev1.Keys{Handle: 7, First: []uint32{3, 0}, Count: []uint32{2, 1}}, Sizes: []uint64{16}, Where: &enginev1.Part_Pattern{Pattern: &enginev1.Pattern{
			Off: []uint64{0, 8}, Len: []uint64{8}, Region: []uint32{1, 3}, Base: []uint64{100, 0}, Stride: []uint64{8, 16}, RowsOfHandle: true}}},
	}, memories, sized))
	require.Equal(t, []string{"a", "b", "h3", "h4", "h0"}, w.keys)
	require.Equal(t, []uint64{6, 12, 16, 16, 16}, w.sizes)
	require.Equal(t, []uint32{0, 1, 2, 3, 4}, w.row)
	require.Equal(t, []uint32{1, 3, 5, 7, 9}, w.end)
	require.Equal(t, []domain.Range{{Off: 5, Len: 1, RegionOff: 10}, {Off: 0, Len: 2, RegionOff: 20}, {Off: 9, Len: 3, RegionOff: 30},
		{Off: 0, Len: 8, RegionOff: 108}, {Off: 8, Len: 8, Region: 2, RegionOff: 16}, {Off: 0, Len: 8, RegionOff: 100}, {Off: 8, Len: 8, Region: 2, RegionOff: 0},
		{Off: 0, Len: 8, RegionOff: 132}, {Off: 8, Len: 8, Region: 2, RegionOff: 64}}, w.ranges)
	require.EqualValues(t, 1+2+3+3*16, w.bytes)
	require.Equal(t, 5, w.total)
}

func TestAKeyBeyondItsMemoryIsRefusedAlone(t *testing.T) {
	var w want
	require.NoError(t, w.fill([]*enginev1.Part{
		lists([]string{"in", "past", "nowhere", "in again"}, &enginev1.RangeLists{End: []uint32{1, 3, 4, 5}, Off: []uint64{0, 0, 1, 0, 0}, Len: []uint64{64, 1, 64, 1, 64},
			Region: []uint32{2, 2, 2, 9, 2}, RegionOff: []uint64{0, 0, 1, 0, 0}}, 64),
		{Keys: &enginev1.Keys{Handle: 8}, Sizes: []uint64{1, 2, 3, 4, 5}, Where: &enginev1.Part_Pattern{Pattern: &enginev1.Pattern{
			Off: []uint64{0}, Len: []uint64{8}, Region: []uint32{2}, Base: []uint64{0}, Stride: []uint64{56}, Row: []uint64{0, 1, 2, 1 << 63, 1}}}},
	}, memories, sized))
	require.Equal(t, []string{"in", "in again", "h0", "h1", "h4"}, w.keys)
	require.Equal(t, []uint64{64, 64, 1, 2, 5}, w.sizes)
	require.Equal(t, []uint32{0, 3, 4, 5, 8}, w.row)
	var refused []uint32
	for _, r := range w.refused {
		refused = append(refused, r.row)
	}
	require.Equal(t, []uint32{1, 2, 6, 7}, refused)
	require.ErrorContains(t, w.refused[0].reason, "range 2: 64 bytes at 1 are not in region 2")
	require.ErrorContains(t, w.refused[3].reason, "row 9223372036854775808")
	require.EqualValues(t, 64+64+3*8, w.bytes)
}

func TestMalformedPartsFailTheCall(t *testing.T) {
	pattern := func(change func(*enginev1.Pattern)) *enginev1.Part {
		p := &enginev1.Pattern{Off: []uint64{0, 1}, Len: []uint64{1}, Region: []uint32{1}, Base: []uint64{0, 1}, Stride: []uint64{2}, Row: []uint64{0, 1, 2, 3, 4}}
		change(p)
		return &enginev1.Part{Keys: &enginev1.Keys{Handle: 8}, Where: &enginev1.Part_Pattern{Pattern: p}}
	}
	list := func(change func(*enginev1.RangeLists)) *enginev1.Part {
		l := &enginev1.RangeLists{End: []uint32{1, 2}, Off: []uint64{0, 1}, Len: []uint64{1, 1}, Region: []uint32{1}, RegionOff: []uint64{0, 1}}
		change(l)
		return lists([]string{"a", "b"}, l)
	}
	var w want
	require.NoError(t, w.fill([]*enginev1.Part{pattern(func(*enginev1.Pattern) {}), list(func(*enginev1.RangeLists) {})}, memories, unsized))
	for name, p := range map[string]*enginev1.Part{
		"nowhere":              {Keys: &enginev1.Keys{Handle: 8}},
		"sizes":                {Keys: &enginev1.Keys{Handle: 8}, Sizes: []uint64{1}, Where: pattern(func(*enginev1.Pattern) {}).Where},
		"no ranges":            pattern(func(p *enginev1.Pattern) { p.Off = nil }),
		"lengths":              pattern(func(p *enginev1.Pattern) { p.Len = []uint64{1, 1, 1} }),
		"bases":                pattern(func(p *enginev1.Pattern) { p.Base = p.Base[:1] }),
		"strides":              pattern(func(p *enginev1.Pattern) { p.Stride = nil }),
		"regions":              pattern(func(p *enginev1.Pattern) { p.Region = nil }),
		"rows":                 pattern(func(p *enginev1.Pattern) { p.Row = p.Row[:4] }),
		"rows of none":         pattern(func(p *enginev1.Pattern) { p.Row, p.RowsOfHandle = nil, true }),
		"ends":                 list(func(l *enginev1.RangeLists) { l.End = l.End[:1] }),
		"descending ends":      list(func(l *enginev1.RangeLists) { l.End = []uint32{2, 1} }),
		"end past":             list(func(l *enginev1.RangeLists) { l.End = []uint32{1, 3} }),
		"ranges of no key":     list(func(l *enginev1.RangeLists) { l.End = []uint32{1, 1} }),
		"list lengths":         list(func(l *enginev1.RangeLists) { l.Len = l.Len[:1] }),
		"list regions":         list(func(l *enginev1.RangeLists) { l.Region = nil }),
		"offsets":              list(func(l *enginev1.RangeLists) { l.RegionOff = nil }),
		"names and a handle":   {Keys: &enginev1.Keys{Handle: 8, Names: [][]byte{{1}}}},
		"runs of no handle":    {Keys: &enginev1.Keys{First: []uint32{0}, Count: []uint32{1}}},
		"run past":             {Keys: &enginev1.Keys{Handle: 8, First: []uint32{4}, Count: []uint32{2}}},
		"run that wraps":       {Keys: &enginev1.Keys{Handle: 8, First: []uint32{1<<32 - 1}, Count: []uint32{2}}},
		"runs without a count": {Keys: &enginev1.Keys{Handle: 8, First: []uint32{4}}},
	} {
		w.reset()
		require.ErrorIs(t, w.fill([]*enginev1.Part{p}, memories, unsized), domain.ErrInvalid, name)
	}
	w.reset()
	require.ErrorIs(t, w.fill([]*enginev1.Part{{Keys: &enginev1.Keys{Handle: 9}}}, memories, unsized), ports.ErrNotFound)
	many := pattern(func(p *enginev1.Pattern) { p.Off, p.Base = make([]uint64, 300_000), make([]uint64, 300_000) })
	w.reset()
	require.ErrorIs(t, w.fill([]*enginev1.Part{many}, memories, unsized), ports.ErrRefused, "5 keys of 300,000 ranges")
	run := &enginev1.Part{Keys: &enginev1.Keys{Handle: 8}, Where: pattern(func(*enginev1.Pattern) {}).Where}
	for range 20_000 {
		run.Keys.First, run.Keys.Count = append(run.Keys.First, 0), append(run.Keys.Count, 5)
	}
	w.reset()
	require.ErrorIs(t, w.fill([]*enginev1.Part{run}, memories, unsized), ports.ErrRefused, "100,000 keys")
}

// TestAPatternIsItsRangesOneByOne has every row and range worked out with numbers that do not overflow.
func TestAPatternIsItsRangesOneByOne(t *testing.T) {
	edge := rapid.OneOf(rapid.Uint64Range(0, 1100), rapid.Uint64(), rapid.SampledFrom([]uint64{1 << 63, 1<<64 - 1, 1 << 32}))
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "ranges")
		draw := func(g *rapid.Generator[uint64], n int, what string) []uint64 {
			return rapid.SliceOfN(g, n, n).Draw(t, what)
		}
		p := &enginev1.Pattern{Off: draw(edge, n, "off"), Len: draw(edge, n, "len"), Base: draw(edge, n, "base"), Stride: draw(edge, n, "stride"), Row: draw(edge, 5, "row")}
		for range n {
			p.Region = append(p.Region, rapid.Uint32Range(0, 3).Draw(t, "region"))
		}
		var w want
		if err := w.fill([]*enginev1.Part{{Keys: &enginev1.Keys{Handle: 8}, Where: &enginev1.Part_Pattern{Pattern: p}}}, memories, unsized); err != nil {
			t.Fatal(err)
		}
		var due []domain.Range
		var rows []uint32
		for i, row := range p.Row {
			var own []domain.Range
			for r := range n {
				at := new(big.Int).Mul(new(big.Int).SetUint64(row), new(big.Int).SetUint64(p.Stride[r]))
				at.Add(at, new(big.Int).SetUint64(p.Base[r]))
				end := new(big.Int).Add(at, new(big.Int).SetUint64(p.Len[r]))
				if length, ok := memories.lengths[p.Region[r]]; ok && end.Cmp(new(big.Int).SetUint64(length)) <= 0 {
					own = append(own, domain.Range{Off: p.Off[r], Len: p.Len[r], Region: p.Region[r] - 1, RegionOff: at.Uint64()})
				}
			}
			if len(own) == n {
				due, rows = append(due, own...), append(rows, uint32(i))
			}
		}
		if len(due) == 0 {
			if len(w.ranges) != 0 {
				t.Fatalf("%v where nothing fits", w.ranges)
			}
			return
		}
		require.Equal(t, due, w.ranges)
		require.Equal(t, rows, w.row)

		stays := want{stay: true}
		require.NoError(t, stays.fill([]*enginev1.Part{{Keys: &enginev1.Keys{Handle: 8}, Where: &enginev1.Part_Pattern{Pattern: p}}}, memories, unsized))
		require.Equal(t, []any{rows, w.keys, w.bytes}, []any{stays.row, stays.keys, stays.bytes})
		require.Equal(t, due, expanded(stays.patterns()))
		require.Empty(t, stays.ranges)
	})
}

func expanded(all []ports.Pattern) (out []domain.Range) {
	for _, p := range all {
		for _, row := range p.Rows {
			for i := range p.Ranges {
				out = append(out, p.Ranges[i].At(row))
			}
		}
	}
	return out
}

func TestPatternsBesideListsBecomeLists(t *testing.T) {
	pattern := &enginev1.Part{Keys: &enginev1.Keys{Handle: 7, First: []uint32{1}, Count: []uint32{2}}, Where: &enginev1.Part_Pattern{Pattern: &enginev1.Pattern{
		Off: []uint64{0}, Len: []uint64{1}, Region: []uint32{1}, Base: []uint64{9}, Stride: []uint64{10}, RowsOfHandle: true}}}
	w := want{stay: true}
	require.NoError(t, w.fill([]*enginev1.Part{pattern, pattern}, memories, unsized))
	require.Len(t, w.patterns(), 2)
	require.Equal(t, []uint64{3, 2}, w.patterns()[1].Rows)
	w.reset()
	w.stay = true
	require.NoError(t, w.fill([]*enginev1.Part{pattern, lists([]string{"a"}, &enginev1.RangeLists{End: []uint32{1}, Off: []uint64{0}, Len: []uint64{1}, Region: []uint32{1}, RegionOff: []uint64{0}})}, memories, unsized))
	require.Nil(t, w.patterns())
	require.Equal(t, []domain.Range{{Len: 1, RegionOff: 39}, {Len: 1, RegionOff: 29}, {Len: 1}}, w.ranges)
}

// FuzzParts: whatever a client sends, what comes out lies in memory that is registered, within the bounds of a call.
func FuzzParts(f *testing.F) {
	for _, p := range [][]*enginev1.Part{
		{lists([]string{"a"}, &enginev1.RangeLists{End: []uint32{1}, Off: []uint64{0}, Len: []uint64{1}, Region: []uint32{1}, RegionOff: []uint64{0}}, 1)},
		{{Keys: &enginev1.Keys{Handle: 7, First: []uint32{1}, Count: []uint32{2}}, Where: &enginev1.Part_Pattern{Pattern: &enginev1.Pattern{
			Off: []uint64{0, 1}, Len: []uint64{1}, Region: []uint32{3}, Base: []uint64{0, 9}, Stride: []uint64{100}, RowsOfHandle: true}}, Sizes: []uint64{2}}},
	} {
		b, err := proto.Marshal(&enginev1.BatchPutRangesRequest{Parts: p})
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var req enginev1.BatchPutRangesRequest
		if proto.Unmarshal(b, &req) != nil {
			return
		}
		for _, s := range []sizing{sized, unsized} {
			w := want{stay: s == unsized}
			if w.fill(req.GetParts(), memories, s) != nil {
				continue
			}
			requireWithin(t, &w, s)
		}
	})
}

// FuzzLayOut: what a message's ranges are laid out as is disjoint, in order, and as long as the room that is taken for it.
func FuzzLayOut(f *testing.F) {
	b, err := proto.Marshal(&enginev1.PutHeader{Size: 9, Ranges: []*enginev1.Range{{Off: 4, Len: 5}, {Len: 4}}})
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h enginev1.PutHeader
		if proto.Unmarshal(b, &h) != nil {
			return
		}
		ranges, total, err := layOut(h.GetRanges(), min(h.GetSize(), domain.MaxObjectSize))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(ranges), domain.MaxCallRanges)
		at := uint64(0)
		for _, r := range ranges {
			require.Equal(t, at, r.RegionOff)
			at += r.Len
		}
		require.Equal(t, total, at)
		require.LessOrEqual(t, total, uint64(2*domain.MaxObjectSize))
	})
}

// FuzzHandles: whatever keys a client names, and whatever runs of them it asks for, a list is as long as it says and has no other keys.
func FuzzHandles(f *testing.F) {
	named, err := proto.Marshal(&enginev1.NameKeysRequest{Keys: [][]byte{[]byte("a"), []byte("b")}, Rows: []uint64{1, 2}})
	require.NoError(f, err)
	asked, err := proto.Marshal(&enginev1.Keys{Handle: 1, First: []uint32{1, 0}, Count: []uint32{1, 2}})
	require.NoError(f, err)
	f.Add(named, asked)
	f.Fuzz(func(t *testing.T, named, asked []byte) {
		var name enginev1.NameKeysRequest
		var ask enginev1.Keys
		if proto.Unmarshal(named, &name) != nil || proto.Unmarshal(asked, &ask) != nil {
			return
		}
		c, err := newClients(Config{MaxClients: 1}, new(counters)).hello("ns")
		require.NoError(t, err)
		_, n, err := c.name(name.GetHandle(), name.GetKeys(), name.GetRows())
		require.True(t, err != nil || n == len(name.GetKeys()))
		l, err := listOf(&ask, placed{&call{of: c}})
		if err != nil {
			return
		}
		keys, err := c.keysOf(&ask)
		require.NoError(t, err)
		require.Len(t, keys, l.len())
		have := name.GetKeys()
		if ask.GetHandle() == 0 {
			have = ask.GetNames()
		}
		for _, k := range keys {
			require.True(t, slices.ContainsFunc(have, func(h []byte) bool { return string(h) == k }), "%q", k)
		}
		c.drop(1)
		require.Zero(t, c.mu.handleKeys)
		require.Zero(t, c.mu.handleBytes)
	})
}

func requireWithin(t *testing.T, w *want, s sizing) {
	n := len(w.keys)
	require.Equal(t, w.total, n+len(w.refused))
	require.LessOrEqual(t, w.total, domain.MaxCallKeys)
	require.LessOrEqual(t, w.listed, domain.MaxCallRanges)
	require.Len(t, w.row, n)
	ranges := w.ranges
	if all := w.patterns(); all != nil {
		ranges = expanded(all)
	} else {
		require.Len(t, w.end, n)
		require.EqualValues(t, len(ranges), w.lastEnd())
	}
	if s == sized {
		require.Len(t, w.sizes, n)
	}
	last := uint32(0)
	for _, end := range w.end {
		require.GreaterOrEqual(t, end, last)
		last = end
	}
	for _, r := range ranges {
		length := memories.lengths[r.Region+1]
		require.LessOrEqual(t, r.Len, length)
		require.LessOrEqual(t, r.RegionOff, length-r.Len)
	}
}

func TestWhatRefusesACallIsCountedByItsReason(t *testing.T) {
	for err, why := range map[error]refusal{
		limit("keys of a call", 2, 1):                           refusedLimit,
		malformed("rows", 1, 2):                                 refusedMalformed,
		fmt.Errorf("handle 3: %w", ports.ErrNotFound):           refusedUnknown,
		fmt.Errorf("step: %w", errQuiesced):                     refusedEnded,
		fmt.Errorf("step: %w", context.DeadlineExceeded):        refusedEnded,
		fmt.Errorf("the node is stopping: %w", ports.ErrClosed): refusedFailed,
	} {
		s := &calls{count: new(counters)}
		require.Error(t, s.failed(err))
		for r := range s.count.refused {
			require.Equal(t, refusal(r) == why, s.count.refused[r].Load() == 1, "%v counted as %v", err, refusal(r))
		}
	}
}
