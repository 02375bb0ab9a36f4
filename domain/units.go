package domain

import "sort"

// Unit is a run of spans of one key, packed back to back into a slice of the arena.
type Unit struct {
	Key          uint32
	First, Count uint32 // spans
	Round        uint32 // units of one round are in the arena at once, in one slice
	Off          uint64 // in the round's slice, a multiple of 64
	Len          uint64 // sum of its spans, not rounded
}

// Packing is the state of packing the units of one call. Set Capacity, leave the rest zero.
type Packing struct {
	Capacity uint64 // of the arena
	Round    uint32 // the one being filled
	Used     uint64 // of that round, each unit rounded up to 64 bytes
}

// AppendUnits packs the spans of one key (First.. counts from firstSpan) behind what p holds. A new round begins only when
// the total, each unit rounded up to 64 bytes, is greater than the capacity; a key may be split between spans, never within
// one. A span greater than the capacity makes the key unservable by the arena: ErrInvalid is wrapped (a LimitError), and
// dst and p are as they were. A capacity that is no multiple of 64 counts as the multiple below it.
func AppendUnits(dst []Unit, key, firstSpan uint32, spans []Span, p *Packing) ([]Unit, error) {
	// Capacity and Used are multiples of 64, so an unrounded length fits what is free if and only if the rounded one does.
	capacity := p.Capacity &^ (ArenaAlign - 1)
	for i := range spans {
		if spans[i].Len > capacity {
			return dst, &LimitError{What: "bytes of a span in the arena", Value: spans[i].Len, Limit: capacity}
		}
	}
	u := Unit{Key: key, First: firstSpan, Round: p.Round, Off: p.Used}
	for i := range spans {
		if spans[i].Len > capacity-p.Used-u.Len {
			dst = p.close(dst, u)
			p.Round, p.Used = p.Round+1, 0
			u = Unit{Key: key, First: firstSpan + uint32(i), Round: p.Round}
		}
		u.Len += spans[i].Len
		u.Count++
	}
	return p.close(dst, u), nil
}

// close appends a unit that takes no more spans; one that never got any is dropped.
func (p *Packing) close(dst []Unit, u Unit) []Unit {
	if u.Count == 0 {
		return dst
	}
	p.Used = u.Off + roundUpArena(u.Len)
	return append(dst, u)
}

// roundUpArena rounds n up to ArenaAlign. Precondition: n is at most a multiple of it that exists.
func roundUpArena(n uint64) uint64 { return (n + ArenaAlign - 1) &^ (ArenaAlign - 1) }

// RoundLen is the length of slice that round r of units needs: the end of its last unit, rounded up to 64 bytes; zero when
// there is no such round. Precondition: units are as AppendUnits left them, in ascending rounds.
func RoundLen(units []Unit, r uint32) uint64 {
	behind := sort.Search(len(units), func(i int) bool { return units[i].Round > r })
	if behind == 0 || units[behind-1].Round != r {
		return 0
	}
	last := units[behind-1]
	return roundUpArena(last.Off + last.Len)
}
