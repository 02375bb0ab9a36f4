package domain

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
// dst and p are as they were.
func AppendUnits(dst []Unit, key, firstSpan uint32, spans []Span, p *Packing) ([]Unit, error) {
	panic("todo")
}

// RoundLen is the length of slice that round r of units needs: the end of its last unit, rounded up to 64 bytes.
func RoundLen(units []Unit, r uint32) uint64 { panic("todo") }
