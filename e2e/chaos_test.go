package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/client"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// The world of the chaos: a few keys, under each of which several objects are put, more of them than the nodes have room for.
const (
	chaosKeys    = 24
	chaosObjects = 3         // under each key
	chaosRoom    = 700 << 10 // bytes; the largest object has fewer
	chaosGuard   = 61        // bytes between places in memory
	chaosLeast   = 10        // hits of each worker, however slow the machine is
)

// TestNobodyIsServedGarbage kills, restarts and stops nodes while clients of each put, read, remove and leave. Whatever a read says it
// has read is of one object that was put under that key, every byte of it; nothing else of the reader's memory has changed; and
// when all is over nothing is held. SPANPOOL_E2E_CHAOS=10m runs it for that long.
func TestNobodyIsServedGarbage(t *testing.T) {
	onLoopbackOnly(t, "what holds bytes up is on this host")
	for name, args := range map[string][]string{
		"tcp, no checksums":     {"--transport", "tcp", "--checksum", "off"},
		"shm, no checksums":     {"--transport", "auto", "--checksum", "off"},
		"no get arena":          {"--transport", "tcp", "--arena-get-bytes", "0"},
		"small arenas, no pull": {"--transport", "tcp", "--arena-get-bytes", "256KiB", "--arena-put-bytes", "256KiB", "--locality", "pull", "--ranged-locality-prefetch=false"},
	} {
		t.Run(name, func(t *testing.T) {
			p := layOut(t, []string{"a", "b", "c"}, append([]string{"--dram-bytes", "2MiB", "--dram-page-bytes", "4KiB", "--arena-get-bytes", "1MiB",
				"--arena-put-bytes", "1MiB", "--lease", "40ms", "--reservation", "150ms", "--breaker-min", "50ms", "--breaker-max", "200ms",
				"--timeout-call", "1500ms", "--timeout-transfer", "700ms", "--timeout-control", "300ms", "--timeout-dial", "300ms"}, args...)...)
			for _, n := range p.nodes {
				n.args = []string{"--data-advertise", startRelay(t, n.data, hesitantly, hesitantly)}
				n.relayed = startRelay(t, n.control, hesitantly, hesitantly)
			}
			for _, id := range p.ids {
				p.start(id)
			}
			p.together(p.ids...)
			chaos(t, p)
		})
	}
}

// hesitantly carries bytes in pieces, and some of them later than a lease or a reservation lasts.
func hesitantly(dst io.Writer, src io.Reader) {
	b := make([]byte, 64<<10)
	for {
		n, err := src.Read(b)
		if rand.IntN(20) == 0 {
			<-time.After(time.Duration(rand.IntN(250)) * time.Millisecond) // it is the way that is slow: nothing waits for that
		}
		if _, werr := dst.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// chaosFor is how long nodes are harmed.
func chaosFor(t *testing.T) time.Duration {
	text := os.Getenv("SPANPOOL_E2E_CHAOS")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "SPANPOOL_E2E_CHAOS")
	return d
}

func chaos(t *testing.T, p *pool) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var workers []*worker
	var done sync.WaitGroup
	for i, id := range slices.Concat(p.ids, p.ids) {
		w := newWorker(t, p, p.nodes[id], rand.New(rand.NewPCG(seed, uint64(i))))
		workers = append(workers, w)
		done.Go(func() { w.run(ctx) })
	}
	r := rand.New(rand.NewPCG(seed, 1<<32))
	for end := time.Now().Add(chaosFor(t)); time.Now().Before(end); {
		harm(p, p.nodes[p.ids[r.IntN(len(p.ids))]], r)
		pause(ctx, time.Duration(100+r.IntN(300))*time.Millisecond)
	}
	within(t, soon, func() bool {
		return ctx.Err() != nil || !slices.ContainsFunc(workers, func(w *worker) bool { return w.hits.Load() < chaosLeast && !w.ended.Load() })
	}, "too little is read")
	cancel()
	done.Wait()
	hits := uint64(0)
	for _, w := range workers {
		require.NoError(t, w.fault)
		require.NoError(t, w.c.Close())
		hits += w.hits.Load()
	}
	t.Logf("%d hits", hits)
	for _, id := range p.ids {
		p.quiet(p.nodes[id])
	}
}

// pause waits for a time or the end.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// harm kills a node and starts it again, or stops it for a while, which is longer than a lease, and than some calls wait.
func harm(p *pool, n *node, r *rand.Rand) {
	if r.IntN(2) == 0 {
		n.kill(p.t)
		p.start(n.id)
		return
	}
	n.signal(p.t, syscall.SIGSTOP)
	pause(p.t.Context(), time.Duration(50+r.IntN(1_000))*time.Millisecond)
	n.signal(p.t, syscall.SIGCONT)
}

// quiet requires that a node holds nothing for anybody once reservations and leases are over.
func (p *pool) quiet(n *node) {
	p.t.Helper()
	var left map[string]uint64
	p.eventually(func() bool {
		counts := n.counts(p.t)
		left = make(map[string]uint64)
		for _, name := range []string{"now.pins", "now.calls", "now.sessions", "now.pages_held", "now.revokes_pending", "now.arena_used.get", "now.arena_used.put",
			"now.slots.pending", "now.slots.doomed", "now.engine.clients"} {
			if counts[name] != 0 {
				left[name] = counts[name]
			}
		}
		return len(left) == 0
	}, "%s still holds: %v", n.id, &left)
}

// worker is a client of one node that puts and reads for as long as it is let.
type worker struct {
	node  *node
	c     *client.Client
	mem   *client.Region
	r     *rand.Rand
	hits  atomic.Uint64
	ended atomic.Bool
	fault error
}

func newWorker(t *testing.T, p *pool, n *node, r *rand.Rand) *worker {
	t.Helper()
	w := &worker{node: n, r: r}
	w.c = clientOf(t, n, client.Options{Namespace: "chaos"})
	var err error
	w.mem, err = w.c.NewMemory(t.Context(), 4*chaosRoom)
	require.NoError(t, err)
	return w
}

func (w *worker) run(ctx context.Context) {
	defer w.ended.Store(true)
	for ctx.Err() == nil && w.fault == nil {
		call, cancel := context.WithCancel(ctx)
		if w.r.IntN(8) == 0 { // one who leaves early
			call, cancel = context.WithTimeout(ctx, time.Duration(w.r.IntN(5_000))*time.Microsecond)
		}
		switch n := w.r.IntN(20); {
		case n < 7:
			w.fault = w.put(call)
		case n < 15:
			w.fault = w.read(call, w.c.GetRanges, nil)
		case n < 18:
			w.fault = w.load(call)
		case n < 19:
			_, _ = w.c.Remove(call, "chaos", []string{w.key()})
		default:
			_, _, _ = w.c.BatchExists(call, client.Keys{Names: []string{w.key(), w.key()}}, time.Second, false)
		}
		cancel()
	}
	if errors.Is(w.fault, client.ErrNotQuiet) {
		w.fault = fmt.Errorf("%s: %w", w.node.id, w.fault)
	}
}

func (w *worker) key() string { return fmt.Sprint("key", w.r.IntN(chaosKeys)) }

// objectOf is one of the objects that are put under a key; the third is of another size.
func objectOf(key string, salt int) []byte {
	h := content(key, 99, 8)
	size := 1 + int(h[0])<<11 + int(h[1])<<3
	if salt == 2 {
		size = size/2 + 1
	}
	return content(key, uint64(salt), size)
}

// put stores one to three objects, here or at another node.
func (w *worker) put(ctx context.Context) error {
	part := client.Part{Lists: &client.Lists{Region: []*client.Region{w.mem}}}
	at := 0
	for range 1 + w.r.IntN(3) {
		key := w.key()
		b := objectOf(key, w.r.IntN(chaosObjects))
		copy(w.mem.Bytes()[at:], b)
		part.Keys.Names, part.Sizes = append(part.Keys.Names, key), append(part.Sizes, uint64(len(b)))
		for _, cut := range w.cuts(len(b)) {
			part.Lists.Off, part.Lists.Len = append(part.Lists.Off, uint64(cut.off)), append(part.Lists.Len, uint64(cut.n))
			part.Lists.RegionOff = append(part.Lists.RegionOff, uint64(at+cut.off))
		}
		part.Lists.End = append(part.Lists.End, uint32(len(part.Lists.Off)))
		at += len(b)
	}
	o := client.PutOptions{NoWait: true}
	if w.r.IntN(3) == 0 {
		o.To = []string{"a", "b", "c"}[w.r.IntN(3)]
	}
	_, err := w.c.PutRanges(ctx, o, part)
	return notQuiet(err)
}

// cut is a run of an object.
type cut struct{ off, n int }

// cuts are runs that tile an object, in any order.
func (w *worker) cuts(size int) (out []cut) {
	for off := 0; off < size; {
		n := min(1+w.r.IntN(size), size-off)
		out = append(out, cut{off, n})
		off += n
	}
	w.r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// notQuiet is the one error of a call that is a fault: of others the answer is that a node was harmed.
func notQuiet(err error) error {
	if errors.Is(err, client.ErrNotQuiet) {
		return err
	}
	return nil
}

// load reads the same keys several times in one session: each has one object all the while.
func (w *worker) load(ctx context.Context) error {
	s, err := w.c.OpenRead(ctx)
	if err != nil {
		return notQuiet(err)
	}
	seen := make(map[string][]bool)
	for range 3 {
		if err := w.read(ctx, s.GetRanges, seen); err != nil {
			return err
		}
	}
	_ = s.Close() // it may have ended with its node
	return nil
}

// read asks for some of the ranges of some keys, and looks at every byte of its memory afterwards. seen is which objects a session has seen.
func (w *worker) read(ctx context.Context, get func(context.Context, ...client.Part) (*client.Answer, error), seen map[string][]bool) error {
	mem := w.mem.Bytes()
	poison(mem)
	part := client.Part{Lists: &client.Lists{Region: []*client.Region{w.mem}}}
	type piece struct{ off, n, at int }
	var pieces [][]piece
	at := chaosGuard
	for range 1 + w.r.IntN(4) {
		key := w.key()
		if seen != nil && len(part.Keys.Names) == 0 {
			for k := range seen { // once more
				key = k
				break
			}
		}
		var of []piece
		for _, c := range w.cuts(len(objectOf(key, 2))) { // within each of its objects
			if len(of) > 0 && w.r.IntN(3) == 0 {
				continue
			}
			of = append(of, piece{c.off, c.n, at})
			at += c.n + chaosGuard
		}
		for _, p := range of {
			part.Lists.Off, part.Lists.Len = append(part.Lists.Off, uint64(p.off)), append(part.Lists.Len, uint64(p.n))
			part.Lists.RegionOff = append(part.Lists.RegionOff, uint64(p.at))
		}
		part.Keys.Names = append(part.Keys.Names, key)
		part.Lists.End = append(part.Lists.End, uint32(len(part.Lists.Off)))
		pieces = append(pieces, of)
	}
	answer, err := get(ctx, part)
	if err := notQuiet(err); err != nil {
		return err
	}
	for i, key := range part.Keys.Names {
		if err == nil && answer.GetStatus()[i] == enginev1.KeyStatus_KEY_STATUS_HIT {
			w.hits.Add(1)
			may := make([]bool, chaosObjects) // a short piece may be of several
			for salt := range may {
				b := objectOf(key, salt)
				may[salt] = !slices.ContainsFunc(pieces[i], func(p piece) bool { return !bytes.Equal(mem[p.at:p.at+p.n], b[p.off:p.off+p.n]) })
			}
			if !slices.Contains(may, true) {
				return fmt.Errorf("%s: a hit of %s is of no object that was put: %v", w.node.id, key, pieces[i])
			}
			if had := seen[key]; had != nil {
				for salt := range may {
					may[salt] = may[salt] && had[salt]
				}
				if !slices.Contains(may, true) {
					return fmt.Errorf("%s: a session saw %s as one object and then as another: %v", w.node.id, key, pieces[i])
				}
			}
			if seen != nil {
				seen[key] = may
			}
		}
		for _, p := range pieces[i] {
			poison(mem[p.at : p.at+p.n]) // what a failed key left there is nobody's affair
		}
	}
	if i := slices.IndexFunc(mem, func(b byte) bool { return b != mem[0] }); i >= 0 {
		return fmt.Errorf("%s: byte %d of the reader's memory was written, and no range was there: %v", w.node.id, i, pieces)
	}
	return nil
}
