//go:build !amd64 || race

package crc32c

// canFold: the race detector sees nothing of assembly, and the plain kernel's copies it does.
const canFold, canMultiply = false, false

// What follows is never called.

type factors struct{}

var (
	folds  factors
	scaled [16][16]uint32
)

func foldSum(*factors, *byte, uintptr, uint32) uint32 { return 0 }

func foldCopy(_ *factors, _, _, _ *byte, _ uintptr, _ uint32) uint32 { return 0 }

func foldStream(_ *factors, _, _, _ *byte, _ uintptr, _ uint32) uint32 { return 0 }

func fence() {}

func foldCombine(*[16][16]uint32, uint32, uint64) uint32 { return 0 }

func foldMultiply(_, _ uint32) uint32 { return 0 }
