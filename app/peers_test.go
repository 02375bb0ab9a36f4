package app_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// three is two owners and a reader.
func (w *world) three(reader place) (a, c, b *node) {
	w.t.Helper()
	return w.node("a", place{}), w.node("c", place{}), w.node("b", reader)
}

// TestACallThatLeavesWhileALinkIsMadeOpensNoBreaker: that no link came of it says nothing about the peer.
func TestACallThatLeavesWhileALinkIsMadeOpensNoBreaker(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		ctx, cancel := context.WithCancel(t.Context())
		b.fail(next(1, "PendingLink", "Link", nil, faults.Verdict{Before: faults.Do(cancel), Drop: true}))
		_, err := b.Size(ctx, namespace, "k")
		require.ErrorIs(t, err, context.Canceled)
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		require.Zero(t, b.Stats().Downgrades[ports.DowngradeBreakerOpen])
	})
}

func TestNotFoundNeedsAnAnswerOfEveryPeerThatMayHoldTheKey(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{})
		a.put(objectSize, "k")
		require.Equal(t, ports.NotFound, b.get(part("nowhere", 0, 1))[0].Status)
		c.stop()
		out := b.get(part("nowhere", 0, 1), part("k", 0, 10))
		require.Equal(t, ports.PeerUnavailable, out[0].Status)
		require.ErrorIs(t, out[0].Err, ports.ErrPeer)
		require.Equal(t, ports.Hit, out[1].Status, "%v", out[1].Err)
	})
}

func TestDirectoryThatIsDownFailsMissesOnly(t *testing.T) {
	for name, v := range map[string]faults.Verdict{
		"error":      {Err: errTest},
		"no answer":  {Drop: true},
		"short":      {Short: true},
		"incomplete": {Edit: func(r any) { h := r.(*ports.Holders); *h = ports.Holders{End: make([]uint32, len(h.End))} }},
		"ends lie":   {Edit: func(r any) { h := r.(*ports.Holders); h.End[0] = 77 }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: noPull})
				a.put(objectSize, "far", "filling")
				b.put(objectSize, "near")
				b.mustGet(ports.FromSlot, part("filling", 0, 1_000))
				b.fail(faults.Every("Directory", "Holders", v))
				out := b.get(part("far", 0, 1), part("near", 0, 1_000), part("nowhere", 0, 1), part("filling", 0, 2_000))
				require.Equal(t, ports.PeerUnavailable, out[0].Status)
				require.Error(t, out[0].Err)
				require.Equal(t, ports.Hit, out[1].Status)
				require.Equal(t, ports.PeerUnavailable, out[2].Status)
				require.Equal(t, ports.Hit, out[3].Status, "its view needs no directory: %v", out[3].Err)
				b.fail()
				b.mustGet(ports.FromSlot, part("far", 0, 1))
			})
		})
	}
}

// TestDirectoryThatKnowsNotAllHoldersIsNoProofOfAbsence: what it names is asked, and what it does not is not said to be gone.
func TestDirectoryThatKnowsNotAllHoldersIsNoProofOfAbsence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{})
		a.put(objectSize, "known")
		c.put(objectSize, "unknown")
		b.put(objectSize, "near")
		only := func(r any) {
			h := r.(*ports.Holders)
			h.Complete = false
			for i := range h.End {
				h.End[i] = uint32(i + 1)
			}
			h.Peers, h.Versions = h.Peers[:0], h.Versions[:0]
			for range h.End {
				h.Peers, h.Versions = append(h.Peers, a.id), append(h.Versions, domain.Version{})
			}
		}
		b.fail(faults.Every("Directory", "Holders", faults.Verdict{Edit: only}))
		for key, due := range map[string]error{"known": nil, "near": nil, "unknown": ports.ErrPeer, "nowhere": ports.ErrPeer} {
			size, err := b.Size(t.Context(), namespace, key)
			require.ErrorIs(t, err, due, key)
			require.NotErrorIs(t, err, ports.ErrNotFound, key)
			require.Equal(t, due == nil, size == objectSize, key)
		}
		found := make([]bool, 3)
		leading, err := b.BatchExists(t.Context(), namespace, []string{"near", "known", "unknown"}, 0, found)
		require.NoError(t, err)
		require.Equal(t, 2, leading)

		out := make([]ports.Removal, 3)
		require.ErrorIs(t, b.Remove(t.Context(), namespace, []string{"near", "known", "unknown"}, out), ports.ErrPeer)
		require.Equal(t, []ports.Removal{{Found: true}, {Found: true}, {}}, out)
		b.fail()
		require.NoError(t, b.Remove(t.Context(), namespace, []string{"near", "known", "unknown"}, out))
		require.Equal(t, []ports.Removal{{}, {}, {Found: true}}, out)
	})
}

func TestSeveralPeersServeOneCall(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, c, b := w.three(place{Config: r.cfg})
				b.place.registered = r.direct
				d := w.node("d", place{})
				a.put(objectSize, "ka")
				c.put(objectSize, "kc")
				d.put(objectSize, "kd", "ke")
				b.mustGet(r.from, part("kd", 5, 10_000), part("ka", 0, 20_000), part("kc", 3, 3_000), part("ke", 1, 1), part("ka", 50_000, 1))
				require.LessOrEqual(t, b.faults.Count("PeerResolver", "Resolve"), uint64(3), "one round trip a peer")
				require.EqualValues(t, 3, b.faults.Count("PeerResolver", "Probe"))
				require.Len(t, b.Stats().Peers, 3)
			})
		})
	}
}

func TestNextHolderOfTheSameVersionIsAskedWhenAPeerFails(t *testing.T) {
	for _, r := range readers {
		for _, tt := range []struct {
			name, port, method string
			v                  faults.Verdict
		}{
			{"transfer", "Link", "Op", faults.Verdict{Err: errTest}},
			{"two resets", "Link", "Op", faults.Verdict{Err: ports.ErrReset}},
			{"timed out", "Link", "Op", faults.Verdict{Drop: true}},
			{"half of it", "Link", "Op", faults.Verdict{Short: true}},
			{"submit", "Link", "Submit", faults.Verdict{Err: errTest}},
			{"resolve", "PeerResolver", "Resolve", faults.Verdict{Err: ports.ErrPeer}},
			{"black hole", "PeerResolver", "Resolve", faults.Verdict{Drop: true}},
			{"no row", "PeerResolver", "Resolve", faults.Verdict{Short: true}},
		} {
			t.Run(r.name+"/"+tt.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					cfg := r.cfg
					cfg.ArenaWait = time.Minute // a round holds its slice until its op's deadline
					a, c, b := w.three(place{Config: cfg, get: 64 * kib, registered: r.direct})
					a.put(objectSize, "k")
					require.Equal(t, ports.Hit, c.get(part("k", 0, objectSize))[0].Status) // c has the same version
					b.fail(when(tt.port, tt.method, firstPeer(), tt.v))
					out := b.get(gapped("k", 10, 10_000)) // of several rounds
					require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
					require.Equal(t, r.from, out[0].Source)
				})
			})
		}
	}
}

// firstPeer picks the calls to the peer that is called first.
func firstPeer() func(faults.Call) bool {
	var mu sync.Mutex
	var first ports.PeerID
	return func(c faults.Call) bool {
		mu.Lock()
		defer mu.Unlock()
		if first == "" {
			first = c.Peer.ID
		}
		return c.Peer.ID == first
	}
}

func TestPeerThatFailsCostsItsOwnKeysOnly(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, c, b := w.three(place{Config: r.cfg})
				b.place.registered = r.direct
				a.put(objectSize, "ka")
				c.put(objectSize, "kc")
				b.fail(when("PeerResolver", "Resolve", peerIs("a"), faults.Verdict{Err: ports.ErrPeer}))
				out := b.get(part("ka", 0, 10), part("kc", 0, 10))
				require.Equal(t, ports.PeerUnavailable, out[0].Status)
				require.Equal(t, ports.Hit, out[1].Status)
				require.True(t, b.Stats().Peers[0].Down, "a, by name the first")
			})
		})
	}
}

func TestPeerThatDiesInMidTransferCostsOneBoundedDelay(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, c, b := w.three(place{Config: r.cfg})
				b.place.registered = r.direct
				a.put(objectSize, "ka")
				c.put(objectSize, "kc", "kd")
				var g faults.Gate
				b.fail(when("Link", "Op", purpose(ports.PurposeGet), hold(&g)))
				read := b.begin(t.Context(), 0, part("ka", 0, 10_000), part("kc", 0, 10_000))
				synctest.Wait()
				require.Equal(t, 2, g.Held())
				began := time.Now()
				a.stop()
				b.fail()
				b.mustGet(r.from, part("kd", 0, 100)) // others' transfers go on
				g.Open()
				out := read.wait()
				require.Less(t, time.Since(began), time.Second)
				require.Equal(t, ports.PeerUnavailable, out[0].Status, "%v", out[0].Err)
				require.Equal(t, ports.Hit, out[1].Status)
				require.NotZero(t, b.Stats().Downgrades[ports.DowngradeReset])
				began = time.Now()
				require.Equal(t, ports.PeerUnavailable, b.get(part("ka", 0, 1))[0].Status)
				require.Zero(t, time.Since(began), "the breaker keeps the next calls from paying again")
				require.NotZero(t, b.Stats().Downgrades[ports.DowngradeBreakerOpen])
			})
		})
	}
}

func TestBlackHoledPeerOfThreeLeavesTheOthersKeysAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{Config: noPull})
		a.put(objectSize, "ka")
		c.put(objectSize, "kc")
		b.mustGet(ports.FromSlot, part("ka", 0, 10), part("kc", 0, 10)) // links are there
		w.net.Partition("a", "b", true)
		began := time.Now()
		b.mustGet(ports.FromSlot, part("kc", 10, 1_000))
		require.Zero(t, time.Since(began))
		out := b.get(part("kc", 5_000, 1_000), part("ka", 5_000, 1_000))
		require.Equal(t, ports.Hit, out[0].Status)
		require.Equal(t, ports.PeerUnavailable, out[1].Status)
		require.Less(t, time.Since(began), 6*time.Second)
		w.net.Partition("a", "b", false)
		w.pass(3 * time.Second)
		b.mustGet(ports.FromSlot, part("ka", 5_000, 1_000))
	})
}

// TestPeerThatReturnsIsUsedAgainWithoutARestartHere also shows that nothing of its old start is used: the bytes are other ones.
func TestPeerRestartVoidsWhatItsOldStartTold(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: r.cfg})
				b.place.registered = r.direct
				a.put(objectSize, "k")
				b.mustGet(r.from, part("k", 0, 50_000))
				a.restart()
				require.Equal(t, ports.Stored, a.putAs("k", 1, objectSize).Status)
				out := b.get(part("k", 50_000, 50_000))
				require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
				b.mustGet(r.from, part("k", 0, objectSize))
				a.restart()
				w.pass(time.Second)
				require.Contains(t, []ports.Status{ports.NotFound, ports.Hit}, b.get(part("k", 0, 1))[0].Status)
			})
		})
	}
}

func TestPeerThatReturnsIsUsedAgainWithin3Seconds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		a.stop()
		require.Equal(t, ports.PeerUnavailable, b.get(part("k", 0, 1))[0].Status)
		w.pass(20 * time.Second) // the breaker's back-off has grown
		a.start()
		a.put(objectSize, "l")
		w.pass(3 * time.Second)
		b.mustGet(ports.FromSlot, part("l", 0, 10))
	})
}

func TestReaderRestartIsServedAndItsOldStartIsNot(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 50_000))
		old := b.Self()
		b.restart()
		b.mustGet(ports.FromSlot, part("k", 0, 50_000))
		var reply ports.ResolveReply
		req := &ports.ResolveRequest{Keys: []ports.Key{{Name: "k"}}, Versions: make([]domain.Version, 1), Held: make([]domain.Generation, 1)}
		require.ErrorIs(t, a.PeerServer().Resolve(t.Context(), old, req, &reply), ports.ErrRestarted)
	})
}

// twoVersions is one key with different bytes on two owners, of which b has read the first run from one: the first.
func twoVersions(t *testing.T, w *world, reader app.Config, session bool, run domain.Run) (b, first, second *node, id ports.SessionID) {
	t.Helper()
	a, c, b := w.three(place{Config: reader})
	require.Equal(t, ports.Stored, a.putAs("k", 0, objectSize).Status)
	require.Equal(t, ports.Stored, c.putAs("k", 1, objectSize).Status)
	if session {
		var err error
		id, err = b.OpenRead(t.Context(), namespace)
		require.NoError(t, err)
	}
	r := b.prepare(id, parts("k", run)).run(t.Context())
	shown := r.check()[0]
	require.Equal(t, ports.Hit, r.out[0].Status, "%v", r.out[0].Err)
	if shown == 1 {
		a, c = c, a
	}
	return b, a, c, id
}

func TestHolderThatDiesInMidWalkNeverMixesTwoPuts(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			overGroups(t, func(t *testing.T, w *world, dies uint64) {
				b, first, _, _ := twoVersions(t, w, r.cfg, false, domain.Run{Len: 1_000})
				b.place.registered = r.direct
				for g := range uint64(4) {
					group := parts("k", domain.Run{Off: g * 50_000, Len: 20_000}, domain.Run{Off: g*50_000 + 20_000, Len: 30_000})
					if g == dies {
						first.stop()
						b.get(group) // the read that meets the death may fail: no other holder has that version
					}
					out := b.get(group)
					require.Equal(t, ports.Hit, out[0].Status, "group %d: %v", g, out[0].Err)
				}
				require.Equal(t, ports.Hit, b.get(part("k", 0, objectSize))[0].Status)
			})
		})
	}
}

func overGroups(t *testing.T, claim func(t *testing.T, w *world, dies uint64)) {
	for dies := range uint64(4) {
		t.Run(fmt.Sprint("group", dies), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) { claim(t, w, dies) })
		})
	}
}

// TestVersionThatIsGoneInMidReadStartsFromNothing: the first holder loses the object while its bytes are flying.
func TestVersionThatIsGoneInMidCallStartsFromNothingOnce(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				b, first, _, _ := twoVersions(t, w, r.cfg, false, domain.Run{Len: 1_000})
				b.place.registered = r.direct
				require.NoError(t, first.Clear(t.Context()))
				w.pass(time.Second)
				out := b.get(part("k", 500, 100_000))
				require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
				if r.from == ports.FromSlot {
					require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeVersionSwitch])
				}
			})
		})
	}
}

func TestSessionThatHandedOutBytesOfAVersionThatIsGoneIsLateToItsEnd(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				b, first, second, id := twoVersions(t, w, r.cfg, true, domain.Run{Len: 1_000})
				b.place.registered = r.direct
				require.NoError(t, first.Clear(t.Context()))
				w.pass(time.Second)
				for range 2 {
					out := b.getIn(t.Context(), id, part("k", 1_000, 1_000))
					require.Equal(t, ports.Late, out[0].Status, "%v", out[0].Err)
				}
				require.Equal(t, ports.Hit, b.get(part("k", 0, 5_000))[0].Status, "outside of the session the other version serves")
				require.Equal(t, ports.Late, b.getIn(t.Context(), id, part("k", 0, 5_000))[0].Status)
				require.NoError(t, b.CloseRead(id))
				require.EqualValues(t, 1, second.committed())
			})
		})
	}
}

func TestSessionKeepsItsVersionThoughAnotherIsCommittedHere(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		id, err := b.OpenRead(t.Context(), namespace)
		require.NoError(t, err)
		require.Equal(t, ports.Hit, b.getIn(t.Context(), id, part("k", 0, 1_000))[0].Status)
		require.Equal(t, ports.Stored, b.putAs("k", 1, objectSize).Status)
		r := b.prepare(id, part("k", 1_000, 1_000)).run(t.Context())
		require.Equal(t, []int{0}, r.check(), "a's bytes: %v", r.out[0].Err)
		require.Equal(t, ports.FromArena, r.out[0].Source)
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeOtherVersion])
		r = b.prepare(0, part("k", 1_000, 1_000)).run(t.Context())
		require.Equal(t, []int{1}, r.check())
		require.EqualValues(t, 1, b.Stats().Sessions)
		require.NoError(t, b.CloseRead(id))
		require.ErrorIs(t, b.CloseRead(id), ports.ErrNotFound)
	})
}

func TestHolderOfAnotherVersionContributesNothingToAFillingSlot(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		b, first, second, _ := twoVersions(t, w, noPull, false, domain.Run{Len: 100_000})
		first.stop()
		b.get(part("k", 100_000, 1))
		before := b.Stats().Wire[ports.PurposeGet]
		r := b.prepare(0, part("k", 100_000, 100_000)).run(t.Context())
		shown := r.check()
		require.Equal(t, ports.Hit, r.out[0].Status)
		require.LessOrEqual(t, b.Stats().Wire[ports.PurposeGet]-before, uint64(100_000))
		r = b.prepare(0, part("k", 0, objectSize)).run(t.Context())
		require.Equal(t, shown, r.check(), "the first half is fetched again, of the version that is left")
		require.EqualValues(t, 1, second.committed())
	})
}

// TestCallsThatResolvedDifferentVersionsDoNotShareASlot: each asks another holder before there is a slot; the first to plan makes it.
func TestCallsThatResolvedDifferentVersionsDoNotShareASlot(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, c, b := w.three(place{Config: noPull})
		require.Equal(t, ports.Stored, a.putAs("k", 0, objectSize).Status)
		require.Equal(t, ports.Stored, c.putAs("k", 1, objectSize).Status)
		only := func(id ports.PeerID) faults.Verdict {
			return faults.Verdict{Edit: func(r any) {
				h := r.(*ports.Holders)
				h.Peers, h.Versions, h.End = []ports.PeerID{id}, make([]domain.Version, 1), []uint32{1}
			}}
		}
		var g faults.Gate
		b.fail(next(1, "Directory", "Holders", nil, only("a")), next(1, "Directory", "Holders", nil, only("c")), next(2, "PeerResolver", "Resolve", nil, holdAfter(&g)))
		first := b.begin(t.Context(), 0, part("k", 0, 1_000))
		synctest.Wait()
		second := b.begin(t.Context(), 0, part("k", 100_000, 1_000))
		synctest.Wait()
		require.Equal(t, 2, g.Held())
		g.Open()
		require.Equal(t, ports.Hit, first.wait()[0].Status)
		require.Equal(t, ports.Hit, second.wait()[0].Status)
		require.NotEqual(t, first.check(), second.check())
		require.EqualValues(t, 1, b.Stats().Downgrades[ports.DowngradeOtherVersion])
		require.Equal(t, ports.Hit, b.get(part("k", 0, objectSize))[0].Status)
	})
}

func TestMalformedAnswerToAResolveCostsThatPeersKeysOnly(t *testing.T) {
	for _, lie := range faults.ResolveLies() {
		t.Run(lie.Name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, c, b := w.three(place{Config: noPull})
				a.put(objectSize, "ka", "kb")
				c.put(objectSize, "kc")
				b.fail(when("PeerResolver", "Resolve", peerIs("a"), faults.Verdict{Edit: lie.Edit}))
				out := b.get(part("kc", 0, 10), part("ka", 0, objectSize), part("kb", 0, objectSize))
				require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
				bad := 0
				for _, r := range out[1:] {
					if r.Status == ports.PeerUnavailable {
						bad++
						require.Error(t, r.Err)
					}
				}
				require.NotZero(t, bad, "%v %v", out[1].Status, out[2].Status)
			})
		})
	}
}

func TestAnswerWithAnotherVersionThanAskedForIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 10))
		w.pass(time.Second)
		b.fail(faults.Every("PeerResolver", "Resolve", editResolve(func(r *ports.ResolveReply) { r.Versions[0].Lo++ })))
		require.Equal(t, ports.PeerUnavailable, b.get(part("k", 10, 10))[0].Status)
	})
}

func TestHelloThatLiesIsRefused(t *testing.T) {
	for name, edit := range map[string]func(*ports.HelloReply){
		"another node":    func(h *ports.HelloReply) { h.From.ID = "x" },
		"no incarnation":  func(h *ports.HelloReply) { h.From.Incarnation = 0 },
		"no protocol":     func(h *ports.HelloReply) { h.Protocol = 0 },
		"later protocol":  func(h *ports.HelloReply) { h.Protocol = ports.ProtocolVersion + 1 },
		"page size 0":     func(h *ports.HelloReply) { h.PageSize = 0 },
		"no answers":      func(h *ports.HelloReply) { h.Answers = nil },
		"garbled answers": func(h *ports.HelloReply) { h.Answers[0].Bytes = []byte("x") },
		"small buffers":   func(h *ports.HelloReply) { clear(h.Buffers) },
		"no buffers":      func(h *ports.HelloReply) { h.Buffers = nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{})
				a.put(objectSize, "k")
				b.fail(faults.Every("PeerResolver", "Hello", faults.Verdict{Edit: func(r any) { edit(r.(*ports.HelloReply)) }}))
				r := b.get(part("k", 0, 1))[0]
				require.Equal(t, ports.PeerUnavailable, r.Status)
				require.Error(t, r.Err)
				b.fail()
				w.pass(3 * time.Second)
				if name != "small buffers" && name != "no buffers" { // there the hello itself was fine
					b.mustGet(ports.FromSlot, part("k", 0, 1))
				}
			})
		})
	}
}

// TestTransportThatIsRefusedIsPassedOver: the next one serves, and the peer's stats say why.
func TestTransportThatIsRefusedIsPassedOver(t *testing.T) {
	for name, plan := range map[string]faults.Plan{
		"by the offer": faults.Every("Transport", "Offer", faults.Verdict{Err: errTest}),
		"by the link":  faults.Every("PendingLink", "Link", faults.Verdict{Err: errTest}),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				broken := faults.New(plan)
				a, b := w.pair(place{}, place{Config: noPull, ports: func(p *app.Ports) {
					other := renamed{broken.Transport(p.Transports[0]), "other"}
					p.Transports = []ports.Transport{other, p.Transports[0]}
				}})
				a.put(objectSize, "k")
				b.mustGet(ports.FromSlot, part("k", 0, 10))
				s := b.Stats()
				require.EqualValues(t, 1, s.Downgrades[ports.DowngradeTransport])
				require.EqualValues(t, "inproc", s.Peers[0].Transport)
				require.Len(t, s.Peers[0].Refused, 1)
				require.NotEmpty(t, s.Peers[0].Refused[0].Reason)
			})
		})
	}
}

// renamed is a transport under another name, which exposes nothing: the one that it wraps is another's too.
type renamed struct {
	ports.Transport
	kind ports.TransportKind
}

func (r renamed) Kind() ports.TransportKind         { return r.kind }
func (r renamed) Expose(uint32, ports.Region) error { return nil }

func TestCallEndsWithItsContextAndItsMemoryIsQuiet(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: r.cfg})
				b.place.registered = r.direct
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, hold(&g)))
				ctx, cancel := context.WithCancelCause(t.Context())
				read := b.begin(ctx, 0, part("k", 0, 100_000))
				synctest.Wait()
				cancel(errTest)
				out := read.wait()
				require.Equal(t, ports.Cancelled, out[0].Status)
				require.ErrorIs(t, out[0].Err, errTest)
				clear(read.mem) // the caller uses it for something else
				g.Open()
				w.settle()
				for _, c := range read.mem {
					require.Zero(t, c, "the caller's memory was touched after the call")
				}
			})
		})
	}
}

func TestCallIsBounded(t *testing.T) {
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				cfg := r.cfg
				cfg.CallTimeout, cfg.TransferTimeout = 700*time.Millisecond, time.Minute
				a, b := w.pair(place{}, place{Config: cfg, registered: r.direct})
				a.put(objectSize, "k")
				var g faults.Gate
				b.fail(next(1, "Link", "Op", nil, hold(&g)))
				began := time.Now()
				out := b.get(part("k", 0, 1_000))
				require.Equal(t, 700*time.Millisecond, time.Since(began))
				require.Equal(t, ports.TransferFailed, out[0].Status)
				require.ErrorIs(t, out[0].Err, ports.ErrTimeout)
				g.Open()
			})
		})
	}
}

// TestCloseEndsCallsThatAreUnderWay: with their bytes in flight, waiting for the arena, and waiting for a peer's answer.
func TestCloseEndsCallsThatAreUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPool, get: 64 * kib})
		a.put(objectSize, "k", "l", "m")
		var g, resolves faults.Gate
		b.fail(next(1, "Link", "Op", nil, hold(&g)), when("PeerResolver", "Resolve", func(c faults.Call) bool { return c.N > 2 }, hold(&resolves)))
		var all []*reading
		for _, key := range keysOf("k", "l", "m") {
			all = append(all, b.begin(t.Context(), 0, part(key, 0, 64*kib)))
			synctest.Wait()
		}
		require.EqualValues(t, 1, b.Stats().ArenaWaiting[0])
		began := time.Now()
		b.stop()
		require.Less(t, time.Since(began), 3*time.Second)
		for i, r := range all {
			out := r.wait()
			require.False(t, out[0].Status.OK(), "%d: %v", i, out[0].Status)
		}
	})
}

func TestControlCallsThatFailOpenTheBreakerAndCallErrorsDoNot(t *testing.T) {
	for err, opens := range map[error]bool{ports.ErrPeer: true, ports.ErrTimeout: true, context.DeadlineExceeded: true, errTest: false, ports.ErrBusy: false} {
		t.Run(err.Error(), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				a, b := w.pair(place{}, place{Config: noPull})
				a.put(objectSize, "k")
				b.fail(next(1, "PeerResolver", "Resolve", nil, faults.Verdict{Err: err}))
				require.Equal(t, ports.PeerUnavailable, b.get(part("k", 0, 1))[0].Status)
				require.Equal(t, opens, b.Stats().Peers[0].Down)
				r := b.get(part("k", 0, 1))[0]
				require.Equal(t, opens, errors.Is(r.Err, ports.ErrPeer), "%v", r.Err)
			})
		})
	}
}

// TestBytesStayCountedWhileTheirLinkIsClosed: a sum that falls is a restart to who reads it over time.
func TestBytesStayCountedWhileTheirLinkIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k", "l")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		var g faults.Gate
		b.fail(next(1, "PeerResolver", "Resolve", nil, faults.Verdict{Err: ports.ErrPeer}), next(1, "Link", "Close", nil, hold(&g)))
		r := b.begin(t.Context(), 0, part("l", 0, 1))
		for _, closed := range []bool{false, true} {
			synctest.Wait()
			s := b.Stats()
			require.EqualValues(t, 1_000, s.Wire[ports.PurposeGet], "closed: %t", closed)
			require.Equal(t, s.Wire, s.Peers[0].Wire)
			require.Empty(t, s.Peers[0].Transport)
			g.Open()
		}
		require.Equal(t, ports.PeerUnavailable, r.wait()[0].Status)
	})
}

// TestPeerThatDiedWhileNobodyAskedHasNoTransport: its link says so before a call does.
func TestPeerThatDiedWhileNobodyAskedHasNoTransport(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		b.mustGet(ports.FromSlot, part("k", 0, 1_000))
		require.NotEmpty(t, b.Stats().Peers[0].Transport)
		a.stop()
		synctest.Wait()
		require.Empty(t, b.Stats().Peers[0].Transport)
		require.EqualValues(t, 1_000, b.Stats().Wire[ports.PurposeGet])
	})
}

func TestCallerThatLeavesDuringADialDoesNotCloseThePeerToOthers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: noPull})
		a.put(objectSize, "k")
		var g faults.Gate
		b.fail(next(1, "PeerResolver", "Hello", nil, hold(&g)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan []ports.Result, 1)
		go func() { done <- b.putTo(ctx, "a", 0, 10, 1, "l") }()
		synctest.Wait()
		require.Equal(t, 1, g.Held())
		cancel()
		require.False(t, (<-done)[0].Status.OK())
		require.False(t, b.Stats().Peers[0].Down)
		b.mustGet(ports.FromSlot, part("k", 0, 10))
	})
}

// TestVersionOfTwoSizesDoesNotShareASlot: a peer tells another size of a version than it told before. What was planned by the one
// would lie outside of the other. What a hit of a liar shows is nobody's; the node, and the other keys, live.
func TestVersionOfTwoSizesDoesNotShareASlot(t *testing.T) {
	tell := func(size uint64) faults.Verdict {
		return editResolve(func(r *ports.ResolveReply) {
			if r.Status[0] == ports.KeyHere && r.PageEnd[0] > 0 { // no renewal
				r.Sizes[0], r.PutLens[0] = size, size
				r.Generations[0].Counter += size << 32
			}
		})
	}
	for _, sizes := range [][2]uint64{{1_000, 2_000}, {2_000, 1_000}} {
		for name, second := range map[string]want{"whole": whole("k", 4_000), "part": part("k", 900, 100)} {
			t.Run(fmt.Sprintf("%s of %d after %d", name, sizes[1], sizes[0]), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					a, b := w.pair(place{}, place{})
					a.put(1_000, "k", "honest")
					pulls := when("Link", "Op", purpose(ports.PurposePull), faults.Verdict{Err: errTest})
					b.fail(faults.Every("PeerResolver", "Resolve", tell(sizes[0])), pulls)
					b.prepare(0, part("k", 0, 10)).run(t.Context())
					require.EqualValues(t, 1, b.Stats().Table.Slots[domain.SlotFilling])
					w.pass(2 * time.Second) // the view is gone, the slot is not
					b.fail(faults.Every("PeerResolver", "Resolve", tell(sizes[1])))
					for range 2 {
						b.prepare(0, second).run(t.Context())
						w.settle()
					}
					require.NotZero(t, b.Stats().Downgrades[ports.DowngradeOtherVersion])
					b.fail()
					b.mustGet(ports.FromSlot, part("honest", 0, 1_000))
				})
			})
		}
	}
}

func TestDirectoryThatDoesNotAnswerTakesNoLongerThanACall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.pair(place{}, place{Config: app.Config{CallTimeout: 300 * time.Millisecond}})
		a.put(1_000, "far")
		b.put(1_000, "near")
		b.fail(faults.Every("Directory", "Holders", faults.Verdict{Drop: true}))
		began := time.Now()
		out := b.get(part("far", 0, 10), part("near", 0, 10))
		require.Equal(t, 300*time.Millisecond, time.Since(began))
		require.Equal(t, ports.PeerUnavailable, out[0].Status)
		require.Equal(t, ports.Hit, out[1].Status)
	})
}
