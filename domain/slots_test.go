package domain

import (
	"testing"

	"github.com/stretchr/testify/require"
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

func TestFillingSlotsKeepTheirLimit(t *testing.T) {
	table := testTable(t)
	a := reserve(t, table, "a", 60, SlotFilling, FetchedHere)
	_, err := table.Reserve(NewSlot{Name: "b", Size: 50, State: SlotFilling})
	require.ErrorIs(t, err, ErrNoSpace)
	plan, ok := table.PlanEviction(5, SlotFilling, 0, nil)
	require.True(t, ok)
	require.Equal(t, []SlotID{a}, plan)
	_, ok = table.PlanEviction(11, SlotFilling, 0, nil)
	require.False(t, ok, "11 pages are more than all filling slots may have")
}
