//go:build !race

package crc32c

import "golang.org/x/sys/cpu"

// canMultiply: the product of two 64-bit polynomials, and the remainder of one. Valgrind has both, too.
var canMultiply = cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE42

// canFold: what is used of AVX-512, with four such products at once.
var canFold = canMultiply && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VPCLMULQDQ

// factors is what the assembly multiplies by, in its order.
//
// A sum is unchanged when 16 of its bytes are taken away and their multiple by x^n, modulo the polynomial, is added n bits further
// on. These are pairs of factors, for the first 8 bytes of 16, which are x^64 ahead, and for the others. A factor is the low half of
// its 64 bits, which are reflected, and so counts x^32 more than it says; and a product of 64 reflected bits by 64 counts x^1 more in
// 128. Hence the 33 in foldBy.
type factors struct {
	by256, by192, by128, by64 [2]uint64
	lanes                     [4][2]uint64 // by 48, 32 and 16 bytes, and not at all
}

var folds = factors{
	by256: foldBy(256), by192: foldBy(192), by128: foldBy(128), by64: foldBy(64),
	lanes: [4][2]uint64{foldBy(48), foldBy(32), foldBy(16)},
}

// foldBy is the pair that moves 16 bytes on by n.
func foldBy(n uint64) [2]uint64 { return [2]uint64{uint64(xTo(8*n + 64 - 33)), uint64(xTo(8*n - 33))} }

// scaled is powers for foldCombine: over x^33, which multiplying there adds.
var scaled = scale(powers)

func scale(t [16][16]uint32) [16][16]uint32 {
	for i := range t {
		for d := range t[i] {
			for range 33 {
				t[i][d] = overX(t[i][d])
			}
		}
	}
	return t
}

// overX is what timesX makes a of.
func overX(a uint32) uint32 {
	odd := a >> 31 // the polynomial has an x^0, and nothing else brings one
	return (a^reflected&-odd)<<1 | odd
}

// foldSum goes on with a sum by n bytes.
//
//go:noescape
func foldSum(f *factors, p *byte, n uintptr, crc uint32) uint32

// foldCopy copies n bytes, of which it reads each once, and goes on with a sum by them. Of as many bytes at next it tells the
// processor that they will be read, with nil of those a KiB ahead. There need not be any.
//
//go:noescape
func foldCopy(f *factors, dst, src, next *byte, n uintptr, crc uint32) uint32

// foldStream is foldCopy past the caches, for whole lines of 64 bytes: dst begins one, and n is at least 256. What it writes is in
// no order with later writes until fence.
//
//go:noescape
func foldStream(f *factors, dst, src, next *byte, n uintptr, crc uint32) uint32

// fence is Fence.
func fence()

// foldCombine moves a sum on by n bytes, by a table that was scaled.
//
//go:noescape
func foldCombine(t *[16][16]uint32, crc uint32, n uint64) uint32

// foldMultiply is multiply by what was scaled.
//
//go:noescape
func foldMultiply(a, b uint32) uint32
