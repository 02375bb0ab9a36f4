package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

func TestThreeNodesServeRangesOfEachOthersObjects(t *testing.T) {
	p := newPool(t, []string{"a", "b", "c"})
	a, b, c := p.nodes["a"], p.nodes["b"], p.nodes["c"]
	object := content("k", 0, 1_000_003)
	file := write(t, "object", object)

	out, errs, code := a.ctl(t, "put", "k", file)
	require.Zero(t, code, errs)
	require.Contains(t, out, "stored")
	out, errs, code = b.ctl(t, "get", "k", "--range", "999990:13", "--range", "64KiB:3", "--range", "0:1")
	require.Zero(t, code, errs)
	require.Equal(t, string(pick(object, span(999_990, 13), span(64<<10, 3), span(0, 1))), out)
	out, errs, code = c.ctl(t, "get", "k")
	require.Zero(t, code, errs)
	requireBytes(t, object, []byte(out))

	out, errs, code = c.ctl(t, "put", "--to", "b", "remote", file)
	require.Zero(t, code, errs)
	require.Contains(t, out, "stored")
	p.eventually(func() bool { return b.counts(t)["now.slots.committed"] == 2 }, "b has not what it pulled and what it was given")
	a.mustGet(t, "remote", object, span(5, 500_000), span(700_000, 1))

	out, errs, code = a.ctl(t, "exists", "k", "remote", "--hold", "1s")
	require.Zero(t, code, errs+out)
	out, errs, code = b.ctl(t, "remove", "k", "remote")
	require.Zero(t, code, errs+out)
	for _, n := range p.nodes {
		_, errs, code = n.ctl(t, "exists", "k")
		require.Equal(t, 1, code, "%s: %s", n.id, errs)
	}
	out, errs, code = c.ctl(t, "peers", "--output", "json")
	require.Zero(t, code, errs)
	require.Contains(t, out, `"transport": "tcp"`)
}

// TestEachByteCrossesOnce: what two reads need of one object, and what the pull adds, is the object once.
func TestEachByteCrossesOnce(t *testing.T) {
	p := newPool(t, []string{"a", "b"}, "--lease", "1m") // what came too late would cross again
	a, b := p.nodes["a"], p.nodes["b"]
	object := content("k", 0, 3<<20)
	a.mustPut(t, "k", object)
	for off := 0; off < len(object); off += 1 << 19 {
		b.mustGet(t, "k", object, span(off, 1<<18))
	}
	p.eventually(func() bool { return b.counts(t)["now.slots.committed"] == 1 }, "the object does not become local")
	c := b.counts(t)
	require.Equal(t, uint64(len(object)), c["wire_bytes.get"]+c["wire_bytes.pull"])
	require.Zero(t, c["duplicate_bytes"])
	require.Equal(t, enginev1.Source_SOURCE_LOCAL, b.mustGet(t, "k", object).GetSource())
}

// TestAPeerThatIsKilledIsUsedAgainWhenItReturns: kill -9 while its bytes are on their way, and another start at the same address.
func TestAPeerThatIsKilledIsUsedAgainWhenItReturns(t *testing.T) {
	p := newPool(t, []string{"a", "b"}, "--locality", "off", "--arena-get-bytes", "32MiB")
	a, b := p.nodes["a"], p.nodes["b"]
	object := content("k", 0, 8<<20)
	a.mustPut(t, "k", object)

	var hits, failed atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				r, got, err := b.get(t.Context(), "k")
				switch {
				case err != nil:
					t.Errorf("b itself fails: %v", err)
					return
				case r.GetStatus() != hit:
					failed.Add(1)
				case !bytes.Equal(got, object):
					t.Errorf("wrong bytes under a hit")
				default:
					hits.Add(1)
				}
			}
		})
	}
	p.eventually(func() bool { return hits.Load() > 4 }, "nothing is read")
	a.kill(t)
	before := failed.Load()
	p.eventually(func() bool { return failed.Load() > before+1 }, "reads of a dead peer's keys do not end")
	cancel()
	readers.Wait()
	began := time.Now()
	r, _, err := b.get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_PEER_UNAVAILABLE, r.GetStatus())
	require.Less(t, time.Since(began), time.Second, "the breaker keeps calls from paying again")
	require.True(t, b.peer(t, "a").GetDown() || b.peer(t, "a").GetFailure() != "")

	p.start("a")
	returned := time.Now()
	a.mustPut(t, "k2", object)
	within(t, 3*time.Second, func() bool {
		r, got, err := b.get(t.Context(), "k2")
		require.NoError(t, err)
		return r.GetStatus() == hit && bytes.Equal(got, object)
	}, "a returned and is not used")
	t.Logf("used again %v after it returned", time.Since(returned).Round(time.Millisecond))
	r, _, err = b.get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_NOT_FOUND, r.GetStatus(), "its first start's objects are gone: %s", r.GetReason())
}

// stoppedIn stops a node in the middle of what begin starts, and reports false when that was over before.
func stoppedIn(t *testing.T, n *node, begin func(), inTheMiddle func() bool, over func() bool) bool {
	t.Helper()
	begin()
	within(t, soon, func() bool { return inTheMiddle() || over() }, "it neither begins nor ends")
	if over() {
		return false
	}
	n.signal(t, syscall.SIGSTOP)
	return true
}

// TestAWriterThatWakesUpLateWritesNothing: its reservation has ended, its pages hold another key, and it goes on.
func TestAWriterThatWakesUpLateWritesNothing(t *testing.T) {
	notOverSSH(t, "a signal comes too late to hit a transfer")
	p := newPool(t, []string{"owner", "writer"}, "--dram-bytes", "40MiB", "--reservation", "500ms", "--watermark-high", "0", "--watermark-low", "0",
		"--timeout-call", "2s", "--lease", "100ms")
	owner, writer := p.nodes["owner"], p.nodes["writer"]
	const size = 32 << 20
	late, other := content("late", 0, size), content("other", 0, size)
	type answer struct {
		r   *enginev1.Result
		err error
	}
	var answered atomic.Pointer[answer]
	caught := false
	for attempt := 0; attempt < 20 && !caught; attempt++ {
		answered.Store(nil)
		key := fmt.Sprintf("late-%d", attempt)
		caught = stoppedIn(t, writer,
			func() {
				go func() { r, err := writer.put(t.Context(), key, late, "owner"); answered.Store(&answer{r, err}) }()
			},
			func() bool { return owner.counts(t)["now.slots.pending"] > 0 },
			func() bool { return answered.Load() != nil })
		if caught && owner.counts(t)["now.slots.pending"] == 0 { // it was through when the signal came
			writer.signal(t, syscall.SIGCONT)
			caught = false
		}
	}
	require.True(t, caught, "every put was over before its writer could be stopped")
	p.eventually(func() bool {
		c := owner.counts(t)
		return c["doomed.deadline"] > 0 && c["now.revokes_pending"] == 0 && c["now.slots.doomed"] == 0
	}, "the reservation does not end")
	owner.mustPut(t, "other", other) // 32 of 40 MiB: it lies on pages that the writer was told
	began := time.Now()
	writer.signal(t, syscall.SIGCONT)
	p.eventually(func() bool { return answered.Load() != nil }, "the writer's call does not end")
	got := answered.Load()
	require.NoError(t, got.err)
	t.Logf("the writer's call ended with %v after %v: %s", got.r.GetStatus(), time.Since(began).Round(time.Millisecond), got.r.GetReason())
	if got.r.GetStatus() != stored {
		owner.mustGet(t, "other", other)
		return
	}
	// It reserved anew, which may have evicted the other key: what is there must be right nevertheless.
	if r, b, err := owner.get(t.Context(), "other"); err == nil && r.GetStatus() == hit {
		requireBytes(t, other, b)
	}
}

// putOnceThereIsRoom repeats a put that a lease stands in the way of.
func (p *pool) putOnceThereIsRoom(n *node, key string, b []byte) {
	p.t.Helper()
	p.eventually(func() bool {
		r, err := n.put(p.t.Context(), key, b, "")
		require.NoError(p.t, err)
		if r.GetStatus() != stored {
			require.Equal(p.t, enginev1.KeyStatus_KEY_STATUS_NO_SPACE, r.GetStatus(), r.GetReason())
		}
		return r.GetStatus() == stored
	}, "there is no room for %s", key)
}

// TestAReaderThatWakesUpPastItsLeaseIsLateAndNeverWrong: meanwhile the pages that it reads are another key's.
func TestAReaderThatWakesUpPastItsLeaseIsLateAndNeverWrong(t *testing.T) {
	notOverSSH(t, "a signal comes too late to hit a transfer")
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) { lateReader(t, transport) })
	}
}

func lateReader(t *testing.T, transport string) {
	p := newPool(t, []string{"owner", "reader"}, "--transport", transport, "--dram-bytes", "40MiB", "--lease", "100ms", "--locality", "off", "--watermark-high", "0",
		"--watermark-low", "0", "--timeout-call", "20s", "--arena-get-bytes", "32MiB")
	owner, reader := p.nodes["owner"], p.nodes["reader"]
	const size = 32 << 20
	type answer struct {
		r   *enginev1.Result
		b   []byte
		err error
	}
	caught := 0
	for round := 0; round < 30 && caught < 3; round++ {
		key := fmt.Sprintf("k%d", round)
		object := content(key, 0, size)
		p.putOnceThereIsRoom(owner, key, object)
		var answered atomic.Pointer[answer]
		stopped := stoppedIn(t, reader,
			func() {
				go func() { r, b, err := reader.get(t.Context(), key); answered.Store(&answer{r, b, err}) }()
			},
			func() bool { return reader.counts(t)["now.arena_used.get"] > 0 },
			func() bool { return answered.Load() != nil })
		if stopped {
			p.putOnceThereIsRoom(owner, key+" other", content(key, 1, size)) // once the lease is over it takes the pages
			reader.signal(t, syscall.SIGCONT)
		}
		p.eventually(func() bool { return answered.Load() != nil }, "the read does not end")
		got := answered.Load()
		require.NoError(t, got.err)
		if got.r.GetStatus() == hit {
			requireBytes(t, object, got.b)
		} else if stopped {
			caught++
			require.Contains(t, []enginev1.KeyStatus{enginev1.KeyStatus_KEY_STATUS_LATE, enginev1.KeyStatus_KEY_STATUS_NOT_FOUND,
				enginev1.KeyStatus_KEY_STATUS_TRANSFER_FAILED, enginev1.KeyStatus_KEY_STATUS_PEER_UNAVAILABLE}, got.r.GetStatus(), got.r.GetReason())
		}
	}
	require.True(t, caught > 0 || transport == "shm", "no read was caught in its middle") // by shm it is over within milliseconds
	c := reader.counts(t)
	t.Logf("%d reads were caught; statuses: late %d, not found %d; repeated as late %d", caught, c["get_keys.late"], c["get_keys.not_found"], c["downgrades.late"])
}

func TestAFullMediumMakesRoomAndSaysWhenItCannot(t *testing.T) {
	p := newPool(t, []string{"a", "b"}, "--dram-bytes", "4MiB", "--watermark-high", "0", "--watermark-low", "0")
	a, b := p.nodes["a"], p.nodes["b"]
	objects := map[string][]byte{}
	for i := range 12 { // three times what there is room for
		key := fmt.Sprint("k", i)
		objects[key] = content(key, 0, 1<<20)
		a.mustPut(t, key, objects[key])
	}
	found := 0
	for key, object := range objects {
		for _, n := range []*node{a, b} {
			r, got, err := n.get(t.Context(), key)
			require.NoError(t, err)
			if r.GetStatus() == hit {
				found++
				requireBytes(t, object, got)
			} else {
				require.Equal(t, enginev1.KeyStatus_KEY_STATUS_NOT_FOUND, r.GetStatus(), r.GetReason())
			}
		}
	}
	require.GreaterOrEqual(t, found, 4)
	require.NotZero(t, a.counts(t)["doomed.evicted"])
	_, errs, code := a.ctl(t, "put", "large", write(t, "large", content("large", 0, 5<<20)))
	require.Equal(t, 1, code)
	require.Contains(t, errs, `put "large": no_space`)
	_, errs, code = b.ctl(t, "put", "--to", "a", "large", write(t, "large", content("large", 0, 5<<20)))
	require.Equal(t, 1, code)
	require.Contains(t, errs, `put "large": no_space`)
}

// TestCallsInProgressEndWellWhenANodeIsAskedToStop: a put that is half here, and reads under way.
func TestCallsInProgressEndWellWhenANodeIsAskedToStop(t *testing.T) {
	p := newPool(t, []string{"a", "b"})
	a, b := p.nodes["a"], p.nodes["b"]
	object := content("k", 0, 2<<20)
	b.mustPut(t, "k", object)

	s, err := a.engine.Put(t.Context())
	require.NoError(t, err)
	half := len(object) / 2
	require.NoError(t, s.Send(&enginev1.PutRequest{Header: &enginev1.PutHeader{Key: []byte("half"), Size: uint64(len(object))}, Data: object[:1<<20]}))
	var hits atomic.Uint64
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				r, got, err := a.get(t.Context(), "k")
				switch {
				case err != nil:
					if errors.Is(err, errHalf) || !unavailable(err) {
						t.Errorf("a read was broken off: %v", err)
					}
					return
				case r.GetStatus() != hit || !bytes.Equal(got, object):
					t.Errorf("a read in progress ended with %v: %s", r.GetStatus(), r.GetReason())
					return
				}
				hits.Add(1)
			}
		})
	}
	p.eventually(func() bool { return hits.Load() > 10 }, "nothing is read")
	a.signal(t, syscall.SIGTERM)
	readers.Wait()
	p.eventually(func() bool { return !readyz(a.http) }, "it stays ready")
	if a.place.ssh == "" { // a tunnel takes every connection
		p.eventually(func() bool { _, err := net.Dial("unix", a.socket); return err != nil }, "it goes on accepting")
	}
	require.False(t, a.hasEnded(), "a put is in progress")
	require.NoError(t, s.Send(&enginev1.PutRequest{Data: object[half:]}))
	reply, err := s.CloseAndRecv()
	require.NoError(t, err)
	require.Equal(t, stored, reply.GetResult().GetStatus())
	p.eventually(a.hasEnded, "it does not end")
	require.Zero(t, a.cmd.ProcessState.ExitCode(), a.log)
	if a.place.ssh == "" {
		_, err = os.Stat(a.socket)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	require.Contains(t, a.log.String(), "msg=stopped")
}

func TestASecondSignalEndsANodeAtOnce(t *testing.T) {
	p := newPool(t, []string{"a"}, "--drain", "1m")
	a := p.nodes["a"]
	s, err := a.engine.Put(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&enginev1.PutRequest{Header: &enginev1.PutHeader{Key: []byte("half"), Size: 10}, Data: []byte("12345")}))
	p.eventually(func() bool { return a.counts(t) != nil }, "it answers")
	a.signal(t, syscall.SIGTERM)
	p.eventually(func() bool { return !readyz(a.http) }, "it does not drain")
	require.False(t, a.hasEnded())
	a.signal(t, syscall.SIGTERM)
	within(t, 5*time.Second, a.hasEnded, "it does not end")
	require.NotZero(t, a.cmd.ProcessState.ExitCode())
	p.start("a") // over the socket that the dead one left
	a.mustPut(t, "k", []byte("value"))
}

func TestAWrongSecretIsRefusedAndSeen(t *testing.T) {
	onLoopbackOnly(t, "a node without a secret does not listen elsewhere")
	secret := write(t, "secret", []byte("the secret that a and b share"))
	wrong := write(t, "wrong", []byte("another one of similar length"))
	p := layOut(t, []string{"a", "b", "w", "none"}, "--locality", "off")
	for id, file := range map[string]string{"a": secret, "b": secret, "w": wrong} {
		p.nodes[id].args = []string{"--secret-file", file}
	}
	for _, id := range p.ids {
		p.start(id)
	}
	p.together("a", "b")
	object := content("k", 0, 100_000)
	p.nodes["a"].mustPut(t, "k", object)
	p.eventually(func() bool {
		r, got, err := p.nodes["b"].get(t.Context(), "k")
		return err == nil && r.GetStatus() == hit && bytes.Equal(got, object)
	}, "b reads nothing")
	for _, id := range []string{"w", "none"} {
		n := p.nodes[id]
		r, _, err := n.get(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, enginev1.KeyStatus_KEY_STATUS_PEER_UNAVAILABLE, r.GetStatus())
		p.eventually(func() bool {
			out, _, _ := n.ctl(t, "peers")
			return bytes.Contains([]byte(out), []byte("secret"))
		}, "%s does not show why", id)
		require.Empty(t, n.peer(t, "a").GetTransport())
		require.Empty(t, p.nodes["a"].peer(t, id).GetTransport())
		r, err = n.put(t.Context(), "mine", object, "a")
		require.NoError(t, err)
		require.NotEqual(t, stored, r.GetStatus())
	}
	require.ErrorContains(t, stranger(t, p.nodes["a"]), "secret", "a call that proves nothing")
	require.NoError(t, stranger(t, p.nodes["none"]), "without a secret there is nothing to prove: the call above was a good one")
	for _, n := range p.nodes {
		require.NotContains(t, n.log.String(), "the secret that", "the secret is in the log")
	}
}

// stranger says hello to a node as a program of its own, and proves nothing.
func stranger(t *testing.T, n *node) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.control, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	s, err := peerv1.NewPeerClient(conn).Hello(t.Context())
	require.NoError(t, err)
	err = s.Send(&peerv1.HelloRequest{Ends: &peerv1.Ends{From: &peerv1.Start{Id: "stranger", Incarnation: 1}, To: &peerv1.Start{Id: n.id}}, Protocol: 1})
	if err != nil {
		require.ErrorIs(t, err, io.EOF, "a stream that was refused already says why at Recv")
	}
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	return err
}

// TestABlackHoleLeavesTheOthersKeysAlone: a peer that is stopped takes connections and answers nothing.
func TestABlackHoleLeavesTheOthersKeysAlone(t *testing.T) {
	p := newPool(t, []string{"a", "b", "c"}, "--locality", "off", "--timeout-control", "4s") // longer than any call below may take
	a, b, c := p.nodes["a"], p.nodes["b"], p.nodes["c"]
	object := content("k", 0, 200_000)
	b.mustPut(t, "of b", object)
	c.mustPut(t, "of c", object)
	a.mustGet(t, "of b", object)
	a.mustGet(t, "of c", object)
	c.signal(t, syscall.SIGSTOP)
	var first time.Duration // of the calls until one has noticed; what a knows of b's key it need not ask for, for a lease
	p.eventually(func() bool {
		began := time.Now()
		a.mustGet(t, "of b", object)
		first = max(first, time.Since(began))
		return a.peer(t, "c").GetTransport() == ""
	}, "nothing is noticed of c")
	require.Less(t, first, 3*time.Second, "b has answered, and c is waited for")
	var slowest time.Duration
	for range 50 {
		began := time.Now()
		a.mustGet(t, "of b", object)
		slowest = max(slowest, time.Since(began))
	}
	require.Less(t, slowest, time.Second, "later calls do not pay again")
	t.Logf("the call that noticed took %v, the slowest of 50 later ones %v", first.Round(time.Millisecond), slowest.Round(time.Millisecond))
	r, _, err := a.get(t.Context(), "of c")
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_PEER_UNAVAILABLE, r.GetStatus())
	c.signal(t, syscall.SIGCONT)
	within(t, 3*time.Second, func() bool {
		r, got, err := a.get(t.Context(), "of c")
		require.NoError(t, err)
		return r.GetStatus() == hit && bytes.Equal(got, object)
	}, "c goes on and is not used")
}

func TestGarbageToEveryPortHarmsNobody(t *testing.T) {
	p := newPool(t, []string{"a", "b"}, "--locality", "off")
	a, b := p.nodes["a"], p.nodes["b"]
	object := content("k", 0, 500_000)
	a.mustPut(t, "k", object)
	noise := content("noise", 7, 1<<16)
	for _, at := range []struct{ network, address string }{{"tcp", a.control}, {"tcp", a.data}, {"tcp", a.http}, {"unix", a.socket}} {
		for _, garbage := range [][]byte{nil, {0}, noise, noise[:3], bytes.Repeat([]byte{0xff}, 1<<16), []byte("GET /readyz HTTP/1.1\r\nHost: a\r\n"),
			[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), noise...)} {
			for _, half := range []bool{false, true} {
				c, err := net.Dial(at.network, at.address)
				require.NoError(t, err, "%s", at.address)
				require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
				_, _ = c.Write(garbage) // it may have hung up by now
				if half && at.network == "tcp" {
					_ = c.(*net.TCPConn).CloseWrite()
				}
				require.NoError(t, c.Close())
			}
		}
		b.mustGet(t, "k", object)
	}
	require.False(t, a.hasEnded())
	require.True(t, readyz(a.http))
	a.mustGet(t, "k", object)
}

// TestOneReadIsOfOneVersion: two nodes hold different bytes under one key, and one of them dies while a third walks over it.
func TestOneReadIsOfOneVersion(t *testing.T) {
	p := newPool(t, []string{"a", "b", "c"})
	a, b, c := p.nodes["a"], p.nodes["b"], p.nodes["c"]
	const size, step = 2 << 20, 100_000
	for round := range 3 {
		key := fmt.Sprint("k", round)
		versions := [2][]byte{content(key, 1, size), content(key, 2, size)}
		a.mustPut(t, key, versions[0])
		b.mustPut(t, key, versions[1])
		for off := 0; off+2*step < size; off += step {
			if off/step == 4 && round == 2 {
				a.kill(t)
			}
			ranges := []*enginev1.Range{span(off+step, step), span(off, step/2)}
			r, got, err := c.get(t.Context(), key, ranges...)
			require.NoError(t, err)
			if r.GetStatus() == hit {
				require.True(t, bytes.Equal(got, pick(versions[0], ranges...)) || bytes.Equal(got, pick(versions[1], ranges...)), "a mixture, at %d", off)
			}
		}
		p.eventually(func() bool {
			r, got, err := c.get(t.Context(), key)
			require.NoError(t, err)
			if r.GetStatus() != hit {
				return false
			}
			require.True(t, bytes.Equal(got, versions[0]) || bytes.Equal(got, versions[1]), "what is installed is a mixture")
			return r.GetSource() == enginev1.Source_SOURCE_LOCAL
		}, "%s does not become local", key)
	}
}

// TestWorkloadsRunOverSocketsAndOnServedNodes: verified by the bench itself, which fails when a byte is wrong.
func TestWorkloadsRunOverSocketsAndOnServedNodes(t *testing.T) { workloadsRun(t, "tcp") }

// TestWorkloadsRunOverShmAndOnServedNodes: likewise, and the bench fails when a byte is read by something else.
func TestWorkloadsRunOverShmAndOnServedNodes(t *testing.T) {
	notOverSSH(t, "the nodes are to be on one host")
	workloadsRun(t, "shm")
}

func workloadsRun(t *testing.T, transport string) {
	p := newPool(t, []string{"a", "b"}, "--transport", transport, "--dram-bytes", "128MiB")
	a, b := p.nodes["a"], p.nodes["b"]
	remote := []string{"--peer", "a=" + a.control, "--peer", "b=" + b.control}
	if f := a.place.secretFile; f != "" {
		notOverSSH(t, "the bench would have to run there")
		remote = append(remote, "--secret-file", f)
	}
	const want = 2 * 4 * 61 * 73728 / float64(mib)
	for name, args := range map[string][]string{"one process": nil, "served nodes": remote} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := spanpool(t, append([]string{"bench", "layerwise", "--transport", transport, "--preset", "deepseek-v3.2", "--pages", "4",
				"--ranks", "1", "--requests", "2", "--offload-ranks", "1", "--compute-us-per-layer", "0", "--scratch-mib", "32", "--output", "csv"}, args...)...)
			require.Zero(t, code, stderr)
			r := row(t, stdout)
			// What came too late for its lease, on a busy machine, crossed again.
			require.InEpsilon(t, want, r["wire_range_mib"]+r["wire_background_mib"]-r["wire_duplicate_mib"], 0.01, stdout)
			require.Contains(t, r, "failed_reads", "the run was not verified")
			require.Zero(t, r["failed_reads"])

			trace := write(t, "trace.jsonl", []byte(`{"timestamp": 0, "input_length": 2048, "output_length": 1, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 1, "input_length": 2048, "output_length": 1, "hash_ids": [0, 1, 2, 4]}
`))
			stdout, stderr, code = spanpool(t, append([]string{"bench", "replay", "--transport", transport, "--trace", trace, "--capacity-blocks", "100", "--output", "csv"}, args...)...)
			require.Zero(t, code, stderr)
			require.EqualValues(t, 3, row(t, stdout)["hit_blocks"], stdout)
			require.Zero(t, row(t, stdout)["failed_reads"])
		})
	}
	require.Positive(t, a.counts(t)["put_bytes"])
	require.Positive(t, b.counts(t)["put_bytes"])
	for _, n := range p.nodes {
		p.eventually(func() bool { return n.counts(t)["now.pages"] == n.counts(t)["now.pages_free"] }, "%s keeps what the runs put there", n.id)
	}
}
