package inproc

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// grant is one writer's right to write some pages. Writes are applied under mu, chunk by chunk, and revoked is set under it:
// once revoke returned, no byte lands. Writes under other grants run beside.
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

func newGrant(id ports.GrantID, writer ports.Peer, owner domain.Incarnation, pageSize uint64, pages []domain.PageRef) *grant {
	g := &grant{id: id, writer: writer, pageSize: pageSize, pages: make([]uint64, len(pages))}
	for i, p := range pages {
		g.pages[i] = pageKey(p.Buffer, p.Page)
	}
	slices.Sort(g.pages)
	binary.LittleEndian.PutUint64(g.token[0:], uint64(id))
	binary.LittleEndian.PutUint64(g.token[8:], uint64(owner))
	_, _ = rand.Read(g.token[16:32]) // never fails: crypto/rand ends the program instead
	return g
}

func pageKey(buffer, page uint32) uint64 { return uint64(buffer)<<32 | uint64(page) }

// grantIn reads the id that a token names; the token may be anything.
func grantIn(t *ports.GrantToken) ports.GrantID {
	return ports.GrantID(binary.LittleEndian.Uint64(t[:]))
}

// admits reports whether every byte of a segment lies on a granted page. Precondition: the segment is within its buffer.
func (g *grant) admits(s *ports.Segment) bool {
	if s.Len == 0 {
		return true
	}
	for n, last := s.RemoteOff/g.pageSize, (s.RemoteOff+s.Len-1)/g.pageSize; n <= last; n++ {
		if n > 1<<32-1 {
			return false
		}
		if _, ok := slices.BinarySearch(g.pages, pageKey(s.Remote, uint32(n))); !ok {
			return false
		}
	}
	return true
}

// revoke returns when no write under this grant is being applied, and none will be.
func (g *grant) revoke() {
	g.mu.Lock()
	g.mu.revoked = true
	g.mu.Unlock()
}
