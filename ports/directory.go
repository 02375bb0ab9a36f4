package ports

import (
	"context"

	"github.com/spanpool/spanpool/domain"
)

//go:generate go tool mockgen -source=directory.go -destination=../mocks/directory.go -package=mocks

// Holders is columns: holders of key i are Peers[End[i-1]:End[i]], in the order to ask them.
type Holders struct {
	End      []uint32
	Peers    []PeerID
	Versions []domain.Version // as long as Peers; zero where the directory does not know
	Complete bool             // false: an absent key may exist elsewhere (directory down)
}

// Reset empties the columns and keeps their room.
func (h *Holders) Reset() {
	h.End, h.Peers, h.Versions, h.Complete = h.End[:0], h.Peers[:0], h.Versions[:0], false
}

// Directory says which peers may hold keys, and announces our own. It only advises: peers own the truth about their pages. A
// static list names every member for every key. Safe for parallel use.
type Directory interface {
	// Members is every other node.
	Members(ctx context.Context) ([]PeerID, error)
	// Holders fills out (truncated first). Our own node may be among the answers; the caller leaves it out.
	Holders(ctx context.Context, namespace string, names []string, out *Holders) error
	// Announce and Withdraw never block and may drop; a directory that drops counts it.
	Announce(namespace, name string, v domain.Version)
	Withdraw(namespace, name string, v domain.Version)
	Close() error
}
