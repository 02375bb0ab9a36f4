package rdma

import (
	"encoding/binary"
	"fmt"

	"github.com/spanpool/spanpool/domain"
)

const (
	version    = 1
	maxGIDs    = 8
	maxBuffers = 1 << 12
	maxKeys    = 1 << 16
)

// end is one end of a queue pair.
type end struct{ qpn, psn uint32 }

// port is where one side's queue pairs are reached.
type portAddr struct {
	mtu   uint8 // enum ibv_mtu
	reads uint8 // outstanding reads that it can serve, or make
	lid   uint16
}

// offer is what an asker sends in its hello. pairs are control, then reads, then writes.
type offer struct {
	nonce         [16]byte
	at            portAddr
	gids          [][16]byte
	reads, writes uint8
	pairs         []end
}

// buffer is exposed memory as a peer is told of it: keys[i] reads bytes [i*chunk, (i+1)*chunk) of it.
type buffer struct {
	id         uint32
	base       uint64
	len, chunk uint64
	keys       []uint32
}

// answer is what the owner sends back, for that nonce only.
type answer struct {
	nonce   [16]byte
	start   uint64
	at      portAddr
	chosen  uint8 // of the offer's GIDs
	gid     [16]byte
	pairs   []end
	buffers []buffer
}

func (o *offer) encode() []byte {
	b := append([]byte{version}, o.nonce[:]...)
	b = append(o.at.append(b), uint8(len(o.gids)))
	for _, g := range o.gids {
		b = append(b, g[:]...)
	}
	return appendEnds(append(b, o.reads, o.writes), o.pairs)
}

func (p portAddr) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint16(append(b, p.mtu, p.reads), p.lid)
}

func appendEnds(b []byte, ends []end) []byte {
	for _, e := range ends {
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, e.qpn), e.psn)
	}
	return b
}

func decodeOffer(b []byte) (o offer, err error) {
	r := reader{b: b}
	if v := r.u8(); v != version {
		return o, fmt.Errorf("offer of version %d, this release has %d: %w: %w", v, version, errFormat, domain.ErrInvalid)
	}
	r.bytes(o.nonce[:])
	o.at = r.port()
	n := r.count(uint32(r.u8()), maxGIDs, 16)
	o.gids = make([][16]byte, n)
	for i := range o.gids {
		r.bytes(o.gids[i][:])
	}
	o.reads, o.writes = r.u8(), r.u8()
	if o.reads == 0 || o.reads > maxPairs || o.writes == 0 || o.writes > maxPairs || n == 0 {
		r.bad = true
	}
	o.pairs = r.ends(1 + int(o.reads) + int(o.writes))
	return o, r.end("offer")
}

func (a *answer) encode() []byte {
	b := append([]byte{version}, a.nonce[:]...)
	b = a.at.append(binary.LittleEndian.AppendUint64(b, a.start))
	b = append(append(b, a.chosen), a.gid[:]...)
	b = appendEnds(append(b, uint8(len(a.pairs))), a.pairs)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(a.buffers)))
	for i := range a.buffers {
		x := &a.buffers[i]
		b = binary.LittleEndian.AppendUint32(b, x.id)
		for _, v := range []uint64{x.base, x.len, x.chunk} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(len(x.keys)))
		for _, k := range x.keys {
			b = binary.LittleEndian.AppendUint32(b, k)
		}
	}
	return b
}

func decodeAnswer(b []byte) (a answer, err error) {
	r := reader{b: b}
	if v := r.u8(); v != version {
		return a, fmt.Errorf("answer of version %d, this release has %d: %w: %w", v, version, errFormat, domain.ErrInvalid)
	}
	r.bytes(a.nonce[:])
	a.start = r.u64()
	a.at = r.port()
	a.chosen = r.u8()
	r.bytes(a.gid[:])
	a.pairs = r.ends(int(r.u8()))
	n := r.count(r.u32(), maxBuffers, 32)
	seen := make(map[uint32]bool, n)
	for range n {
		x := buffer{id: r.u32(), base: r.u64(), len: r.u64(), chunk: r.u64()}
		x.keys = make([]uint32, r.count(r.u32(), maxKeys, 4))
		for i := range x.keys {
			x.keys[i] = r.u32()
		}
		r.bad = r.bad || seen[x.id] || !x.sound()
		seen[x.id] = true
		if r.bad {
			break
		}
		a.buffers = append(a.buffers, x)
	}
	return a, r.end("answer")
}

// sound reports whether there is exactly a key for each byte, and no address overflows.
func (b *buffer) sound() bool {
	if b.chunk == 0 || b.base+b.len < b.base {
		return false
	}
	n := b.len / b.chunk
	if b.len%b.chunk != 0 {
		n++
	}
	return n == uint64(len(b.keys))
}

// at is the key for the byte at off, and the offset at which it ends. Precondition: off < len.
func (b *buffer) at(off uint64) (key uint32, until uint64) {
	i := off / b.chunk
	return b.keys[i], min(b.len, (i+1)*b.chunk)
}

// reader takes values off the front. What is too short, or has something left at the end, is bad.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) bytes(dst []byte) { copy(dst, r.take(len(dst))) }

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count bounds a number of things of that size by a limit and by what is left, so that nothing large is made for a lie.
func (r *reader) count(n uint32, limit, size int) int {
	if int64(n) > int64(limit) || int64(n)*int64(size) > int64(len(r.b)) {
		r.bad = true
		return 0
	}
	return int(n)
}

func (r *reader) port() portAddr { return portAddr{r.u8(), r.u8(), r.u16()} }

func (r *reader) ends(n int) []end {
	out := make([]end, r.count(uint32(n), 1+2*maxPairs, 8))
	for i := range out {
		out[i] = end{r.u32(), r.u32()}
	}
	return out
}

func (r *reader) end(what string) error {
	if r.bad || len(r.b) != 0 {
		return fmt.Errorf("%s: %w: %w", what, errFormat, domain.ErrInvalid)
	}
	return nil
}
