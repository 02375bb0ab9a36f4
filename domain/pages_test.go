package domain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// contiguous reports whether the pages follow each other in one buffer.
func contiguous(pages []PageRef) bool {
	for i := 1; i < len(pages); i++ {
		if pages[i] != (PageRef{pages[0].Buffer, pages[0].Page + uint32(i)}) {
			return false
		}
	}
	return true
}

// longestFreeRun of a medium whose taken pages are known.
func longestFreeRun(buffers []uint32, taken map[PageRef]bool) (longest int) {
	for buffer, pages := range buffers {
		run := 0
		for page := range pages {
			run++
			if taken[PageRef{uint32(buffer), page}] {
				run = 0
			}
			longest = max(longest, run)
		}
	}
	return longest
}

func TestPagesAgreeWithASet(t *testing.T) {
	for _, scatter := range []bool{false, true} {
		t.Run(fmt.Sprintf("scatter=%v", scatter), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				buffers := rapid.SliceOfN(rapid.SampledFrom([]uint32{0, 1, 7, 63, 64, 65, 200}), 0, 3).Draw(t, "buffers")
				checkPagesAgainstSet(t, buffers, scatter)
			})
		})
	}
}

func checkPagesAgainstSet(t *rapid.T, buffers []uint32, scatter bool) {
	p := NewPages(buffers, scatter)
	taken := map[PageRef]bool{}
	var held [][]PageRef
	total := 0
	for _, n := range buffers {
		total += int(n)
	}
	require.EqualValues(t, total, p.Total())
	t.Repeat(map[string]func(*rapid.T){
		"allocate": func(t *rapid.T) {
			dst := make([]PageRef, rapid.IntRange(0, total/2+1).Draw(t, "n"))
			require.Equal(t, len(dst) <= total-len(taken), p.Allocate(dst))
			if len(dst) > total-len(taken) {
				return
			}
			if !scatter && len(dst) <= longestFreeRun(buffers, taken) {
				require.True(t, contiguous(dst), "a run of %d pages was free, got %v", len(dst), dst)
			}
			for i, ref := range dst {
				require.False(t, taken[ref], "page %v is taken", ref)
				require.Less(t, ref.Page, buffers[ref.Buffer])
				require.False(t, scatter && i > 0 && dst[i-1] == PageRef{ref.Buffer, ref.Page - 1}, "pages follow each other: %v", dst)
				taken[ref] = true
			}
			held = append(held, dst)
		},
		"release": func(t *rapid.T) {
			if len(held) == 0 {
				return
			}
			i := rapid.IntRange(0, len(held)-1).Draw(t, "allocation")
			p.Release(held[i])
			for _, ref := range held[i] {
				delete(taken, ref)
			}
			held = slices.Delete(held, i, i+1)
		},
		"": func(t *rapid.T) {
			require.EqualValues(t, total-len(taken), p.Free())
			require.NoError(t, p.check())
		},
	})
}

func TestScatteredPagesLieApart(t *testing.T) {
	p := NewPages([]uint32{20, 20}, true)
	dst := make([]PageRef, 15)
	require.True(t, p.Allocate(dst))
	for _, ref := range dst {
		require.NotContains(t, dst, PageRef{ref.Buffer, ref.Page + 1})
	}
	require.True(t, p.Allocate(make([]PageRef, 25)), "the pages left out are not lost")
}

func TestPagesFindTheLastFreePageOfALargeBuffer(t *testing.T) {
	const pages = 3*64*64 + 5
	for _, last := range []uint32{0, 63, 64, 4095, 4096, pages - 6, pages - 1} {
		p := NewPages([]uint32{pages}, false)
		require.True(t, p.Allocate(make([]PageRef, pages)))
		p.Release([]PageRef{{0, last}})
		dst := make([]PageRef, 1)
		require.True(t, p.Allocate(dst))
		require.Equal(t, PageRef{0, last}, dst[0])
		require.Zero(t, p.Free())
	}
}

// With more holes than one search looks at, an allocation takes holes, and the next one looks further on.
func TestTheSearchForARunGoesOnWhereItStopped(t *testing.T) {
	const holes = 5 * maxRunsTried / 4
	p := NewPages([]uint32{2 * holes, 2*holes + 9}, false)
	for buffer := range uint32(2) {
		all := make([]PageRef, p.buffers[buffer].pages)
		require.True(t, p.Allocate(all))
		for i := 0; i < 2*holes; i += 2 {
			p.Release(all[i : i+1])
		}
	}
	run := []PageRef{}
	for i := range uint32(8) {
		run = append(run, PageRef{1, 2*holes + 1 + i})
	}
	p.Release(run)
	dst := make([]PageRef, 8)
	for range 2 { // each looks at two fifths of the holes
		require.True(t, p.Allocate(dst))
		require.False(t, contiguous(dst))
	}
	require.True(t, p.Allocate(dst))
	require.Equal(t, run, dst)
}

func TestPagesOfAMediumFullOfHolesAreScattered(t *testing.T) {
	const pages = 8 * maxRunsTried
	p := NewPages([]uint32{pages}, false)
	all := make([]PageRef, pages)
	require.True(t, p.Allocate(all))
	for i := 0; i < pages; i += 2 {
		p.Release(all[i : i+1])
	}
	dst := make([]PageRef, pages/2)
	require.True(t, p.Allocate(dst[:100]))
	require.True(t, p.Allocate(dst[100:]))
	require.Zero(t, p.Free())
	require.NoError(t, p.check())
}

// TestARunOverWordsOfTheBitmapIsFoundFromTheMiddleOfOne: it begins 14 pages before the end of a word, behind a hole that is too small.
func TestARunOverWordsOfTheBitmapIsFoundFromTheMiddleOfOne(t *testing.T) {
	p := NewPages([]uint32{256}, false)
	all := make([]PageRef, 256)
	require.True(t, p.Allocate(all))
	p.Release(all[:3])
	p.Release(all[50:150])
	got := make([]PageRef, 100)
	require.True(t, p.Allocate(got))
	require.Equal(t, all[50:150], got)
}

func TestPagesReleasedTwicePanic(t *testing.T) {
	p := NewPages([]uint32{4, 4}, false)
	dst := make([]PageRef, 2)
	require.True(t, p.Allocate(dst))
	p.Release(dst)
	for _, ref := range []PageRef{dst[1], {0, 4}, {2, 0}} {
		require.PanicsWithValue(t,
			fmt.Sprintf("domain: release of page %d of buffer %d, which is not allocated", ref.Page, ref.Buffer),
			func() { p.Release([]PageRef{ref}) })
	}
}

func BenchmarkPages(b *testing.B) {
	const pages, object = 1 << 24, 69 // a TiB of 64 KiB pages
	fill := func(p *Pages) (objects [][]PageRef) {
		for p.Free() >= object {
			dst := make([]PageRef, object)
			p.Allocate(dst)
			objects = append(objects, dst)
		}
		return objects
	}
	b.Run("full/pages=16Mi/object=69", func(b *testing.B) {
		p := NewPages([]uint32{pages}, false)
		objects := fill(p)
		r := rand.New(rand.NewPCG(1, 2))
		b.ReportAllocs()
		for b.Loop() {
			o := objects[r.IntN(len(objects))]
			p.Release(o)
			p.Allocate(o)
		}
	})
	b.Run("holes/pages=16Mi/object=69", func(b *testing.B) {
		p := NewPages([]uint32{pages}, false)
		for _, o := range fill(p) {
			p.Release(o[:34])
		}
		dst := make([]PageRef, object)
		b.ReportAllocs()
		for b.Loop() {
			p.Allocate(dst)
			p.Release(dst)
		}
	})
}
