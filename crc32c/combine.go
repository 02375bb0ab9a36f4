package crc32c

// A sum is the remainder of a polynomial over GF(2), and n bytes behind it multiply it by x^8n: that of a and b joined is the one of
// a, moved on by the length of b, plus (that is xor) the one of b. Bits are reflected: the highest of a uint32 is the factor of
// x^0. Combining so is linear in what a sum is initialised and ended with, which cancel out.

// reflected is the polynomial without its x^32.
const reflected = 0x82f63b78

// powers holds x^8(d * 16^i) at [i][d]: a length is the product of its digits' powers.
var powers = makePowers()

func makePowers() (t [16][16]uint32) {
	step := xTo(8)
	for i := range t {
		t[i][0] = xTo(0)
		for d := 1; d < 16; d++ {
			t[i][d] = multiply(t[i][d-1], step)
		}
		step = multiply(t[i][15], step)
	}
	return t
}

// Combine is the sum of a run that is a and then b, from their sums and the length of b. It takes a multiplication per digit
// other than 0 of the length in hexadecimal.
func Combine(a, b uint32, lenB uint64) uint32 { return combine(best(), a, b, lenB) }

func combine(k kernel, a, b uint32, lenB uint64) uint32 {
	if k != plain {
		return foldCombine(&scaled, a, lenB) ^ b
	}
	for i := 0; lenB > 0; i++ {
		if d := lenB & 15; d > 0 {
			a = multiply(a, powers[i][d])
		}
		lenB >>= 4
	}
	return a ^ b
}

// Joiner is Combine for many runs of few lengths: it keeps what the last length multiplies by. The zero value is ready.
type Joiner struct {
	n  uint64
	by uint32 // never 0 for any length
}

// Join is Combine.
func (j *Joiner) Join(a, b uint32, lenB uint64) uint32 { return j.join(best(), a, b, lenB) }

func (j *Joiner) join(k kernel, a, b uint32, lenB uint64) uint32 {
	if lenB != j.n || j.by == 0 {
		one := uint32(1) << 31
		if k != plain {
			one = scaled[0][0]
		}
		j.n, j.by = lenB, combine(k, one, 0, lenB)
	}
	if k != plain {
		return foldMultiply(a, j.by) ^ b
	}
	return multiply(a, j.by) ^ b
}

// multiply is a * b modulo the polynomial.
func multiply(a, b uint32) (p uint32) {
	for range 32 {
		p ^= b & -(a >> 31)
		a <<= 1
		b = timesX(b)
	}
	return p
}

func timesX(a uint32) uint32 { return a>>1 ^ reflected&-(a&1) }

// xTo is x^n modulo the polynomial.
func xTo(n uint64) uint32 {
	p := uint32(1) << 31
	for range n {
		p = timesX(p)
	}
	return p
}
