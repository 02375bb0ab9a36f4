package dram

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// drawOps deals memory out to ops: each has a cell of its own, in which its destination lies anywhere, and its source does too
// (then they often overlap) or lies in memory that nobody writes. What is between is guard bytes.
func drawOps(r *rapid.T, cells, fixed ports.HostRegion) []ports.CopyOp {
	var ops []ports.CopyOp
	size := rapid.OneOf(rapid.Uint64Range(0, 300), rapid.Uint64Range(300, 9000), rapid.Uint64Range(60<<10, 70<<10),
		rapid.Uint64Range(turnBytes-200, turnBytes+200), rapid.Uint64Range(turnBytes, 2*turnBytes+3000))
	at := uint64(0)
	for range rapid.IntRange(1, 30).Draw(r, "ops") {
		n := size.Draw(r, "len")
		cell := n + rapid.SampledFrom([]uint64{1, 64, 4096, 2*n + 1}).Draw(r, "slack")
		if at+cell > cells.Len() {
			break
		}
		op := ports.CopyOp{Dst: cells, DstOff: at + rapid.Uint64Range(0, cell-n).Draw(r, "dst"), Src: fixed, Len: n}
		if rapid.Bool().Draw(r, "within") {
			op.Src, op.SrcOff = cells, at+rapid.Uint64Range(0, cell-n).Draw(r, "src")
		} else {
			op.SrcOff = rapid.Uint64Range(0, fixed.Len()-n).Draw(r, "src")
		}
		ops, at = append(ops, op), at+cell
	}
	return ops
}

// TestCopiesAreThoseOfAPlainLoop compares all memory, guards included, with what copy makes of it op by op.
func TestCopiesAreThoseOfAPlainLoop(t *testing.T) {
	const room = 8 << 20
	cells, fixed := ports.HostRegionOf(make([]byte, room)), ports.HostRegionOf(make([]byte, 3<<20))
	start, due := make([]byte, room), make([]byte, room)
	content.Fill(start, 1, 0)
	content.Fill(fixed.Bytes(), 2, 0)
	all := copiers()
	rapid.Check(t, func(r *rapid.T) {
		ops := drawOps(r, cells, fixed)
		end := uint64(0) // beyond, nothing is near
		for i := range ops {
			end = max(end, ops[i].DstOff+ops[i].Len)
		}
		end = min(end+4*turnBytes, room)
		copy(due[:end], start)
		for i := range ops {
			from := fixed.Bytes()
			if ops[i].Src.Len() == room {
				from = due
			}
			copy(due[ops[i].DstOff:][:ops[i].Len], from[ops[i].SrcOff:][:ops[i].Len])
		}
		for name, c := range all {
			copy(cells.Bytes()[:end], start)
			errs := make([]error, len(ops))
			c.Copy(t.Context(), ops, errs)
			require.Equal(r, make([]error, len(ops)), errs, name)
			require.True(r, bytes.Equal(due[:end], cells.Bytes()[:end]), "%s: memory differs from that of a plain loop", name)
		}
	})
}

// probe is a context that calls look at each look at it.
type probe struct {
	context.Context
	look func()
}

func (p *probe) Err() error {
	p.look()
	return p.Context.Err()
}

// patience is far longer than anything takes here, on a loaded machine too.
const patience = 20 * time.Second

// moved is a batch of one op.
func moved(n uint64) (dst ports.HostRegion, ops []ports.CopyOp) {
	dst, src := ports.HostRegionOf(make([]byte, n)), ports.HostRegionOf(make([]byte, n))
	content.Poison(dst.Bytes())
	content.Fill(src.Bytes(), 3, 0)
	return dst, []ports.CopyOp{{Dst: dst, Src: src, Len: n}}
}

// TestALargeBatchIsCopiedByAllPlaces lets nobody begin a turn until as many goroutines want to as there are places.
func TestALargeBatchIsCopiedByAllPlaces(t *testing.T) {
	for places := range int64(maxHelpers + 1) {
		places++
		dst, ops := moved(2 * sharedBatch)
		var came atomic.Int64
		all := make(chan struct{})
		patient, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		ctx := &probe{t.Context(), func() {
			if came.Add(1) == places {
				close(all)
			}
			select {
			case <-all:
			case <-patient.Done():
				t.Errorf("%d goroutines began a turn, not %d", came.Load(), places)
			}
		}}
		errs := make([]error, 1)
		newCopier(int(places), canStream).Copy(ctx, ops, errs)
		require.NoError(t, errs[0])
		require.Equal(t, -1, content.Check(dst.Bytes(), 3, 0))
	}
}

// TestOnePlaceHasNoHelpers: with GOMAXPROCS 1 or 2 a second goroutine that copies would keep the network from being polled.
func TestOnePlaceHasNoHelpers(t *testing.T) {
	c := newCopier(1, canStream)
	_, ops := moved(2 * sharedBatch)
	before, most := runtime.NumGoroutine(), 0
	c.Copy(&probe{t.Context(), func() { most = max(most, runtime.NumGoroutine()) }}, ops, make([]error, 1))
	require.LessOrEqual(t, most, before, "goroutines while a batch of %d bytes was copied", ops[0].Len)
}

func TestPlacesLeaveAProcessorToTheNetwork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for procs, want := range map[int]int{1: 1, 2: 1, 3: 2, 1 + runtime.NumCPU(): runtime.NumCPU(), 64 + runtime.NumCPU(): runtime.NumCPU()} {
		runtime.GOMAXPROCS(procs)
		require.Equal(t, min(want, runtime.NumCPU()), cap(NewCopier().places), "GOMAXPROCS %d", procs)
	}
}

// TestNoMoreCopyThanThereArePlaces counts those who are in the middle of a look: they have a place then.
func TestNoMoreCopyThanThereArePlaces(t *testing.T) {
	const places, callers = 2, 5
	c := newCopier(places, canStream)
	var inside, most atomic.Int64
	ctx := &probe{t.Context(), func() {
		n := inside.Add(1)
		defer inside.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		for range 100 {
			runtime.Gosched()
		}
	}}
	var wg sync.WaitGroup
	for range callers {
		dst, ops := moved(sharedBatch + 5)
		wg.Go(func() {
			errs := make([]error, 1)
			c.Copy(ctx, ops, errs)
			if bad := content.Check(dst.Bytes(), 3, 0); errs[0] != nil || bad >= 0 {
				t.Errorf("error %v, wrong byte at %d", errs[0], bad)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(places))
	require.Empty(t, c.places, "places that nobody gave back")
}

func TestAShortBatchNeedsNoPlace(t *testing.T) {
	c := newCopier(1, canStream)
	c.places <- struct{}{}
	dst, ops := moved(shortBatch)
	errs := make([]error, 1)
	c.Copy(t.Context(), ops, errs)
	require.NoError(t, errs[0])
	require.Equal(t, -1, content.Check(dst.Bytes(), 3, 0))
}

func TestAContextEndsTheWaitForAPlace(t *testing.T) {
	c := newCopier(1, canStream)
	c.places <- struct{}{}
	dst, ops := moved(shortBatch + 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errMine)
	errs := make([]error, 1)
	c.Copy(ctx, ops, errs)
	require.ErrorIs(t, errs[0], errMine)
	require.Equal(t, -1, content.CheckPoison(dst.Bytes()))
}

var errMine = errors.New("the caller left")

// TestABatchPassesALargerOneAfterATurnOfIt begins a short one in the first look of a long one, whose turns cost nothing, since its
// ops are out of bounds, and wait for the short one a little. It must have ended before the other has.
func TestABatchPassesALargerOneAfterATurnOfIt(t *testing.T) {
	for places := 1; places <= 2; places++ {
		c := newCopier(places, canStream)
		itself := ports.HostRegionOf(make([]byte, turnBytes))
		long := make([]ports.CopyOp, 10_000)
		for i := range long {
			long[i] = ports.CopyOp{Dst: itself, Src: itself, DstOff: 1, Len: turnBytes}
		}
		dst, short := moved(turnBytes)
		done := make(chan struct{})
		var begin sync.Once
		c.Copy(&probe{t.Context(), func() {
			begin.Do(func() {
				go func() {
					defer close(done)
					c.Copy(context.Background(), short, make([]error, 1))
				}()
			})
			select {
			case <-done:
			case <-time.After(patience / time.Duration(len(long))):
			}
		}}, long, make([]error, len(long)))
		select {
		case <-done:
		default:
			t.Errorf("%d places: a batch of a turn has not ended when one of %d turns has", places, len(long))
		}
		<-done
		require.Equal(t, -1, content.Check(dst.Bytes(), 3, 0))
	}
}

// TestAnOpInPiecesThatWasBegunIsFinished ends the context at the second look, when all goroutines are in the midst of the first op.
func TestAnOpInPiecesThatWasBegunIsFinished(t *testing.T) {
	for _, places := range []int{1, 4} {
		dst, ops := moved(3 * sharedBatch)
		second, more := moved(sharedBatch)
		ops = append(ops, more...)
		ctx, cancel := context.WithCancelCause(t.Context())
		var looks atomic.Int64
		errs := make([]error, 2)
		newCopier(places, canStream).Copy(&probe{ctx, func() {
			if looks.Add(1) == 5 {
				cancel(errMine)
			}
		}}, ops, errs)
		require.NoError(t, errs[0])
		require.Equal(t, -1, content.Check(dst.Bytes(), 3, 0))
		if places > 1 && errs[1] == nil { // a helper looked before the end and claimed after the first op was given out
			require.Equal(t, -1, content.Check(second.Bytes(), 3, 0))
			continue
		}
		require.ErrorIs(t, errs[1], errMine)
		require.Equal(t, -1, content.CheckPoison(second.Bytes()))
	}
}

// TestBatchesWithHelpersAllocateNothing counts by hand: AllocsPerRun sets GOMAXPROCS to 1. The runtime keeps ended goroutines for
// reuse, a number for each P, and makes new ones until it has them: only then is the state steady.
func TestBatchesWithHelpersAllocateNothing(t *testing.T) {
	c := newCopier(4, canStream)
	_, ops := moved(sharedBatch)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make([]error, 1)
	each := ^uint64(0)
	for window := 0; each > 0 && window < 50; window++ {
		const runs = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			c.Copy(ctx, ops, errs)
		}
		runtime.ReadMemStats(&after)
		each = (after.Mallocs - before.Mallocs) / runs
	}
	require.Zero(t, each, "allocations of a batch")
	require.NoError(t, errs[0])
}
