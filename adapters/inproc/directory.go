package inproc

import (
	"cmp"
	"context"
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// directory is the static list: every other endpoint may hold every key, those that do not answer included.
type directory struct{ ep *Endpoint }

var _ ports.Directory = directory{}

// Members is every other endpoint, by id.
func (d directory) Members(context.Context) ([]ports.PeerID, error) {
	n := d.ep.net
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := make([]ports.PeerID, 0, len(n.mu.endpoints))
	for id := range n.mu.endpoints {
		if id != d.ep.id {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Holders names every other endpoint for every key, in rendezvous order.
func (d directory) Holders(ctx context.Context, _ string, names []string, out *ports.Holders) error {
	out.Reset()
	members, err := d.Members(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		first := len(out.Peers)
		out.Peers = append(out.Peers, members...)
		if len(members) > 1 {
			slices.SortFunc(out.Peers[first:], func(a, b ports.PeerID) int {
				wa, wb := domain.RendezvousWeight(name, string(a)), domain.RendezvousWeight(name, string(b))
				return cmp.Or(cmp.Compare(wb, wa), cmp.Compare(a, b))
			})
		}
		out.End = append(out.End, uint32(len(out.Peers)))
	}
	out.Versions = append(out.Versions, make([]domain.Version, len(out.Peers))...)
	out.Complete = true
	return nil
}

// Announce does nothing: a static list knows already.
func (directory) Announce(string, string, domain.Version) {}

// Withdraw does nothing.
func (directory) Withdraw(string, string, domain.Version) {}

// Close does nothing; the network is closed by who made it.
func (directory) Close() error { return nil }
