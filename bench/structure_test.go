package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

var layerGroups = []scatter{
	{layer: 8 * 73_728, layers: 1, keys: planKeys, sets: 1, by: TransportTCP},
	{layer: 1728, layers: 61, keys: planKeys, sets: 1, by: TransportTCP},
	{layer: 1728, layers: 61, keys: planKeys, sets: 1, by: TransportInproc},
}

func (c scatter) name() string { return fmt.Sprintf("%s/range=%dB", c.by, c.layer) }

// boundOf is a line of testdata/structure.txt.
func boundOf(t *testing.T, kind, of string) float64 {
	t.Helper()
	b, err := os.ReadFile("testdata/structure.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) == 4 && words[0] == kind && words[1] == of {
			bound, err := strconv.ParseFloat(words[2], 64)
			require.NoError(t, err, line)
			return bound
		}
	}
	require.FailNow(t, "no bound", "%s of %s", kind, of)
	return 0
}

// TestALayerGroupKeepsItsBounds: exactly the bytes that were asked for cross, once, and no more is allocated than was; neither depends on
// how fast or busy the machine is.
func TestALayerGroupKeepsItsBounds(t *testing.T) {
	for _, c := range layerGroups {
		t.Run(c.name(), func(t *testing.T) {
			s, err := openScattered(t.Context(), openLasting, c, 1<<31)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.close()) }()
			const warm, runs = 20, 40
			for range warm {
				require.NoError(t, s.ours(t.Context(), s.calls, 0))
			}
			before := s.reader().Stats()
			allocations := testing.AllocsPerRun(runs, func() { require.NoError(t, s.ours(t.Context(), s.calls, 0)) })
			after := s.reader().Stats()
			asked := (runs + 1) * uint64(c.keys) * c.asked() // AllocsPerRun makes a call before it counts
			require.Equal(t, asked, after.Wire[ports.PurposeGet]-before.Wire[ports.PurposeGet])
			require.Equal(t, asked, after.NeededBytes-before.NeededBytes)
			require.Equal(t, before.DuplicateBytes, after.DuplicateBytes)
			require.Equal(t, before.Wire[ports.PurposePull], after.Wire[ports.PurposePull])
			require.LessOrEqual(t, allocations, boundOf(t, "allocations", c.name()), "allocations of a call, of everything in the process")
		})
	}
}

// BenchmarkLayerGroup is calls each byte of which crosses each time: a layer group of 32 objects, and the smallest layers that are
// published, which are not adjacent. scripts/profile.sh takes profiles of them, scripts/parts/structure.sh counts instructions.
func BenchmarkLayerGroup(b *testing.B) {
	for _, c := range layerGroups {
		b.Run(c.name(), func(b *testing.B) {
			s, err := openScattered(b.Context(), OpenNodes, c, 1<<31)
			require.NoError(b, err)
			b.SetBytes(int64(c.asked()) * int64(c.keys))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, s.ours(b.Context(), s.calls, 0))
			}
			require.NoError(b, s.close())
		})
	}
}
