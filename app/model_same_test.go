package app_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// variant is a world over which the same script has to say the same.
type variant struct {
	page    uint64 // 0: the longest object
	mode    domain.LocalityMode
	scatter bool
	noPull  bool
	buffers int
}

func (v variant) GoString() string {
	return fmt.Sprintf("\n\t\tpage %d mode %d scatter %v no pull %v buffers %d", v.page, v.mode, v.scatter, v.noPull, v.buffers)
}

var drawVariant = rapid.Custom(func(t *rapid.T) variant {
	return variant{
		page:    rapid.SampledFrom([]uint64{0, 64 * kib, 4 * kib, 97}).Draw(t, "page"),
		mode:    rapid.SampledFrom([]domain.LocalityMode{domain.LocalityFill, domain.LocalityPullOnly, domain.LocalityOff}).Draw(t, "mode"),
		scatter: rapid.Bool().Draw(t, "scatter"), noPull: rapid.Bool().Draw(t, "no pull"), buffers: rapid.IntRange(1, 2).Draw(t, "buffers"),
	}
})

// wireDue is what the links have to have carried, by a plain account of what was asked of whom.
type wireDue struct {
	asked   uint64 // bytes of every read by a node that has not put the object itself
	partial uint64 // the same, of first reads that do not tile
	union   uint64 // each byte of them once per node
	objects uint64 // each object of them once per node
	touched map[[2]string]*domain.Extents
}

// read books one read of a node.
func (d *wireDue) read(node, key string, size uint64, runs []domain.Run) {
	id := [2]string{node, key}
	held := d.touched[id]
	if held == nil {
		held = &domain.Extents{}
		d.touched[id] = held
		d.objects += size
	}
	var all domain.Extents
	before := held.Bytes()
	for _, r := range runs {
		if r.Len == domain.Whole {
			r.Len = size
		}
		all.Add(r)
		held.Add(r)
	}
	d.asked += all.Bytes()
	d.union += held.Bytes() - before
	if before == 0 && !all.Complete(size) {
		d.partial += all.Bytes()
	}
}

// play runs a script, each step until all is at rest, and tells what every read said. Space is ample and nothing fails, so it is
// known what: each key has one put at a time, and is found until it is removed.
func play(t *rapid.T, v variant, layers map[string][]uint64, script []command) (said []string) {
	var longest uint64
	for _, lens := range layers {
		longest = max(longest, lens[0]+lens[1]+lens[2]+lens[3])
	}
	page := orElse(v.page, longest)
	cfg := shortTimes()
	cfg.NoRangedLocalityPrefetch, cfg.FillingShare = v.noPull, 1
	perObject := (longest + page - 1) / page
	w := newWorld(t, v.scatter)
	m := newModel(w, cfg, 3, place{page: page, pages: 2 * modelKeys * perObject, buffers: v.buffers, get: 256 * kib, put: 16 * kib}, []domain.LocalityMode{v.mode})
	m.layers = layers
	owner := map[string]*node{}
	due := wireDue{touched: map[[2]string]*domain.Extents{}}
	for _, c := range script {
		n, key := m.nodes[c.node], modelKey(c.keys[0])
		if c.op == opPut && owner[key] != nil {
			c.op = opGetWhole
		}
		c.after, c.limit, c.session, c.big, c.keys = 0, 0, 1, false, c.keys[:1]
		m.run(c)
		m.quiesce()
		switch c.op {
		case opPut:
			last := m.ended[len(m.ended)-1]
			require.Equal(t, ports.Stored, last.results[0].Status, "%s: %v", last.what, last.results[0].Err)
			owner[key] = m.nodes[c.to]
		case opRemove:
			owner[key] = nil
			for id := range due.touched {
				if id[1] == key {
					delete(due.touched, id)
				}
			}
		default:
			last := m.ended[len(m.ended)-1]
			for _, r := range last.reads {
				said = append(said, fmt.Sprintf("%s: %v of put %d, %d bytes", last.what, r.out[0].Status, r.check()[0], r.out[0].Size))
				if owner[key] == nil {
					require.Equal(t, ports.NotFound, r.out[0].Status, "%s of %s: %v", last.what, key, r.out[0].Err)
					continue
				}
				require.Equal(t, ports.Hit, r.out[0].Status, "%s of %s: %v", last.what, key, r.out[0].Err)
				if owner[key] != n {
					due.read(string(n.id), key, m.size(key), r.wants[0].runs)
				}
			}
		}
	}
	m.finish()
	requireWire(t, v, m, due)
	return said
}

// requireWire: what went over the wire is what the account says, to the byte.
func requireWire(t *rapid.T, v variant, m *model, due wireDue) {
	var get, pull, duplicate, local uint64
	for _, n := range m.nodes {
		s := n.Stats()
		get, pull, duplicate = get+s.Wire[ports.PurposeGet], pull+s.Wire[ports.PurposePull], duplicate+s.DuplicateBytes
		for _, b := range s.InstalledBytes {
			local += b
		}
	}
	require.Zero(t, duplicate, "duplicate bytes")
	switch {
	case v.mode == domain.LocalityOff:
		require.Equal(t, due.asked, get, "without locality the wire carries what was asked for")
		require.Zero(t, pull+local, "without locality nothing becomes local")
	case v.mode == domain.LocalityFill && v.noPull:
		require.Equal(t, due.union, get, "each byte that was asked for goes once")
		require.Zero(t, pull)
	case v.mode == domain.LocalityFill:
		require.Equal(t, due.objects, get+pull, "each byte of each object goes once")
		require.Equal(t, due.objects, local, "and all of them are local")
	case !v.noPull:
		require.GreaterOrEqual(t, get+pull, due.objects+due.partial, "a partial read, and the object behind it")
		require.LessOrEqual(t, get+pull, due.objects+due.asked)
		require.Equal(t, due.objects, local)
	}
}

// TestTheSameScriptSaysTheSame runs a script over page sizes, locality modes, scattered and contiguous media, with and without the
// pull. Every read says the same in all of them, and each world carries over its links what its mode has to, to the byte.
func TestTheSameScriptSaysTheSame(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		layers := map[string][]uint64{}
		for i := range modelKeys {
			unit := rapid.SampledFrom([]uint64{1, 1, 40, 300}).Draw(r, "unit")
			layers[modelKey(i)] = []uint64{}
			for range 4 {
				layers[modelKey(i)] = append(layers[modelKey(i)], 8+unit*rapid.Uint64Range(0, 60).Draw(r, "layer"))
			}
		}
		script := rapid.SliceOfN(commandOf([]op{opPut, opPut, opGet, opGet, opGet, opGetWhole, opWalk, opRemove}), 5, 30).Draw(r, "script")
		variants := rapid.SliceOfN(drawVariant, 2, 3).Draw(r, "variants")
		var first []string
		for i, v := range variants {
			rapid.SyncTest(r, func(r *rapid.T) {
				said := play(r, v, layers, script)
				if i == 0 {
					first = said
				}
				require.Equal(r, first, said, "%#v and %#v", variants[0], v)
			})
		}
	})
}
