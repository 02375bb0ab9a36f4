package domain

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSizeClassesWasteAtMostASixteenth(t *testing.T) {
	lastClass, lastSize := -1, 0
	for n := 1; n < 1<<16; n++ {
		class, size := sizeClass(n)
		require.GreaterOrEqual(t, size, n)
		require.LessOrEqual(t, 16*(size-n), n, "size %d in blocks of %d", n, size)
		if class == lastClass {
			require.Equal(t, lastSize, size, "one class has one size")
			continue
		}
		require.Equal(t, lastClass+1, class, "classes are numbered without gaps")
		require.Greater(t, size, lastSize)
		lastClass, lastSize = class, size
	}
}

func TestBlocksKeepTheirContentAndTheirPlace(t *testing.T) {
	type kept struct {
		id   uint32
		n    int
		at   []int
		want int
	}
	rapid.Check(t, func(t *rapid.T) {
		b := newBlocks[int](rapid.IntRange(1, 8).Draw(t, "granule"), 64)
		var all []kept
		stamp := 0
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				k := kept{n: rapid.IntRange(1, 100).Draw(t, "n")}
				k.id = b.alloc(k.n)
				k.at = b.block(k.id, k.n)
				require.Len(t, k.at, k.n)
				require.Equal(t, k.n, cap(k.at), "an append must not reach the next block")
				stamp++
				k.want = stamp
				for i := range k.at {
					k.at[i] = stamp
				}
				all = append(all, k)
			},
			"release": func(t *rapid.T) {
				if len(all) == 0 {
					return
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "block")
				b.release(all[i].id, all[i].n)
				all = slices.Delete(all, i, i+1)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(all), b.live())
				for _, k := range all {
					require.Same(t, &k.at[0], &b.block(k.id, k.n)[0], "blocks are never moved")
					for _, v := range k.at {
						require.Equal(t, k.want, v)
					}
				}
			},
		})
	})
}

func TestIndexAgreesWithAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newKeyIndex()
		hashes := map[SlotID]uint32{}
		next := SlotID(1)
		position := func(slot SlotID) int {
			for i := x.home(hashes[slot]); ; i = x.after(i) {
				require.NotZero(t, x.entries[i].slot, "slot %d is not found", slot)
				if x.entries[i].slot == slot {
					return i
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				// Few homes, some at the end of the entries: long probes that wrap round.
				hash := rapid.SampledFrom([]uint32{0, 1, 2, 14, 15, 31, 1<<32 - 2, 1<<32 - 1}).Draw(t, "hash")
				x.insert(hash, next)
				hashes[next] = hash
				next++
			},
			"remove": func(t *rapid.T) {
				slot := SlotID(rapid.Uint32Range(1, uint32(next)).Draw(t, "slot"))
				if _, ok := hashes[slot]; ok {
					x.removeAt(position(slot))
					delete(hashes, slot)
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(hashes), x.used)
				require.LessOrEqual(t, 4*x.used, 3*len(x.entries))
				for slot := range hashes {
					position(slot)
				}
			},
		})
	})
}

func TestShapesOfOneHashAreToldApart(t *testing.T) {
	for _, order := range permutations(3) {
		x := newShapeTable()
		shapes := [][]uint64{{1}, {2}, {1, 2}}
		var ids []uint32
		for _, lens := range shapes {
			ids = append(ids, x.acquireAs(5, lens))
		}
		for released, n := range order {
			for i, lens := range shapes {
				if slices.Contains(order[:released], i) {
					continue
				}
				require.Equal(t, ids[i], x.acquireAs(5, lens), "order %v", order)
				require.Equal(t, lens, x.lens(ids[i]))
				x.release(ids[i])
			}
			x.release(ids[n])
		}
		require.Empty(t, x.byHash)
		require.Len(t, x.free, len(shapes), fmt.Sprint("order ", order))
	}
}
