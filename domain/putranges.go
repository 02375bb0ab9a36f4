package domain

import "github.com/spanpool/spanpool/crc32c"

// ForEachWhole yields the put-ranges (lens, in object order; they tile the object) whose bytes all lie in runs, which are in order,
// do not overlap, and may touch. These are the ones that can be verified by those bytes. An emit that returns false ends it.
func ForEachWhole(lens []uint64, runs []Run, emit func(i int, r Run) bool) {
	var off uint64
	for i, n := range lens {
		r := Run{Off: off, Len: n}
		off = r.End()
		for len(runs) > 0 && runs[0].End() <= r.Off {
			runs = runs[1:]
		}
		if len(runs) == 0 {
			return
		}
		if covered(runs, r) && !emit(i, r) {
			return
		}
	}
}

// FoldSums is the CRC-32C of the bytes of runs, which are in order and do not overlap, by the sums of put-ranges: known where runs
// hold put-ranges whole and no byte else.
func FoldSums(lens []uint64, sums []uint32, runs []Run) (sum uint32, known bool) {
	if len(sums) != len(lens) {
		return 0, false
	}
	var (
		off  uint64 // of put-range i
		join crc32c.Joiner
	)
	for i, k := 0, 0; k < len(runs); {
		lo, hi := runs[k].Off, runs[k].End()
		for k++; k < len(runs) && runs[k].Off == hi; k++ { // it touches
			hi = runs[k].End()
		}
		for ; i < len(lens) && off < lo; i++ {
			off += lens[i]
		}
		if off != lo {
			return 0, false
		}
		for ; i < len(lens) && off < hi; i++ {
			sum = join.Join(sum, sums[i], lens[i])
			off += lens[i]
		}
		if off != hi {
			return 0, false
		}
	}
	return sum, len(runs) > 0
}

// covered reports whether every byte of r lies in runs, the first of which ends past its first byte.
func covered(runs []Run, r Run) bool {
	at := r.Off
	for _, x := range runs {
		if x.Off > at {
			return false
		}
		if at = x.End(); at >= r.End() {
			return true
		}
	}
	return false
}

// AppendJoined appends a run that begins at or past the end of the last one, and joins the two where they touch.
func AppendJoined(runs []Run, r Run) []Run {
	if last := len(runs) - 1; last >= 0 && runs[last].End() == r.Off {
		runs[last].Len += r.Len
		return runs
	}
	return append(runs, r)
}

// Summer takes the bytes of an object in order, in pieces of any length, and gives the CRC-32C of each of its put-ranges.
type Summer struct {
	lens []uint64
	sums []uint32 // of the put-ranges that are over
	done uint64   // bytes of the one under way
	sum  uint32
}

// NewSummer begins an object. lens tile it, and are borrowed until its last byte was added.
func NewSummer(lens []uint64) Summer { return Summer{lens: lens, sums: make([]uint32, 0, len(lens))} }

// Add takes the next bytes. Bytes past the object are a bug of the caller's, and panic.
func (s *Summer) Add(b []byte) {
	for len(b) > 0 {
		left := s.lens[len(s.sums)] - s.done
		n := min(left, uint64(len(b)))
		s.sum = crc32c.Update(s.sum, b[:n])
		s.done += n
		b = b[n:]
		if n == left {
			s.sums = append(s.sums, s.sum)
			s.done, s.sum = 0, 0
		}
	}
}

// Sums is a sum per put-range, once all bytes were added; nil before that.
func (s *Summer) Sums() []uint32 {
	if len(s.sums) < len(s.lens) {
		return nil
	}
	return s.sums
}
