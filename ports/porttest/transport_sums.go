package porttest

import (
	"hash/crc32"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf is the CRC-32C of what lies at the destinations of segments, in their order.
func sumOf(segs []ports.Segment) (sum uint32) {
	for _, s := range segs {
		sum = crc32.Update(sum, castagnoli, s.Local.(ports.HostRegion).Bytes()[s.LocalOff:][:s.Len])
	}
	return sum
}

// summing asks for the sum of each op of a batch.
func summing(b *ports.Batch) *ports.Batch {
	for i := range b.Ops {
		b.Ops[i].Sum = true
	}
	return b
}

// requireSums wants that each op was summed, and rightly. One without bytes may come without.
func requireSums(t testing.TB, b *ports.Batch, done []ports.Completion) {
	t.Helper()
	for _, c := range done {
		require.NoError(t, c.Err, "op %d", c.Tag)
		op := &b.Ops[c.Tag]
		segs := b.Segments[op.First : op.First+op.Count]
		require.True(t, c.Summed || bytesOf(segs) == 0, "op %d of %d asked for its sum", c.Tag, len(b.Ops))
		require.Equal(t, sumOf(segs), c.Sum, "sum of op %d of %d, %d segments", c.Tag, len(b.Ops), op.Count)
	}
}

func bytesOf(segs []ports.Segment) (sum uint64) {
	for _, s := range segs {
		sum += s.Len
	}
	return sum
}

// sumsAreOfTheBytesThatLanded draws small segments and large ones, some of no length, in any order on either side; an op of several
// chunks is among them.
func sumsAreOfTheBytesThatLanded(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, 2*bufferBytes)
	rapid.Check(t, func(r *rapid.T) {
		content.Poison(dst.Bytes())
		var ops [][]ports.Segment
		at := uint64(0)
		for range rapid.IntRange(1, 4).Draw(r, "ops") {
			var segs []ports.Segment
			for range rapid.IntRange(0, 6).Draw(r, "segments") {
				n := rapid.SampledFrom([]uint64{0, 1, 63, 64, 1728, 16 << 10, 100_001, bufferBytes}).Draw(r, "len")
				n = min(n, (dst.Len()-at)/2)
				off := rapid.Uint64Range(0, bufferBytes-n).Draw(r, "off")
				segs = append(segs, piece(rapid.Uint32Range(0, 1).Draw(r, "buffer"), off, dst, at, n))
				at += n
			}
			ops = append(ops, rapid.Permutation(segs).Draw(r, "order"))
		}
		b := summing(x.reads(ops...))
		requireSums(t, b, x.complete(t, l, b))
		readRight(t, dst, b.Segments...)
	})
}

// aSumIsNeverOfASecondLookAtTheSource has the owner turn its memory over again and again while it is read: whatever came, the sum
// is of that. The owner writes words, so that whoever reads them twice reads two values.
func aSumIsNeverOfASecondLookAtTheSource(t *testing.T, x *exchange) {
	if raced {
		t.Skip("the race that this case is made of would be reported")
	}
	l, dst := x.link(t), x.local(t, 2*bufferBytes)
	b := summing(x.reads([]ports.Segment{piece(0, 0, dst, 0, bufferBytes)}, []ports.Segment{
		piece(0, bufferBytes/2, dst, bufferBytes, bufferBytes/2), piece(0, 0, dst, bufferBytes+bufferBytes/2, bufferBytes/2)}))
	var owner sync.WaitGroup
	var over atomic.Bool
	owner.Go(func() {
		words := atomicWords(x.mem[0].Bytes())
		for turn := uint64(1); !over.Load(); turn++ {
			for i := range words {
				words[i].Store(turn * uint64(i+1))
			}
		}
	})
	defer owner.Wait()
	defer over.Store(true)
	until := x.Clock.Now().Add(patience / 5) // a slow way does not get to all of the rounds
	for round := 0; round < 200 && x.Clock.Now() < until; round++ {
		for i := range b.Ops {
			b.Ops[i].Deadline = x.soon()
		}
		requireSums(t, b, x.complete(t, l, b))
	}
}

// onlyWhatAskedAndCompletedWellIsSummed also holds of transports that sum nothing.
func onlyWhatAskedAndCompletedWellIsSummed(t *testing.T, x *exchange) {
	l, dst := x.link(t), x.local(t, 4096)
	var ops [][]ports.Segment
	for i := range uint64(4) {
		ops = append(ops, []ports.Segment{piece(0, i*100, dst, i*1000, 500), piece(1, i*100, dst, i*1000+500, 400)})
	}
	ops[1][1].RemoteOff = bufferBytes
	b := x.reads(ops...)
	b.Ops[0].Sum, b.Ops[1].Sum = true, true
	for _, c := range x.complete(t, l, b) {
		switch c.Tag {
		case 0:
			require.Equal(t, x.Asker.Transport.Caps().Sums, c.Summed)
		case 1:
			require.ErrorIs(t, c.Err, ports.ErrBounds)
			require.False(t, c.Summed, "of an op that failed")
		default:
			require.NoError(t, c.Err)
			require.False(t, c.Summed, "of an op that asked for none")
		}
	}
}
