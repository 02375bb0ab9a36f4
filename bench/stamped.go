package bench

import (
	"context"

	"github.com/spanpool/spanpool/ports/porttest/content"
)

// Offload ranks put bytes that a GPU has computed, at no cost to the processors: so what they put from is generated once, before
// anything is measured, and a put only stamps its objects, with a word in every stampStep bytes that is the key's own. No two
// objects that were ever put share stampStep bytes, and within one no two words are equal, as with content of its own; to generate
// that anew took two thirds of two processors while requests were timed.

const (
	stampStep  = 4 << 10
	stampBytes = 8
)

// stampedSource is what an offload rank puts from. Between puts it is the content of key throughout.
type stampedSource struct {
	*buffer
	key uint64
}

// fillTurn is what is generated in one place of the limiter, so that whoever copies does not wait for milliseconds.
const fillTurn = 128 << 10

func openStampedSource(ctx context.Context, l *Limiter, name string, n uint64) (*stampedSource, error) {
	b, err := openBuffer(n)
	if err != nil {
		return nil, err
	}
	s := &stampedSource{b, contentKey(name)}
	for off := uint64(0); off < n; off += fillTurn {
		if err := l.Do(ctx, func() { content.Fill(b.b[off:min(off+fillTurn, n)], s.key, off) }); err != nil {
			_ = b.close() // unmapping what was mapped here cannot fail
			return nil, err
		}
	}
	return s, nil
}

// stamp makes the object of size bytes at at that of a key; with the source's own key it takes that back.
func (s *stampedSource) stamp(at, size, key uint64) {
	for off := uint64(0); off < size; off += stampStep {
		from := off
		if key == s.key {
			from += at
		}
		content.Fill(s.b[at+off:][:min(stampBytes, size-off)], key, from)
	}
}

// object is the content of an object that was stamped at at.
func (s *stampedSource) object(at, key uint64) objectContent {
	return objectContent{key: key, base: s.key, at: at, stamped: true}
}

// objectContent is what the bytes of an object are: the content of key; stamped: that of base from at on, with stamps of key.
type objectContent struct {
	key, base, at uint64
	stamped       bool
}

func contentOf(name string) objectContent { return objectContent{key: contentKey(name)} }

// check returns the index of the first byte of a whole object that is wrong, or -1.
func (c objectContent) check(b []byte) int {
	if !c.stamped {
		return content.Check(b, c.key, 0)
	}
	for off := 0; off < len(b); off += stampStep {
		n := min(off+stampBytes, len(b))
		if at := content.Check(b[off:n], c.key, uint64(off)); at >= 0 {
			return off + at
		}
		if at := content.Check(b[n:min(off+stampStep, len(b))], c.base, c.at+uint64(n)); at >= 0 {
			return n + at
		}
	}
	return -1
}

// byteAt is the byte at an offset of the object.
func (c objectContent) byteAt(off uint64) byte {
	if c.stamped && off%stampStep >= stampBytes {
		return wantByte(c.base, c.at+off)
	}
	return wantByte(c.key, off)
}
