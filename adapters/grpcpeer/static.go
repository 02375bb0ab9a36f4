package grpcpeer

import (
	"cmp"
	"context"
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Static is the directory of a list that does not change: every peer may hold every key. It is constant, and never incomplete.
type Static struct{ others []ports.PeerID }

var _ ports.Directory = (*Static)(nil)

// NewStatic makes the directory of the node self in a pool of these peers; self may be among them.
func NewStatic(peers []ports.PeerID, self ports.PeerID) *Static {
	others := slices.DeleteFunc(slices.Clone(peers), func(id ports.PeerID) bool { return id == self })
	slices.Sort(others)
	return &Static{others: slices.Compact(others)}
}

// Members is every other node, by id.
func (s *Static) Members(context.Context) ([]ports.PeerID, error) { return slices.Clone(s.others), nil }

// Holders names every other node for every key, in rendezvous order. It allocates only to grow out.
func (s *Static) Holders(_ context.Context, _ string, names []string, out *ports.Holders) error {
	out.Reset()
	for _, name := range names {
		first := len(out.Peers)
		out.Peers = append(out.Peers, s.others...)
		if len(s.others) > 1 {
			slices.SortFunc(out.Peers[first:], func(a, b ports.PeerID) int {
				wa, wb := domain.RendezvousWeight(name, string(a)), domain.RendezvousWeight(name, string(b))
				return cmp.Or(cmp.Compare(wb, wa), cmp.Compare(a, b))
			})
		}
		out.End = append(out.End, uint32(len(out.Peers)))
	}
	out.Versions = slices.Grow(out.Versions, len(out.Peers))[:len(out.Peers)]
	clear(out.Versions)
	out.Complete = true
	return nil
}

// Announce does nothing: the list knows already.
func (*Static) Announce(string, string, domain.Version) {}

// Withdraw does nothing.
func (*Static) Withdraw(string, string, domain.Version) {}

// Close does nothing.
func (*Static) Close() error { return nil }
