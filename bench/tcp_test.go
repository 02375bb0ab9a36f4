package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

func TestRestoresOverSocketsMoveEachByteOnce(t *testing.T) {
	r := newRealRun(t, FetchRanged)
	r.Transport, r.OffloadRanks = TransportTCP, 1
	require.NoError(t, r.runOver(t, openLasting), r.errs.String())
	sets := float64(r.Requests * r.Ranks[0])
	v := r.rows[0].Values
	require.InDelta(t, sets*r.setMiB(), v[ColWireRange]+v[ColWireBackground], 1e-9)
	require.InDelta(t, sets*r.setMiB(), v[ColLocalWrite], 1e-9)
	require.Zero(t, v[ColWireDuplicate])
	require.Zero(t, v[ColFailedReads])
}

// far is a node that this process reaches as if it were another's.
func far(t *testing.T, id ports.PeerID, secret []byte) (*host, Remote) {
	t.Helper()
	h := &host{id: id}
	t.Cleanup(func() { require.NoError(t, h.close()) })
	spec := &ClusterSpec{Secret: secret}
	require.NoError(t, h.open(spec, NodeSpec{MediumBytes: 32 << 20, PageBytes: 64 << 10}))
	require.NoError(t, h.start(spec, nil))
	return h, Remote{ID: id, Addr: h.listen.Addr().String()}
}

func TestNodesOfOtherProcessesStandInAndKeepNothing(t *testing.T) {
	secret := []byte("a secret of these tests' nodes")
	a, first := far(t, "a", secret)
	b, second := far(t, "b", secret)
	for range 2 { // what the first run left would be in the way of the second
		r := newRealRun(t, FetchRanged)
		r.Transport, r.Remotes, r.Secret, r.OffloadRanks = TransportTCP, []Remote{first, second}, secret, 1
		require.NoError(t, r.runOver(t, OpenNodes), r.errs.String())
		sets := float64(r.Requests * r.Ranks[0])
		v := r.rows[0].Values
		require.InDelta(t, sets*r.setMiB(), v[ColWireRange]+v[ColWireBackground], 1e-9)
		require.Zero(t, v[ColFailedReads])
	}
	for _, h := range []*host{a, b} {
		s := h.node.Stats()
		require.Positive(t, s.PutBytes, "%s was put nothing", h.id)
		require.Zero(t, s.Table.Slots[domain.SlotCommitted], "%s keeps what runs put there", h.id)
	}
}

func TestANodeOfAnotherProcessThatDoesNotAnswerIsNamed(t *testing.T) {
	_, remote := far(t, "a", []byte("a secret of this one node"))
	_, err := OpenNodes(t.Context(), ClusterSpec{Transport: TransportTCP, Nodes: make([]NodeSpec, 2), Remotes: []Remote{remote}, Secret: []byte("and not of that one")})
	require.ErrorContains(t, err, `peer "a"`)
	require.ErrorContains(t, err, "secret")
}

// TestWhatARunBeforeLeftIsReplaced: it was killed, so nobody removed its keys.
func TestWhatARunBeforeLeftIsReplaced(t *testing.T) {
	h, remote := far(t, "a", nil)
	require.Equal(t, ports.Stored, h.node.Put(t.Context(), "ns", "k", ports.HostRegionOf([]byte("old and longer"))).Status)
	size := NodeSpec{MediumBytes: 1 << 20, PageBytes: 4 << 10, GetArena: 1 << 20, PutArena: 1 << 20}
	c, err := OpenNodes(t.Context(), ClusterSpec{Transport: TransportTCP, Nodes: []NodeSpec{size, size}, Remotes: []Remote{remote}})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.Equal(t, ports.Stored, c.Nodes[1].Pool.Put(t.Context(), "ns", "k", ports.HostRegionOf([]byte("new"))).Status)
	into := make([]byte, 3)
	require.Equal(t, ports.Hit, h.node.Get(t.Context(), "ns", "k", ports.HostRegionOf(into)).Status)
	require.Equal(t, "new", string(into))
}
