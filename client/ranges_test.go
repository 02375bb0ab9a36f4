package client

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// TestARequestByHandleAndPatternIsAsLargeForOneKeyAsForAThousand: what is sent again for each layer group is its layers and nothing else.
func TestARequestByHandleAndPatternIsAsLargeForOneKeyAsForAThousand(t *testing.T) {
	var keys []string
	var rows []uint64
	for i := range 1024 {
		keys, rows = append(keys, fmt.Sprintf("%032x", i)), append(rows, uint64(i*7919%1024))
	}
	size := func(n int) int {
		c := &Client{}
		h, err := c.NewHandle(keys[:n], rows[:n])
		require.NoError(t, err)
		r := &Region{n: 1 << 30}
		s := &start{}
		s.mu.regions = map[*Region]uint32{r: 3}
		s.mu.handles = map[*Handle]named{h: {id: 5, keys: n}} // it was named before
		p := &Pattern{Len: []uint64{1728}, Region: []*Region{r}, Stride: []uint64{1 << 20}, RowsOfHandle: true}
		for l := range uint64(8) {
			p.Off, p.Base = append(p.Off, l*1728), append(p.Base, l*1728)
		}
		parts, err := c.partsFor(t.Context(), s, []Part{{Keys: Keys{Handle: h}, Pattern: p}})
		require.NoError(t, err)
		return proto.Size(&enginev1.BatchGetRangesRequest{Parts: parts})
	}
	require.Equal(t, size(1), size(1024))
	require.Less(t, size(1024), 100)
}

func TestAnErrorHasItsClassAndNamesTheSocket(t *testing.T) {
	n, err := OpenNode("/nowhere/a socket")
	require.NoError(t, err)
	defer n.Close()
	_, err = n.Size(t.Context(), "", "k")
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, `size: node at "/nowhere/a socket": unavailable: `)
	require.ErrorContains(t, Failed(&Answer{Status: []Status{Hit, NotFound}, Failures: []*enginev1.KeyFailure{{Key: 1, Reason: "why"}}}), "key 1: not_found: why")
	require.NoError(t, Failed(&Answer{Status: []Status{Hit, Stored, Exists}}))
}
