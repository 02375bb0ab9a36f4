package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	pattern "github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// objectSize is that of most objects: on pages of 4 KiB and 64 KiB the last page is short.
const objectSize = 200_000

// noPull is a reader that makes nothing local but what its own reads complete.
var noPull = app.Config{NoRangedLocalityPrefetch: true, FillingShare: 1}

// noPool is a reader that has no use for its medium: everything goes through the arena.
var noPool = app.Config{Locality: domain.LocalityOff}

// overRoutes runs a claim on every route and page size. The objects are to be put on a and read on b, which are one node where the
// route is the local one.
func overRoutes(t *testing.T, size uint64, claim func(t *testing.T, w *world, a, b *node, from ports.Source)) {
	t.Helper()
	for _, route := range []struct {
		from   ports.Source
		reader app.Config
	}{{ports.FromLocal, app.Config{}}, {ports.FromSlot, noPull}, {ports.FromArena, noPool}} {
		t.Run(route.from.String(), func(t *testing.T) {
			overGeometries(t, size, func(t *testing.T, w *world, page, pages uint64) {
				a := w.node("a", place{page: page, pages: 12 * pages})
				b := a
				if route.from != ports.FromLocal {
					b = w.node("b", place{page: page, pages: 12 * pages, Config: route.reader})
				}
				claim(t, w, a, b, route.from)
			})
		})
	}
}

func TestRangesThatCrossPagesAndEndOnTheLastByteAreRight(t *testing.T) {
	overRoutes(t, objectSize, func(t *testing.T, w *world, a, b *node, from ports.Source) {
		page := a.place.page
		runs := []domain.Run{{Off: 0, Len: 1}, {Off: objectSize - 1, Len: 1}, {Off: objectSize - 5_000, Len: 5_000}, {Off: 0, Len: objectSize}, {Off: 777, Len: 3*4096 + 5}}
		if page < objectSize {
			runs = append(runs, domain.Run{Off: page - 1, Len: 2}, domain.Run{Off: page, Len: 1}, domain.Run{Off: page - 10, Len: min(page, objectSize-page) + 10})
		}
		for i, run := range runs {
			key := fmt.Sprint("k", i)
			a.put(objectSize, key)
			b.mustGet(from, parts(key, run))
		}
	})
}

func TestRangesInAnyOrderGetTheirOwnBytes(t *testing.T) {
	overRoutes(t, objectSize, func(t *testing.T, w *world, a, b *node, from ports.Source) {
		a.put(objectSize, "k", "l")
		random := rand.New(rand.NewPCG(1, a.place.page))
		for range 6 {
			b.mustGet(from, randomParts(random, "k"), randomParts(random, "l"), randomParts(random, "k"))
			require.NoError(t, b.Clear(t.Context()))
			if a == b {
				a.put(objectSize, "k", "l")
			}
		}
	})
}

// randomParts cuts an object, drops some pieces and shuffles the rest.
func randomParts(random *rand.Rand, key string) want {
	var runs []domain.Run
	for off := uint64(0); off < objectSize; {
		n := min(1+random.Uint64N(40_000), objectSize-off)
		if random.IntN(3) > 0 {
			runs = append(runs, domain.Run{Off: off, Len: n})
		}
		off += n
	}
	if len(runs) == 0 {
		runs = append(runs, domain.Run{Len: 1})
	}
	random.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	return parts(key, runs...)
}

func TestRemoteReadMovesOnlyTheBytesAskedFor(t *testing.T) {
	overRoutes(t, objectSize, func(t *testing.T, w *world, a, b *node, from ports.Source) {
		if from == ports.FromLocal {
			return
		}
		a.put(objectSize, "k")
		b.poison()
		runs := []domain.Run{{Off: 150_000, Len: 10_000}, {Off: 3, Len: 7_000}, {Off: objectSize - 1, Len: 1}}
		b.mustGet(from, parts("k", runs...))
		require.Equal(t, [ports.NumPurposes]uint64{ports.PurposeGet: 17_001}, b.Stats().Wire)
		written := written(b.arena(0))
		for _, r := range b.medium.Buffers() {
			written += writtenTo(r)
		}
		require.LessOrEqual(t, written, 17_001, "bytes of the reader's memory that were written")
		require.Greater(t, written, 16_000, "the oracle sees nothing")
	})
}

// written counts the bytes that differ from the poison: never more than were written.
func written(mem []byte) (n int) {
	for len(mem) > 0 {
		at := pattern.CheckPoison(mem)
		if at < 0 {
			return n
		}
		n++
		mem = mem[at+1:]
	}
	return n
}

func writtenTo(r ports.Region) int { return written(r.(ports.HostRegion).Bytes()) }

func TestLayerGroupsOverTheSameKeysEndInTheWholeObject(t *testing.T) {
	overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
		a, b := w.pair(place{page: page, pages: 8 * pages}, place{page: page, pages: 8 * pages, Config: noPull})
		names := keys("k", 4)
		a.put(objectSize, names...)
		const group = objectSize / 8
		for g := range uint64(8) {
			b.mustGet(ports.FromSlot, partsOf(names, (g*3%8)*group, group)...)
		}
		s := b.Stats()
		require.Equal(t, [ports.NumPurposes]uint64{ports.PurposeGet: 4 * objectSize}, s.Wire, "each byte once")
		require.Zero(t, s.DuplicateBytes)
		require.EqualValues(t, 4, s.InstalledObjects[domain.LocalByExtents])
		require.EqualValues(t, 4*objectSize, s.InstalledBytes[domain.LocalByExtents])
		b.requireLocal(objectSize, names...)
	})
}

func TestPartialReadEndsInTheWholeObjectByThePull(t *testing.T) {
	for _, mode := range []struct {
		name  string
		mode  domain.LocalityMode
		from  ports.Source
		again uint64 // bytes that the pull fetches though the reader had them
	}{{"fill", domain.LocalityFill, ports.FromSlot, 0}, {"pull", domain.LocalityPullOnly, ports.FromArena, 7_000}} {
		t.Run(mode.name, func(t *testing.T) {
			overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
				a, b := w.pair(place{page: page, pages: 4 * pages}, place{page: page, pages: 4 * pages, Config: app.Config{Locality: mode.mode, FillingShare: 1}})
				a.put(objectSize, "k")
				b.mustGet(mode.from, part("k", 60_000, 7_000))
				w.settle()
				b.requireLocal(objectSize, "k")
				s := b.Stats()
				require.Equal(t, [ports.NumPurposes]uint64{ports.PurposeGet: 7_000, ports.PurposePull: objectSize - 7_000 + mode.again}, s.Wire)
				require.Zero(t, s.DuplicateBytes)
				require.EqualValues(t, 1, s.InstalledObjects[domain.LocalByPull])
				require.EqualValues(t, 1, s.PullDone)
			})
		})
	}
}

func TestEveryModeReadsEqualBytes(t *testing.T) {
	for _, mode := range []domain.LocalityMode{domain.LocalityFill, domain.LocalityPullOnly, domain.LocalityOff} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
				a, b := w.pair(place{page: page, pages: 8 * pages}, place{page: page, pages: 8 * pages, Config: app.Config{Locality: mode}})
				a.put(objectSize, "k", "l")
				for _, off := range []uint64{190_000, 0, 64 * kib, 5} {
					for _, r := range b.get(part("k", off, 10_000), part("l", off, 9_999)) {
						require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
					}
				}
				for _, r := range b.get(whole("l", objectSize), part("k", 0, objectSize)) {
					require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
				}
				w.settle()
				require.Equal(t, mode != domain.LocalityOff, b.committed() == 2, "%d objects are local", b.committed())
			})
		})
	}
}

func TestWholeReadBypassesTheArenaAndInstallsWithTheSwitchOff(t *testing.T) {
	for _, mode := range []domain.LocalityMode{domain.LocalityFill, domain.LocalityPullOnly} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				cfg := noPull
				cfg.Locality = mode
				a, b := w.pair(place{}, place{Config: cfg, get: 4 * kib})
				a.put(objectSize, "k", "l")
				b.mustGet(ports.FromSlot, part("k", 0, objectSize), whole("l", objectSize))
				s := b.Stats()
				require.EqualValues(t, 2, s.InstalledObjects[domain.LocalBySlot])
				require.Zero(t, s.ArenaRounds[0])
				b.requireLocal(objectSize, "k", "l")
			})
		})
	}
}

func TestWholeReadFallsBackToTheArenaWithoutASlot(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{pages: 3}) // an object needs 4 pages
		a.put(objectSize, "k")
		b.mustGet(ports.FromArena, part("k", 0, objectSize))
		s := b.Stats()
		require.EqualValues(t, 1, s.Downgrades[ports.DowngradeNoSlot])
		require.NotZero(t, s.InstallFailures[ports.InstallSlotRefused])
		require.Zero(t, b.committed())
	})
}

// crowded is a reader whose medium has room for one object, which a reader holds pinned until the function is called.
func crowded(t *testing.T, w *world, cfg app.Config) (a, b *node, makeRoom func()) {
	cfg.FillingShare = 1
	a, b = w.pair(place{page: 64 * kib}, place{page: 64 * kib, pages: 5, Config: cfg})
	b.put(objectSize, "old")
	var g faults.Gate
	b.fail(next(1, "Copier", "Copy", nil, hold(&g)))
	r := b.begin(t.Context(), 0, part("old", 0, objectSize))
	synctest.Wait()
	require.Equal(t, 1, g.Held())
	return a, b, func() {
		g.Open()
		require.Equal(t, ports.Hit, r.wait()[0].Status)
	}
}

func TestCompleteObjectInTheArenaInstallsWithoutRefetching(t *testing.T) {
	cuts := []domain.Run{{Off: 0, Len: 70_000}, {Off: 70_000, Len: 50_000}, {Off: 120_000, Len: 80_000}}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b, makeRoom := crowded(t, w, app.Config{Admission: domain.Admission{Kind: domain.AdmitNever}})
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, holdAfter(&g)))
				r := b.begin(t.Context(), 0, parts("k", cuts[order[0]], cuts[order[1]], cuts[order[2]]))
				synctest.Wait()
				require.Equal(t, 1, g.Held())
				makeRoom()
				g.Open()
				require.Equal(t, ports.FromArena, r.wait()[0].Source)
				s := b.Stats()
				require.EqualValues(t, 1, s.InstalledObjects[domain.LocalFromArena])
				require.EqualValues(t, objectSize, s.Wire[ports.PurposeGet])
				b.requireLocal(objectSize, "k")
			})
		})
	}
}

func TestFullCoverageOutOfOrderIsNeverInstalledAsIfItWereInOrder(t *testing.T) {
	cuts := []domain.Run{{Off: 0, Len: 70_000}, {Off: 70_000, Len: 50_000}, {Off: 120_000, Len: 80_000}}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
				a, b := w.pair(place{page: page, pages: 4 * pages}, place{page: page, pages: 4 * pages, Config: noPull})
				a.put(objectSize, "k", "l")
				b.mustGet(ports.FromSlot, parts("k", cuts[order[0]], cuts[order[1]], cuts[order[2]]))
				for _, i := range order {
					b.mustGet(ports.FromSlot, parts("l", cuts[i]))
				}
				b.requireLocal(objectSize, "k", "l")
			})
		})
	}
}

func TestSwitchOffLeavesNothingLocalBeyondWhatReadersCompleted(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k", "l")
		b.mustGet(ports.FromSlot, partsOf(keysOf("k", "l"), 0, 100_000)...)
		w.settle()
		require.Zero(t, b.committed())
		require.EqualValues(t, 200_000, b.Stats().Wire[ports.PurposeGet])
		b.mustGet(ports.FromSlot, part("k", 100_000, 100_000))
		w.settle()
		b.requireLocal(objectSize, "k")
		require.EqualValues(t, 1, b.committed())
		s := b.Stats()
		require.Zero(t, s.PullQueued)
		require.Zero(t, s.Wire[ports.PurposePull])
	})
}

func keysOf(names ...string) []string { return names }

func TestPullModeWithTheSwitchOffInstallsOnlyWholeReads(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		cfg := noPull
		cfg.Locality = domain.LocalityPullOnly
		a, b := w.pair(place{}, place{Config: cfg})
		a.put(objectSize, "k", "l")
		b.mustGet(ports.FromArena, part("k", 0, 100_000), part("l", 100_000, 100_000))
		b.mustGet(ports.FromArena, part("k", 100_000, 100_000))
		w.settle()
		s := b.Stats()
		require.Zero(t, s.Table.PagesTotal-s.Table.PagesFree, "nothing has a slot")
		b.mustGet(ports.FromSlot, part("l", 0, objectSize))
		b.requireLocal(objectSize, "l")
	})
}

func TestObjectLargerThanTheAdmissionIsStillInstalledByTheFreeWays(t *testing.T) {
	for _, tt := range []struct {
		name      string
		admission domain.Admission
		pulled    bool
	}{
		{"size below", domain.Admission{MaxBytes: objectSize - 1}, false},
		{"size equal", domain.Admission{MaxBytes: objectSize}, true},
		{"never", domain.Admission{Kind: domain.AdmitNever}, false},
		{"always", domain.Admission{Kind: domain.AdmitAlways}, true},
		{"default", domain.Admission{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: app.Config{Admission: tt.admission, FillingShare: 1}})
				a.put(objectSize, "by slot", "by readers", "partial")
				b.mustGet(ports.FromSlot, part("by slot", 0, objectSize))
				b.mustGet(ports.FromSlot, part("partial", 0, 10))
				if !tt.pulled {
					b.mustGet(ports.FromSlot, part("by readers", 0, 100_000))
					b.mustGet(ports.FromSlot, part("by readers", 100_000, 100_000))
					b.requireLocal(objectSize, "by readers")
				}
				w.settle()
				b.requireLocal(objectSize, "by slot")
				require.Equal(t, tt.pulled, b.Stats().PullQueued > 0)
				require.EqualValues(t, map[bool]uint64{true: 2, false: 2}[tt.pulled], b.committed())
			})
		})
	}
}

func TestLocalAndRemoteKeysMixInOneCall(t *testing.T) {
	overGeometries(t, objectSize, func(t *testing.T, w *world, page, pages uint64) {
		a, b := w.pair(place{page: page, pages: 8 * pages}, place{page: page, pages: 8 * pages, Config: noPull})
		a.put(objectSize, "far", "further")
		b.put(objectSize, "near")
		out := b.get(part("far", 10, 1_000), part("near", 20, 100_000), whole("further", objectSize), part("near", 0, 1), part("far", 500, 1_000))
		for i, from := range []ports.Source{ports.FromSlot, ports.FromLocal, ports.FromSlot, ports.FromLocal, ports.FromSlot} {
			require.Equal(t, ports.Hit, out[i].Status, "%v", out[i].Err)
			require.Equal(t, from, out[i].Source, "key %d", i)
		}
		require.True(t, out[0].Remote() && !out[1].Remote())
		require.EqualValues(t, 1_490+objectSize, b.Stats().Wire[ports.PurposeGet], "the two reads of one key share their overlap")
	})
}

func TestPartialFailureIsItsOwnKeysOnly(t *testing.T) {
	overRoutes(t, objectSize, func(t *testing.T, w *world, a, b *node, from ports.Source) {
		a.put(objectSize, "k", "l")
		out := b.get(part("k", 0, 100), part("nowhere", 0, 1), part("l", objectSize-1, 2), part("k", objectSize, 1), want{key: "l"},
			parts("k", domain.Run{Off: 5, Len: 10}, domain.Run{Off: 14, Len: 1}), part("l", 7, 0), part("l", domain.Whole-1, 2), part("", 0, 1), part("l", 1, 9))
		for i, s := range []ports.Status{ports.Hit, ports.NotFound, ports.Invalid, ports.Invalid, ports.Invalid, ports.Invalid, ports.Invalid, ports.Invalid, ports.Invalid, ports.Hit} {
			require.Equal(t, s, out[i].Status, "key %d: %v", i, out[i].Err)
		}
	})
}

func TestKeyThatIsLocalAndInvalidIsNotTriedRemotely(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.putAs("k", 1, objectSize) // as long as the read asks for
		b.put(1_000, "k")
		out := b.get(part("k", 0, 2_000))
		require.Equal(t, ports.Invalid, out[0].Status)
		require.ErrorIs(t, out[0].Err, domain.ErrInvalid)
		require.Zero(t, b.faults.Count("PeerResolver", "Resolve"))
	})
}

func TestReadersOverAMediumThatIsTooSmallSeeRightBytes(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node("a", place{page: 4 * kib, pages: 1_000})
		b := w.node("b", place{page: 4 * kib, pages: 110, Config: app.Config{FillingShare: 1}, get: 256 * kib}) // two objects
		names := keys("k", 5)
		a.put(objectSize, names...)
		var readers []chan struct{}
		for r := range 6 {
			done := make(chan struct{})
			readers = append(readers, done)
			go func() {
				defer close(done)
				random := rand.New(rand.NewPCG(7, uint64(r)))
				for range 12 {
					if r%2 == 0 {
						b.get(whole(names[random.IntN(5)], objectSize))
						continue
					}
					for g := range uint64(4) {
						b.get(partsOf(names[random.IntN(3):], g*50_000, 50_000)...)
					}
				}
			}()
		}
		for _, done := range readers {
			<-done
		}
	})
}

func TestStaleSelfLocationDoesNotLoop(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{})
		a.put(objectSize, "k")
		self := faults.Every("Directory", "Holders", faults.Verdict{Edit: func(reply any) {
			h := reply.(*ports.Holders)
			*h = ports.Holders{Complete: true}
			h.End, h.Peers, h.Versions = []uint32{1}, []ports.PeerID{"b"}, make([]domain.Version, 1)
		}})
		b.fail(self)
		require.Equal(t, ports.NotFound, b.get(part("k", 0, 1))[0].Status)
		found, _ := b.exists(t, 0, "k")
		require.False(t, found[0])
		_, err := b.Size(t.Context(), namespace, "k")
		require.ErrorIs(t, err, ports.ErrNotFound)
		removed := make([]ports.Removal, 1)
		require.NoError(t, b.Remove(t.Context(), namespace, keysOf("k"), removed))
		require.Zero(t, removed[0])
		require.Zero(t, b.faults.Count("PeerResolver", "Hello"))
		b.fail()
		b.mustGet(ports.FromSlot, part("k", 0, 1))
	})
}

func TestNodeWithoutPeersServesItself(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.node("a", place{ports: func(p *app.Ports) {
			p.Resolver, p.Writer, p.Directory, p.Transports, p.GetArena, p.PutArena = nil, nil, nil, nil, nil, nil
		}})
		n.put(objectSize, "k")
		n.requireLocal(objectSize, "k")
		require.Equal(t, ports.NotFound, n.get(part("l", 0, 1))[0].Status)
		require.Equal(t, ports.NoSpace, n.putTo(context.Background(), "elsewhere", 0, 10, 1, "k")[0].Status)
	})
}

func TestAnyReadsOfAnyObjectShowItsBytes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			w := newWorld(rt, rapid.Bool().Draw(rt, "scatter"))
			page := rapid.Uint64Range(500, 70_000).Draw(rt, "page")
			mode := rapid.SampledFrom([]domain.LocalityMode{domain.LocalityFill, domain.LocalityPullOnly, domain.LocalityOff}).Draw(rt, "mode")
			a, b := w.pair(place{page: 1_000, pages: 100}, place{page: page, pages: 200_000/page + 4, Config: app.Config{Locality: mode}, get: 8 * kib})
			size := rapid.Uint64Range(1, 60_000).Draw(rt, "size")
			a.put(size, "k")
			for range rapid.IntRange(1, 6).Draw(rt, "reads") {
				off := rapid.Uint64Range(0, size-1).Draw(rt, "off")
				r := b.get(part("k", off, rapid.Uint64Range(1, min(size-off, 8*kib)).Draw(rt, "len")))[0]
				require.Equal(rt, ports.Hit, r.Status, "%v", r.Err)
			}
		})
	})
}
