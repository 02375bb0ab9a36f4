package porttest

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// isClass also takes nil for a class: that of success.
func isClass(err, class error) bool {
	if class == nil {
		return err == nil
	}
	return errors.Is(err, class)
}

// scatter is segments of lengths that matter from both buffers, out of order on both sides, with gaps between them.
func scatter(local ports.HostRegion) []ports.Segment {
	lens := []uint64{1, 7, 8, 509, 1728, 4096, 4097, 37_440, 65_536, 65_537}
	var segs []ports.Segment
	end := local.Len()
	for i, n := range lens {
		end -= n + 3
		remote := uint32(i % 2)
		off := uint64(i*7919) % (bufferBytes - n)
		if i == len(lens)-1 {
			off = bufferBytes - n // up to the last byte
		}
		segs = append(segs, piece(remote, off, local, end, n))
	}
	return segs
}

const scatterBytes = 256 << 10

func readsScatterAndGather(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, scatterBytes)
	segs := scatter(dst)
	noErrors(t, x.submit(t, l, x.reads(segs)))
	readRight(t, dst, segs...)
	x.intact(t)
}

func anyReadIsTheBytesItNames(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, 64<<10)
	rapid.Check(t, func(r *rapid.T) {
		content.Poison(dst.Bytes())
		var ops [][]ports.Segment
		var all []ports.Segment
		at := uint64(0)
		for range rapid.IntRange(1, 5).Draw(r, "ops") {
			first := len(all)
			for range rapid.IntRange(1, 6).Draw(r, "segments") {
				at += rapid.Uint64Range(0, 9).Draw(r, "gap")
				n := rapid.Uint64Range(1, 2000).Draw(r, "len")
				off := rapid.Uint64Range(0, bufferBytes-n).Draw(r, "off")
				all = append(all, piece(rapid.Uint32Range(0, 1).Draw(r, "buffer"), off, dst, at, n))
				at += n
			}
			ops = append(ops, all[first:])
		}
		noErrors(t, x.submit(t, l, x.reads(ops...)))
		readRight(t, dst, all...)
	})
}

func anOpWithoutSegmentsCompletes(t *testing.T, x *exchange) {
	l := x.link(t)
	noErrors(t, x.submit(t, l, x.reads(nil, nil)))
	require.Zero(t, l.Counts())
}

// outsides are segments that leave their memory on one side; overflow of a sum would let some of them in.
func outsides(local ports.HostRegion) map[string]ports.Segment {
	return map[string]ports.Segment{
		"remote: one byte past":       piece(0, bufferBytes-7, local, 0, 8),
		"remote: begins at the end":   piece(0, bufferBytes, local, 0, 1),
		"remote: offset near 2^64":    piece(0, math.MaxUint64-3, local, 0, 8),
		"remote: offset 2^64-1":       piece(1, math.MaxUint64, local, 0, 1),
		"remote: length near 2^64":    piece(0, 8, local, 0, math.MaxUint64-7),
		"remote: both near 2^64":      piece(0, math.MaxUint64-3, local, 0, math.MaxUint64-3),
		"remote: no such buffer":      piece(2, 0, local, 0, 8),
		"remote: buffer 2^32-1":       piece(math.MaxUint32, 0, local, 0, 8),
		"local: one byte past":        piece(0, 0, local, local.Len()-7, 8),
		"local: begins at the end":    piece(0, 0, local, local.Len(), 1),
		"local: offset near 2^64":     piece(0, 0, local, math.MaxUint64-3, 8),
		"local: offset 2^64-8":        piece(0, 0, local, math.MaxUint64-7, 8),
		"local: length past the end":  piece(0, 0, local, 8, local.Len()),
		"both: offset and length top": piece(0, math.MaxUint64, local, math.MaxUint64, math.MaxUint64),
	}
}

func outOfBoundsMovesNothing(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, 4096)
	for name, s := range outsides(dst) {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, x.submit(t, l, x.reads([]ports.Segment{s}))[0], ports.ErrBounds)
			readRight(t, dst)
		})
	}
	good := piece(0, 0, dst, 0, 8)
	noErrors(t, x.submit(t, l, x.reads([]ports.Segment{good})))
	readRight(t, dst, good)
}

// anErrorBelongsToItsOp also asks that the bad segment may be any of its op.
func anErrorBelongsToItsOp(t *testing.T, x *exchange) {
	const ops, each = 256, 16
	l, dst := x.link(t), x.local(t, ops*each)
	var all [][]ports.Segment
	var good []ports.Segment
	for i := range uint64(ops) {
		segs := []ports.Segment{piece(0, i*101, dst, i*each, 5), piece(1, i*103, dst, i*each+5, 5), piece(0, i*107, dst, i*each+10, 5)}
		if i%3 == 1 {
			segs[i%2].RemoteOff = bufferBytes - 4
		} else {
			good = append(good, segs...)
		}
		all = append(all, segs)
	}
	for i, err := range x.submit(t, l, x.reads(all...)) {
		if i%3 == 1 {
			require.ErrorIs(t, err, ports.ErrBounds, "op %d", i)
		} else {
			require.NoError(t, err, "op %d", i)
		}
	}
	for i := range ops { // what a refused op did to its own destination is undefined
		if i%3 == 1 {
			content.Poison(dst.Bytes()[i*each:][:each-1])
		}
	}
	readRight(t, dst, good...)
}

func aBatchThatContradictsItselfIsRefused(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, 64)
	for name, change := range map[string]func(*ports.Op){
		"first past the segments": func(o *ports.Op) { o.First = 2 },
		"count past the segments": func(o *ports.Op) { o.Count = 2 },
		"sum past 2^32":           func(o *ports.Op) { o.First, o.Count = math.MaxUint32, 2 },
		"no such purpose":         func(o *ports.Op) { o.Purpose = ports.NumPurposes },
		"no such direction":       func(o *ports.Op) { o.Dir = ports.Write + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			b := x.reads([]ports.Segment{piece(0, 0, dst, 0, 8)})
			change(&b.Ops[0])
			q := ports.NewCompletions()
			require.Error(t, l.Submit(b, q))
			require.Zero(t, q.Len(), "an error means that nothing was submitted")
			readRight(t, dst)
		})
	}
}

func deviceMemoryIsRefusedWhereCapsSaySo(t *testing.T, x *exchange) {
	if x.Asker.Transport.Caps().Device {
		t.Skip("Caps.Device is true")
	}
	device := ports.DeviceRegionOf(0, ports.DevAddrOf(1<<40), 4096)
	require.Error(t, x.Asker.Transport.Expose(0, device))
	_, err := x.Asker.Transport.Register(device)
	require.Error(t, err)
	l, dst := x.link(t), x.local(t, 64)
	good := piece(0, 0, dst, 0, 8)
	errs := x.submit(t, l, x.reads([]ports.Segment{piece(0, 0, device, 0, 8)}, []ports.Segment{good}))
	require.ErrorIs(t, errs[0], errors.ErrUnsupported)
	require.NoError(t, errs[1])
	readRight(t, dst, good)
}

func parallelSubmitsCompleteExactlyOnce(t *testing.T, x *exchange) {
	const callers, rounds, ops, size = 8, 20, 16, 3000
	l := x.link(t)
	dsts := make([]ports.HostRegion, callers)
	for i := range dsts {
		dsts[i] = x.local(t, ops*size)
	}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for round := range rounds {
				content.Poison(dsts[i].Bytes())
				var all [][]ports.Segment
				var segs []ports.Segment
				for k := range uint64(ops) {
					off := (uint64(i*rounds+round)*ops + k) * 97 % (bufferBytes - size)
					segs = append(segs, piece(uint32(k%2), off, dsts[i], k*size, size-1))
					all = append(all, segs[k:k+1])
				}
				if !parallelRound(t, x, l, all) {
					return
				}
				readRight(noFail{t}, dsts[i], segs...)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, callers*rounds*ops*(size-1), l.Counts().Bytes[ports.PurposeGet])
}

// parallelRound is submit for goroutines other than the test's.
func parallelRound(t *testing.T, x *exchange, l ports.Link, all [][]ports.Segment) (ok bool) {
	n := noFail{t}
	for i, err := range x.submit(n, l, x.reads(all...)) {
		if err != nil {
			t.Errorf("op %d: %v", i, err)
		}
	}
	return !t.Failed()
}

func columnsAreFreeAfterTheLastCompletion(t *testing.T, x *exchange) {
	const ops, size = 8, 600
	l, dst := x.link(t), x.local(t, ops*size)
	b := &ports.Batch{Ops: make([]ports.Op, ops), Segments: make([]ports.Segment, ops)}
	for round := range uint64(300) {
		content.Poison(dst.Bytes())
		for i := range uint64(ops) {
			b.Ops[i] = ports.Op{Tag: i, First: uint32(i), Count: 1, Deadline: x.soon()}
			b.Segments[i] = piece(uint32((i+round)%2), (round*977+i*131)%(bufferBytes-size), dst, i*size, size-1)
		}
		noErrors(t, x.submit(t, l, b))
		readRight(t, dst, b.Segments...)
		clear(b.Ops)
		clear(b.Segments)
	}
}

func bytesAreCountedByPurpose(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, 8192)
	read := func(why ports.Purpose, n uint64) {
		b := x.batch(ports.Read, why, ports.GrantToken{}, []ports.Segment{piece(0, 0, dst, 0, n-1), piece(1, 0, dst, n, 1)})
		noErrors(t, x.submit(t, l, b))
	}
	read(ports.PurposeGet, 1728)
	read(ports.PurposePull, 509)
	read(ports.PurposeGet, 4096)
	require.Error(t, x.submit(t, l, x.reads([]ports.Segment{piece(0, bufferBytes, dst, 0, 1)}))[0])
	want := ports.LinkStats{}
	want.Bytes[ports.PurposeGet], want.Bytes[ports.PurposePull] = 1728+4096, 509
	require.Equal(t, want, l.Counts())
	require.NoError(t, l.Close())
	require.Equal(t, want, l.Counts(), "after Close")
	require.Zero(t, x.link(t).Counts(), "of a new link")
}

func bothEndsReadAtOnce(t *testing.T, x *exchange) {
	there := x.link(t)
	mirror := [2]ports.HostRegion{x.Memory(t, bufferBytes), x.Memory(t, bufferBytes)}
	for i := range mirror {
		content.Fill(mirror[i].Bytes(), uint64(i), 0)
		require.NoError(t, x.Asker.Transport.Expose(uint32(i), mirror[i]))
	}
	back := x.dial(t, x.Owner, x.Asker)
	var wg sync.WaitGroup
	for _, l := range []ports.Link{there, back} {
		dst := x.local(t, scatterBytes)
		wg.Go(func() {
			for range 20 {
				segs := scatter(dst)
				if !parallelRound(t, x, l, [][]ports.Segment{segs}) {
					return
				}
				readRight(noFail{t}, dst, segs...)
			}
		})
	}
	wg.Wait()
}

func linksOfOnePeerAreIndependent(t *testing.T, x *exchange) {
	first, second, dst := x.link(t), x.link(t), x.local(t, 64)
	require.NoError(t, first.Close())
	good := piece(0, 5, dst, 3, 20)
	noErrors(t, x.submit(t, second, x.reads([]ports.Segment{good})))
	readRight(t, dst, good)
	require.Error(t, first.Submit(x.reads([]ports.Segment{good}), ports.NewCompletions()))
	require.NoError(t, first.Close(), "twice is allowed")
}

func aDeadlineThatHasPassedMovesNothing(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, 128)
	b := x.reads([]ports.Segment{piece(0, 0, dst, 0, 50)})
	b.Ops[0].Deadline = x.Clock.Now() - 1
	require.ErrorIs(t, x.submit(t, l, b)[0], ports.ErrTimeout)
	readRight(t, dst)

	// An op past its deadline may have torn its link down, so the next one has another.
	good := piece(0, 0, dst, 60, 50)
	noErrors(t, x.submit(t, x.link(t), x.reads([]ports.Segment{good})))
	readRight(t, dst, good)
}

func exposeIsOnceAndBeforeTheFirstAnswer(t *testing.T, x *exchange) {
	m := x.Memory(t, exchangePage)
	require.Error(t, x.Owner.Transport.Expose(0, m), "twice")
	x.link(t)
	require.Error(t, x.Owner.Transport.Expose(7, m), "after an answer")
	x.intact(t)
}

func deregisterOfWhatIsNotRegisteredIsAnError(t *testing.T, x *exchange) {
	tr := x.Asker.Transport
	r, err := tr.Register(x.Memory(t, exchangePage))
	require.NoError(t, err)
	require.NotZero(t, r)
	require.NoError(t, tr.Deregister(r))
	require.ErrorIs(t, tr.Deregister(r), ports.ErrNotFound, "twice")
	require.ErrorIs(t, tr.Deregister(0), ports.ErrNotFound, "none")
	require.ErrorIs(t, tr.Deregister(r+1000), ports.ErrNotFound, "never given")
}

func deregisterReturnsWhenMemoryIsQuiet(t *testing.T, x *exchange) {
	const ops = 32
	l, dst := x.link(t), x.Memory(t, ops*bufferBytes/4)
	r, err := x.Asker.Transport.Register(dst)
	require.NoError(t, err)
	var all [][]ports.Segment
	for i := range uint64(ops) {
		all = append(all, []ports.Segment{piece(uint32(i%2), 0, dst, i*bufferBytes/4, bufferBytes/4)})
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(x.reads(all...), q))
	require.NoError(t, x.Asker.Transport.Deregister(r))
	content.Poison(dst.Bytes())
	takeAll(t, q, ops)
	require.Equal(t, -1, content.CheckPoison(dst.Bytes()), "first byte that landed after Deregister returned")
}
