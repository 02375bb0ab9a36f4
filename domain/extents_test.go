package domain_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
)

func extentsOf(runs ...domain.Run) *domain.Extents {
	e := new(domain.Extents)
	for _, r := range runs {
		e.Add(r)
	}
	return e
}

func TestExtentsMergeWhatTouches(t *testing.T) {
	for _, c := range []struct {
		name string
		add  []domain.Run
		want []domain.Run
	}{
		{"apart", []domain.Run{{Off: 0, Len: 5}, {Off: 6, Len: 2}}, []domain.Run{{Off: 0, Len: 5}, {Off: 6, Len: 2}}},
		{"adjacent behind", []domain.Run{{Off: 0, Len: 5}, {Off: 5, Len: 2}}, []domain.Run{{Off: 0, Len: 7}}},
		{"adjacent before", []domain.Run{{Off: 5, Len: 2}, {Off: 0, Len: 5}}, []domain.Run{{Off: 0, Len: 7}}},
		{"fills a gap", []domain.Run{{Off: 0, Len: 5}, {Off: 8, Len: 2}, {Off: 5, Len: 3}}, []domain.Run{{Off: 0, Len: 10}}},
		{"swallows several", []domain.Run{{Off: 2, Len: 1}, {Off: 4, Len: 1}, {Off: 6, Len: 1}, {Off: 9, Len: 1}, {Off: 1, Len: 7}}, []domain.Run{{Off: 1, Len: 7}, {Off: 9, Len: 1}}},
		{"inside", []domain.Run{{Off: 0, Len: 9}, {Off: 3, Len: 2}}, []domain.Run{{Off: 0, Len: 9}}},
		{"twice", []domain.Run{{Off: 3, Len: 2}, {Off: 3, Len: 2}}, []domain.Run{{Off: 3, Len: 2}}},
		{"between, touching neither", []domain.Run{{Off: 0, Len: 1}, {Off: 8, Len: 1}, {Off: 4, Len: 1}}, []domain.Run{{Off: 0, Len: 1}, {Off: 4, Len: 1}, {Off: 8, Len: 1}}},
		{"empty", []domain.Run{{Off: 3, Len: 2}, {Off: 9}, {Off: 4}}, []domain.Run{{Off: 3, Len: 2}}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, extentsOf(c.add...).Runs()) })
	}
}

func TestExtentsSplitWhatIsRemoved(t *testing.T) {
	runs := []domain.Run{{Off: 10, Len: 10}, {Off: 30, Len: 10}, {Off: 50, Len: 10}}
	for _, c := range []struct {
		name   string
		remove domain.Run
		want   []domain.Run
	}{
		{"the middle of one", domain.Run{Off: 12, Len: 3}, []domain.Run{{Off: 10, Len: 2}, {Off: 15, Len: 5}, {Off: 30, Len: 10}, {Off: 50, Len: 10}}},
		{"the head of one", domain.Run{Off: 5, Len: 7}, []domain.Run{{Off: 12, Len: 8}, {Off: 30, Len: 10}, {Off: 50, Len: 10}}},
		{"the tail of one", domain.Run{Off: 18, Len: 12}, []domain.Run{{Off: 10, Len: 8}, {Off: 30, Len: 10}, {Off: 50, Len: 10}}},
		{"exactly one", domain.Run{Off: 30, Len: 10}, []domain.Run{{Off: 10, Len: 10}, {Off: 50, Len: 10}}},
		{"parts of two and what lies between", domain.Run{Off: 15, Len: 40}, []domain.Run{{Off: 10, Len: 5}, {Off: 55, Len: 5}}},
		{"a gap", domain.Run{Off: 20, Len: 10}, runs},
		{"behind all", domain.Run{Off: 60, Len: 10}, runs},
		{"nothing", domain.Run{Off: 12}, runs},
		{"all", domain.Run{Off: 0, Len: 60}, []domain.Run{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := extentsOf(runs...)
			e.Remove(c.remove)
			require.Equal(t, c.want, e.Runs())
		})
	}
}

func TestZeroExtentsAreTheEmptySet(t *testing.T) {
	var e domain.Extents
	e.Remove(domain.Run{Off: 3, Len: 4})
	require.False(t, e.Covers(domain.Run{Off: 0, Len: 1}))
	require.True(t, e.Covers(domain.Run{Off: 7}))
	require.Zero(t, e.Bytes())
	require.Empty(t, e.Runs())
	require.True(t, e.Complete(0))
	require.False(t, e.Complete(1))
	require.Equal(t, []domain.Run{{Off: 3, Len: 4}}, e.AppendMissing(nil, domain.Run{Off: 3, Len: 4}))
	require.Empty(t, e.AppendMissing(nil, domain.Run{Off: 3}))
	first, ok := e.FirstMissing(9, nil)
	require.True(t, ok)
	require.Equal(t, domain.Run{Len: 9}, first)
	_, ok = e.FirstMissing(0, nil)
	require.False(t, ok)
}

func TestFirstMissingIsInNeitherSet(t *testing.T) {
	held := extentsOf(domain.Run{Off: 0, Len: 10}, domain.Run{Off: 15, Len: 5}, domain.Run{Off: 40, Len: 5})
	claimed := extentsOf(domain.Run{Off: 10, Len: 5}, domain.Run{Off: 18, Len: 4}, domain.Run{Off: 30, Len: 1})
	got, ok := held.FirstMissing(50, claimed)
	require.True(t, ok)
	require.Equal(t, domain.Run{Off: 22, Len: 8}, got)
	got, ok = held.FirstMissing(50, nil)
	require.True(t, ok)
	require.Equal(t, domain.Run{Off: 10, Len: 5}, got)
	got, ok = held.FirstMissing(25, claimed)
	require.True(t, ok)
	require.Equal(t, domain.Run{Off: 22, Len: 3}, got)
	_, ok = held.FirstMissing(22, claimed)
	require.False(t, ok)
}

// byteSet is the oracle of extents.
type byteSet [64]bool

func (s *byteSet) set(r domain.Run, in bool) {
	for at := r.Off; at < r.End(); at++ {
		s[at] = in
	}
}

// runs are the maximal runs of r whose bytes are in the set, or are not.
func (s *byteSet) runs(r domain.Run, in bool) []domain.Run {
	var runs []domain.Run
	for at := r.Off; at < r.End(); at++ {
		if s[at] != in {
			continue
		}
		if n := len(runs); n > 0 && runs[n-1].End() == at {
			runs[n-1].Len++
		} else {
			runs = append(runs, domain.Run{Off: at, Len: 1})
		}
	}
	return runs
}

func bytesOf(runs []domain.Run) (n uint64) {
	for _, r := range runs {
		n += r.Len
	}
	return n
}

// requireSameSet asks every question about r and compares with the oracle.
func requireSameSet(t require.TestingT, s *byteSet, e *domain.Extents, r domain.Run) {
	all := domain.Run{Len: uint64(len(s))}
	require.Equal(t, s.runs(all, true), append([]domain.Run(nil), e.Runs()...))
	require.Equal(t, bytesOf(s.runs(all, true)), e.Bytes())
	require.Equal(t, s.runs(r, false), e.AppendMissing(nil, r), "missing of %+v", r)
	require.Equal(t, bytesOf(s.runs(r, true)), e.Overlap(r), "overlap with %+v", r)
	require.Equal(t, len(s.runs(r, false)) == 0, e.Covers(r), "covers %+v", r)
	require.Equal(t, len(s.runs(all, true)) == 0 && r.Len == 0 || r.Len > 0 && len(s.runs(domain.Run{Len: r.Len}, false)) == 0 && bytesOf(s.runs(all, true)) == r.Len,
		e.Complete(r.Len), "complete at %d", r.Len)
}

// requireFirstMissing compares with the oracle of the union.
func requireFirstMissing(t require.TestingT, size uint64, s, other *byteSet, e, o *domain.Extents) {
	union := *s
	for at, in := range other {
		union[at] = union[at] || in
	}
	missing := union.runs(domain.Run{Len: size}, false)
	got, ok := e.FirstMissing(size, o)
	require.Equal(t, len(missing) > 0, ok)
	if ok {
		require.Equal(t, missing[0], got)
	}
}

func TestExtentsAgreeWithAnArrayOfBools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sets [2]byteSet
		var extents [2]domain.Extents
		draw := func() domain.Run {
			off := rapid.Uint64Range(0, 63).Draw(t, "offset")
			return domain.Run{Off: off, Len: min(64-off, rapid.OneOf(rapid.Uint64Range(0, 8), rapid.Uint64Range(0, 64)).Draw(t, "length"))}
		}
		i := func() int { return rapid.IntRange(0, 1).Draw(t, "set") }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				k, r := i(), draw()
				sets[k].set(r, true)
				extents[k].Add(r)
			},
			"remove": func(*rapid.T) {
				k, r := i(), draw()
				sets[k].set(r, false)
				extents[k].Remove(r)
			},
			"reset": func(*rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					k := i()
					sets[k] = byteSet{}
					extents[k].Reset()
				}
			},
			"": func(*rapid.T) {
				requireSameSet(t, &sets[0], &extents[0], draw())
				requireSameSet(t, &sets[1], &extents[1], draw())
				size := rapid.Uint64Range(0, 64).Draw(t, "size")
				requireFirstMissing(t, size, &sets[0], &sets[1], &extents[0], &extents[1])
				requireFirstMissing(t, size, &sets[0], new(byteSet), &extents[0], nil)
			},
		})
	})
}

func TestExtentsAreCompleteInEveryOrderOfAdding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pieces []domain.Run
		var size uint64
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			n := rapid.Uint64Range(1, 9).Draw(t, "length")
			pieces = append(pieces, domain.Run{Off: size, Len: n})
			size += n
		}
		var e domain.Extents
		for _, p := range rapid.Permutation(pieces).Draw(t, "order") {
			require.False(t, e.Complete(size))
			e.Add(p)
		}
		require.True(t, e.Complete(size))
		require.False(t, e.Complete(size+1))
		require.False(t, e.Complete(size-1))
	})
}

func FuzzExtents(f *testing.F) {
	f.Add([]byte{0, 0, 5, 0, 5, 2, 1, 3, 1})
	f.Add([]byte{0, 0, 64, 1, 0, 1, 1, 63, 1, 1, 20, 9, 0, 25, 2})
	f.Add([]byte{2, 3, 4, 0, 9, 9, 3, 9, 9, 1, 8, 1, 4, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var sets [2]byteSet
		var extents [2]domain.Extents
		raw = raw[:min(len(raw), 300)] // longer ones are only slower
		for ; len(raw) >= 3; raw = raw[3:] {
			off := uint64(raw[1] % 64)
			r := domain.Run{Off: off, Len: min(uint64(raw[2]), 64-off)}
			k := raw[0] / 2 % 2
			if raw[0]%2 == 0 {
				sets[k].set(r, true)
				extents[k].Add(r)
			} else {
				sets[k].set(r, false)
				extents[k].Remove(r)
			}
			requireSameSet(t, &sets[k], &extents[k], domain.Run{Off: off / 2, Len: r.Len})
			requireFirstMissing(t, 64-off, &sets[0], &sets[1], &extents[0], &extents[1])
		}
	})
}

func TestExtentsKeepTheirStorage(t *testing.T) {
	var e domain.Extents
	missing := make([]domain.Run, 0, 64)
	fill := func() {
		for at := uint64(0); at < 320; at += 10 {
			e.Add(domain.Run{Off: at, Len: 5})
		}
		e.Remove(domain.Run{Off: 51, Len: 2})
		missing = e.AppendMissing(missing[:0], domain.Run{Off: 7, Len: 300})
		e.Add(domain.Run{Off: 0, Len: 320})
		e.Reset()
	}
	fill()
	require.NotEmpty(t, missing)
	require.Zero(t, testing.AllocsPerRun(100, fill))
}

func BenchmarkExtents(b *testing.B) {
	for _, n := range []uint64{1, 8, 61, 1024} {
		var e domain.Extents
		for i := range n {
			e.Add(domain.Run{Off: i * 4096, Len: 1728})
		}
		probe := domain.Run{Off: n / 2 * 4096, Len: 2000}
		b.Run(fmt.Sprintf("op=missing/runs=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			dst := make([]domain.Run, 0, 4)
			for b.Loop() {
				dst = e.AppendMissing(dst[:0], probe)
			}
		})
		b.Run(fmt.Sprintf("op=add+remove/runs=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e.Add(domain.Run{Off: probe.Off + 2000, Len: 100})
				e.Remove(domain.Run{Off: probe.Off + 2000, Len: 100})
			}
		})
	}
}
