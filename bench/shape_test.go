package bench

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestGroupsCutOrDealLayers(t *testing.T) {
	for _, c := range []struct {
		g    Grouping
		n    int
		want [][]int
	}{
		{Grouping{Size: 2}, 5, [][]int{{0, 1}, {2, 3}, {4}}},
		{Grouping{Size: 2, Interleave: true}, 5, [][]int{{0, 3}, {1, 4}, {2}}},
		{Grouping{Size: 9}, 3, [][]int{{0, 1, 2}}},
		{Grouping{Size: 1}, 2, [][]int{{0}, {1}}},
	} {
		require.Equal(t, c.want, c.g.Groups(c.n))
	}
}

func TestAGroupWithoutLayersOfAPoolHasNoCallOfIt(t *testing.T) {
	w := PlanWalk(mustShape(t, "even:3:8:0/2;odd:2:8:1/2"), Grouping{Size: 1}, 2, 100)
	require.Len(t, w.Groups, 5)
	for g, group := range w.Groups {
		require.Len(t, group.Calls, 1)
		require.Equal(t, g%2, group.Calls[0].Pool)
	}
}

func TestCallsAreChunksOfPages(t *testing.T) {
	w := PlanWalk(mustShape(t, "kv:4:8"), Grouping{Size: 4}, 5, 9) // 4 ranges a page: 2 pages a call
	require.Len(t, w.Groups[0].Calls, 3)
	for i, want := range []int{2, 2, 1} {
		require.Equal(t, want, w.Groups[0].Calls[i].Pages)
		require.Equal(t, 2*i, w.Groups[0].Calls[i].FirstPage)
	}
}

func TestOnlyACallThatHasAllLayersTiles(t *testing.T) {
	for spec, want := range map[string]bool{
		"kv:4:8":           false,
		"kv:2:8":           true,
		"kv:4:8;one:1:8":   true,
		"kv:3:8:0/2;b:4:8": false,
	} {
		require.Equal(t, want, PlanWalk(mustShape(t, spec), Grouping{Size: 2}, 3, 100).Tiles(), spec)
	}
}

func TestAShapeOfFewerLayersThanPoolsNameIsRefused(t *testing.T) {
	_, err := NewShape(4, mustPools(t, "kv:3:8:0/2"))
	require.ErrorContains(t, err, "layer 4 of a model of 4 layers")
	_, err = NewShape(4, nil)
	require.ErrorContains(t, err, "no pools")
	s, err := NewShape(9, mustPools(t, "kv:3:8:0/2"))
	require.NoError(t, err)
	require.Equal(t, 9, s.Layers)
}

// Every layer of every page is read once, into a place of its own, between guards.
func TestAWalkReadsEveryLayerOfEveryPageOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawShape(t)
		g := Grouping{Size: rapid.IntRange(1, 12).Draw(t, "group"), Interleave: rapid.Bool().Draw(t, "interleave")}
		pages := rapid.IntRange(1, 9).Draw(t, "pages")
		most := rapid.IntRange(LargestPageRanges(s, g), 40).Draw(t, "ranges per call")
		w := PlanWalk(s, g, pages, most)
		seen, layers := map[string]bool{}, 0
		var taken [][2]uint64
		for _, group := range w.Groups {
			layers += group.Layers
			for _, c := range group.Calls {
				require.LessOrEqual(t, len(c.Ranges), most)
				require.Len(t, c.End, c.Pages)
				for i := range c.Pages {
					for _, r := range c.RangesOf(i) {
						id := fmt.Sprint(c.Pool, c.FirstPage+i, r.Off)
						require.False(t, seen[id], "read twice: %s", id)
						seen[id] = true
						require.Equal(t, s.Pools[c.Pool].LayerBytes, r.Len)
						require.Zero(t, r.Off%r.Len)
						require.Less(t, r.Off, s.Pools[c.Pool].ObjectBytes())
						taken = append(taken, [2]uint64{r.RegionOff, r.RegionOff + r.Len})
					}
				}
			}
		}
		require.Equal(t, s.Layers, layers)
		require.Len(t, seen, s.Placements()*pages)
		slices.SortFunc(taken, func(a, b [2]uint64) int { return int(a[0]) - int(b[0]) })
		end := uint64(0)
		for _, d := range taken {
			require.GreaterOrEqual(t, d[0], end+guardBytes)
			end = d[1]
		}
		require.LessOrEqual(t, end+guardBytes, w.Layout.Bytes())
	})
}

func drawShape(t *rapid.T) Shape {
	var pools []Pool
	for i := range rapid.IntRange(1, 3).Draw(t, "pools") {
		layers := rapid.SliceOfNDistinct(rapid.IntRange(0, 20), 1, 8, rapid.ID[int]).Draw(t, "layers")
		pools = append(pools, Pool{fmt.Sprint("p", i), rapid.Uint64Range(1, 200).Draw(t, "bytes"), layers})
	}
	s, err := NewShape(0, pools)
	require.NoError(t, err)
	return s
}
