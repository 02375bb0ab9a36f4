package dram

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports/porttest/content"
)

// streamed streams n bytes from src+srcOff to dst+dstOff and returns the first wrong byte of the destination, guards included.
func streamed(dst, src []byte, dstOff, srcOff, n, ahead int) (wrong int) {
	content.Poison(dst)
	content.Fill(src, 7, 0)
	if n < line || !canStream && !twin {
		copy(dst[dstOff:dstOff+n], src[srcOff:])
	} else {
		stream(dst[dstOff:dstOff+n], src[srcOff:srcOff+n], src[:ahead])
		fence()
	}
	if at := content.Check(dst[dstOff:dstOff+n], 7, uint64(srcOff)); at >= 0 {
		return dstOff + at
	}
	due := make([]byte, len(dst))
	content.Poison(due)
	copy(due[dstOff:], dst[dstOff:dstOff+n])
	for i := range due {
		if due[i] != dst[i] {
			return i
		}
	}
	return -1
}

func TestStreamWritesAllOfItsBytesAndNoOthers(t *testing.T) {
	const most = 8 << 10
	dst, src := make([]byte, most+512), make([]byte, most+512)
	for _, n := range []int{line, 2 * line, 1728, streamLeast, streamLeast + 1, streamLeast + 63, most} {
		for dstOff := 1; dstOff <= 129; dstOff++ { // every place in a line, whatever the slice's own is
			for _, srcOff := range []int{0, 1, 32, 63} {
				require.Equal(t, -1, streamed(dst, src, dstOff, srcOff, n, 0), "%d bytes to %d from %d", n, dstOff, srcOff)
			}
		}
		require.Equal(t, -1, streamed(dst, src, 3, 5, n, len(src)), "%d bytes, with something to read ahead", n)
	}
}

func FuzzStreamWritesWhatCopyDoes(f *testing.F) {
	const room = 1 << 17
	f.Add(uint32(1728), uint16(64), uint16(0), uint32(0))
	f.Add(uint32(66_000), uint16(1), uint16(63), uint32(1000))
	f.Fuzz(func(t *testing.T, n uint32, dstOff, srcOff uint16, ahead uint32) {
		dst, src := make([]byte, 2*room), make([]byte, 2*room)
		n, ahead = n%room, ahead%(2*room)
		wrong := streamed(dst, src, int(dstOff), int(srcOff), int(n), int(ahead))
		require.Equal(t, -1, wrong, fmt.Sprintf("%d bytes to %d from %d", n, dstOff, srcOff))
	})
}
