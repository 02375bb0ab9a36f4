// Package grants is the book of who may write which pages, for transports whose owner applies writes itself, piece by piece.
package grants

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// Book holds the grants of one start. The zero Book is empty. Safe for parallel use.
type Book struct {
	mu   sync.Mutex
	last ports.GrantID
	live map[ports.GrantID]*Grant
}

// Grant is one writer's right to write some pages. Every piece of a write is applied between Lock and Unlock, by a call that waits for no
// peer, and only if Stands: once it is revoked, no byte lands. Writes under other grants run beside. Rejected: to let pieces of one grant
// run at once, under a lock that is shared; two of them may then write one byte at the same time.
type Grant struct {
	sync.Mutex
	revoked bool

	id       ports.GrantID
	writer   ports.Peer
	token    ports.GrantToken
	pageSize uint64
	pages    []uint64 // buffer<<32 | page, sorted
}

// Check says what is wrong with pages of exposed memory that are to be granted: an error wraps domain.ErrInvalid or ports.ErrBounds.
func Check(exposed map[uint32]ports.Region, pageSize uint64, pages []domain.PageRef) error {
	if pageSize == 0 {
		return fmt.Errorf("page size 0, want at least 1: %w", domain.ErrInvalid)
	}
	for _, p := range pages {
		r, ok := exposed[p.Buffer]
		if !ok {
			return fmt.Errorf("page of buffer %d, which is not exposed: %w", p.Buffer, ports.ErrBounds)
		}
		if n := r.Len() / pageSize; uint64(p.Page) >= n {
			return fmt.Errorf("page %d of buffer %d, which has %d: %w", p.Page, p.Buffer, n, ports.ErrBounds)
		}
	}
	return nil
}

// Add gives a start of a peer the right to write these pages. Precondition: Check passes them.
func (b *Book) Add(writer ports.Peer, pageSize uint64, pages []domain.PageRef) (ports.GrantID, ports.GrantToken) {
	g := &Grant{writer: writer, pageSize: pageSize, pages: make([]uint64, len(pages))}
	for i, p := range pages {
		g.pages[i] = pageKey(p.Buffer, p.Page)
	}
	slices.Sort(g.pages)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	g.id = b.last
	binary.LittleEndian.PutUint64(g.token[:], uint64(g.id))
	_, _ = rand.Read(g.token[8:40]) // never fails: crypto/rand ends the program instead
	if b.live == nil {
		b.live = make(map[ports.GrantID]*Grant)
	}
	b.live[g.id] = g
	return g.id, g.token
}

// Find returns what a token gives its bearer, or nil. The token may be anything.
func (b *Book) Find(token *ports.GrantToken, bearer ports.Peer) *Grant {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.live[ports.GrantID(binary.LittleEndian.Uint64(token[:]))]
	if g == nil || g.writer != bearer || subtle.ConstantTimeCompare(g.token[:], token[:]) != 1 {
		return nil
	}
	return g
}

// Revoke ends a grant, twice if it is told to. It waits for the piece that is being applied, and for no peer. An id that was never given
// is ports.ErrNotFound.
func (b *Book) Revoke(id ports.GrantID) error {
	b.mu.Lock()
	g, last := b.live[id], b.last
	b.mu.Unlock()
	if id == 0 || id > last {
		return fmt.Errorf("grant %d, the last one is %d: %w", id, last, ports.ErrNotFound)
	}
	if g != nil {
		b.end(g)
	}
	return nil
}

// RevokeOf ends the grants of that start of a peer.
func (b *Book) RevokeOf(writer ports.Peer) {
	b.end(b.those(func(g *Grant) bool { return g.writer == writer })...)
}

// RevokeAll ends all grants.
func (b *Book) RevokeAll() { b.end(b.those(func(*Grant) bool { return true })...) }

func (b *Book) those(want func(*Grant) bool) []*Grant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(b.live)), func(g *Grant) bool { return !want(g) })
}

// end forgets grants only after they are revoked: Revoke takes one that is not in the book any more for quiet.
func (b *Book) end(grants ...*Grant) {
	for _, g := range grants {
		g.Lock()
		g.revoked = true
		g.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range grants {
		delete(b.live, g.id)
	}
}

// Stands reports whether a piece may be applied now. Called between Lock and Unlock.
func (g *Grant) Stands() bool { return !g.revoked }

// Covers reports whether every byte lies on a granted page. Precondition: off + n does not overflow.
func (g *Grant) Covers(buffer uint32, off, n uint64) bool {
	if n == 0 {
		return true
	}
	for p, last := off/g.pageSize, (off+n-1)/g.pageSize; p <= last; p++ {
		if p > 1<<32-1 {
			return false
		}
		if _, ok := slices.BinarySearch(g.pages, pageKey(buffer, uint32(p))); !ok {
			return false
		}
	}
	return true
}

func pageKey(buffer, page uint32) uint64 { return uint64(buffer)<<32 | uint64(page) }
