package rdma

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// grant is one writer's right to write some pages. Guarded by Transport.mu.
type grant struct {
	id      ports.GrantID
	writer  ports.Peer
	token   ports.GrantToken
	runs    []run // sorted; in no run is a byte of another chunk
	revoked bool
	by      map[uint64]struct{} // links over which it was opened: what a revoke fences
}

func newGrant(id ports.GrantID, writer ports.Peer, runs []run) *grant {
	g := &grant{id: id, writer: writer, runs: runs, by: make(map[uint64]struct{})}
	binary.LittleEndian.PutUint64(g.token[:], uint64(id))
	_, _ = rand.Read(g.token[8:40]) // never fails: crypto/rand ends the program instead
	return g
}

// grantIn reads the id that a token names; the token may be anything.
func grantIn(token *ports.GrantToken) ports.GrantID {
	return ports.GrantID(binary.LittleEndian.Uint64(token[:]))
}

// isFor reports whether this is the live grant that the bearer's token names.
func (g *grant) isFor(token *ports.GrantToken, bearer ports.Peer) bool {
	return subtle.ConstantTimeCompare(g.token[:], token[:]) == 1 && g.writer == bearer && !g.revoked
}

// runsOf joins pages that follow each other and cuts where another key begins. keyAt is called with offsets of those pages.
// Precondition: the pages are within their buffers.
func runsOf(pageSize uint64, pages []domain.PageRef, keyAt func(buffer uint32, off uint64) (key uint32, until uint64)) []run {
	sorted := slices.Clone(pages)
	slices.SortFunc(sorted, func(a, b domain.PageRef) int {
		return cmp.Or(cmp.Compare(a.Buffer, b.Buffer), cmp.Compare(a.Page, b.Page))
	})
	var out []run
	for _, p := range slices.Compact(sorted) {
		off, end := uint64(p.Page)*pageSize, (uint64(p.Page)+1)*pageSize
		for off < end {
			key, until := keyAt(p.Buffer, off)
			n := min(until, end) - off
			if k := len(out) - 1; k >= 0 && out[k].buffer == p.Buffer && out[k].key == key && out[k].off+out[k].len == off {
				out[k].len += n
			} else {
				out = append(out, run{buffer: p.Buffer, key: key, off: off, len: n})
			}
			off += n
		}
	}
	return out
}

// keyIn finds the key for a byte, and the offset at which the run of it ends; false where nothing is granted.
func keyIn(runs []run, buffer uint32, off uint64) (key uint32, until uint64, ok bool) {
	i, found := slices.BinarySearchFunc(runs, run{buffer: buffer, off: off}, func(a, b run) int {
		return cmp.Or(cmp.Compare(a.buffer, b.buffer), cmp.Compare(a.off, b.off))
	})
	if !found {
		i--
	}
	if i < 0 || runs[i].buffer != buffer || off-runs[i].off >= runs[i].len {
		return 0, 0, false
	}
	return runs[i].key, runs[i].off + runs[i].len, true
}

// covers reports whether every byte is granted.
func covers(runs []run, buffer uint32, off, n uint64) bool {
	for end := off + n; off < end; {
		_, until, ok := keyIn(runs, buffer, off)
		if !ok {
			return false
		}
		off = until
	}
	return true
}
