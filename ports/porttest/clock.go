package porttest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

// RunClock is the contract of ports.Clock. In a synctest bubble it holds for a clock of virtual time too.
func RunClock(t *testing.T, c ports.Clock) {
	t.Run("NowNeverGoesBack", func(t *testing.T) { nowNeverGoesBack(t, c) })
	t.Run("NowGoesAsFastAsTime", func(t *testing.T) { nowGoesAsFastAsTime(t, c) })
	t.Run("NowAllocatesNothing", func(t *testing.T) {
		require.Zero(t, testing.AllocsPerRun(100, func() { c.Now() }))
	})
}

// nowNeverGoesBack holds between goroutines as well: what one saw, the next one reads at the earliest.
func nowNeverGoesBack(t *testing.T, c ports.Clock) {
	var latest, backwards atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				before := latest.Load()
				now := int64(c.Now())
				if now < before {
					backwards.Add(1)
				}
				for ; now > before && !latest.CompareAndSwap(before, now); before = latest.Load() {
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, backwards.Load(), "instants that lay before one that was read earlier")
}

// nowGoesAsFastAsTime nests two pairs of readings, so that no load on the machine makes it fail.
func nowGoesAsFastAsTime(t *testing.T, c ports.Clock) {
	const rounding = time.Microsecond // of the two clocks against each other
	outer := time.Now()
	from := c.Now()
	inner := time.Now()
	<-time.After(20 * time.Millisecond)
	least := time.Since(inner)
	passed := c.Now().Sub(from)
	most := time.Since(outer)
	require.GreaterOrEqual(t, passed, least-rounding)
	require.LessOrEqual(t, passed, most+rounding)
}
