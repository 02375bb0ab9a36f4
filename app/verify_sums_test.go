package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// TestASumThatDoesNotMatchIsNoVerdict: the bytes are looked at, and they decide.
func TestASumThatDoesNotMatchIsNoVerdict(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k")
		b.fail(faults.Every("Link", "Op", faults.Verdict{Missum: true}))
		require.True(t, b.mustGet(from, layer("k", 1))[0].Verified)
		require.True(t, b.mustGet(from, layer("k", 0), layer("k", 1), layer("k", 3))[0].Verified)
		require.Zero(t, b.Stats().CorruptRanges)
		b.fail(next(1, "Link", "Op", nil, faults.Verdict{Flip: true}))
		requireStatus(t, ports.Corrupt, b.get(layer("k", 2)))
		require.EqualValues(t, 1, b.Stats().CorruptRanges)
	})
}

// TestSumsAreAskedForWhereTheyAreKnown: of reads of whole put-ranges, and of no others, which would pay for them and have nothing to
// hold them to.
func TestSumsAreAskedForWhereTheyAreKnown(t *testing.T) {
	overReaders(t, func(t *testing.T, w *world, reader place, from ports.Source) {
		a, b := w.pair(place{}, reader)
		a.putLayers(objectSize, "k", "l", "m")
		var asked []bool
		b.fail(func(c faults.Call) faults.Verdict {
			if c.Port == "Link" && c.Method == "Op" && c.Op.Purpose == ports.PurposeGet {
				asked = append(asked, c.Op.Sum)
			}
			return faults.Verdict{}
		})
		b.get(layer("k", 1))
		b.get(part("l", 7, objectSize/2))
		b.get(part("m", 0, objectSize/2), layer("m", 3))
		require.NotEmpty(t, asked)
		require.Equal(t, []bool{true, false}, asked[:2])
		require.NotContains(t, asked[2:], false)
	})
}

// TestABitThatTurnsOverAfterItsSumWasMadeIsFoundByTheNextReader: what was summed on its way is not read again by whoever fetched it.
// The copy is dropped once somebody complains.
func TestABitThatTurnsOverAfterItsSumWasMadeIsFoundByTheNextReader(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		c := w.node("c", place{Config: noPool})
		a.putLayers(objectSize, "k")
		b.fail(next(1, "Link", "Op", purpose(ports.PurposePull), faults.Verdict{After: faults.Do(func() { b.flip("k", objectSize/2) })}))
		b.mustGet(ports.FromSlot, layer("k", 0))
		w.heard()
		require.EqualValues(t, 1, b.committed())
		a.stop()
		w.pass(2 * time.Second)
		requireStatus(t, ports.Corrupt, c.get(layer("k", 2)))
		w.heard()
		require.Zero(t, b.committed())
	})
}

// TestSumsOfPiecesOfThePullVerifyWhatIsMadeOfWholePutRanges: and the rest is looked at before it commits, whatever sums say.
func TestSumsOfPiecesOfThePullVerifyWhatIsMadeOfWholePutRanges(t *testing.T) {
	for _, bad := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.pair(place{}, place{Config: app.Config{Locality: domain.LocalityPullOnly}})
			a.putLayers(objectSize, "k")
			b.fail(when("Link", "Op", purpose(ports.PurposePull), faults.Verdict{Flip: bad, Missum: !bad}))
			require.True(t, b.mustGet(ports.FromArena, layer("k", 0))[0].Verified)
			w.heard()
			if bad {
				require.Zero(t, b.committed())
				return
			}
			b.requireLocal(objectSize, "k")
		})
	}
}

// TestACallOfManyRangesSubmitsTheFirstWhileItPlansOn: the links are at work meanwhile.
func TestACallOfManyRangesSubmitsTheFirstWhileItPlansOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k", "l", "m")
		var many []want
		for _, key := range []string{"k", "l", "m"} {
			r := want{key: key}
			for i := range uint64(app.PlanRangesForTesting) {
				r.runs = append(r.runs, domain.Run{Off: 3 * i, Len: 2})
			}
			many = append(many, r)
		}
		before := b.faults.Count("Link", "Submit")
		b.mustGet(ports.FromSlot, many...)
		require.Equal(t, before+3, b.faults.Count("Link", "Submit"))
		b.mustGet(ports.FromSlot, part("m", 100_000, 5), part("l", 100_000, 5), part("k", 100_000, 5))
		require.Equal(t, before+4, b.faults.Count("Link", "Submit"))
	})
}
