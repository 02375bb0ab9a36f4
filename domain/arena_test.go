package domain

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// arenaOracle is an arena as an array of owners and a queue as a slice.
type arenaOracle struct {
	owner []uint64 // per byte; 0 is free
	queue []arenaRequest
}

func (o *arenaOracle) firstFit(n uint64) (uint64, bool) {
	for off := uint64(0); off+n <= uint64(len(o.owner)); off += ArenaAlign {
		free := uint64(0)
		for free < n && o.owner[off+free] == 0 {
			free++
		}
		if free == n {
			return off, true
		}
	}
	return 0, false
}

func (o *arenaOracle) mark(off, n, owner uint64) {
	end := min((off+n+ArenaAlign-1)/ArenaAlign*ArenaAlign, uint64(len(o.owner)))
	for ; off < end; off++ {
		o.owner[off] = owner
	}
}

func (o *arenaOracle) used() (n uint64) {
	for _, owner := range o.owner {
		if owner != 0 {
			n++
		}
	}
	return n
}

func TestArenaAgreesWithBytesAndAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.SampledFrom([]uint64{64, 100, 640, 1000, 1024}).Draw(t, "capacity")
		a := NewArenaSlices(capacity)
		o := &arenaOracle{owner: make([]uint64, capacity)}
		type slice struct{ id, off, n uint64 }
		var out []slice
		nextID := uint64(1)
		// settle grants what can be granted on both sides, in order.
		settle := func() {
			for {
				id, off, ok := a.NextGrant()
				if len(o.queue) == 0 {
					require.False(t, ok, "a grant of request %d, and nobody waits", id)
					return
				}
				first := o.queue[0]
				want, fits := o.firstFit(first.n)
				require.Equal(t, fits, ok, "request %d of %d bytes", first.id, first.n)
				if !ok {
					return
				}
				require.Equal(t, [2]uint64{first.id, want}, [2]uint64{id, off}, "id and offset")
				o.mark(off, first.n, id)
				o.queue = o.queue[1:]
				out = append(out, slice{id, off, first.n})
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				id, n := nextID, rapid.Uint64Range(1, capacity).Draw(t, "n")
				nextID++
				off, ok := a.Request(id, n)
				want, fits := o.firstFit(n)
				require.Equal(t, fits && len(o.queue) == 0, ok)
				if !ok {
					o.queue = append(o.queue, arenaRequest{id, n})
					return
				}
				require.Equal(t, want, off)
				o.mark(off, n, id)
				out = append(out, slice{id, off, n})
			},
			"release": func(t *rapid.T) {
				if len(out) == 0 {
					return
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "slice")
				a.Release(out[i].off)
				o.mark(out[i].off, out[i].n, 0)
				out = append(out[:i:i], out[i+1:]...)
				settle()
			},
			"withdraw": func(t *rapid.T) {
				id := rapid.Uint64Range(0, nextID).Draw(t, "id")
				waits := false
				for i, r := range o.queue {
					if r.id == id {
						o.queue = append(o.queue[:i:i], o.queue[i+1:]...)
						waits = true
						break
					}
				}
				require.Equal(t, waits, a.Withdraw(id))
				settle()
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(o.queue), a.Waiting())
				require.Equal(t, o.used(), a.Used())
			},
		})
	})
}

func TestArenaServesInOrderOfArrival(t *testing.T) {
	a := NewArenaSlices(256)
	off, ok := a.Request(1, 192)
	require.True(t, ok)
	_, ok = a.Request(2, 128)
	require.False(t, ok)
	_, ok = a.Request(3, 64)
	require.False(t, ok, "there is room for 64 bytes, and an older request waits")
	_, _, ok = a.NextGrant()
	require.False(t, ok, "the oldest does not fit, so nobody is served")

	a.Release(off)
	id, off, ok := a.NextGrant()
	require.True(t, ok)
	require.Equal(t, [2]uint64{2, 0}, [2]uint64{id, off})
	id, off, ok = a.NextGrant()
	require.True(t, ok)
	require.Equal(t, [2]uint64{3, 128}, [2]uint64{id, off})
}

func TestArenaWithdrawalLetsTheNextOnePass(t *testing.T) {
	a := NewArenaSlices(128)
	_, ok := a.Request(1, 64)
	require.True(t, ok)
	a.Request(2, 128)
	a.Request(3, 64)
	require.True(t, a.Withdraw(2))
	require.False(t, a.Withdraw(2))
	id, off, ok := a.NextGrant()
	require.True(t, ok)
	require.Equal(t, [2]uint64{3, 64}, [2]uint64{id, off})
}

// Whatever the order in which neighbours come back, they are one piece again.
func TestArenaPiecesJoin(t *testing.T) {
	for _, order := range permutations(4) {
		a := NewArenaSlices(4 * 64)
		for i := range uint64(4) {
			_, ok := a.Request(i+1, 64)
			require.True(t, ok)
		}
		for _, i := range order {
			a.Release(uint64(i) * 64)
		}
		_, ok := a.Request(9, 4*64)
		require.True(t, ok, "released in order %v", order)
	}
}

func TestArenaGivesAllOfAnOddCapacity(t *testing.T) {
	a := NewArenaSlices(100)
	off, ok := a.Request(1, 100)
	require.True(t, ok)
	require.EqualValues(t, 100, a.Used())
	a.Release(off)
	_, ok = a.Request(2, 1)
	require.True(t, ok)
	off, ok = a.Request(3, 36)
	require.True(t, ok)
	require.EqualValues(t, 64, off)
	require.EqualValues(t, 100, a.Used())
}

func TestArenaPanicsOnBugs(t *testing.T) {
	a := NewArenaSlices(128)
	off, _ := a.Request(1, 128)
	a.Request(2, 1)
	for _, c := range []struct {
		what string
		bug  func()
	}{
		{"domain: 0 bytes of an arena of 128", func() { a.Request(3, 0) }},
		{"domain: 129 bytes of an arena of 128", func() { a.Request(3, 129) }},
		{"domain: arena request 2 waits already", func() { a.Request(2, 1) }},
		{"domain: release of the arena slice at 64, which is not in use", func() { a.Release(64) }},
		{"domain: release of the arena slice at 0, which is not in use", func() { a.Release(off); a.Release(off) }},
	} {
		require.PanicsWithValue(t, c.what, c.bug)
	}
}

func TestArenaAllocatesNothingInSteadyState(t *testing.T) {
	a := NewArenaSlices(1 << 20)
	round := func() {
		for id := range uint64(8) { // five are served, two wait, one goes away
			a.Request(id, 200<<10)
		}
		a.Withdraw(7)
		for off := uint64(0); off < 5*200<<10; off += 200 << 10 {
			a.Release(off)
		}
		for range 2 {
			a.NextGrant()
		}
		a.Release(0)
		a.Release(200 << 10)
	}
	require.Zero(t, testing.AllocsPerRun(100, round))
	require.Zero(t, a.Waiting())
	require.Zero(t, a.Used())
}

func BenchmarkArena(b *testing.B) {
	for _, n := range []uint64{16, 1024} {
		b.Run(fmt.Sprintf("slices=%d", n), func(b *testing.B) {
			a := NewArenaSlices(n * 64)
			for id := range n {
				a.Request(id, 64)
			}
			off := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				a.Release(off)
				off, _ = a.Request(1, 64)
				off = (off + 64*7) % (n * 64)
			}
		})
	}
}

// permutations of 0..n-1.
func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, p := range permutations(n - 1) {
		for i := range n {
			q := append(append(append([]int{}, p[:i]...), n-1), p[i:]...)
			all = append(all, q)
		}
	}
	return all
}
