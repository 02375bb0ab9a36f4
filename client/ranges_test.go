package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// TestWhereNoNodeIsDialSaysSo: that the time was over says nothing about what to do.
func TestWhereNoNodeIsDialSaysSo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Dial(ctx, "/nowhere/s", Options{})
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `node at "/nowhere/s"`)
}

// deaf is a node that names keys, and whose answer to one call is lost.
type deaf struct {
	enginev1.EngineClient
	handles [][][]byte
	lose    int // the call, from 1 on
	calls   int
}

func (d *deaf) NameKeys(_ context.Context, req *enginev1.NameKeysRequest, _ ...grpc.CallOption) (*enginev1.NameKeysReply, error) {
	id := req.GetHandle()
	if id == 0 {
		d.handles = append(d.handles, nil)
		id = uint64(len(d.handles))
	}
	h := &d.handles[id-1]
	*h = append(*h, req.GetKeys()...)
	if d.calls++; d.calls == d.lose {
		return nil, status.Error(codes.DeadlineExceeded, "no answer")
	}
	return &enginev1.NameKeysReply{Handle: id, Keys: uint32(len(*h))}, nil
}

// TestAHandleWhoseNamingWasNotAnsweredIsNamedAnew: nobody can tell whether the keys are in it, and runs of it would be other keys.
func TestAHandleWhoseNamingWasNotAnsweredIsNamedAnew(t *testing.T) {
	keys := make([]string, 3*namesPerMessage)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	for lose := 1; lose <= 3; lose++ {
		d := &deaf{lose: lose}
		c := &Client{Node: &Node{rpc: d}}
		s := &start{hello: &enginev1.HelloReply{}, naming: make(chan struct{}, 1)}
		s.mu.handles = make(map[*Handle]named)
		h, err := c.NewHandle(keys, nil)
		require.NoError(t, err)
		_, err = c.name(t.Context(), s, h)
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		id, err := c.name(t.Context(), s, h)
		require.NoError(t, err)
		require.Len(t, d.handles[id-1], len(keys))
		for i, k := range d.handles[id-1] {
			require.Equal(t, keys[i], string(k))
		}
	}
}

// TestACallByAKnownHandleDoesNotWaitForOnesThatAreNamed: and one that has to wait does so no longer than it may.
func TestACallByAKnownHandleDoesNotWaitForOnesThatAreNamed(t *testing.T) {
	c := &Client{}
	s := &start{naming: make(chan struct{}, 1)}
	s.naming <- struct{}{}
	known, fresh := &Handle{keys: []string{"a"}, c: c}, &Handle{keys: []string{"b"}, c: c}
	s.mu.handles = map[*Handle]named{known: {id: 7, keys: 1}}
	id, err := c.name(t.Context(), s, known)
	require.NoError(t, err)
	require.EqualValues(t, 7, id)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = c.name(ctx, s, fresh)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
}
