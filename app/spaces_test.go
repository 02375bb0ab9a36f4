package app_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// stranger is a peer that is nothing but what it says to a node.
type stranger struct {
	self ports.Peer
	to   *node
}

// hello tells namespaces, as many as a node can have.
func (s stranger) hello(t *testing.T) {
	t.Helper()
	h := ports.Hello{From: s.self, Protocol: ports.ProtocolVersion}
	for i := range 4_096 {
		h.Namespaces = append(h.Namespaces, fmt.Sprintf("of %s %d", s.self.ID, i))
	}
	require.NoError(t, s.to.PeerServer().Hello(t.Context(), s.self, &h, &ports.HelloReply{}))
}

// putEverywhere reserves a key in each namespace and says how many were refused.
func (s stranger) putEverywhere(t *testing.T) (refused int) {
	t.Helper()
	req := ports.ReserveRequest{Via: s.to.ep.Transport().Kind()}
	for i := range uint32(4_096) {
		req.Keys = append(req.Keys, ports.Key{Space: i, Name: "k"})
		req.Versions, req.Sizes = append(req.Versions, domain.Version{Lo: 1}), append(req.Sizes, 1)
	}
	var out ports.ReserveReply
	before := s.to.Stats().Downgrades[ports.DowngradeNamespaces]
	require.NoError(t, s.to.PeerServer().Reserve(t.Context(), s.self, &req, &out))
	for _, status := range out.Status {
		if status == ports.ReserveRefused {
			refused++
		}
	}
	require.EqualValues(t, refused, s.to.Stats().Downgrades[ports.DowngradeNamespaces]-before, "every refusal is counted")
	require.NoError(t, s.to.PeerServer().Abort(t.Context(), s.self, req.Keys, req.Versions, true))
	return refused
}

// putIn puts a small object in a namespace, here or at a peer.
func (n *node) putIn(t *testing.T, ns string, to ports.PeerID) ports.Status {
	t.Helper()
	p := ports.PutBatch{Namespace: ns, Keys: []string{"k"}, To: to, Sizes: []uint64{1}, End: []uint32{1},
		Ranges: []domain.Range{{Len: 1}}, Regions: []ports.Memory{{Region: ports.HostRegionOf([]byte{7})}}}
	out := make([]ports.Result, 1)
	require.NoError(t, n.BatchPutRanges(t.Context(), &p, out))
	return out[0].Status
}

func TestAPeerFillsItsOwnPartOfTheNamespacesOnly(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{page: 4 * kib, pages: 8_192}, place{})
		x := stranger{ports.Peer{ID: "x", Incarnation: 1}, a}
		x.hello(t)
		var probed ports.ProbeReply
		require.NoError(t, a.PeerServer().Probe(t.Context(), x.self, []ports.Key{{Space: 4_095, Name: "k"}, {Space: 4_096, Name: "k"}}, &probed))
		require.Equal(t, []ports.KeyStatus{ports.KeyAbsent, ports.KeyRefused}, probed.Status, "what it told, and what it did not")
		require.Equal(t, 4_096-256, x.putEverywhere(t))
		x.self.Incarnation++
		x.hello(t)
		require.Equal(t, 4_096-256, x.putEverywhere(t), "another start has no other part")
		require.Equal(t, ports.Stored, b.putIn(t, "new", a.id))
		require.Equal(t, ports.Exists, a.putIn(t, "new", ""))
		for i := range 10 {
			y := stranger{ports.Peer{ID: ports.PeerID(fmt.Sprint("y", i)), Incarnation: 1}, a}
			y.hello(t)
			y.putEverywhere(t)
		}
		require.Equal(t, ports.Refused, b.putIn(t, "newer", a.id), "all peers together had their half")
		require.Equal(t, ports.Stored, b.putIn(t, "new", b.id))
		for i := range 2_048 {
			_, err := a.Size(t.Context(), fmt.Sprint("own", i), "k")
			require.ErrorIs(t, err, ports.ErrNotFound)
		}
		_, err := a.Size(t.Context(), "one more", "k")
		require.ErrorContains(t, err, "namespaces: 4097, limit 4096")
	})
}

// TestAPeerIsNotChargedWithWhatItWasTold: a node's numbers count what its peers put into it too, so it tells that on.
func TestAPeerIsNotChargedWithWhatItWasTold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{page: 4 * kib, pages: 8_192}, place{page: 4 * kib, pages: 512})
		x := stranger{ports.Peer{ID: "x", Incarnation: 1}, a}
		x.hello(t)
		x.putEverywhere(t)
		for i := range 256 {
			require.Equal(t, ports.Stored, a.putIn(t, fmt.Sprint("mine", i), b.id))
		}
		require.Equal(t, ports.Refused, a.putIn(t, "one more", b.id))
		require.Equal(t, ports.Stored, a.putIn(t, "mine0", a.id))
	})
}
