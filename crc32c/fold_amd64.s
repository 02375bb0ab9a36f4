//go:build !race

#include "textflag.h"

// Offsets in factors, which R10 points to.
#define BY256 0
#define BY192 16
#define BY128 32
#define BY64 48
#define LANES 64

// FOLD moves the four 16 bytes of A on by K, and adds B, which may be memory. T is lost.
#define FOLD(A, K, B, T) \
	VPCLMULQDQ $0x00, K, A, T \
	VPCLMULQDQ $0x11, K, A, A \
	VPTERNLOGQ $0x96, B, T, A

// BEGIN takes a sum into the first 4 of the bytes in A, as if it were one of bytes before them.
#define BEGIN(CRC, A) \
	VMOVD  CRC, X4 \
	VPXORQ Z4, A, A

// GATHER adds Z0 to Z3, of which each lies 64 bytes after the other, in Z3.
#define GATHER \
	VBROADCASTI32X4 BY192(R10), Z17 \
	VBROADCASTI32X4 BY128(R10), Z18 \
	VPCLMULQDQ $0x00, Z17, Z0, Z4 \
	VPCLMULQDQ $0x11, Z17, Z0, Z0 \
	VPCLMULQDQ $0x00, Z18, Z1, Z5 \
	VPCLMULQDQ $0x11, Z18, Z1, Z1 \
	VPCLMULQDQ $0x00, Z16, Z2, Z6 \
	VPCLMULQDQ $0x11, Z16, Z2, Z2 \
	VPTERNLOGQ $0x96, Z0, Z4, Z5 \
	VPTERNLOGQ $0x96, Z1, Z6, Z2 \
	VPTERNLOGQ $0x96, Z5, Z2, Z3

// REDUCE makes a sum of the 64 bytes in Z3. The fourth 16 are not moved: their factors are 0.
#define REDUCE(CRC) \
	VMOVDQU64     LANES(R10), Z4 \
	VEXTRACTI32X4 $3, Z3, X5 \
	VPCLMULQDQ    $0x00, Z4, Z3, Z0 \
	VPCLMULQDQ    $0x11, Z4, Z3, Z3 \
	VPXORQ        Z0, Z3, Z3 \
	VEXTRACTI64X4 $1, Z3, Y0 \
	VPXOR         Y0, Y3, Y3 \
	VEXTRACTI128  $1, Y3, X0 \
	VPTERNLOGQ    $0x96, X5, X0, X3 \
	VMOVQ         X3, R8 \
	VPEXTRQ       $1, X3, R9 \
	VZEROUPPER \
	XORL          CRC, CRC \
	CRC32Q        R8, CRC \
	CRC32Q        R9, CRC

// func foldSum(f *factors, p *byte, n uintptr, crc uint32) uint32
TEXT ·foldSum(SB), NOSPLIT, $0-36
	MOVQ f+0(FP), R10
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL crc+24(FP), AX
	NOTL AX
	CMPQ CX, $128
	JB   words
	VBROADCASTI32X4 BY64(R10), Z16
	CMPQ CX, $512
	JB   few

	VBROADCASTI32X4 BY256(R10), Z19
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	BEGIN(AX, Z0)
	ADDQ $256, SI
	SUBQ $512, CX

loop:
	FOLD(Z0, Z19, (SI), Z4)
	FOLD(Z1, Z19, 64(SI), Z5)
	FOLD(Z2, Z19, 128(SI), Z6)
	FOLD(Z3, Z19, 192(SI), Z7)
	ADDQ $256, SI
	SUBQ $256, CX
	JAE  loop
	ADDQ $256, CX
	GATHER
	SUBQ $64, CX
	JB   reduce
	JMP  lines

few:
	VMOVDQU64 (SI), Z3
	BEGIN(AX, Z3)
	ADDQ $64, SI
	SUBQ $128, CX

lines: // CX is 64 less than what is left
	FOLD(Z3, Z16, (SI), Z4)
	ADDQ $64, SI
	SUBQ $64, CX
	JAE  lines

reduce:
	ADDQ $64, CX
	REDUCE(AX)

words:
	SUBQ $8, CX
	JB   bytes

word:
	CRC32Q (SI), AX
	ADDQ $8, SI
	SUBQ $8, CX
	JAE  word

bytes: // the low bits of CX are those of what is left
	TESTQ $4, CX
	JZ    two
	CRC32L (SI), AX
	ADDQ  $4, SI

two:
	TESTQ $2, CX
	JZ    one
	CRC32W (SI), AX
	ADDQ  $2, SI

one:
	TESTQ $1, CX
	JZ    done
	CRC32B (SI), AX

done:
	NOTL AX
	MOVL AX, ret+32(FP)
	RET

// COPYLINE copies the 64 bytes at O, and keeps them in L.
#define COPYLINE(STORE, O, L) \
	PREFETCHT0 O(DX) \
	VMOVDQU64  O(SI), L \
	STORE      L, O(DI)

#define ADVANCE(N) \
	ADDQ $N, SI \
	ADDQ $N, DI \
	ADDQ $N, DX

#define BEGIN256(STORE) \
	VBROADCASTI32X4 BY256(R10), Z19 \
	COPYLINE(STORE, 0, Z0) \
	COPYLINE(STORE, 64, Z1) \
	COPYLINE(STORE, 128, Z2) \
	COPYLINE(STORE, 192, Z3) \
	BEGIN(AX, Z0) \
	ADVANCE(256)

// COPYFOLD256 folds each line as it comes: with the four loads together, and then the four stores, memory gives a tenth less.
#define COPYFOLD256(STORE) \
	COPYLINE(STORE, 0, Z4) \
	FOLD(Z0, Z19, Z4, Z8) \
	COPYLINE(STORE, 64, Z5) \
	FOLD(Z1, Z19, Z5, Z9) \
	COPYLINE(STORE, 128, Z6) \
	FOLD(Z2, Z19, Z6, Z10) \
	COPYLINE(STORE, 192, Z7) \
	FOLD(Z3, Z19, Z7, Z11) \
	ADVANCE(256)

#define COPYFOLD64(STORE) \
	COPYLINE(STORE, 0, Z5) \
	FOLD(Z3, Z16, Z5, Z4) \
	ADVANCE(64)

// func foldCopy(f *factors, dst, src, next *byte, n uintptr, crc uint32) uint32
TEXT ·foldCopy(SB), NOSPLIT, $0-52
	MOVQ f+0(FP), R10
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ next+24(FP), DX
	MOVQ n+32(FP), CX
	MOVL crc+40(FP), AX
	NOTL AX
	CMPQ CX, $128
	JB   words
	TESTQ DX, DX
	JNZ  ahead
	LEAQ 1024(SI), DX // what comes within the latency of memory

ahead:
	VBROADCASTI32X4 BY64(R10), Z16
	CMPQ CX, $512
	JB   few
	BEGIN256(VMOVDQU64)
	SUBQ $512, CX

loop:
	COPYFOLD256(VMOVDQU64)
	SUBQ $256, CX
	JAE  loop
	ADDQ $256, CX
	GATHER
	SUBQ $64, CX
	JB   reduce
	JMP  lines

few:
	COPYLINE(VMOVDQU64, 0, Z3)
	BEGIN(AX, Z3)
	ADVANCE(64)
	SUBQ $128, CX

lines: // CX is 64 less than what is left
	COPYFOLD64(VMOVDQU64)
	SUBQ $64, CX
	JAE  lines

reduce:
	ADDQ $64, CX
	REDUCE(AX)

words:
	SUBQ $8, CX
	JB   bytes

word:
	MOVQ (SI), BX
	MOVQ BX, (DI)
	CRC32Q BX, AX
	ADDQ $8, SI
	ADDQ $8, DI
	SUBQ $8, CX
	JAE  word

bytes: // the low bits of CX are those of what is left
	TESTQ $4, CX
	JZ    two
	MOVL  (SI), BX
	MOVL  BX, (DI)
	CRC32L BX, AX
	ADDQ  $4, SI
	ADDQ  $4, DI

two:
	TESTQ $2, CX
	JZ    one
	MOVW  (SI), BX
	MOVW  BX, (DI)
	CRC32W BX, AX
	ADDQ  $2, SI
	ADDQ  $2, DI

one:
	TESTQ $1, CX
	JZ    done
	MOVB  (SI), BX
	MOVB  BX, (DI)
	CRC32B BX, AX

done:
	NOTL AX
	MOVL AX, ret+48(FP)
	RET

// func foldStream(f *factors, dst, src, next *byte, n uintptr, crc uint32) uint32
TEXT ·foldStream(SB), NOSPLIT, $0-52
	MOVQ f+0(FP), R10
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ next+24(FP), DX
	MOVQ n+32(FP), CX
	MOVL crc+40(FP), AX
	NOTL AX
	TESTQ DX, DX
	JNZ  ahead
	LEAQ 1024(SI), DX // as in foldCopy

ahead:
	VBROADCASTI32X4 BY64(R10), Z16
	BEGIN256(VMOVNTDQ)
	SUBQ $512, CX
	JB   gather

loop:
	COPYFOLD256(VMOVNTDQ)
	SUBQ $256, CX
	JAE  loop

gather:
	ADDQ $256, CX
	GATHER
	SUBQ $64, CX
	JB   reduce

lines: // CX is 64 less than what is left
	COPYFOLD64(VMOVNTDQ)
	SUBQ $64, CX
	JAE  lines

reduce:
	REDUCE(AX)
	NOTL AX
	MOVL AX, ret+48(FP)
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func foldCombine(t *[16][16]uint32, crc uint32, n uint64) uint32
TEXT ·foldCombine(SB), NOSPLIT, $0-28
	MOVQ t+0(FP), SI
	MOVL crc+8(FP), AX
	MOVQ n+16(FP), CX
	TESTQ CX, CX
	JZ   done

digit:
	MOVQ CX, BX
	ANDQ $15, BX
	JZ   next
	MOVL (SI)(BX*4), BX
	MOVQ BX, X0
	MOVL AX, AX // clears the upper half
	MOVQ AX, X1
	PCLMULQDQ $0x00, X1, X0
	MOVQ X0, BX
	XORL AX, AX
	CRC32Q BX, AX

next:
	ADDQ $64, SI
	SHRQ $4, CX
	JNZ  digit

done:
	MOVL AX, ret+24(FP)
	RET

// func foldMultiply(a, b uint32) uint32
TEXT ·foldMultiply(SB), NOSPLIT, $0-12
	MOVL a+0(FP), AX // which clears the upper half
	MOVL b+4(FP), BX
	MOVQ AX, X0
	MOVQ BX, X1
	PCLMULQDQ $0x00, X1, X0
	MOVQ X0, BX
	XORL AX, AX
	CRC32Q BX, AX
	MOVL AX, ret+8(FP)
	RET
