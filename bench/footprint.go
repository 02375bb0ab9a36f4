package bench

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/spanpool/spanpool/domain"
)

// What a committed object may cost, and the objects over which it is told.
const (
	footprintObjects = 1_000_000
	footprintRanges  = 61
	footprintKey     = 40 // bytes of a key
	maxFootprint     = 200.0
	maxMark          = 50.0 // milliseconds of processor time
)

// tableFootprint fills a table with committed objects. perObject is heap growth beyond the key, 8 bytes a page and 4 a
// put-range; mark is the processor time in which a cycle of the collector marks, the least of three, in milliseconds.
func tableFootprint(objects int, pages uint64) (perObject, mark float64, err error) {
	const pageSize = footprintRanges * 64
	size := pages * pageSize
	lens, sums := make([]uint64, footprintRanges), make([]uint32, footprintRanges)
	for i := range lens {
		lens[i] = size / footprintRanges
	}
	before := settledHeap()
	table := domain.NewTable(domain.TableConfig{PageSize: pageSize, BufferPages: []uint32{uint32(pages) * uint32(objects)}})
	for i := range objects {
		id, err := table.Reserve(domain.NewSlot{Name: fmt.Sprintf("%0*d", footprintKey, i), Size: size, State: domain.SlotPending})
		if err != nil {
			return 0, 0, fmt.Errorf("reserve object %d of %d: %w", i, objects, err)
		}
		table.SetSums(id, lens, sums)
		if !table.Commit(id) {
			return 0, 0, fmt.Errorf("commit object %d of %d: refused", i, objects)
		}
	}
	grown := (settledHeap() - before) / float64(objects)
	mark = settledMark()
	runtime.KeepAlive(table)
	return grown - footprintKey - 8*float64(pages) - 4*footprintRanges, mark, nil
}

func settledHeap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func settledMark() float64 {
	least := time.Hour
	for range 3 {
		before := markTime()
		runtime.GC()
		least = min(least, markTime()-before)
	}
	return milliseconds(least)
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

// footprintBars stand against a limit and no other program: theirs is the limit.
func (o *Ratios) footprintBars() []pairing {
	var list []pairing
	for _, pages := range []uint64{1, 69} {
		list = append(list, pairing{name: fmt.Sprintf("footprint-%d", pages),
			what: fmt.Sprintf("10^6 committed objects of %d pages and 61 put-ranges, against the limits of %.0f B each and %.0f ms of marking", pages, maxFootprint, maxMark),
			ours: func(context.Context) (sample, error) {
				noise := startNoise(nil, LinkSpec{}, o.Root)
				bytes, mark, err := tableFootprint(footprintObjects, pages)
				return sample{figures: []float64{bytes, mark}, noise: noise.stop()}, err
			},
			theirs: func(context.Context) (sample, error) { return sample{figures: []float64{maxFootprint, maxMark}}, nil },
			bars:   []bar{{name: "bytes an object", figure: 0, atMost: 1}, {name: "mark_ms", figure: 1, atMost: 1}},
			once:   true,
		})
	}
	return list
}
