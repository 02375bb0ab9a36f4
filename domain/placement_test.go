package domain

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every node and every release orders peers alike: these numbers never change.
func TestRendezvousWeightGolden(t *testing.T) {
	for _, c := range []struct {
		name, peer string
		want       uint64
	}{
		{"", "", 0xb9034ad37056f5fb},
		{"k", "node-a", 0xafa109c87348df80},
		{"k", "node-b", 0xbc4ecb0117dab291},
		{"ab", "c", 0xc87d91e7dc16f99d},
		{"a", "bc", 0xdf52f2b01fb62dc7},
		{"model/layer/0123456789abcdef", "10.0.0.1:7400", 0xd04f4f07c2e9eb2a},
		{"\x00\xff", "\xff\x00", 0x8c15157500d00440},
	} {
		require.Equal(t, c.want, RendezvousWeight(c.name, c.peer), "weight of %q on %q", c.name, c.peer)
	}
}

func TestRendezvousSpreadsKeysEvenlyAndMovesFew(t *testing.T) {
	const keys, peers = 10_000, 5
	owner := func(key string, n int) (best int) {
		for p := 1; p < n; p++ {
			if RendezvousWeight(key, fmt.Sprint("node-", p)) > RendezvousWeight(key, fmt.Sprint("node-", best)) {
				best = p
			}
		}
		return best
	}
	var owned [peers]int
	for k := range keys {
		key := fmt.Sprint("key-", k)
		p := owner(key, peers)
		owned[p]++
		if p != peers-1 {
			require.Equal(t, p, owner(key, peers-1), "a key moved though its node stayed")
		}
	}
	for p, n := range owned {
		require.InDelta(t, keys/peers, n, keys/peers/10, "keys of node %d", p)
	}
}
