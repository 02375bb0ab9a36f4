package porttest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// DirectoryHarness is the directories of some nodes of one pool.
type DirectoryHarness struct {
	Nodes map[ports.PeerID]ports.Directory // two or more
	// Records says that holders are those that announced a key; else every other node is a holder of every key.
	Records bool
}

// RunDirectory is the contract of ports.Directory.
func RunDirectory(t *testing.T, open func(t testing.TB) *DirectoryHarness) {
	for name, claim := range map[string]func(t *testing.T, h *DirectoryHarness){
		"MembersAreTheOtherNodes":      membersAreTheOtherNodes,
		"HoldersFillsColumns":          holdersFillsColumns,
		"AStaticListNamesEveryMember":  aStaticListNamesEveryMember,
		"AnnouncedKeysAreFound":        announcedKeysAreFound,
		"AnnouncingNeverBlocks":        announcingNeverBlocks,
		"DirectoriesAreUsedInParallel": directoriesAreUsedInParallel,
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t)
			claim(t, h)
			for _, d := range h.Nodes {
				require.NoError(t, d.Close())
			}
		})
	}
}

// others are the ids of all nodes but one, sorted.
func (h *DirectoryHarness) others(self ports.PeerID) []ports.PeerID {
	var ids []ports.PeerID
	for id := range h.Nodes {
		if id != self {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func directoryNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("key %d", i)
	}
	return names
}

func membersAreTheOtherNodes(t *testing.T, h *DirectoryHarness) {
	for id, d := range h.Nodes {
		got, err := d.Members(t.Context())
		require.NoError(t, err)
		require.ElementsMatch(t, h.others(id), got, "of %s", id)
	}
}

// holdersFillsColumns reuses columns that are full of something else.
func holdersFillsColumns(t *testing.T, h *DirectoryHarness) {
	for id, d := range h.Nodes {
		out := &ports.Holders{End: make([]uint32, 50), Peers: make([]ports.PeerID, 50), Versions: make([]domain.Version, 50)}
		for _, names := range [][]string{directoryNames(20), directoryNames(3), nil} {
			require.NoError(t, d.Holders(t.Context(), "ns", names, out))
			require.Len(t, out.End, len(names))
			require.True(t, slices.IsSorted(out.End), "%v", out.End)
			require.Len(t, out.Versions, len(out.Peers))
			if len(names) == 0 {
				require.Empty(t, out.Peers)
			} else {
				require.EqualValues(t, len(out.Peers), out.End[len(names)-1])
			}
			for _, p := range out.Peers {
				require.Contains(t, h.Nodes, p)
				require.True(t, h.Records || p != id, "%s names itself", id)
			}
			require.True(t, out.Complete)
		}
	}
}

// aStaticListNamesEveryMember also asks that all nodes agree on the order, and that the first place goes round.
func aStaticListNamesEveryMember(t *testing.T, h *DirectoryHarness) {
	if h.Records {
		t.Skip("the directory records who holds what")
	}
	names := directoryNames(200)
	for id, d := range h.Nodes {
		var out ports.Holders
		require.NoError(t, d.Holders(t.Context(), "ns", names, &out))
		first := make(map[ports.PeerID]int)
		begin := uint32(0)
		for i, name := range names {
			row := out.Peers[begin:out.End[i]]
			begin = out.End[i]
			require.Equal(t, rendezvous(name, h.others(id)), row, "holders of %q as seen by %s", name, id)
			first[row[0]]++
		}
		for _, other := range h.others(id) {
			require.NotZero(t, first[other], "%s is never the first holder that %s asks", other, id)
		}
	}
}

func rendezvous(name string, ids []ports.PeerID) []ports.PeerID {
	slices.SortStableFunc(ids, func(a, b ports.PeerID) int {
		wa, wb := domain.RendezvousWeight(name, string(a)), domain.RendezvousWeight(name, string(b))
		switch {
		case wa > wb:
			return -1
		case wa < wb:
			return 1
		}
		return 0
	})
	return ids
}

func announcedKeysAreFound(t *testing.T, h *DirectoryHarness) {
	if !h.Records {
		t.Skip("a static list records nothing")
	}
	ids := h.others("")
	holder, asker := ids[0], ids[1]
	v := domain.Version{Hi: 1, Lo: 2}
	found := func(namespace, name string) bool {
		var out ports.Holders
		require.NoError(t, h.Nodes[asker].Holders(t.Context(), namespace, []string{"of nobody", name}, &out))
		require.Zero(t, out.End[0])
		for i, p := range out.Peers {
			require.Equal(t, holder, p)
			require.Contains(t, []domain.Version{v, {}}, out.Versions[i])
		}
		return len(out.Peers) == 1
	}
	h.Nodes[holder].Announce("ns", "mine", v)
	require.Eventually(t, func() bool { return found("ns", "mine") }, patience, time.Millisecond)
	require.False(t, found("other ns", "mine"), "namespaces are apart")
	h.Nodes[holder].Withdraw("ns", "mine", v)
	require.Eventually(t, func() bool { return !found("ns", "mine") }, patience, time.Millisecond)
}

func announcingNeverBlocks(t *testing.T, h *DirectoryHarness) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, d := range h.Nodes {
		begin := time.Now()
		for i := range 10_000 {
			d.Announce("ns", fmt.Sprint(i), domain.Version{Lo: 1})
			d.Withdraw("ns", fmt.Sprint(i), domain.Version{Lo: 1})
		}
		require.Less(t, time.Since(begin), patience)
		var out ports.Holders
		_ = d.Holders(ended, "ns", directoryNames(1), &out) // an error or an answer, but no wait
		require.Less(t, time.Since(begin), patience)
	}
}

func directoriesAreUsedInParallel(t *testing.T, h *DirectoryHarness) {
	var wg sync.WaitGroup
	names := directoryNames(10)
	for id, d := range h.Nodes {
		for range 4 {
			wg.Go(func() {
				var out ports.Holders
				for range 50 {
					if err := d.Holders(t.Context(), "ns", names, &out); err != nil || len(out.End) != len(names) {
						t.Errorf("%s: %d rows, %v", id, len(out.End), err)
					}
					d.Announce("ns", names[0], domain.Version{Lo: 3})
				}
			})
		}
	}
	wg.Wait()
}
