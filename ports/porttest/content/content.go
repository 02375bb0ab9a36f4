// Package content makes bytes that tell where they belong, for suites, tests and the benchmark. Every 8-byte word of the
// content of a key is a hash of (key, word index), so a byte that lies in the wrong place, a slice swapped with another, a
// stale object and a piece that was never written all show. It needs the standard library only.
package content

import (
	"encoding/binary"
	"math/bits"
)

const (
	wordBytes = 8
	golden    = 0x9e3779b97f4a7c15 // splitmix64's increment: odd, so word index to state is a bijection
	poison    = 0xdb               // neither zero nor a likely filling of a fresh or freed page
)

// KeyOf is the content key of a name and, where one name has several contents (versions, pools), of a number.
func KeyOf(name string, n uint64) uint64 {
	h := uint64(0xcbf29ce484222325) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	return mix(h ^ mix(n+golden))
}

// Word is the word at byte offset 8*i of the content of key. No two words of one key are equal.
func Word(key, i uint64) uint64 { return mix(seed(key) + i*golden) }

func seed(key uint64) uint64 { return mix(key ^ golden) }

// mix is the finaliser of splitmix64, a bijection.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Fill writes the content of key from byte off of the object on into b. off may be any.
func Fill(b []byte, key, off uint64) {
	s := seed(key)
	n := head(b, off)
	for i := range n {
		b[i] = byteAt(s, off+uint64(i))
	}
	z := s + (off+uint64(n))/wordBytes*golden
	for ; len(b)-n >= wordBytes; n += wordBytes {
		binary.LittleEndian.PutUint64(b[n:], mix(z))
		z += golden
	}
	for ; n < len(b); n++ {
		b[n] = byteAt(s, off+uint64(n))
	}
}

// Check compares b with the content of key from byte off of the object on. It returns the index in b of the first byte that
// is wrong, or -1.
func Check(b []byte, key, off uint64) int {
	s := seed(key)
	n := head(b, off)
	for i := range n {
		if b[i] != byteAt(s, off+uint64(i)) {
			return i
		}
	}
	z := s + (off+uint64(n))/wordBytes*golden
	for ; len(b)-n >= wordBytes; n += wordBytes {
		if d := binary.LittleEndian.Uint64(b[n:]) ^ mix(z); d != 0 {
			return n + bits.TrailingZeros64(d)/8
		}
		z += golden
	}
	for ; n < len(b); n++ {
		if b[n] != byteAt(s, off+uint64(n)) {
			return n
		}
	}
	return -1
}

// head is the number of bytes of b before the first whole word.
func head(b []byte, off uint64) int {
	return min(int(-off%wordBytes), len(b))
}

func byteAt(seed, off uint64) byte {
	return byte(mix(seed+off/wordBytes*golden) >> (off % wordBytes * 8))
}

// Poison fills b with what is no content, so that a byte that nobody wrote shows. Fill a destination and what lies around
// it (the guard bytes) with it before each read.
func Poison(b []byte) {
	for i := range b {
		b[i] = poison
	}
}

// CheckPoison returns the index of the first byte of b that was written since Poison, or -1.
func CheckPoison(b []byte) int {
	for i, c := range b {
		if c != poison {
			return i
		}
	}
	return -1
}
