package domain_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
)

// spansOfLens are spans of the given lengths with a gap between each two.
func spansOfLens(lens ...uint64) []domain.Span {
	var spans []domain.Span
	var at uint64
	for i, n := range lens {
		spans = append(spans, domain.Span{Run: domain.Run{Off: at, Len: n}, First: uint32(i), Count: 1})
		at += n + 1
	}
	return spans
}

// pack packs keys of the given span lengths one after the other.
func pack(t require.TestingT, capacity uint64, keys ...[]uint64) ([]domain.Unit, domain.Packing) {
	p := domain.Packing{Capacity: capacity}
	var units []domain.Unit
	var first uint32
	for k, lens := range keys {
		var err error
		units, err = domain.AppendUnits(units, uint32(k), first, spansOfLens(lens...), &p)
		require.NoError(t, err)
		first += uint32(len(lens))
	}
	return units, p
}

func TestUnitsOfNamedCases(t *testing.T) {
	for _, c := range []struct {
		name     string
		capacity uint64
		keys     [][]uint64
		want     []domain.Unit
	}{
		{"a total equal to the arena does not split", 256, [][]uint64{{100}, {64, 64}},
			[]domain.Unit{{Key: 0, First: 0, Count: 1, Len: 100}, {Key: 1, First: 1, Count: 2, Off: 128, Len: 128}}},
		{"one byte more does", 256, [][]uint64{{100}, {64, 65}},
			[]domain.Unit{{Key: 0, First: 0, Count: 1, Len: 100}, {Key: 1, First: 1, Count: 1, Off: 128, Len: 64}, {Key: 1, First: 2, Count: 1, Round: 1, Len: 65}}},
		{"one key equal to the arena", 256, [][]uint64{{200, 56}}, []domain.Unit{{Count: 2, Len: 256}}},
		{"one key greater than the arena", 256, [][]uint64{{200, 57}}, []domain.Unit{{Count: 1, Len: 200}, {First: 1, Count: 1, Round: 1, Len: 57}}},
		{"rounding up counts", 128, [][]uint64{{1}, {1}, {1}},
			[]domain.Unit{{Key: 0, Count: 1, Len: 1}, {Key: 1, First: 1, Count: 1, Off: 64, Len: 1}, {Key: 2, First: 2, Count: 1, Round: 1, Len: 1}}},
		{"spans of one unit are not rounded", 128, [][]uint64{{1, 1, 1, 125}}, []domain.Unit{{Count: 4, Len: 128}}},
		{"a key whose first span does not fit leaves no empty unit", 128, [][]uint64{{65}, {64, 64}},
			[]domain.Unit{{Key: 0, Count: 1, Len: 65}, {Key: 1, First: 1, Count: 2, Round: 1, Len: 128}}},
		{"an object larger than the arena takes several rounds", 64, [][]uint64{{64, 64, 10, 54, 1}},
			[]domain.Unit{{Count: 1, Len: 64}, {First: 1, Count: 1, Round: 1, Len: 64}, {First: 2, Count: 2, Round: 2, Len: 64}, {First: 4, Count: 1, Round: 3, Len: 1}}},
		{"a capacity that is no multiple of 64 counts as the one below", 191, [][]uint64{{128}, {1}},
			[]domain.Unit{{Count: 1, Len: 128}, {Key: 1, First: 1, Count: 1, Round: 1, Len: 1}}},
		{"a key without spans takes nothing", 64, [][]uint64{{}, {64}}, []domain.Unit{{Key: 1, Count: 1, Len: 64}}},
		{"a sum past 2^64", math.MaxUint64, [][]uint64{{math.MaxUint64 - 63, 100}},
			[]domain.Unit{{Count: 1, Len: math.MaxUint64 - 63}, {First: 1, Count: 1, Round: 1, Len: 100}}},
		{"a capacity near 2^64", math.MaxUint64, [][]uint64{{math.MaxUint64 - 63, 1}},
			[]domain.Unit{{Count: 1, Len: math.MaxUint64 - 63}, {First: 1, Count: 1, Round: 1, Len: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			units, _ := pack(t, c.capacity, c.keys...)
			require.Equal(t, c.want, units)
		})
	}
}

func TestASpanLargerThanTheArenaFailsItsKeyAlone(t *testing.T) {
	for _, c := range []struct {
		name            string
		capacity        uint64
		lens            []uint64
		value, capRound uint64
	}{
		{"one byte larger", 128, []uint64{129}, 129, 128},
		{"behind spans that fit", 128, []uint64{64, 64, 10, 129}, 129, 128},
		{"whose rounded length is larger", 100, []uint64{65}, 65, 64},
		{"near 2^64", 128, []uint64{math.MaxUint64}, math.MaxUint64, 128},
		{"an arena that is off", 0, []uint64{1}, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := domain.Packing{Capacity: c.capacity, Round: 3}
			before, held := p, []domain.Unit{{Key: 8, Count: 1}}
			units, err := domain.AppendUnits(held, 9, 1, spansOfLens(c.lens...), &p)
			var refusal *domain.LimitError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, domain.LimitError{What: "bytes of a span in the arena", Value: c.value, Limit: c.capRound}, *refusal)
			require.ErrorIs(t, err, domain.ErrInvalid)
			require.Equal(t, held, units)
			require.Equal(t, before, p)
		})
	}
}

func TestRoundLenIsTheEndOfTheLastUnitRoundedUp(t *testing.T) {
	units, _ := pack(t, 256, []uint64{100}, []uint64{64, 65}, []uint64{190})
	require.Equal(t, uint64(192), domain.RoundLen(units, 0))
	require.Equal(t, uint64(128), domain.RoundLen(units, 1))
	require.Equal(t, uint64(192), domain.RoundLen(units, 2))
	require.Zero(t, domain.RoundLen(units, 3))
	require.Zero(t, domain.RoundLen(nil, 0))
	require.Zero(t, domain.RoundLen(units[1:][:0], 0))
	require.Zero(t, domain.RoundLen([]domain.Unit{{Round: 2, Len: 5}}, 1))
}

// requireUnitsAreRight walks keys and units side by side: every span once, in order, each round within the capacity, each
// unit behind the one before it, and a new round only where the old one had no room for the next span.
func requireUnitsAreRight(t require.TestingT, p domain.Packing, keys [][]uint64, units []domain.Unit) {
	all, capacity := units, p.Capacity/64*64
	var total, used uint64 // used: of the round, each unit rounded up
	var round, first uint32
	for k, lens := range keys {
		grown := used // where the next span of this key would end up if it stayed in the round
		for len(lens) > 0 {
			require.NotEmpty(t, units, "spans of key %d are in no unit", k)
			u := units[0]
			units = units[1:]
			if u.Round != round {
				require.Equal(t, round+1, u.Round)
				require.Greater(t, grown+lens[0], capacity, "round %d begins too early", u.Round)
				round, used = u.Round, 0
			}
			require.Equal(t, domain.Unit{Key: uint32(k), First: first, Count: u.Count, Round: round, Off: used, Len: sumOf(lens[:u.Count])}, u)
			require.NotZero(t, u.Count)
			grown, used = used+u.Len, used+(u.Len+63)/64*64
			require.LessOrEqual(t, used, capacity)
			if len(units) == 0 || units[0].Round != round {
				require.Equal(t, used, domain.RoundLen(all, round))
			}
			lens, first = lens[u.Count:], first+u.Count
		}
		total += (sumOf(keys[k]) + 63) / 64 * 64
	}
	require.Empty(t, units)
	require.Equal(t, total > capacity, round > 0, "total %d, capacity %d, rounds %d", total, capacity, round+1)
	require.Equal(t, domain.Packing{Capacity: p.Capacity, Round: round, Used: used}, p)
}

func sumOf(lens []uint64) (n uint64) {
	for _, length := range lens {
		n += length
	}
	return n
}

// drawKeys draws the span lengths of some keys, none above most, often multiples of 64 so that sums meet the capacity.
func drawKeys(t *rapid.T, most uint64) [][]uint64 {
	length := rapid.OneOf(rapid.Uint64Range(1, most), rapid.Map(rapid.Uint64Range(1, most/64), func(n uint64) uint64 { return 64 * n }))
	return rapid.SliceOfN(rapid.SliceOfN(length, 1, 6), 1, 6).Draw(t, "span lengths")
}

func TestUnitsHoldEverySpanOnceWithinTheCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := drawKeys(t, 256)
		capacity := rapid.Uint64Range(256, 1200).Draw(t, "capacity")
		units, p := pack(t, capacity, keys...)
		requireUnitsAreRight(t, p, keys, units)
	})
}

func TestUnitsSplitOnlyWhenTheTotalIsGreater(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := drawKeys(t, 128)
		var total uint64
		for _, lens := range keys {
			total += (sumOf(lens) + 63) / 64 * 64
		}
		units, p := pack(t, total, keys...)
		require.Zero(t, p.Round)
		require.Len(t, units, len(keys))
		require.Equal(t, total, domain.RoundLen(units, 0))
		if total-64 >= 128 { // else a span may be larger than the arena
			_, p = pack(t, total-64, keys...)
			require.NotZero(t, p.Round)
		}
	})
}

func FuzzUnits(f *testing.F) {
	f.Add(uint16(256), []byte{100, 0, 64, 64, 0})
	f.Add(uint16(256), []byte{100, 0, 64, 65, 0})
	f.Add(uint16(64), []byte{64, 64, 10, 54, 1})
	f.Add(uint16(100), []byte{1, 65, 0, 3})
	f.Add(uint16(0), []byte{1})
	f.Add(uint16(128), []byte{129, 0, 0, 1})
	f.Fuzz(func(t *testing.T, capacity uint16, raw []byte) {
		var packed [][]uint64 // the keys that could be
		var units []domain.Unit
		var first uint32
		p := domain.Packing{Capacity: uint64(capacity)}
		var lens []uint64
		raw = raw[:min(len(raw), 300)] // longer ones are only slower
		for i, b := range raw {
			if b != 0 {
				lens = append(lens, uint64(b))
			}
			if b != 0 && i < len(raw)-1 {
				continue
			}
			before, held := p, len(units)
			var err error
			units, err = domain.AppendUnits(units, uint32(len(packed)), first, spansOfLens(lens...), &p)
			if err != nil {
				require.ErrorIs(t, err, domain.ErrInvalid)
				require.Greater(t, maxOf(lens), before.Capacity/64*64)
				require.Equal(t, before, p)
				require.Len(t, units, held)
			} else {
				first += uint32(len(lens))
				packed = append(packed, lens)
			}
			lens = nil
		}
		requireUnitsAreRight(t, p, packed, units)
	})
}

func maxOf(lens []uint64) (most uint64) {
	for _, n := range lens {
		most = max(most, n)
	}
	return most
}

func TestUnitsAllocateNothingBeyondTheColumn(t *testing.T) {
	spans := spansOfLens(100, 200, 300)
	units := make([]domain.Unit, 0, 64)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		p := domain.Packing{Capacity: 512}
		dst := units[:0]
		for k := range uint32(16) {
			var err error
			if dst, err = domain.AppendUnits(dst, k, 3*k, spans, &p); err != nil {
				panic(err)
			}
		}
		if domain.RoundLen(dst, 0) != 320 {
			panic("the first round is not 320 bytes")
		}
	}))
}

func BenchmarkUnits(b *testing.B) {
	for _, n := range []int{1, 61} {
		lens := make([]uint64, n)
		for i := range lens {
			lens[i] = 1728
		}
		spans := spansOfLens(lens...)
		b.Run(fmt.Sprintf("keys=32/spans=%d/arena=256KiB", n), func(b *testing.B) {
			b.ReportAllocs()
			units := make([]domain.Unit, 0, 64)
			for b.Loop() {
				p := domain.Packing{Capacity: 256 << 10}
				units = units[:0]
				for k := range uint32(32) {
					var err error
					if units, err = domain.AppendUnits(units, k, 0, spans, &p); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
