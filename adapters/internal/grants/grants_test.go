package grants_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/adapters/internal/grants"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

var (
	writer = ports.Peer{ID: "writer", Incarnation: 7}
	page3  = []domain.PageRef{{Buffer: 1, Page: 3}}
)

func TestAGrantIsForItsWriterAndTheWholeToken(t *testing.T) {
	var b grants.Book
	_, token := b.Add(writer, 64, page3)
	require.NotNil(t, b.Find(&token, writer))
	require.Nil(t, b.Find(&token, ports.Peer{ID: "another", Incarnation: 7}))
	require.Nil(t, b.Find(&token, ports.Peer{ID: "writer", Incarnation: 8}), "another start of the writer")
	for i := range 40 {
		forged := token
		forged[i] ^= 1
		require.Nil(t, b.Find(&forged, writer), "byte %d", i)
	}
	_, second := b.Add(writer, 64, page3)
	require.NotEqual(t, token, second)
}

func TestWhatIsRevokedIsNeitherFoundNorStands(t *testing.T) {
	ends := map[string]func(*grants.Book, ports.GrantID){
		"by its id":     func(b *grants.Book, id ports.GrantID) { require.NoError(t, b.Revoke(id)) },
		"by its writer": func(b *grants.Book, _ ports.GrantID) { b.RevokeOf(writer) },
		"all":           func(b *grants.Book, _ ports.GrantID) { b.RevokeAll() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			var b grants.Book
			id, token := b.Add(writer, 64, page3)
			g := b.Find(&token, writer) // a write that is under way has it in hand
			end(&b, id)
			require.Nil(t, b.Find(&token, writer))
			g.Lock()
			require.False(t, g.Stands())
			g.Unlock()
			require.NoError(t, b.Revoke(id), "a second time")
		})
	}
}

// TestARevokeWaitsForThePieceThatIsBeingApplied meets the revocation at many moments: some of them would show one that does not wait.
func TestARevokeWaitsForThePieceThatIsBeingApplied(t *testing.T) {
	var b grants.Book
	for range 500 {
		id, token := b.Add(writer, 64, page3)
		g := b.Find(&token, writer)
		g.Lock()
		done := make(chan error)
		go func() { done <- b.Revoke(id) }()
		for range 10 {
			runtime.Gosched()
		}
		select {
		case <-done:
			require.Fail(t, "revoked while a piece is applied")
		default:
		}
		require.NotNil(t, b.Find(&token, writer), "it is forgotten before it is quiet")
		g.Unlock()
		require.NoError(t, <-done)
	}
}

func TestOthersKeepTheirGrants(t *testing.T) {
	var b grants.Book
	other := ports.Peer{ID: "other", Incarnation: 1}
	id, _ := b.Add(writer, 64, page3)
	_, token := b.Add(other, 64, page3)
	require.NoError(t, b.Revoke(id))
	b.RevokeOf(ports.Peer{ID: "other", Incarnation: 2})
	require.NotNil(t, b.Find(&token, other))
}

func TestAnIDThatWasNeverGivenIsNotFound(t *testing.T) {
	var b grants.Book
	require.ErrorIs(t, b.Revoke(0), ports.ErrNotFound)
	require.ErrorIs(t, b.Revoke(1), ports.ErrNotFound)
	require.ErrorContains(t, b.Revoke(9), "grant 9, the last one is 0")
}

func TestPagesAreWithinWhatIsExposed(t *testing.T) {
	exposed := map[uint32]ports.Region{1: ports.HostRegionOf(make([]byte, 4*64+63))}
	require.NoError(t, grants.Check(exposed, 64, page3))
	require.ErrorIs(t, grants.Check(exposed, 0, page3), domain.ErrInvalid)
	require.ErrorIs(t, grants.Check(exposed, 64, []domain.PageRef{{Buffer: 1, Page: 4}}), ports.ErrBounds, "a page that is cut off")
	require.ErrorIs(t, grants.Check(exposed, 64, []domain.PageRef{{Buffer: 2, Page: 0}}), ports.ErrBounds)
}

// TestCoversAsAByteWiseLookDoes holds Covers to a look at every byte.
func TestCoversAsAByteWiseLookDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const pageSize = 3
		granted := make(map[domain.PageRef]bool)
		var pages []domain.PageRef
		for range rapid.IntRange(0, 6).Draw(t, "pages") {
			p := domain.PageRef{Buffer: uint32(rapid.IntRange(0, 1).Draw(t, "buffer")), Page: uint32(rapid.IntRange(0, 4).Draw(t, "page"))}
			granted[p] = true
			pages = append(pages, p)
		}
		var b grants.Book
		_, token := b.Add(writer, pageSize, pages)
		buffer := uint32(rapid.IntRange(0, 1).Draw(t, "of buffer"))
		off, n := rapid.Uint64Range(0, 16).Draw(t, "off"), rapid.Uint64Range(0, 16).Draw(t, "n")
		want := true
		for at := off; at < off+n; at++ {
			want = want && granted[domain.PageRef{Buffer: buffer, Page: uint32(at / pageSize)}]
		}
		require.Equal(t, want, b.Find(&token, writer).Covers(buffer, off, n))
	})
}

func TestPagesPastTheLastNumberAreNotCovered(t *testing.T) {
	var b grants.Book
	_, token := b.Add(writer, 1, []domain.PageRef{{Buffer: 1, Page: 0}})
	require.False(t, b.Find(&token, writer).Covers(1, 1<<32, 1), "its number cut to 32 bits is that of a granted page")
}
