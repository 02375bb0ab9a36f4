//go:build !race

#include "textflag.h"

// func streamLines(dst, src, next *byte, lines uintptr)
TEXT ·streamLines(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ next+16(FP), DX
	MOVQ lines+24(FP), CX
	TESTQ DX, DX
	JNZ  loop
	LEAQ 1024(SI), DX // as far as the bytes that come within the latency of memory; 640 is as good

loop:
	PREFETCHT0 (DX)
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	ADDQ $64, DX
	DECQ CX
	JNZ  loop
	VZEROUPPER
	RET

// func fetchLines(src *byte, lines uintptr)
TEXT ·fetchLines(SB), NOSPLIT, $0-16
	MOVQ src+0(FP), SI
	MOVQ lines+8(FP), CX

loop:
	PREFETCHT0 (SI)
	ADDQ $64, SI
	DECQ CX
	JNZ  loop
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	SFENCE
	RET
