package grpcpeer

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

const (
	// partBytes is what a message is cut at: a quarter of what gRPC takes by default, and as much as a stream's window.
	partBytes = 1 << 20
	// maxPartBytes is what is taken: gRPC's own default. It leaves room for what is not cut, the offers of a hello.
	maxPartBytes = 4 << 20
)

// cut is one part in the making: the room that it has left, and whether something did not fit.
type cut struct {
	room int
	rest bool
}

// take moves as many entries as fit from the front of a column into the part. size is the most that one takes on the wire.
func take[T any](c *cut, size int, column *[]T) []T {
	n := min(len(*column), c.room/size)
	part := (*column)[:n:n]
	*column = (*column)[n:]
	c.room -= n * size
	c.rest = c.rest || len(*column) > 0
	return part
}

// takeBlob is take for one that may be cut anywhere.
func takeBlob(c *cut, blob *[][]byte) [][]byte {
	if len(*blob) == 0 {
		return nil
	}
	part := take(c, 1, &(*blob)[0])
	if len((*blob)[0]) == 0 {
		*blob = (*blob)[1:]
	}
	if len(part) == 0 {
		return nil
	}
	return [][]byte{part}
}

// takeWhole is take for entries that are not cut. One that is greater than a part goes alone.
func takeWhole(c *cut, column *[][]byte) [][]byte {
	n := 0
	for n < len(*column) && (c.room >= len((*column)[n])+varint32 || n == 0 && c.room == partBytes) {
		c.room -= len((*column)[n]) + varint32
		n++
	}
	part := (*column)[:n:n]
	*column = (*column)[n:]
	c.rest = c.rest || len(*column) > 0
	return part
}

// Sizes of entries on the wire: a varint has at most these.
const (
	enum     = 1
	varint32 = 5
	varint64 = 10
	fixed32  = 4
	fixed64  = 8
)

func takeKeys(c *cut, m *peerv1.Keys) *peerv1.Keys {
	return &peerv1.Keys{Space: take(c, varint32, &m.Space), NameLen: take(c, varint32, &m.NameLen), Names: takeBlob(c, &m.Names)}
}

func takeVersions(c *cut, m *peerv1.Versions) *peerv1.Versions {
	return &peerv1.Versions{Hi: take(c, fixed64, &m.Hi), Lo: take(c, fixed64, &m.Lo)}
}

func takeGenerations(c *cut, m *peerv1.Generations) *peerv1.Generations {
	return &peerv1.Generations{Incarnation: take(c, fixed64, &m.Incarnation), Counter: take(c, varint64, &m.Counter)}
}

func takePages(c *cut, m *peerv1.Pages) *peerv1.Pages {
	return &peerv1.Pages{Count: take(c, varint32, &m.Count), Buffer: take(c, varint32, &m.Buffer), Page: take(c, fixed32, &m.Page)}
}

func takePutRanges(c *cut, m *peerv1.PutRanges) *peerv1.PutRanges {
	return &peerv1.PutRanges{LenCount: take(c, varint32, &m.LenCount), Len: take(c, varint64, &m.Len),
		SumCount: take(c, varint32, &m.SumCount), Sum: take(c, fixed32, &m.Sum)}
}

// parts cuts a message, and uses it up. next makes the next part; what is no column belongs into the first.
func parts[M proto.Message](m M, limit int, next func(c *cut, first bool) M) ([]M, error) {
	size := proto.Size(m)
	switch {
	case size > limit:
		return nil, tooLong(size, limit)
	case size <= partBytes:
		return []M{m}, nil
	}
	var out []M
	for {
		c := &cut{room: partBytes}
		out = append(out, next(c, len(out) == 0))
		if !c.rest {
			return out, nil
		}
	}
}

func tooLong(size, limit int) error {
	return fmt.Errorf("call of %d bytes, limit %d: %w", size, limit, ports.ErrRefused)
}

// whole is a message that comes in parts.
type whole[M proto.Message] struct {
	message M
	parts   int
	size    int
}

// add takes the next part, and keeps it.
func (w *whole[M]) add(part M, limit int) error {
	w.size += proto.Size(part)
	if w.size > limit {
		return tooLong(w.size, limit)
	}
	if w.parts++; w.parts == 1 {
		w.message = part
		return nil
	}
	proto.Merge(w.message, part)
	return nil
}
