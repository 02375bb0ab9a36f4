package domain

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// testTable has 40 pages of 10 bytes in buffers of 30 and 10; 10 of them may be filling, 4 held.
func testTable(t *testing.T) *Table {
	t.Helper()
	table := NewTable(TableConfig{Incarnation: 7, PageSize: 10, BufferPages: []uint32{30, 10}})
	t.Cleanup(func() { require.NoError(t, table.CheckInvariants()) })
	return table
}

func reserve(t *testing.T, table *Table, name string, size uint64, state SlotState, origin Origin) SlotID {
	t.Helper()
	id, err := table.Reserve(NewSlot{Name: name, Size: size, State: state, Origin: origin})
	require.NoError(t, err)
	return id
}

// put reserves and commits.
func put(t *testing.T, table *Table, name string, size uint64, origin Origin) SlotID {
	t.Helper()
	id := reserve(t, table, name, size, SlotPending, origin)
	require.True(t, table.Commit(id))
	return id
}

func TestSlotPassesFromReservationToFree(t *testing.T) {
	table := testTable(t)
	id, err := table.Reserve(NewSlot{Space: 3, Name: "k", Size: 25, State: SlotPending, Deadline: 9})
	require.NoError(t, err)
	committed, filling, pending := table.Lookup(3, "k")
	require.Equal(t, [3]SlotID{0, 0, id}, [3]SlotID{committed, filling, pending})

	require.True(t, table.Commit(id))
	committed, filling, pending = table.Lookup(3, "k")
	require.Equal(t, [3]SlotID{id, 0, 0}, [3]SlotID{committed, filling, pending})
	require.Len(t, table.Layout(id).Pages, 3)
	require.Equal(t, id, table.Find(table.Info(id).Generation))
	require.EqualValues(t, 37, table.Stats().PagesFree)

	table.Doom(id, DoomRemoved, 0)
	require.EqualValues(t, 40, table.Stats().PagesFree)
	require.Equal(t, SlotInfo{}, table.Info(id))
	require.EqualValues(t, 1, table.Stats().Doomed[DoomRemoved])
}

func TestCommitIsRefusedWhenTheKeyIsCommitted(t *testing.T) {
	table := testTable(t)
	first := put(t, table, "k", 10, PutHere)
	for _, state := range []SlotState{SlotPending, SlotFilling} {
		second := reserve(t, table, "k", 10, state, PutHere)
		before := table.Info(second)
		require.False(t, table.Commit(second), "a %v slot", state)
		require.Equal(t, before, table.Info(second))
	}
	committed, _, _ := table.Lookup(0, "k")
	require.Equal(t, first, committed)
}

func TestReserveWithoutSpaceChangesNothing(t *testing.T) {
	table := testTable(t)
	put(t, table, "old", 350, PutHere)
	reserve(t, table, "filling", 50, SlotFilling, FetchedHere)
	before, free := table.Stats(), table.records.free
	for _, n := range []NewSlot{
		{Name: "k", Size: 1, State: SlotPending},   // no page is free
		{Name: "k", Size: 1, State: SlotFilling},   // nor for readers
		{Name: "k", Size: 401, State: SlotPending}, // more than all pages
	} {
		_, err := table.Reserve(n)
		require.ErrorIs(t, err, ErrNoSpace)
	}
	require.Equal(t, before, table.Stats())
	require.Equal(t, free, table.records.free)
	committed, filling, pending := table.Lookup(0, "k")
	require.Equal(t, [3]SlotID{}, [3]SlotID{committed, filling, pending})
}

func TestFillingSlotsKeepTheirLimit(t *testing.T) {
	table := testTable(t)
	a := reserve(t, table, "a", 60, SlotFilling, FetchedHere)
	b := reserve(t, table, "b", 40, SlotFilling, FetchedHere)
	_, err := table.Reserve(NewSlot{Name: "c", Size: 10, State: SlotFilling})
	require.ErrorIs(t, err, ErrNoSpace, "30 pages are free, and 10 are all that filling slots may have")

	plan, ok := table.PlanEviction(1, SlotFilling, 0, nil)
	require.True(t, ok)
	require.Equal(t, []SlotID{a}, plan, "the oldest gives way")
	table.Pin(a)
	plan, ok = table.PlanEviction(1, SlotFilling, 0, nil)
	require.True(t, ok)
	require.Equal(t, []SlotID{b}, plan, "the oldest that is idle")
	_, ok = table.PlanEviction(5, SlotFilling, 0, nil)
	require.False(t, ok, "6 pages are pinned, 5 more exceed the limit")
	plan, ok = table.PlanEviction(5, SlotPending, 0, nil)
	require.True(t, ok)
	require.Empty(t, plan, "a writer has no such limit")
	table.Unpin(a, 0)
	_, ok = table.PlanEviction(11, SlotFilling, 0, nil)
	require.False(t, ok, "11 pages are more than all filling slots may have")
}

func TestDefaultLimitsAreAQuarterAndATenth(t *testing.T) {
	table := testTable(t)
	require.EqualValues(t, 10, table.maxFilling)
	require.EqualValues(t, 4, table.maxHeld)
}

// keep is each way in which a slot is kept from eviction.
var keep = []struct {
	how   string
	begin func(*Table, SlotID)
	end   func(*Table, SlotID, Instant) // later, at now
}{
	{"pinned", func(t *Table, id SlotID) { t.Pin(id) }, func(t *Table, id SlotID, now Instant) { t.Unpin(id, now) }},
	{"leased", func(t *Table, id SlotID) { t.Lease(id, 50) }, func(*Table, SlotID, Instant) {}},
	{"held", func(t *Table, id SlotID) { t.Hold(id, 50, 1) }, func(*Table, SlotID, Instant) {}},
	{"granted", func(t *Table, id SlotID) { t.SetGranted(id, true, 1) },
		func(t *Table, id SlotID, now Instant) { t.SetGranted(id, false, now) }},
}

func TestEvictionSkipsWhatIsKept(t *testing.T) {
	for _, k := range keep {
		t.Run(k.how, func(t *testing.T) {
			table := testTable(t)
			first, second := put(t, table, "first", 40, PutHere), put(t, table, "second", 360, PutHere)
			k.begin(table, first)
			plan, ok := table.PlanEviction(1, SlotPending, 49, nil)
			require.True(t, ok)
			require.Equal(t, []SlotID{second}, plan)
			require.Equal(t, []SlotID{second}, table.PlanWatermark(40, 49, nil))

			dst := []SlotID{9}
			dst, ok = table.PlanEviction(37, SlotPending, 49, dst)
			require.False(t, ok)
			require.Equal(t, []SlotID{9}, dst)

			k.end(table, first, 50)
			plan, ok = table.PlanEviction(1, SlotPending, 50, nil)
			require.True(t, ok)
			require.Equal(t, []SlotID{first}, plan, "it is kept no more")
		})
	}
}

func TestEvictionOrder(t *testing.T) {
	table := testTable(t)
	ids := map[string]SlotID{}
	// Every slot has 5 pages; 5 pages are pending and never give way, 5 are free.
	ids["put 1"] = put(t, table, "put 1", 50, PutHere)
	ids["copy 1"] = put(t, table, "copy 1", 50, FetchedHere)
	ids["filling 1"] = reserve(t, table, "filling 1", 50, SlotFilling, FetchedHere)
	ids["put 2"] = put(t, table, "put 2", 50, PutHere)
	ids["filling 2"] = reserve(t, table, "filling 2", 50, SlotFilling, FetchedHere)
	ids["copy 2"] = put(t, table, "copy 2", 50, FetchedHere)
	ids["pending"] = reserve(t, table, "pending", 50, SlotPending, PutHere)

	for _, c := range []struct {
		name    string
		touched string
		need    uint64
		state   SlotState
		want    []string
	}{
		{"free pages first", "", 5, SlotPending, nil},
		{"then filling slots, oldest first", "", 6, SlotPending, []string{"filling 1"}},
		{"one after the other", "", 15, SlotPending, []string{"filling 1", "filling 2"}},
		{"then copies", "", 16, SlotPending, []string{"filling 1", "filling 2", "copy 1"}},
		{"then what was put here", "", 26, SlotPending, []string{"filling 1", "filling 2", "copy 1", "copy 2", "put 1"}},
		{"all", "", 35, SlotPending, []string{"filling 1", "filling 2", "copy 1", "copy 2", "put 1", "put 2"}},
		{"filling slots for their limit", "", 5, SlotFilling, []string{"filling 1"}},
		{"least recently used put", "put 1", 26, SlotPending, []string{"filling 1", "filling 2", "copy 1", "copy 2", "put 2"}},
		{"least recently used copy", "copy 1", 16, SlotPending, []string{"filling 1", "filling 2", "copy 2"}},
		{"least recently used filling slot", "filling 1", 6, SlotPending, []string{"filling 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.touched != "" {
				table.Touch(ids[c.touched])
			}
			var want []SlotID
			for _, name := range c.want {
				want = append(want, ids[name])
			}
			before := table.Stats()
			plan, ok := table.PlanEviction(c.need, c.state, 0, nil)
			require.True(t, ok)
			require.Equal(t, want, plan)
			require.Equal(t, before, table.Stats(), "a plan changes nothing")
		})
	}
	_, ok := table.PlanEviction(36, SlotPending, 0, nil)
	require.False(t, ok, "a pending slot never gives way")
}

// A cache of equal objects on demand is an exact LRU: the same hits as a list that moves what is used to its end.
func TestEvictionOnDemandIsExactLRU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const room = 5
		table := NewTable(TableConfig{PageSize: 10, BufferPages: []uint32{room}})
		var lru []string
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 100).Draw(t, "keys") {
			key := fmt.Sprint(n)
			at := -1
			for i := range lru {
				if lru[i] == key {
					at = i
				}
			}
			id, _, _ := table.Lookup(0, key)
			require.Equal(t, at >= 0, id != 0, "key %s with %v in the list", key, lru)
			switch {
			case id != 0:
				table.Touch(id)
				lru = append(lru[:at], lru[at+1:]...)
			case len(lru) == room:
				lru = lru[1:]
			}
			lru = append(lru, key)
			if id == 0 {
				cacheObject(t, table, key, 10)
			}
		}
	})
}

// cacheObject puts a key, and evicts for it as an app does.
func cacheObject(t require.TestingT, table *Table, key string, size uint64) SlotID {
	const now = 10
	var room [8]SlotID
	plan, ok := table.PlanEviction(table.PagesFor(size), SlotPending, now, room[:0])
	require.True(t, ok)
	for _, id := range plan {
		table.Doom(id, DoomEvicted, now)
	}
	id, err := table.Reserve(NewSlot{Name: key, Size: size, State: SlotPending})
	require.NoError(t, err)
	require.True(t, table.Commit(id))
	return id
}

func TestADoomedSlotTakesNoPinAndIsInvisible(t *testing.T) {
	table := testTable(t)
	id := put(t, table, "k", 10, PutHere)
	gen := table.Info(id).Generation
	table.Pin(id)
	table.Doom(id, DoomCleared, 0)
	table.Doom(id, DoomRemoved, 0)
	require.EqualValues(t, 1, table.Stats().Doomed[DoomCleared])
	require.Zero(t, table.Stats().Doomed[DoomRemoved], "a slot is doomed once")

	require.PanicsWithValue(t, "domain: pin: slot 1 is doomed, use 1, 1 pins", func() { table.Pin(id) })
	committed, filling, pending := table.Lookup(0, "k")
	require.Equal(t, [3]SlotID{}, [3]SlotID{committed, filling, pending})
	require.Zero(t, table.Find(gen))
	require.Len(t, table.Layout(id).Pages, 1, "whoever pins it may go on")
	again := put(t, table, "k", 10, PutHere)
	require.NotEqual(t, table.Layout(id).Pages, table.Layout(again).Pages)

	table.Unpin(id, 0)
	require.PanicsWithValue(t, "domain: pin: slot 1 is free, use 1, 0 pins", func() { table.Pin(id) })
	require.PanicsWithValue(t, "domain: unpin: slot 1 is free, use 1, 0 pins", func() { table.Unpin(id, 0) })
	require.PanicsWithValue(t, "domain: unpin: slot 2 is committed, use 1, 0 pins", func() { table.Unpin(again, 0) })
}

func TestMisuseOfASlotPanics(t *testing.T) {
	table := testTable(t)
	free := put(t, table, "free", 10, PutHere)
	pending := reserve(t, table, "pending", 10, SlotPending, PutHere)
	table.Doom(free, DoomRemoved, 0)
	for _, c := range []struct {
		what   string
		misuse func()
	}{
		{"commit: slot 1 is free", func() { table.Commit(free) }},
		{"doom: slot 1 is free", func() { table.Doom(free, DoomRemoved, 0) }},
		{"grant: slot 1 is free", func() { table.SetGranted(free, true, 0) }},
		{"layout: slot 1 is free", func() { table.Layout(free) }},
		{"name: slot 1 is free", func() { table.Name(free) }},
		{"sums: slot 1 is free", func() { table.Sums(free) }},
		{"set sums: slot 1 is free", func() { table.SetSums(free, nil, nil) }},
		{"lease: slot 2 is pending", func() { table.Lease(pending, 1) }},
		{"hold: slot 2 is pending", func() { table.Hold(pending, 1, 0) }},
		{"2 sums of 1 put-ranges", func() { table.SetSums(pending, []uint64{10}, []uint32{1, 2}) }},
		{"the key has a pending slot: slot 2 is pending", func() {
			_, _ = table.Reserve(NewSlot{Name: "pending", Size: 1, State: SlotPending})
		}},
		{"reserve of 0 bytes, limit 1099511627776", func() {
			_, _ = table.Reserve(NewSlot{Name: "k", State: SlotPending})
		}},
		{"reserve under a key of 0 bytes", func() { _, _ = table.Reserve(NewSlot{Size: 1, State: SlotPending}) }},
		{"reserve of a slot that is committed", func() {
			_, _ = table.Reserve(NewSlot{Name: "k", Size: 1, State: SlotCommitted})
		}},
		{"page size 0", func() { NewTable(TableConfig{BufferPages: []uint32{1}}) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			defer func() { require.Contains(t, fmt.Sprint(recover()), "domain: "+c.what) }()
			c.misuse()
		})
	}
}

// A doomed slot that is pinned, leased and granted is free after the last of the three ends, in whatever order.
func TestDoomedPagesReturnWhenNothingKeepsThem(t *testing.T) {
	const leaseEnd = 50
	for _, order := range permutations(3) {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			table := testTable(t)
			id := put(t, table, "k", 30, PutHere)
			table.Pin(id)
			table.Lease(id, leaseEnd)
			table.SetGranted(id, true, 1)
			table.Doom(id, DoomRemoved, 1)
			now := Instant(leaseEnd - 1)
			ends := []func(){
				func() { table.Unpin(id, now) },
				func() { now = leaseEnd; table.Sweep(now) },
				func() { table.SetGranted(id, false, now) },
			}
			for _, n := range order {
				require.EqualValues(t, 37, table.Stats().PagesFree, "before end %d of %v", n, order)
				require.EqualValues(t, 3, table.Stats().Pages[SlotDoomed])
				ends[n]()
			}
			require.EqualValues(t, 40, table.Stats().PagesFree, "after %v", order)
		})
	}
}

func TestALeaseNeverShortens(t *testing.T) {
	table := testTable(t)
	id := put(t, table, "k", 10, PutHere)
	table.Lease(id, 50)
	table.Lease(id, 40)
	require.EqualValues(t, 50, table.Info(id).LeaseUntil)
	table.Doom(id, DoomRemoved, 49)
	table.Sweep(49)
	require.Equal(t, SlotDoomed, table.Info(id).State)
	table.Sweep(50)
	require.Equal(t, SlotFree, table.Info(id).State)
}

func TestHoldsKeepTheirLimitAndEnd(t *testing.T) {
	table := testTable(t) // 4 pages may be held
	a, b := put(t, table, "a", 30, PutHere), put(t, table, "b", 20, PutHere)
	require.True(t, table.Hold(a, 10, 0))
	require.False(t, table.Hold(b, 10, 0), "5 pages")
	require.True(t, table.Hold(a, 20, 0), "what is held may be held longer")
	require.True(t, table.Hold(a, 5, 0))
	require.False(t, table.Hold(b, 30, 19), "a hold never shortens")
	require.True(t, table.Hold(b, 30, 20), "a hold that has ended does not count")
	require.EqualValues(t, 2, table.Stats().HeldPages)
	require.True(t, table.Hold(a, 20, 20), "a hold that has ended already holds nothing")
	require.EqualValues(t, 2, table.Stats().HeldPages)

	table.Doom(b, DoomRemoved, 20)
	require.Zero(t, table.Stats().HeldPages, "a hold keeps from eviction only")
	require.Equal(t, SlotFree, table.Info(b).State)
	require.True(t, table.Hold(a, 30, 20))
	table.Sweep(30)
	require.Zero(t, table.Stats().HeldPages)
}

func TestHoldsOfAnyLengthEndInOrder(t *testing.T) {
	table := testTable(t)
	var ids []SlotID
	for i, until := range []Instant{30, 10, 20, 40} {
		ids = append(ids, put(t, table, fmt.Sprint(i), 10, PutHere))
		require.True(t, table.Hold(ids[i], until, 0))
	}
	require.True(t, table.Hold(ids[1], 35, 0))
	require.NoError(t, table.CheckInvariants())
	for _, c := range []struct {
		now  Instant
		held uint64
	}{{19, 4}, {20, 3}, {30, 2}, {35, 1}, {40, 0}} {
		table.Sweep(c.now)
		require.Equal(t, c.held, table.Stats().HeldPages, "at %d", c.now)
	}
}

func TestExpiredReservationsAreThoseWithADeadline(t *testing.T) {
	table := testTable(t)
	var want []SlotID
	for deadline := range Instant(4) {
		id, err := table.Reserve(NewSlot{Name: fmt.Sprint(deadline), Size: 1, State: SlotPending, Deadline: deadline})
		require.NoError(t, err)
		if deadline == 1 || deadline == 2 {
			want = append(want, id)
		}
	}
	require.Equal(t, want, table.AppendExpired(2, nil))
}

func TestGenerationsAreNeverReused(t *testing.T) {
	table := testTable(t)
	seen := map[Generation]bool{}
	for range 1000 {
		id := put(t, table, "k", 10, PutHere)
		gen := table.Info(id).Generation
		require.False(t, gen.IsZero() || seen[gen])
		seen[gen] = true
		table.Doom(id, DoomRemoved, 0)
		require.Zero(t, table.Find(gen))
	}
}

func TestARecordWhoseGenerationsAreUsedUpRetires(t *testing.T) {
	table := testTable(t)
	id := put(t, table, "k", 10, PutHere)
	table.Doom(id, DoomRemoved, 0)
	table.slot(id).use = math.MaxUint32 - 1
	last := put(t, table, "k", 10, PutHere)
	require.Equal(t, id, last)
	require.EqualValues(t, math.MaxUint32<<32|uint64(id), table.Info(last).Generation.Counter)
	table.Doom(last, DoomRemoved, 0)
	require.NotEqual(t, id, put(t, table, "k", 10, PutHere))
	require.NotEqual(t, id, put(t, table, "l", 10, PutHere))
}

func TestFindTakesAnyGeneration(t *testing.T) {
	table := testTable(t)
	id := put(t, table, "k", 10, PutHere)
	gen := table.Info(id).Generation
	require.Equal(t, id, table.Find(gen))
	rapid.Check(t, func(t *rapid.T) {
		g := Generation{
			Incarnation: Incarnation(rapid.Uint64Range(6, 8).Draw(t, "incarnation")),
			Counter:     rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 1000), rapid.Uint64Range(1<<32, 1<<32+1000)).Draw(t, "counter"),
		}
		if g != gen {
			require.Zero(t, table.Find(g))
		}
	})
}

func TestNamesOfTwoSpacesAreTwoKeys(t *testing.T) {
	table := testTable(t)
	one, err := table.Reserve(NewSlot{Space: 1, Name: "k", Size: 1, State: SlotPending})
	require.NoError(t, err)
	two, err := table.Reserve(NewSlot{Space: 2, Name: "k", Size: 1, State: SlotPending})
	require.NoError(t, err)
	for space, want := range []SlotID{0, one, two} {
		_, _, got := table.Lookup(Space(space), "k")
		require.Equal(t, want, got)
	}
}

func TestKeysOfOneHashAreToldApart(t *testing.T) {
	table := testTable(t)
	id := put(t, table, "k", 1, PutHere)
	hash := table.slot(id).hash
	for _, c := range []struct {
		space Space
		name  string
		want  SlotID
	}{{0, "k", id}, {1, "k", 0}, {0, "l", 0}, {0, "kk", 0}} {
		_, got := table.find(hash, c.space, c.name)
		require.Equal(t, c.want, got, "%d %q", c.space, c.name)
	}
}

func TestSumsAreCopiedAndShapesShared(t *testing.T) {
	table := testTable(t)
	a, b := put(t, table, "a", 30, PutHere), put(t, table, "b", 30, PutHere)
	lens, sums := []uint64{10, 20}, []uint32{1, 0}
	table.SetSums(a, lens, sums)
	table.SetSums(b, lens, nil)
	lens[0], sums[0] = 99, 99

	lensA, sumsA := table.Sums(a)
	lensB, sumsB := table.Sums(b)
	require.Equal(t, []uint64{10, 20}, lensA)
	require.Equal(t, []uint32{1, 0}, sumsA)
	require.Same(t, &lensA[0], &lensB[0], "equal shapes are kept once")
	require.Nil(t, sumsB, "no sum is not a sum of 0")

	table.SetSums(a, []uint64{30}, []uint32{7})
	lensA, sumsA = table.Sums(a)
	require.Equal(t, []uint64{30}, lensA)
	require.Equal(t, []uint32{7}, sumsA)
	table.SetSums(a, nil, nil)
	lensA, sumsA = table.Sums(a)
	require.Nil(t, lensA)
	require.Nil(t, sumsA)
	require.Len(t, table.shapes.free, 1, "nobody uses the shape of one range")
}

// What Layout and Sums hand out is read without the lock while the slot is pinned.
func TestLayoutAndSumsStayWhileOthersComeAndGo(t *testing.T) {
	table := NewTable(TableConfig{PageSize: 10, BufferPages: []uint32{100_000}})
	id := put(t, table, "k", 30, PutHere)
	table.SetSums(id, []uint64{10, 20}, []uint32{1, 2})
	layout := table.Layout(id)
	lens, sums := table.Sums(id)
	require.Equal(t, 3, cap(layout.Pages), "an append must not reach the next slot's pages")
	pages := append([]PageRef{}, layout.Pages...)
	for i := range 10_000 {
		other := put(t, table, fmt.Sprint(i), 30+uint64(i%5), PutHere)
		table.SetSums(other, []uint64{uint64(10 + i%5), 20}, []uint32{uint32(i), uint32(i)})
		if i%3 == 0 {
			table.Doom(other, DoomRemoved, 0)
		}
	}
	require.Equal(t, pages, layout.Pages)
	require.Equal(t, []uint64{10, 20}, lens)
	require.Equal(t, []uint32{1, 2}, sums)
	require.Same(t, &layout.Pages[0], &table.Layout(id).Pages[0])
	require.NoError(t, table.CheckInvariants())
}

// CheckInvariants is what other tests lean on: each kind of damage is seen.
func TestInvariantsSeeDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(table *Table, put, copied, filling SlotID)
	}{
		{"a page of two slots", func(t *Table, a, b, _ SlotID) { t.Layout(a).Pages[0] = t.Layout(b).Pages[0] }},
		{"a free page that is owned", func(t *Table, a, _, _ SlotID) { t.pages.Release(t.Layout(a).Pages) }},
		{"a page that is lost", func(t *Table, _, _, _ SlotID) { t.pages.Allocate(make([]PageRef, 1)) }},
		{"a wrong count of free pages", func(t *Table, _, _, _ SlotID) { t.pages.buffers[0].free++ }},
		{"a wrong summary", func(t *Table, _, _, _ SlotID) { t.pages.buffers[0].summary[0] = 0 }},
		{"a state that was not moved to", func(t *Table, a, _, _ SlotID) { t.slot(a).state = SlotPending }},
		{"an origin that changed", func(t *Table, a, _, _ SlotID) { t.slot(a).origin = FetchedHere }},
		{"a list cut short", func(t *Table, _, _, _ SlotID) { t.originals.first = t.originals.last }},
		{"a pin that is not counted", func(t *Table, a, _, _ SlotID) { t.slot(a).pins++ }},
		{"a filling limit that is exceeded", func(t *Table, _, _, _ SlotID) { t.maxFilling = 1 }},
		{"a slot that is not indexed", func(t *Table, a, _, _ SlotID) { t.leaveIndex(a) }},
		{"a slot that is not found", func(t *Table, a, _, _ SlotID) { t.keyBytes(t.slot(a))[0]++ }},
		{"a hold that is not listed", func(t *Table, a, _, _ SlotID) { t.slot(a).hold = 5 }},
		{"held pages that are not counted", func(t *Table, _, b, _ SlotID) { t.Hold(b, 9, 0); t.stats.HeldPages = 0 }},
		{"a filling slot without extents", func(t *Table, _, _, f SlotID) { t.dropFill(t.slot(f)) }},
		{"a committed slot with extents", func(t *Table, a, _, _ SlotID) { t.slot(a).fill = t.fills.alloc() }},
		{"a block that nobody has", func(t *Table, _, _, _ SlotID) { t.keys.alloc(3) }},
		{"put-ranges that do not tile", func(t *Table, a, _, _ SlotID) { t.SetSums(a, []uint64{10}, nil) }},
		{"a shape that is used more often", func(t *Table, a, _, _ SlotID) { t.SetSums(a, []uint64{20}, nil); t.shapes.all[0].refs++ }},
		{"a record that leaked", func(t *Table, _, _, _ SlotID) { t.records.alloc() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable(TableConfig{PageSize: 10, BufferPages: []uint32{30, 10}})
			a := put(t, table, "a", 20, PutHere)
			put(t, table, "other", 20, PutHere)
			b := put(t, table, "b", 20, FetchedHere)
			f := reserve(t, table, "f", 20, SlotFilling, FetchedHere)
			require.NoError(t, table.CheckInvariants())
			c.damage(table, a, b, f)
			require.Error(t, table.CheckInvariants())
		})
	}
}

func TestHotPathsAllocateNothing(t *testing.T) {
	table := NewTable(TableConfig{PageSize: 10, BufferPages: []uint32{40}})
	keys := make([]string, 50)
	for i := range keys {
		keys[i] = fmt.Sprintf("%040d", i)
	}
	lens, sums := []uint64{10, 20}, []uint32{1, 2}
	next := 0
	churn := func() { // evict, reserve, record, commit
		table.SetSums(cacheObject(t, table, keys[next], 30), lens, sums)
		next = (next + 1) % len(keys)
	}
	for range 100 {
		churn()
	}
	at := keys[(next+len(keys)-1)%len(keys)]
	id, _, _ := table.Lookup(0, at)
	var dst [64]SlotID
	for _, c := range []struct {
		name string
		path func()
	}{
		{"read", func() {
			id, _, _ := table.Lookup(0, at)
			table.Pin(id)
			table.Touch(id)
			_ = table.Info(id)
			_ = table.Layout(id)
			_, _ = table.Sums(id)
			table.Unpin(id, 0)
		}},
		{"lease, hold and find", func() {
			table.Lease(id, 1)
			table.Hold(id, 1, 0)
			table.Find(table.Info(id).Generation)
			table.Sweep(2)
		}},
		{"fill", func() {
			plan, _ := table.PlanEviction(3, SlotFilling, 2, dst[:0])
			for _, id := range plan {
				table.Doom(id, DoomEvicted, 2)
			}
			id, _ := table.Reserve(NewSlot{Name: "fill", Size: 30, State: SlotFilling})
			table.Held(id).Add(Run{0, 10})
			table.Claimed(id).Add(Run{10, 20})
			table.Doom(id, DoomFailed, 2)
		}},
		{"churn", churn},
		{"lists", func() {
			table.AppendExpired(2, dst[:0])
			table.AppendSlots(^uint8(0), dst[:0])
			table.PlanWatermark(20, 2, dst[:0])
			table.Stats()
		}},
	} {
		c.path()
		require.Zero(t, testing.AllocsPerRun(100, c.path), c.name)
	}
}

func BenchmarkTable(b *testing.B) {
	const objects, pagesEach = 100_000, 69
	keys := make([]string, objects+1)
	for i := range keys {
		keys[i] = fmt.Sprintf("%040d", i)
	}
	newFull := func() *Table {
		table := NewTable(TableConfig{PageSize: 10, BufferPages: []uint32{objects * pagesEach}})
		for _, key := range keys[:objects] {
			cacheObject(b, table, key, 10*pagesEach)
		}
		return table
	}
	b.Run("read/objects=100000/pages=69", func(b *testing.B) {
		table := newFull()
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			id, _, _ := table.Lookup(0, keys[i])
			table.Pin(id)
			table.Touch(id)
			_ = table.Layout(id)
			table.Unpin(id, 0)
			i = (i + 7919) % objects
		}
	})
	b.Run("replace/objects=100000/pages=69", func(b *testing.B) {
		table := newFull()
		i := objects
		b.ReportAllocs()
		for b.Loop() {
			cacheObject(b, table, keys[i], 10*pagesEach)
			i = (i + 1) % len(keys)
		}
	})
	b.Run("plan/skipped=100", func(b *testing.B) {
		table := newFull()
		for _, key := range keys[:100] {
			id, _, _ := table.Lookup(0, key)
			table.Pin(id)
		}
		var dst [4]SlotID
		b.ReportAllocs()
		for b.Loop() {
			table.PlanEviction(pagesEach, SlotPending, 10, dst[:0])
		}
	})
}
