package porttest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// Memory is one kind of memory that a Copier reaches, and a way around the Copier to look into it.
type Memory struct {
	Name string
	// New makes n bytes, which live as long as the test.
	New func(t testing.TB, n uint64) ports.Region
	// Write and Read move len(b) bytes at off of a region of New.
	Write func(r ports.Region, off uint64, b []byte)
	Read  func(r ports.Region, off uint64, b []byte)
}

// HostMemory is host memory that newBytes makes; nil stands for the heap.
func HostMemory(name string, newBytes func(t testing.TB, n uint64) ports.HostRegion) Memory {
	if newBytes == nil {
		newBytes = func(_ testing.TB, n uint64) ports.HostRegion { return ports.HostRegionOf(make([]byte, n)) }
	}
	return Memory{
		Name:  name,
		New:   func(t testing.TB, n uint64) ports.Region { return newBytes(t, n) },
		Write: func(r ports.Region, off uint64, b []byte) { copy(r.(ports.HostRegion).Bytes()[off:], b) },
		Read:  func(r ports.Region, off uint64, b []byte) { copy(b, r.(ports.HostRegion).Bytes()[off:]) },
	}
}

// CopierHarness is what RunCopier needs.
type CopierHarness struct {
	Copier   ports.Copier
	Memories []Memory       // every kind that it copies between, each with each
	Foreign  []ports.Region // of kinds that its node has not; at least 1 byte each; never touched
}

// RunCopier is the contract of ports.Copier.
func RunCopier(t *testing.T, h CopierHarness) {
	require.NotEmpty(t, h.Memories)
	for _, dst := range h.Memories {
		for _, src := range h.Memories {
			t.Run(fmt.Sprintf("from=%s/to=%s", src.Name, dst.Name), func(t *testing.T) {
				p := copyPair{h.Copier, dst, src}
				t.Run("CopiesWhatWasAskedAndNothingElse", p.copiesWhatWasAskedAndNothingElse)
				t.Run("ASumIsOfWhatWasStored", p.aSumIsOfWhatWasStored)
				t.Run("AnOpOutOfBoundsFailsAlone", p.anOpOutOfBoundsFailsAlone)
				t.Run("AnEmptyOpCopiesNothing", p.anEmptyOpCopiesNothing)
				t.Run("AnEndedContextCopiesNothing", p.anEndedContextCopiesNothing)
				t.Run("ACancelledOpIsDoneOrUntouched", p.aCancelledOpIsDoneOrUntouched)
				t.Run("IsSafeForParallelUse", p.isSafeForParallelUse)
				t.Run("KeepsNeitherSlice", p.keepsNeitherSlice)
				t.Run("AllocatesNothing", p.allocatesNothing)
			})
		}
	}
	for _, foreign := range h.Foreign {
		t.Run(fmt.Sprintf("foreign=%T", foreign), func(t *testing.T) { foreignMemoryIsRefused(t, h, foreign) })
	}
}

// copyPair is the Copier between one kind of memory and another (or the same).
type copyPair struct {
	ports.Copier
	dst, src Memory
}

const (
	copyKey   = 0xc0b1e5
	copyBytes = 96 << 10
)

// regions makes a poisoned destination and a source with content.
func (p copyPair) regions(t testing.TB, n uint64) (dst, src ports.Region) {
	dst, src = p.dst.New(t, n), p.src.New(t, n)
	b := make([]byte, n)
	content.Poison(b)
	p.dst.Write(dst, 0, b)
	content.Fill(b, copyKey, 0)
	p.src.Write(src, 0, b)
	return dst, src
}

// wrongByte compares dst with poison that each done op overwrote, guards and gaps included; -1: all right.
func (p copyPair) wrongByte(dst ports.Region, done []ports.CopyOp) int {
	due := make([]byte, dst.Len())
	content.Poison(due)
	for _, op := range done {
		content.Fill(due[op.DstOff:op.DstOff+op.Len], copyKey, op.SrcOff)
	}
	got := make([]byte, len(due))
	p.dst.Read(dst, 0, got)
	for i := range due {
		if got[i] != due[i] {
			return i
		}
	}
	return -1
}

// scatteredOps deals dst out to ops in a random order, with gaps of at least a byte around each, over the lengths that
// matter: odd ones, small ones, ones across cache lines and processor pages. Sources are anywhere and may overlap.
func scatteredOps(dst, src ports.Region) []ports.CopyOp {
	rnd := rand.New(rand.NewPCG(1, 2))
	lens := []uint64{1, 7, 8, 63, 64, 65, 509, 1728, 4096, 8448, 16_411}
	var ops []ports.CopyOp
	at := uint64(1)
	for i := 0; ; i++ {
		n := lens[i%len(lens)]
		if at+n+1 > dst.Len() {
			break
		}
		ops = append(ops, ports.CopyOp{Dst: dst, Src: src, DstOff: at, SrcOff: rnd.Uint64N(src.Len() - n + 1), Len: n})
		at += n + 1 + rnd.Uint64N(40)
	}
	ops[0].SrcOff, ops[1].SrcOff = 0, src.Len()-ops[1].Len
	rnd.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	return ops
}

// staleErrs are what a caller that reuses its column has there.
func staleErrs(n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = errors.New("of the call before")
	}
	return errs
}

func (p copyPair) copiesWhatWasAskedAndNothingElse(t *testing.T) {
	dst, src := p.regions(t, copyBytes)
	ops := scatteredOps(dst, src)
	errs := staleErrs(len(ops))
	p.Copy(t.Context(), ops, errs)
	require.Equal(t, make([]error, len(ops)), errs)
	require.Equal(t, -1, p.wrongByte(dst, ops), "first wrong byte of the destination")

	b := make([]byte, src.Len())
	p.src.Read(src, 0, b)
	require.Equal(t, -1, content.Check(b, copyKey, 0), "the source changed")

	whole := []ports.CopyOp{{Dst: dst, Src: src, Len: src.Len()}}
	p.Copy(t.Context(), whole, errs[:1])
	require.NoError(t, errs[0])
	require.Equal(t, -1, p.wrongByte(dst, whole))
}

func (p copyPair) anOpOutOfBoundsFailsAlone(t *testing.T) {
	const n = copyBytes
	for _, bad := range []ports.CopyOp{
		{DstOff: n, Len: 1},
		{DstOff: 1, Len: n},
		{SrcOff: n, Len: 1},
		{SrcOff: 1, Len: n},
		{DstOff: n + 1},
		{SrcOff: n + 1},
		{Len: n + 1},
		{Len: math.MaxUint64},
		{Len: math.MaxInt64 + 1},
		{DstOff: math.MaxUint64, Len: 1},        // ends at 2^64, which is 0
		{DstOff: math.MaxUint64 - 6, Len: 8},    // ends at 1
		{SrcOff: math.MaxUint64 - 6, Len: 8},    //
		{DstOff: 8, Len: math.MaxUint64 - 3},    // ends at 4
		{SrcOff: 8, Len: math.MaxUint64 - 3},    //
		{DstOff: math.MaxUint64, SrcOff: n / 2}, // nothing, out of nowhere
	} {
		t.Run(fmt.Sprintf("dst=%d/src=%d/len=%d", bad.DstOff, bad.SrcOff, bad.Len), func(t *testing.T) {
			dst, src := p.regions(t, n)
			bad.Dst, bad.Src = dst, src
			good := ports.CopyOp{Dst: dst, Src: src, DstOff: 100, SrcOff: 200, Len: 300}
			last := ports.CopyOp{Dst: dst, Src: src, DstOff: 1000, SrcOff: 0, Len: 700}
			errs := staleErrs(3)
			p.Copy(t.Context(), []ports.CopyOp{good, bad, last}, errs)
			require.NoError(t, errs[0])
			require.ErrorIs(t, errs[1], ports.ErrBounds)
			require.NoError(t, errs[2])
			require.Equal(t, -1, p.wrongByte(dst, []ports.CopyOp{good, last}))
		})
	}
}

func (p copyPair) anEmptyOpCopiesNothing(t *testing.T) {
	dst, src := p.regions(t, 64)
	p.Copy(t.Context(), nil, nil)
	errs := staleErrs(2)
	p.Copy(t.Context(), []ports.CopyOp{{Dst: dst, Src: src, DstOff: 64, SrcOff: 64}, {Dst: dst, Src: src, DstOff: 5}}, errs)
	require.Equal(t, make([]error, 2), errs)
	require.Equal(t, -1, p.wrongByte(dst, nil))
}

func (p copyPair) anEndedContextCopiesNothing(t *testing.T) {
	dst, src := p.regions(t, copyBytes)
	ops := scatteredOps(dst, src)
	errs := staleErrs(len(ops))
	cause := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	p.Copy(ctx, ops, errs)
	for i, err := range errs {
		require.ErrorIs(t, err, cause, "op %d", i)
	}
	require.Equal(t, -1, p.wrongByte(dst, nil))
}

// aCancelledOpIsDoneOrUntouched ends the context at every look that the Copier takes at it, one call each.
func (p copyPair) aCancelledOpIsDoneOrUntouched(t *testing.T) {
	const n = 20_000
	for looks := range int64(24) {
		dst, src := p.regions(t, n)
		ops := scatteredOps(dst, src)
		errs := staleErrs(len(ops))
		ctx := newEndsAfterLooks(looks)
		p.Copy(ctx, ops, errs)
		var done []ports.CopyOp
		for i, err := range errs {
			if err == nil {
				done = append(done, ops[i])
				continue
			}
			require.ErrorIs(t, err, context.Canceled, "op %d of %d after %d looks", i, len(ops), looks)
		}
		require.Equal(t, -1, p.wrongByte(dst, done), "%d of %d ops done after %d looks", len(done), len(ops), looks)
	}
}

// endsAfterLooks is a context that ends when it was looked at a number of times, by Err or Done.
type endsAfterLooks struct {
	context.Context
	left   atomic.Int64
	cancel context.CancelFunc
}

func newEndsAfterLooks(n int64) *endsAfterLooks {
	ctx, cancel := context.WithCancel(context.Background())
	c := &endsAfterLooks{Context: ctx, cancel: cancel}
	c.left.Store(n)
	return c
}

func (c *endsAfterLooks) look() {
	if c.left.Add(-1) < 0 {
		c.cancel()
	}
}

func (c *endsAfterLooks) Err() error {
	c.look()
	return c.Context.Err()
}

func (c *endsAfterLooks) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (p copyPair) isSafeForParallelUse(t *testing.T) {
	dst, src := p.regions(t, copyBytes)
	ops := scatteredOps(dst, src)
	errs := staleErrs(len(ops))
	const callers = 4
	var wg sync.WaitGroup
	for c := range callers {
		lo, hi := c*len(ops)/callers, (c+1)*len(ops)/callers
		wg.Go(func() { p.Copy(t.Context(), ops[lo:hi], errs[lo:hi]) })
	}
	wg.Wait()
	require.Equal(t, make([]error, len(ops)), errs)
	require.Equal(t, -1, p.wrongByte(dst, ops))
}

// keepsNeitherSlice reuses both at once, as a caller does, and then looks for what a straggler would have done.
func (p copyPair) keepsNeitherSlice(t *testing.T) {
	dst, src := p.regions(t, copyBytes)
	all := scatteredOps(dst, src)
	ops, errs := make([]ports.CopyOp, 1), make([]error, 1)
	for i := range all {
		ops[0] = all[i]
		p.Copy(t.Context(), ops, errs)
		require.NoError(t, errs[0])
		ops[0], errs[0] = ports.CopyOp{}, errors.New("mine again")
	}
	require.EqualError(t, errs[0], "mine again")
	require.Equal(t, -1, p.wrongByte(dst, all))
}

func (p copyPair) allocatesNothing(t *testing.T) {
	dst, src := p.regions(t, copyBytes)
	ops := scatteredOps(dst, src)
	errs := make([]error, len(ops))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.Zero(t, testing.AllocsPerRun(50, func() { p.Copy(ctx, ops, errs) }))
	require.Equal(t, make([]error, len(ops)), errs)
}

// aSumIsOfWhatWasStored asks every second op for its sum: a Copier makes the sums of host memory or none, and never that of an op
// which asked for none or failed. A large op, which might be copied in pieces, is among them.
func (p copyPair) aSumIsOfWhatWasStored(t *testing.T) {
	const large = 1<<20 + 17
	dst, src := p.regions(t, copyBytes+large)
	small := p.scatteredOpsOf(dst, src, copyBytes)
	ops := append(small, ports.CopyOp{Dst: dst, Src: src, DstOff: copyBytes, Len: large}, ports.CopyOp{Dst: dst, Src: src, DstOff: dst.Len(), Len: 1})
	for i := range ops {
		ops[i].Sum = i%2 == 0 || ops[i].Len == large
	}
	ops[len(ops)-1].Sum = true
	errs := staleErrs(len(ops))
	p.Copy(t.Context(), ops, errs)
	last := len(ops) - 1
	require.ErrorIs(t, errs[last], ports.ErrBounds)
	require.False(t, ops[last].Summed, "of an op that failed")
	require.Equal(t, -1, p.wrongByte(dst, ops[:last]))
	sums := ops[0].Summed
	for i := range ops[:last] {
		op := &ops[i]
		require.NoError(t, errs[i])
		require.Equal(t, op.Sum && sums, op.Summed, "op %d of %d bytes", i, op.Len)
		if op.Summed {
			got := make([]byte, op.Len)
			p.dst.Read(dst, op.DstOff, got)
			require.Equal(t, crc32.Checksum(got, castagnoli), op.CRC, "op %d of %d bytes at %d", i, op.Len, op.DstOff)
		}
	}
}

// scatteredOpsOf is scatteredOps for the first n bytes of dst.
func (p copyPair) scatteredOpsOf(dst, src ports.Region, n uint64) []ports.CopyOp {
	return slices.DeleteFunc(scatteredOps(dst, src), func(op ports.CopyOp) bool { return op.DstOff+op.Len >= n })
}

func foreignMemoryIsRefused(t *testing.T, h CopierHarness, foreign ports.Region) {
	p := copyPair{h.Copier, h.Memories[0], h.Memories[0]}
	dst, src := p.regions(t, 64)
	good := ports.CopyOp{Dst: dst, Src: src, Len: 32}
	errs := staleErrs(4)
	p.Copy(t.Context(), []ports.CopyOp{
		{Dst: foreign, Src: src, Len: 1}, {Dst: dst, Src: foreign, Len: 1}, {Dst: foreign, Src: foreign, Len: 1}, good,
	}, errs)
	for i, err := range errs[:3] {
		require.ErrorIs(t, err, errors.ErrUnsupported, "op %d", i)
	}
	require.NoError(t, errs[3])
	require.Equal(t, -1, p.wrongByte(dst, []ports.CopyOp{good}))
}

// BenchmarkCopier is the measuring half: batches of ops over memory that no cache holds, between each pair of memories.
func BenchmarkCopier(b *testing.B, h CopierHarness) {
	const room = 64 << 20
	for _, dst := range h.Memories {
		for _, src := range h.Memories {
			p := copyPair{h.Copier, dst, src}
			to, from := p.regions(b, room)
			for _, n := range []uint64{1_728, 37_440, 73_728, 576 << 10, 4 << 20} {
				b.Run(fmt.Sprintf("from=%s/to=%s/op=%dB", src.Name, dst.Name, n), func(b *testing.B) {
					benchmarkOps(b, h.Copier, to, from, n)
				})
			}
		}
	}
}

// benchmarkOps copies in batches of 32, of which each goes on where the one before it ended.
func benchmarkOps(b *testing.B, c ports.Copier, dst, src ports.Region, n uint64) {
	ops := make([]ports.CopyOp, min(32, dst.Len()/n))
	errs := make([]error, len(ops))
	var at uint64
	b.SetBytes(int64(n) * int64(len(ops)))
	b.ReportAllocs()
	for b.Loop() {
		for i := range ops {
			if at+n > dst.Len() {
				at = 0
			}
			ops[i] = ports.CopyOp{Dst: dst, Src: src, DstOff: at, SrcOff: at, Len: n}
			at += n
		}
		c.Copy(b.Context(), ops, errs)
		for _, err := range errs {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
