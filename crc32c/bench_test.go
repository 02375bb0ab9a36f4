package crc32c

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

var sink uint32

// BenchmarkUpdate sums what a cache holds.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{16, 64, 100, 128, 200, 256, 384, 512, 1000, 1728, 4 << 10, 64 << 10, 576 << 10} {
		p := noise(n)
		for name, k := range kernels() {
			b.Run(fmt.Sprintf("len=%dB/%s", n, name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					sink ^= update(k, 0, p)
				}
			})
		}
	}
}

// fragments are of one length, in pages of 64 KiB or more in an order of their own, of a buffer that no cache holds.
type fragments struct {
	dst, src []byte
	len      int
	at       []int
}

const overCaches = 192 << 20

func scattered(src, dst []byte, n int) *fragments {
	f := &fragments{dst: dst, src: src, len: n}
	step := (n + 63) / 64 * 64
	if n < 4<<10 { // as one layer of objects whose others lie between
		step = 4*step + 64
	}
	for at := 0; at+n <= len(src); at += step {
		f.at = append(f.at, at)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(f.at), func(i, j int) { f.at[i], f.at[j] = f.at[j], f.at[i] })
	return f
}

// walk calls do with the i-th fragment and the source of the one after it.
func (f *fragments) walk(i int, do func(dst, src, next []byte)) {
	a, b := f.at[i%len(f.at)], f.at[(i+1)%len(f.at)]
	do(f.dst[a:a+f.len], f.src[a:a+f.len], f.src[b:b+f.len])
}

// BenchmarkFragments copies and sums what no cache holds, beside copies without sums.
func BenchmarkFragments(b *testing.B) {
	src, dst := noise(overCaches), noise(overCaches)
	ways := []struct {
		name string
		do   func(dst, src, next []byte)
	}{
		{"copy", func(dst, src, _ []byte) { copy(dst, src) }},
		{"sum-library", func(_, src, _ []byte) { sink ^= due(0, src) }},
		{"sum", func(_, src, _ []byte) { sink ^= Update(0, src) }},
		{"copy-then-sum-library", func(dst, src, _ []byte) { copy(dst, src); sink ^= due(0, dst) }},
		{"copy-then-sum", func(dst, src, _ []byte) { copy(dst, src); sink ^= Update(0, dst) }},
		{"plain", func(dst, src, _ []byte) { sink ^= copySum(plain, dst, src, nil, 0) }},
		{"Copy", func(dst, src, _ []byte) { sink ^= Copy(dst, src, nil, 0) }},
		{"Copy-next", func(dst, src, next []byte) { sink ^= Copy(dst, src, next, 0) }},
		{"Stream", func(dst, src, _ []byte) { sink ^= Stream(dst, src, nil, 0) }},
		{"Stream-next", func(dst, src, next []byte) { sink ^= Stream(dst, src, next, 0) }},
	}
	for _, n := range []int{1728, 4 << 10, 8448, 37440, 73728, 576 << 10} {
		f := scattered(src, dst, n)
		for _, w := range ways {
			b.Run(fmt.Sprintf("len=%dB/%s", n, w.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for i := 0; b.Loop(); i++ {
					f.walk(i, w.do)
				}
			})
		}
	}
}

// BenchmarkCopyCached copies and sums what the caches hold.
func BenchmarkCopyCached(b *testing.B) {
	for _, n := range []int{64, 256, 1728, 8448, 64 << 10} {
		src, dst := noise(n), noise(n)
		b.Run(fmt.Sprintf("len=%dB/copy", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				copy(dst, src)
			}
		})
		b.Run(fmt.Sprintf("len=%dB/Copy", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				sink ^= Copy(dst, src, nil, 0)
			}
		})
		b.Run(fmt.Sprintf("len=%dB/copy-then-sum", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				copy(dst, src)
				sink ^= due(0, dst)
			}
		})
	}
}

func BenchmarkCombine(b *testing.B) {
	for _, n := range []uint64{1728, 37440, 73728, 576 << 10, 1234567} {
		for name, k := range kernels() {
			b.Run(fmt.Sprintf("len=%dB/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					sink = combine(k, sink, 1, n)
				}
			})
			b.Run(fmt.Sprintf("len=%dB/%s/joiner", n, name), func(b *testing.B) {
				var j Joiner
				for b.Loop() {
					sink = j.join(k, sink, 1, n)
				}
			})
		}
	}
}
