package domain

import "math"

// PatternRange is one range of every key of a pattern: Len bytes of the object from Off, which for the key in row r go to, or come
// from, offset Base + r*Stride of entry Region of the call's region table. An engine's KV buffer of one layer is such a region, and
// the rows of a call are its pages there.
type PatternRange struct {
	Off, Len     uint64
	Region       uint32
	Base, Stride uint64
}

// At is the range of the key in a row. Precondition: LastRow admits it.
func (p *PatternRange) At(row uint64) Range {
	return Range{Off: p.Off, Len: p.Len, Region: p.Region, RegionOff: p.Base + row*p.Stride}
}

// LastRow is the last row of which the range lies within a region of that size; ok is false when none does.
func (p *PatternRange) LastRow(size uint64) (last uint64, ok bool) {
	switch {
	case p.Base > size || p.Len > size-p.Base:
		return 0, false
	case p.Stride == 0:
		return math.MaxUint64, true
	}
	return (size - p.Len - p.Base) / p.Stride, true
}
