package domain

import (
	"fmt"
	"reflect"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// footprint is what committed objects cost beyond their keys, 8 bytes a page and 4 a put-range.
type footprint struct {
	perObject float64 // bytes of heap, the page bitmap included
	mark      time.Duration
}

const (
	footprintLimit = 200 // bytes per object
	markLimit      = 50 * time.Millisecond
)

func measureFootprint(t testing.TB, objects int, pages uint64) footprint {
	const pageSize, ranges, keyBytes = 61 * 64, 61, 40
	size := pages * pageSize
	lens, sums := make([]uint64, ranges), make([]uint32, ranges)
	for i := range lens {
		lens[i] = size / ranges
	}
	before := settledHeap()
	table := NewTable(TableConfig{PageSize: pageSize, BufferPages: []uint32{uint32(pages) * uint32(objects)}})
	for i := range objects {
		id, err := table.Reserve(NewSlot{Name: fmt.Sprintf("%0*d", keyBytes, i), Size: size, State: SlotPending})
		require.NoError(t, err)
		table.SetSums(id, lens, sums)
		require.True(t, table.Commit(id))
	}
	grown := float64(settledHeap()-before) / float64(objects)
	mark := settledMark()
	runtime.KeepAlive(table)
	return footprint{perObject: grown - keyBytes - 8*float64(pages) - 4*ranges, mark: mark}
}

func settledHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// settledMark is the processor time that one cycle spends on marking, the least of three.
func settledMark() time.Duration {
	least := time.Hour
	for range 3 {
		before := markTime()
		runtime.GC()
		least = min(least, markTime()-before)
	}
	return least
}

func markTime() (d time.Duration) {
	s := []metrics.Sample{
		{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
	}
	metrics.Read(s)
	for i := range s {
		d += time.Duration(s[i].Value.Float64() * float64(time.Second))
	}
	return d
}

// hasPointers reports whether a collector would look into values of the type.
func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for field := range t.Fields() {
			if hasPointers(field.Type) {
				return true
			}
		}
		return false
	case reflect.Array:
		return hasPointers(t.Elem())
	case reflect.Pointer, reflect.Slice, reflect.String, reflect.Map, reflect.Interface, reflect.Func, reflect.Chan,
		reflect.UnsafePointer:
		return true
	}
	return false
}

func TestSlabsHoldNoPointers(t *testing.T) {
	for _, typ := range []reflect.Type{reflect.TypeFor[record](), reflect.TypeFor[indexEntry](), reflect.TypeFor[PageRef]()} {
		require.False(t, hasPointers(typ), "%v", typ)
	}
	require.True(t, hasPointers(reflect.TypeFor[Layout]()), "the check sees a pointer")
}

func TestCommittedObjectsCostFewBytesAndLittleMarking(t *testing.T) {
	for _, pages := range []uint64{1, 69} {
		f := measureFootprint(t, 100_000, pages)
		t.Logf("%d pages: %.1f bytes an object, marked in %v", pages, f.perObject, f.mark)
		require.LessOrEqual(t, f.perObject, float64(footprintLimit), "objects of %d pages", pages)
		require.Less(t, f.mark, markLimit, "objects of %d pages", pages)
	}
}

// The bars of the million objects, which take too long for every run of the tests.
func BenchmarkTableFootprint(b *testing.B) {
	for _, pages := range []uint64{1, 69} {
		b.Run(fmt.Sprintf("objects=1000000/pages=%d", pages), func(b *testing.B) {
			for b.Loop() {
				f := measureFootprint(b, 1_000_000, pages)
				b.ReportMetric(f.perObject, "B/object")
				b.ReportMetric(f.mark.Seconds()*1000, "mark-ms")
				require.LessOrEqual(b, f.perObject, float64(footprintLimit))
				require.Less(b, f.mark, markLimit)
			}
		})
	}
}
