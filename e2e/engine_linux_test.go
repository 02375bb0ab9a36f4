package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/client"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// clientOf is a client of a node that is on this host.
func clientOf(t *testing.T, n *node, o client.Options) *client.Client {
	t.Helper()
	if n.place.ssh != "" {
		t.Skip("shared memory is for programs of the node's own host")
	}
	c, err := client.Dial(t.Context(), n.socket, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// layers is an object of equal layers under each key; a row of memory holds the layers of one key, with a guard behind each row.
type layers struct {
	keys            []string
	n, bytes, guard uint64
}

func (l layers) size() uint64   { return l.n * l.bytes }
func (l layers) stride() uint64 { return l.size() + l.guard }
func (l layers) room() uint64   { return uint64(len(l.keys)) * l.stride() }

// pattern is layers [lo, hi) of every key, into rows in reverse order.
func (l layers) pattern(r *client.Region, lo, hi uint64) *client.Pattern {
	p := &client.Pattern{Len: []uint64{l.bytes}, Region: []*client.Region{r}, Stride: []uint64{l.stride()}}
	for i := lo; i < hi; i++ {
		p.Off, p.Base = append(p.Off, i*l.bytes), append(p.Base, i*l.bytes)
	}
	for i := range l.keys {
		p.Row = append(p.Row, uint64(len(l.keys)-1-i))
	}
	return p
}

// fill puts the objects into memory; check requires that they are there, in layers [lo, hi) and nowhere else.
func (l layers) fill(b []byte) {
	for i, k := range l.keys {
		copy(b[uint64(len(l.keys)-1-i)*l.stride():], content(k, 0, int(l.size())))
	}
}

func (l layers) check(t *testing.T, b []byte, lo, hi uint64) {
	t.Helper()
	for i, k := range l.keys {
		want := bytes.Repeat([]byte{0xA5}, int(l.stride()))
		copy(want[lo*l.bytes:hi*l.bytes], content(k, 0, int(l.size()))[lo*l.bytes:])
		at := uint64(len(l.keys)-1-i) * l.stride()
		requireBytes(t, want, b[at:at+l.stride()])
	}
}

func poison(b []byte) {
	for i := range b {
		b[i] = 0xA5
	}
}

func keysNamed(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s%d", prefix, i))
	}
	return out
}

func TestAnotherProcessReadsLayersIntoItsOwnMemory(t *testing.T) {
	p := newPool(t, []string{"a", "b"})
	c := clientOf(t, p.nodes["a"], client.Options{Namespace: "n"})
	far := clientOf(t, p.nodes["b"], client.Options{Namespace: "n"})
	l := layers{keys: keysNamed("k", 16), n: 8, bytes: 1728, guard: 64}
	for name, open := range map[string]func(c *client.Client) (*client.Region, error){
		"its own":    func(c *client.Client) (*client.Region, error) { return c.NewMemory(t.Context(), l.room()) },
		"the node's": func(c *client.Client) (*client.Region, error) { return c.Allocate(t.Context(), l.room()) },
	} {
		t.Run(name, func(t *testing.T) {
			own, err := open(c)
			require.NoError(t, err)
			l.fill(own.Bytes())
			a, err := c.PutRanges(t.Context(), client.PutOptions{}, client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(own, 0, l.n), Sizes: []uint64{l.size()}})
			require.NoError(t, err)
			require.NoError(t, client.Failed(a))
			found, leading, err := c.BatchExists(t.Context(), client.Keys{Names: append([]string{"k3", "none"}, l.keys...)}, time.Second, false)
			require.NoError(t, err)
			require.Equal(t, 1, leading)
			require.Equal(t, []bool{true, false, true}, found[:3])
			for _, reader := range []*client.Client{c, far} {
				into, err := open(reader)
				require.NoError(t, err)
				h, err := reader.NewHandle(l.keys, nil)
				require.NoError(t, err)
				session, err := reader.OpenRead(t.Context())
				require.NoError(t, err)
				for lo := uint64(0); lo < l.n; lo += 3 {
					poison(into.Bytes())
					a, err := session.GetRanges(t.Context(), client.Part{Keys: client.Keys{Handle: h}, Pattern: l.pattern(into, lo, min(lo+3, l.n))})
					require.NoError(t, err)
					require.NoError(t, client.Failed(a))
					l.check(t, into.Bytes(), lo, min(lo+3, l.n))
				}
				require.NoError(t, session.Close())
				require.ErrorIs(t, session.Close(), client.ErrNotFound)
				require.NoError(t, h.Close())
				require.NoError(t, into.Close())
			}
			require.NoError(t, own.Close())
		})
	}
	counts, gauges, err := c.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, gauges["regions"])
	require.Zero(t, gauges["handles"])
	require.Zero(t, counts["now.engine.region_bytes"]-0)
}

func TestObjectsWrittenInPartsAreSeenWhenCommitted(t *testing.T) {
	p := newPool(t, []string{"a"})
	c := clientOf(t, p.nodes["a"], client.Options{})
	l := layers{keys: keysNamed("k", 4), n: 6, bytes: 10_000}
	own, err := c.NewMemory(t.Context(), l.room())
	require.NoError(t, err)
	l.fill(own.Bytes())
	w, a, err := c.OpenWrite(t.Context(), client.Keys{Names: l.keys}, l.size())
	require.NoError(t, err)
	require.NoError(t, client.Failed(a))
	other, _, err := c.OpenWrite(t.Context(), client.Keys{Names: []string{"aborted"}}, l.size())
	require.NoError(t, err)
	for lo := uint64(0); lo < l.n; lo += 2 {
		a, err = w.WriteRanges(t.Context(), client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(own, lo, lo+2)})
		require.NoError(t, err)
		require.NoError(t, client.Failed(a))
		if lo == 0 {
			a, err = w.Commit(t.Context())
			require.NoError(t, err)
			require.Equal(t, client.Invalid, a.GetStatus()[0])
		}
	}
	found, _, err := c.BatchExists(t.Context(), client.Keys{Names: l.keys}, 0, false)
	require.NoError(t, err)
	require.NotContains(t, found, true)
	for range 2 { // the second one repeats a commit whose reply was lost
		a, err = w.Commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, client.Failed(a))
	}
	require.NoError(t, other.Abort())
	poison(own.Bytes())
	a, err = c.GetRanges(t.Context(), client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(own, 0, l.n)})
	require.NoError(t, err)
	require.NoError(t, client.Failed(a))
	l.check(t, own.Bytes(), 0, l.n)
}

// memfd is memory of a program that knows nothing of seals.
func memfd(t *testing.T, n int64) *os.File {
	fd, err := unix.MemfdCreate("e2e", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "e2e")
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, f.Truncate(n))
	return f
}

func TestAClientThatShrinksItsFileHarmsOnlyItself(t *testing.T) {
	p := newPool(t, []string{"a"})
	a := p.nodes["a"]
	c, other := clientOf(t, a, client.Options{}), clientOf(t, a, client.Options{})
	l := layers{keys: keysNamed("k", 8), n: 4, bytes: 64 << 10}
	good, err := other.NewMemory(t.Context(), l.room())
	require.NoError(t, err)
	l.fill(good.Bytes())
	answer, err := other.PutRanges(t.Context(), client.PutOptions{}, client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(good, 0, l.n), Sizes: []uint64{l.size()}})
	require.NoError(t, err)
	require.NoError(t, client.Failed(answer))
	f := memfd(t, int64(l.room()))
	bad, err := c.Register(t.Context(), f, 0, l.room())
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { // reads go on while the file is cut
		for {
			answer, err := c.GetRanges(context.Background(), client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(bad, 0, l.n)})
			if err != nil {
				done <- err
				return
			}
			if err := client.Failed(answer); err != nil {
				done <- err
				return
			}
		}
	}()
	require.NoError(t, f.Truncate(int64(l.room()/2)))
	var key *client.KeyError
	require.ErrorAs(t, <-done, &key)
	require.Equal(t, client.CopyFailed, key.Status, key.Reason)
	answer, err = c.PutRanges(t.Context(), client.PutOptions{}, client.Part{Keys: client.Keys{Names: keysNamed("cut", 8)}, Pattern: l.pattern(bad, 0, l.n), Sizes: []uint64{l.size()}})
	require.NoError(t, err)
	require.Equal(t, client.CopyFailed, answer.GetStatus()[0])
	poison(good.Bytes())
	answer, err = other.GetRanges(t.Context(), client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(good, 0, l.n)})
	require.NoError(t, err)
	require.NoError(t, client.Failed(answer), "the node lives")
	l.check(t, good.Bytes(), 0, l.n)
}

// had is what a process has of descriptors, mappings and shared memory.
type had struct {
	fds, maps int
	shared    string
}

func (n *node) has(t *testing.T) had {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", n.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "fd")
	require.NoError(t, err)
	maps, err := os.ReadFile(proc + "maps")
	require.NoError(t, err)
	status, err := os.ReadFile(proc + "status")
	require.NoError(t, err)
	h := had{fds: len(fds)}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:") {
			h.maps++
		}
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssShmem:"); ok {
			h.shared = strings.TrimSpace(rest)
		}
	}
	return h
}

func TestClientsThatAreKilledLeaveNothing(t *testing.T) {
	p := newPool(t, []string{"a"}, "--dram-bytes", "32MiB")
	a := p.nodes["a"]
	c := clientOf(t, a, client.Options{Namespace: "rank"}) // its connection stays, so that what grows is the others'
	rank := filepath.Join(t.TempDir(), "rank")
	out, err := exec.Command("go", "build", "-o", rank, "github.com/spanpool/spanpool/e2e/rank").CombinedOutput()
	require.NoError(t, err, string(out))
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	var before had
	for i := range rounds {
		killOne(t, rank, a.socket)
		within(t, 4*time.Second, func() bool { // 2 s by contract, and a machine that is busy
			counts, _, err := c.Stats(t.Context())
			return err == nil && counts["now.engine.clients"] == 1 && counts["now.engine.region_bytes"] == 0 && counts["now.sessions"] == 0 &&
				counts["now.slots.pending"] == 0 && counts["now.pins"] == 0
		}, "a client that was killed keeps something")
		if i == 0 {
			before = a.has(t)
		}
	}
	p.eventually(func() bool { return a.has(t).fds <= before.fds+1 }, "descriptors: %+v, and after the first %+v", a.has(t), before)
	require.Equal(t, before.maps, a.has(t).maps)
	require.Equal(t, before.shared, a.has(t).shared)
	counts, _, err := c.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, rounds, counts["engine.ended.closed"])
}

// killOne starts a client, and kills it when it is at work.
func killOne(t *testing.T, rank, socket string) {
	t.Helper()
	c := exec.Command(rank)
	c.Stdin = strings.NewReader(socket + "\n")
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	said := make([]byte, 6)
	_, err = io.ReadFull(stdout, said)
	if string(said) != "ready\n" {
		rest, _ := io.ReadAll(stdout)
		require.FailNow(t, "the client did not get there", "%v: %s%s", err, said, rest)
	}
	require.NoError(t, c.Process.Kill())
	_ = c.Wait()
}

func TestAClientRegistersAgainAfterARestart(t *testing.T) {
	p := newPool(t, []string{"a"})
	a := p.nodes["a"]
	c := clientOf(t, a, client.Options{})
	l := layers{keys: keysNamed("k", 8), n: 4, bytes: 4096, guard: 64}
	own, err := c.NewMemory(t.Context(), l.room())
	require.NoError(t, err)
	given, err := c.Allocate(t.Context(), l.room())
	require.NoError(t, err)
	f := memfd(t, int64(l.room()))
	cut, err := c.Register(t.Context(), f, 0, l.room())
	require.NoError(t, err)
	h, err := c.NewHandle(l.keys, nil)
	require.NoError(t, err)
	put := func(r *client.Region) error {
		l.fill(r.Bytes())
		answer, err := c.PutRanges(t.Context(), client.PutOptions{}, client.Part{Keys: client.Keys{Handle: h}, Pattern: l.pattern(r, 0, l.n), Sizes: []uint64{l.size()}})
		return errors.Join(err, client.Failed(answer))
	}
	require.NoError(t, put(own))
	session, err := c.OpenRead(t.Context())
	require.NoError(t, err)
	boot := c.Hello().GetBoot()
	a.kill(t)
	require.ErrorIs(t, put(own), client.ErrUnavailable)
	require.NoError(t, f.Truncate(0))
	p.start("a")
	p.eventually(func() bool { err = put(own); return err == nil || !errors.Is(err, client.ErrUnavailable) }, "the node is not found again")
	require.NoError(t, err)
	require.NotEqual(t, boot, c.Hello().GetBoot())
	_, err = session.GetRanges(t.Context(), client.Part{Keys: client.Keys{Handle: h}, Pattern: l.pattern(given, 0, l.n)})
	require.ErrorIs(t, err, client.ErrRestarted)
	poison(given.Bytes())
	answer, err := c.GetRanges(t.Context(), client.Part{Keys: client.Keys{Handle: h}, Pattern: l.pattern(given, 0, l.n)})
	require.NoError(t, err)
	require.NoError(t, client.Failed(answer), "memory of the start before is a file like others")
	l.check(t, given.Bytes(), 0, l.n)
	answer, err = c.GetRanges(t.Context(), client.Part{Keys: client.Keys{Handle: h}, Pattern: l.pattern(cut, 0, l.n)})
	require.NoError(t, err)
	require.Equal(t, client.NotRegistered, answer.GetStatus()[0], "a file that was cut is lost alone")
}

// TestACancelledCallHasLetGo: what the client writes there afterwards stays.
func TestACancelledCallHasLetGo(t *testing.T) {
	p := newPool(t, []string{"a"})
	c := clientOf(t, p.nodes["a"], client.Options{})
	l := layers{keys: keysNamed("k", 16), n: 8, bytes: 64 << 10}
	own, err := c.NewMemory(t.Context(), l.room())
	require.NoError(t, err)
	l.fill(own.Bytes())
	answer, err := c.PutRanges(t.Context(), client.PutOptions{}, client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(own, 0, l.n), Sizes: []uint64{l.size()}})
	require.NoError(t, err)
	require.NoError(t, client.Failed(answer))
	cancelled := 0
	want := bytes.Repeat([]byte{0xA5}, len(own.Bytes()))
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		_, err := c.GetRanges(ctx, client.Part{Keys: client.Keys{Names: l.keys}, Pattern: l.pattern(own, 0, l.n)})
		cancel()
		require.NotErrorIs(t, err, client.ErrNotQuiet)
		if err != nil {
			cancelled++
		}
		copy(own.Bytes(), want)
		require.True(t, bytes.Equal(want, own.Bytes()), "round %d: something was written after the call", i)
	}
	require.Positive(t, cancelled)
}

func TestTheEngineBenchmarkRunsANodeOfItsOwn(t *testing.T) {
	stdout, stderr, code := spanpool(t, "bench", "engine", "--runs", "1", "--output", "csv")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "layer group,256,18.00,")
	require.Empty(t, stderr)
}

// TestARouterKnowsWhatIsWhere: puts, evictions and removals of a node, and its restart.
func TestARouterKnowsWhatIsWhere(t *testing.T) {
	p := newPool(t, []string{"a"}, "--dram-bytes", "1MiB", "--watermark-high", "0", "--watermark-low", "0")
	a := p.nodes["a"]
	c := clientOf(t, a, client.Options{})
	known, at := map[string]bool{}, client.Position{}
	enough := errors.New("enough")
	readUntil := func(so func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		err := c.Events(ctx, at, nil, func(m *enginev1.EventsReply) error {
			if m.GetResync() {
				clear(known)
			}
			for _, e := range m.GetEvents() {
				if e.GetKind() == enginev1.EventKind_EVENT_KIND_ADD {
					known[string(e.GetKey())] = true
				} else {
					delete(known, string(e.GetKey()))
				}
			}
			at = client.Position{Boot: m.GetBoot(), Sequence: m.GetSequence()}
			if so() {
				return enough
			}
			return nil
		})
		require.ErrorIs(t, err, enough, "known: %v", known)
	}
	a.mustPut(t, "k", content("k", 0, 100))
	readUntil(func() bool { return known["k"] })
	for i := range 20 { // more than the medium holds
		a.mustPut(t, fmt.Sprint(i), content(fmt.Sprint(i), 0, 64<<10))
	}
	readUntil(func() bool { return known["19"] && !known["k"] })
	_, errs, code := a.ctl(t, "remove", "19")
	require.Zero(t, code, errs)
	readUntil(func() bool { return !known["19"] })
	for _, key := range keysNamed("", 20) {
		_, _, code := a.ctl(t, "exists", key)
		require.Equal(t, known[key], code == 0, key)
	}
	a.kill(t)
	p.start("a")
	a.mustPut(t, "new", content("new", 0, 100))
	p.eventually(func() bool { _, err := c.Status(t.Context()); return err == nil }, "the node is not found again")
	readUntil(func() bool { return known["new"] })
	require.Equal(t, map[string]bool{"new": true}, known)
}
