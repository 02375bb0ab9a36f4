package domain

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLastRowIsTheLastThatFits holds it to arithmetic that does not overflow.
func TestLastRowIsTheLastThatFits(t *testing.T) {
	number := rapid.OneOf(rapid.Uint64Range(0, 40), rapid.Uint64Range(math.MaxUint64-40, math.MaxUint64), rapid.Uint64())
	rapid.Check(t, func(t *rapid.T) {
		p := PatternRange{Len: number.Draw(t, "len"), Base: number.Draw(t, "base"), Stride: number.Draw(t, "stride")}
		size := number.Draw(t, "size")
		fits := func(row *big.Int) bool {
			end := new(big.Int).Mul(row, new(big.Int).SetUint64(p.Stride))
			end.Add(end, new(big.Int).SetUint64(p.Base)).Add(end, new(big.Int).SetUint64(p.Len))
			return end.Cmp(new(big.Int).SetUint64(size)) <= 0
		}
		last, ok := p.LastRow(size)
		require.Equal(t, fits(new(big.Int)), ok)
		if !ok {
			return
		}
		row := new(big.Int).SetUint64(last)
		require.True(t, fits(row), "row %d", last)
		require.Equal(t, p.Stride == 0, fits(row.Add(row, big.NewInt(1))), "the row behind %d", last)
		require.Equal(t, p.Base+last*p.Stride, p.At(last).RegionOff)
	})
}
