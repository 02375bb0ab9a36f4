package tcp

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// grant is one writer's right to write some pages. Every piece of a write is applied under mu, by a call that does not wait, and
// revoked is set under it: once revoke returned, no byte lands. Writes under other grants run beside. Rejected: to let pieces of
// one grant run at once, under a lock that is shared; two lanes may then write one byte at the same time.
type grant struct {
	id       ports.GrantID
	writer   ports.Peer
	token    ports.GrantToken
	pageSize uint64
	pages    []uint64 // buffer<<32 | page, sorted

	mu struct {
		sync.Mutex
		revoked bool
	}
}

func newGrant(id ports.GrantID, writer ports.Peer, pageSize uint64, pages []domain.PageRef) *grant {
	g := &grant{id: id, writer: writer, pageSize: pageSize, pages: make([]uint64, len(pages))}
	for i, p := range pages {
		g.pages[i] = pageKey(p.Buffer, p.Page)
	}
	slices.Sort(g.pages)
	binary.LittleEndian.PutUint64(g.token[:], uint64(id))
	_, _ = rand.Read(g.token[8:40]) // never fails: crypto/rand ends the program instead
	return g
}

func pageKey(buffer, page uint32) uint64 { return uint64(buffer)<<32 | uint64(page) }

// grantIn reads the id that a token names; the token may be anything.
func grantIn(token []byte) ports.GrantID { return ports.GrantID(binary.LittleEndian.Uint64(token)) }

// isFor reports whether this is the grant that the bearer's token names.
func (g *grant) isFor(token []byte, bearer ports.Peer) bool {
	return subtle.ConstantTimeCompare(g.token[:], token) == 1 && g.writer == bearer
}

// admits reports whether every byte of a segment lies on a granted page. Precondition: the segment is within its buffer.
func (g *grant) admits(s segment) bool {
	for n, last := s.off/g.pageSize, (s.off+uint64(s.len)-1)/g.pageSize; n <= last; n++ {
		if n > 1<<32-1 {
			return false
		}
		if _, ok := slices.BinarySearch(g.pages, pageKey(s.buffer, uint32(n))); !ok {
			return false
		}
	}
	return true
}

// revoke returns when no write under this grant is being applied, and none will be. It waits for calls that do not wait.
func (g *grant) revoke() {
	g.mu.Lock()
	g.mu.revoked = true
	g.mu.Unlock()
}
