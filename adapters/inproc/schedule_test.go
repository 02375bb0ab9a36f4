package inproc

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
)

// sent is an op that a test added to a pipe.
type sent struct {
	flow, bytes uint64
	at          domain.Instant
}

const forever = domain.Instant(math.MaxInt64)

// drawOps draws ops of some flows: small, of exact turns, of many turns; arriving at once, close together, and far apart.
func drawOps(r *rapid.T) []sent {
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) sent {
		return sent{
			flow: rapid.Uint64Range(0, 3).Draw(r, "flow"),
			bytes: rapid.OneOf(rapid.Uint64Range(0, 3000), rapid.SampledFrom([]uint64{TurnBytes - 1, TurnBytes, TurnBytes + 1, 3 * TurnBytes}),
				rapid.Uint64Range(0, 10*TurnBytes)).Draw(r, "bytes"),
			at: domain.Instant(rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, 1e6)).Draw(r, "at")),
		}
	}), 1, 12).Draw(r, "ops")
}

func drawRate(r *rapid.T) uint64 {
	return rapid.SampledFrom([]uint64{1, 999, 1e6, 125e6, 2e9, 2_000_000_011, 1e12}).Draw(r, "rate")
}

// addAll adds ops in the order given, which need not be that of their arrival.
func addAll(p *Pipe, ops []sent) {
	for i, o := range ops {
		p.Add(uint32(i), o.flow, o.bytes, o.at)
	}
}

// takeTurns takes everything, and holds Next and Take to each other.
func takeTurns(t require.TestingT, p *Pipe) []Turn {
	var turns []Turn
	for {
		next, ok := p.Next()
		if !ok {
			_, some := p.Take(forever)
			require.False(t, some, "a turn that Next did not know")
			return turns
		}
		early, some := p.Take(next - 1)
		require.False(t, some, "%+v came before Next, %d", early, next)
		turn, some := p.Take(next)
		require.True(t, some, "no turn at Next")
		require.Equal(t, next, turn.End)
		turns = append(turns, turn)
	}
}

func TestEveryByteOfAnOpIsSentOnceAndInOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops := drawOps(r)
		p := NewPipe(drawRate(r))
		addAll(p, ops)
		off, last := make([]uint64, len(ops)), make([]bool, len(ops))
		for _, turn := range takeTurns(r, p) {
			o := ops[turn.Op]
			require.False(r, last[turn.Op], "a turn of op %d after its last", turn.Op)
			require.Equal(r, off[turn.Op], turn.Off)
			require.LessOrEqual(r, turn.Len, uint64(TurnBytes))
			require.GreaterOrEqual(r, turn.Start, o.at, "sent before it came")
			off[turn.Op] += turn.Len
			last[turn.Op] = turn.Last
			require.Equal(r, off[turn.Op] == o.bytes, turn.Last, "op %d: %d of %d bytes", turn.Op, off[turn.Op], o.bytes)
		}
		for i := range ops {
			require.True(r, last[i], "op %d has no last turn", i)
		}
	})
}

// exactTime is how long n bytes take, rounded up.
func exactTime(n, rate uint64) time.Duration {
	q := new(big.Int).Mul(new(big.Int).SetUint64(n), big.NewInt(1e9))
	q.Add(q, new(big.Int).SetUint64(rate-1))
	return time.Duration(q.Div(q, new(big.Int).SetUint64(rate)).Int64())
}

func TestTheRateIsNeverExceededInAnyWindow(t *testing.T) {
	const rounding = 1 // ns: a window may begin at an instant that was rounded up
	rapid.Check(t, func(r *rapid.T) {
		p, rate := (*Pipe)(nil), drawRate(r)
		p = NewPipe(rate)
		addAll(p, drawOps(r))
		turns := takeTurns(r, p)
		for i := range turns {
			var bytes uint64
			for _, turn := range turns[i:] {
				bytes += turn.Len
				require.GreaterOrEqual(r, turn.End.Sub(turns[i].Start)+rounding, exactTime(bytes, rate), "%d bytes from %d on", bytes, turns[i].Start)
			}
		}
	})
}

// TestThePipeNeverIdlesBesideAnOp also asks that rounding does not add up over a busy period.
func TestThePipeNeverIdlesBesideAnOp(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops, rate := drawOps(r), drawRate(r)
		p := NewPipe(rate)
		addAll(p, ops)
		left := make([]uint64, len(ops)) // turns that are due, an empty op's one included
		for i, o := range ops {
			left[i] = max(1, (o.bytes+TurnBytes-1)/TurnBytes)
		}
		var free, begin domain.Instant
		var bytes uint64
		for _, turn := range takeTurns(r, p) {
			first := forever
			for i, o := range ops {
				if left[i] > 0 {
					first = min(first, o.at)
				}
			}
			require.Equal(r, max(free, first), turn.Start)
			if turn.Start > free {
				begin, bytes = turn.Start, 0
			}
			bytes += turn.Len
			require.Equal(r, begin.Add(exactTime(bytes, rate)), turn.End)
			free = turn.End
			left[turn.Op]--
		}
	})
}

// TestFlowsShareWithinOneTurn says: while a flow waits, no other flow has more than one turn that begins then, and the one
// whose turn is under way.
func TestFlowsShareWithinOneTurn(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops := drawOps(r)
		p := NewPipe(drawRate(r))
		addAll(p, ops)
		turns := takeTurns(r, p)
		waits := make(map[uint64]map[uint64]int) // of a flow: turns of others since it began to wait
		sentOf := make([]uint64, len(ops))
		ended := make([]bool, len(ops))
		for _, turn := range turns {
			flow := ops[turn.Op].flow
			delete(waits, flow)
			for i, o := range ops {
				if ended[i] || o.flow == flow || o.at > turn.Start {
					continue
				}
				if waits[o.flow] == nil {
					waits[o.flow] = make(map[uint64]int)
				}
			}
			for waiting, by := range waits {
				by[flow]++
				require.LessOrEqual(r, by[flow], 1, "flow %d had turns while flow %d waited", flow, waiting)
			}
			sentOf[turn.Op] += turn.Len
			ended[turn.Op] = turn.Last
		}
	})
}

func TestAFlowIsFirstComeFirstServed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops := drawOps(r)
		p := NewPipe(drawRate(r))
		addAll(p, ops)
		ended := make([]bool, len(ops))
		for _, turn := range takeTurns(r, p) {
			o := ops[turn.Op]
			for i, other := range ops {
				before := other.at < o.at || other.at == o.at && i < int(turn.Op)
				require.False(r, before && other.flow == o.flow && !ended[i], "op %d is sent before op %d of its flow has ended", turn.Op, i)
			}
			ended[turn.Op] = turn.Last
		}
	})
}

// TestTheScheduleIsTheSameForALateDriver adds ops as time goes by and looks at any time, or at the end only.
func TestTheScheduleIsTheSameForALateDriver(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops, rate := drawOps(r), drawRate(r)
		atOnce := NewPipe(rate)
		addAll(atOnce, ops)
		want := takeTurns(r, atOnce)

		p := NewPipe(rate)
		var got []Turn
		now := domain.Instant(0)
		look := func() {
			for turn, ok := p.Take(now); ok; turn, ok = p.Take(now) {
				got = append(got, turn)
			}
		}
		added := make([]bool, len(ops))
		for range ops {
			next := -1 // the earliest op that is not added; a driver learns of it when it comes or before
			for i, o := range ops {
				if !added[i] && (next < 0 || o.at < ops[next].at) {
					next = i
				}
			}
			// Looking at the very instant of an arrival, before it is known, may order ops that take no time differently.
			if now < ops[next].at && rapid.Bool().Draw(r, "look") {
				now = domain.Instant(rapid.Int64Range(int64(now), int64(ops[next].at)-1).Draw(r, "now"))
				look()
			}
			p.Add(uint32(next), ops[next].flow, ops[next].bytes, ops[next].at)
			added[next] = true
		}
		now = forever
		look()
		require.Equal(r, want, got)
	})
}

func TestDroppedBytesAreNotSentAndTheOpStillEnds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops := drawOps(r)
		p := NewPipe(drawRate(r))
		addAll(p, ops)
		dropped, last := make([]bool, len(ops)), make([]bool, len(ops))
		took := make([]int, len(ops))
		for {
			if victim := rapid.IntRange(0, 3*len(ops)).Draw(r, "drop"); victim < len(ops) && !last[victim] {
				p.Drop(uint32(victim))
				dropped[victim], took[victim] = true, 0
			}
			turn, ok := p.Take(forever)
			if !ok {
				break
			}
			require.False(r, last[turn.Op])
			last[turn.Op] = turn.Last
			took[turn.Op]++
			if dropped[turn.Op] {
				require.True(r, turn.Last, "op %d goes on after Drop", turn.Op)
				require.Equal(r, 1, took[turn.Op])
			}
		}
		for i := range ops {
			require.True(r, last[i], "op %d has no last turn", i)
		}
	})
}

func TestADroppedOpTakesNoTime(t *testing.T) {
	p := NewPipe(1e9)
	p.Add(0, 1, 10*TurnBytes, 0)
	p.Add(1, 1, 1000, 0)
	_, ok := p.Take(0)
	require.False(t, ok)
	p.Drop(0) // its first turn is under way
	turn, _ := p.Take(TurnBytes)
	require.Equal(t, Turn{Op: 0, Len: TurnBytes, End: TurnBytes, Last: true}, turn)
	turn, _ = p.Take(TurnBytes + 1000)
	require.Equal(t, Turn{Op: 1, Len: 1000, Start: TurnBytes, End: TurnBytes + 1000, Last: true}, turn)
}

func TestAPipeWithoutRateSendsAsTurnsAreTaken(t *testing.T) {
	p := NewPipe(0)
	p.Add(0, 1, 3*TurnBytes, 0)
	p.Add(1, 2, 1, 5)
	var order []uint32
	for now := domain.Instant(0); ; now += 10 {
		turn, ok := p.Take(now)
		if !ok {
			break
		}
		require.Equal(t, now, turn.Start)
		require.Equal(t, now, turn.End)
		order = append(order, turn.Op)
	}
	require.Equal(t, []uint32{0, 0, 1, 0}, order, "an op that comes later waits for one turn")
}

func TestHugeOpsOnSlowPipesDoNotOverflow(t *testing.T) {
	p := NewPipe(1)
	p.Add(0, 1, math.MaxUint64, 0)
	turn, ok := p.Take(forever)
	require.True(t, ok)
	require.Equal(t, domain.Instant(0).Add(TurnBytes*time.Second), turn.End)
	require.Equal(t, time.Duration(1<<62), p.sendTime(math.MaxUint64))
}

func TestASteadyScheduleAllocatesNothing(t *testing.T) {
	p := NewPipe(1e9)
	now := domain.Instant(0)
	round := func() {
		for i := range uint32(64) {
			p.Add(i, uint64(i%5), 100_000, now.Add(time.Duration(i%3)))
		}
		for turn, ok := p.Take(forever / 2); ok; turn, ok = p.Take(forever / 2) {
			now = turn.End
		}
	}
	round()
	require.Zero(t, testing.AllocsPerRun(50, round))
}

func BenchmarkPipe(b *testing.B) {
	p := NewPipe(2e9)
	var now domain.Instant
	b.ReportAllocs()
	for b.Loop() {
		p.Add(0, 1, TurnBytes, now)
		p.Add(1, 2, TurnBytes, now)
		p.Take(forever / 2)
		turn, _ := p.Take(forever / 2)
		now = turn.End
	}
}
