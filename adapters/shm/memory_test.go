//go:build linux

package shm

import (
	"errors"
	"math"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

const lengthSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// TestExposedMemoryIsWrittenByItsOwnersMappingOnly: nobody cuts it short, maps it to write, or writes its file.
func TestExposedMemoryIsWrittenByItsOwnersMappingOnly(t *testing.T) {
	n := open(t, "owner", Config{})
	r := file(t, 8192, 0)
	fd := int(r.File().FD)
	require.NoError(t, n.inner.Expose(0, r))
	_, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
	_, err = unix.Pwrite(fd, []byte{1}, 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	reads, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(reads)) }()
	require.ErrorIs(t, unix.Mprotect(reads, unix.PROT_READ|unix.PROT_WRITE), unix.EACCES)
	r.Bytes()[5] = 7
	require.EqualValues(t, 7, reads[5])
}

func TestExposeRefusesMemoryThatPeersCannotMapSafely(t *testing.T) {
	path := t.TempDir() + "/plain"
	plain, err := os.Create(path)
	require.NoError(t, err)
	defer plain.Close()
	require.NoError(t, plain.Truncate(4096))
	for name, r := range map[string]ports.Region{
		"of no file":                      ports.HostRegionOf(make([]byte, 4096)),
		"of a file without seals":         ports.HostRegionOfFile(make([]byte, 4096), &ports.File{FD: plain.Fd()}),
		"sealed against being sealed":     file(t, 4096, lengthSeals|unix.F_SEAL_SEAL),
		"of a device":                     ports.DeviceRegionOf(0, ports.DevAddrOf(1<<40), 4096),
		"of a descriptor that is no file": ports.HostRegionOfFile(make([]byte, 4096), &ports.File{FD: math.MaxInt32}),
	} {
		n := open(t, "owner", Config{})
		require.Error(t, n.inner.Expose(0, r), name)
		require.NoError(t, n.inner.Expose(0, shared(t, 4096)), name)
	}
	require.Error(t, open(t, "owner", Config{}).inner.Expose(maxBuffers, shared(t, 4096)))
}

// TestAReaderMapsOnlyWhatCannotVanish is the other half of it: a reader trusts no owner.
func TestAReaderMapsOnlyWhatCannotVanish(t *testing.T) {
	const n = 3 * 4096
	sealed, open := shared(t, n), file(t, n, unix.F_SEAL_GROW)
	for _, tt := range []struct {
		name string
		of   ports.HostRegion
		b    buffer
		bad  bool
	}{
		{"all of it", sealed, buffer{len: n}, false},
		{"a part that begins on no page", sealed, buffer{off: 4097, len: 5000}, false},
		{"the last byte", sealed, buffer{off: n - 1, len: 1}, false},
		{"one byte past", sealed, buffer{len: n + 1}, true},
		{"past its end", sealed, buffer{off: n, len: 1}, true},
		{"nothing", sealed, buffer{}, true},
		{"sums that overflow", sealed, buffer{off: math.MaxUint64, len: 2}, true},
		{"length near 2^64", sealed, buffer{off: 4096, len: math.MaxUint64 - 4095}, true},
		{"its owner can cut it short", open, buffer{len: n}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			content.Fill(tt.of.Bytes(), 1, 0)
			m := &mapping{}
			defer func() { require.NoError(t, m.unmap()) }()
			err := m.add(tt.b, int(tt.of.File().FD))
			if tt.bad {
				require.Error(t, err)
				require.Empty(t, m.whole)
				return
			}
			require.NoError(t, err)
			require.Len(t, m.buffers[0], int(tt.b.len))
			require.Equal(t, -1, content.Check(m.buffers[0], 1, tt.b.off))
			require.Error(t, m.add(tt.b, int(tt.of.File().FD)), "twice")
		})
	}
}

// TestAFaultFailsItsOpAndNothingElse: a peer's file that is cut short, which a mapping refuses and this one has all the same, and
// local memory that went away.
func TestAFaultFailsItsOpAndNothingElse(t *testing.T) {
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{Workers: 1})
	mem := shared(t, 64<<10)
	content.Fill(mem.Bytes(), 1, 0)
	require.NoError(t, owner.inner.Expose(0, mem))
	l := dial(t, asker, owner)

	short := file(t, 64<<10, 0)
	b, err := unix.Mmap(int(short.File().FD), 0, 64<<10, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(int(short.File().FD), 0))
	l.mapped.buffers = append(l.mapped.buffers, b)
	l.mapped.regions = append(l.mapped.regions, ports.HostRegionOf(b))
	l.mapped.whole = append(l.mapped.whole, b)

	gone, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(gone)) }()

	dst := shared(t, 64<<10)
	content.Poison(dst.Bytes())
	seg := func(remote uint32, local ports.Region, off uint64) []ports.Segment {
		return []ports.Segment{{Remote: remote, RemoteOff: off, Local: local, LocalOff: off, Len: 4000}}
	}
	errs := read(t, l, seg(0, dst, 0), seg(1, dst, 8192), seg(0, ports.HostRegionOf(gone), 0), seg(0, dst, 4000))
	var fault *FaultError
	require.NoError(t, errs[0])
	require.ErrorAs(t, errs[1], &fault)
	require.ErrorAs(t, errs[2], &fault)
	require.NoError(t, errs[3])
	require.Equal(t, -1, content.Check(dst.Bytes()[:8000], 1, 0))
	require.Equal(t, -1, content.CheckPoison(dst.Bytes()[8000:]))
	require.EqualValues(t, 2, asker.inner.Stats().Refused[Faulted])
	require.NoError(t, read(t, l, seg(0, dst, 0))[0], "the link and its worker live")

	before := l.Counts()
	require.Error(t, read(t, l, append(seg(0, dst, 0), seg(1, dst, 8192)...))[0])
	after := l.Counts()
	require.EqualValues(t, 4000, after.Thrown[ports.PurposeGet]-before.Thrown[ports.PurposeGet], "what arrived of an op that failed")
	require.EqualValues(t, 4000, after.Bytes[ports.PurposeGet]-before.Bytes[ports.PurposeGet])

	q := ports.NewCompletions()
	require.NoError(t, l.Submit(&ports.Batch{Ops: []ports.Op{{Count: 2, Sum: true}}, Segments: append(seg(0, dst, 0), seg(1, dst, 8192)...)}, q))
	done := take(t, q, 1)[0]
	require.Error(t, done.Err)
	require.False(t, done.Summed, "the sum of half of an op")

	long := seg(1, dst, 8192) // of which a part is copied before the rest is handed over
	for range 2 * turnCopies {
		long = append(long, seg(0, dst, 0)...)
	}
	require.ErrorAs(t, read(t, l, long)[0], &fault, "what came later went well")
}

// read submits reads and waits for them.
func read(t testing.TB, l *Link, ops ...[]ports.Segment) []error {
	t.Helper()
	b := &ports.Batch{}
	for i, segs := range ops {
		b.Ops = append(b.Ops, ports.Op{Tag: uint64(i), First: uint32(len(b.Segments)), Count: uint32(len(segs))})
		b.Segments = append(b.Segments, segs...)
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(b, q))
	errs := make([]error, len(ops))
	for _, c := range take(t, q, len(ops)) {
		errs[c.Tag] = c.Err
	}
	return errs
}

func take(t testing.TB, q *ports.Completions, n int) (done []ports.Completion) {
	t.Helper()
	for len(done) < n {
		held := len(done)
		var err error
		done, err = q.Take(t.Context(), 10*time.Second, done)
		require.NoError(t, err)
		require.Greater(t, len(done), held, "%d of %d ops completed", held, n)
	}
	return done
}

// watching is a clock that notes at each look whether the memory is as it should be.
type watching struct {
	ready func() bool
	last  atomic.Int64
	first atomic.Int64 // instant of the first look that found it so
}

func (c *watching) Now() domain.Instant {
	now := c.last.Add(1)
	if c.ready() {
		c.first.CompareAndSwap(0, now)
	}
	return domain.Instant(now)
}

// TestAnOpIsCompleteAtAnInstantAfterItsLastByte: the lease is compared with it, and nothing else keeps the pages.
func TestAnOpIsCompleteAtAnInstantAfterItsLastByte(t *testing.T) {
	const size = 1 << 20
	dst := shared(t, size)
	clock := &watching{ready: func() bool { return content.Check(dst.Bytes(), 1, 0) == -1 }}
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{Workers: 1, Clock: clock})
	mem := shared(t, size)
	content.Fill(mem.Bytes(), 1, 0)
	require.NoError(t, owner.inner.Expose(0, mem))
	l := dial(t, asker, owner)
	content.Poison(dst.Bytes())
	clock.first.Store(0)
	q := ports.NewCompletions()
	b := &ports.Batch{Ops: []ports.Op{{Count: 1}}, Segments: []ports.Segment{{Local: dst, Len: size}}}
	require.NoError(t, l.Submit(b, q))
	done := take(t, q, 1)
	require.NoError(t, done[0].Err)
	require.NotZero(t, clock.first.Load(), "the clock was not looked at after the last byte")
	require.GreaterOrEqual(t, int64(done[0].At), clock.first.Load())
}

// TestBatchesTakeTurns: a short one does not wait for all of a long one. There is no worker: the turns are taken by hand.
func TestBatchesTakeTurns(t *testing.T) {
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{})
	mem, dst := shared(t, turnBytes), shared(t, turnBytes)
	require.NoError(t, owner.inner.Expose(0, mem))
	l := dial(t, asker, owner)
	w := &asker.inner.copies
	workers := w.workers
	w.workers = 0
	batch := func(ops int, bytes uint64) *ports.Batch {
		b := &ports.Batch{}
		for i := range ops {
			b.Ops = append(b.Ops, ports.Op{Tag: uint64(i), First: uint32(i), Count: 1})
			b.Segments = append(b.Segments, ports.Segment{Local: dst, Len: bytes})
		}
		return b
	}
	bad := batch(5, turnBytes)
	for _, i := range []int{0, 1, 3} { // turns begin and end with ops that are to be copied
		bad.Segments[i].Remote = 9
	}
	q := ports.NewCompletions()
	for _, b := range []*ports.Batch{bad, batch(3, 1000), batch(2*turnOps, 1)} {
		require.NoError(t, l.Submit(b, q))
	}
	require.Equal(t, 3, q.Len())
	w.mu.Lock()
	w.mu.running++
	w.mu.Unlock()
	var s scratch
	for i, want := range [][2]int{{2, 3}, {0, 3}, {0, turnOps}, {4, 5}, {turnOps, 2 * turnOps}} {
		turn, ok := w.take(&s)
		require.True(t, ok)
		require.Equal(t, want, [2]int{turn.lo, turn.hi}, "turn %d", i)
		w.carry(turn, &s)
		require.Len(t, s.done, turn.hi-turn.lo)
		w.finish(turn.run, s.done)
	}
	_, ok := w.take(&s)
	require.False(t, ok)
	require.Equal(t, 5+3+2*turnOps, q.Len())
	w.workers = workers
}

// TestOpsThatAreCancelledOrResetAreNotCopied: by hand again, so that they are sure to be waiting.
func TestOpsThatAreCancelledOrResetAreNotCopied(t *testing.T) {
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{})
	mem, dst := shared(t, 8192), shared(t, 8192)
	content.Fill(mem.Bytes(), 1, 0)
	content.Poison(dst.Bytes())
	require.NoError(t, owner.inner.Expose(0, mem))
	w := &asker.inner.copies
	workers := w.workers
	w.workers = 0
	for _, tt := range []struct {
		how  func(l *Link, q *ports.Completions)
		want [3]error
	}{
		{func(l *Link, q *ports.Completions) {
			l.Cancel(q, []uint64{1})
			l.Cancel(ports.NewCompletions(), []uint64{0, 2})
		}, [3]error{nil, ports.ErrCancelled, nil}},
		{func(l *Link, _ *ports.Completions) {
			require.NoError(t, l.conn.SetReadDeadline(time.Unix(1, 0))) // as Close does, which would wait
			require.Eventually(t, l.ended.Load, 10*time.Second, time.Millisecond)
		}, [3]error{ports.ErrReset, ports.ErrReset, ports.ErrReset}},
	} {
		l, q := dial(t, asker, owner), ports.NewCompletions()
		b := &ports.Batch{}
		for i := range uint64(3) {
			b.Ops = append(b.Ops, ports.Op{Tag: i, First: uint32(i), Count: 1})
			b.Segments = append(b.Segments, ports.Segment{RemoteOff: i * 1000, Local: dst, LocalOff: i * 1000, Len: 1000})
		}
		require.NoError(t, l.Submit(b, q))
		tt.how(l, q)
		w.mu.Lock()
		w.mu.running++
		w.mu.Unlock()
		var s scratch
		turn, ok := w.take(&s)
		require.True(t, ok)
		w.carry(turn, &s)
		w.finish(turn.run, s.done)
		_, ok = w.take(&s)
		require.False(t, ok)
		for _, c := range take(t, q, 3) {
			require.ErrorIs(t, c.Err, tt.want[c.Tag])
			if c.Err != nil {
				require.Equal(t, -1, content.CheckPoison(dst.Bytes()[c.Tag*1000:][:1000]), "op %d", c.Tag)
			}
		}
		content.Poison(dst.Bytes())
	}
	w.workers = workers
}

func TestReadingAllocatesNothing(t *testing.T) {
	owner, asker := open(t, "owner", Config{}), open(t, "asker", Config{})
	mem, dst := shared(t, 1<<20), shared(t, 1<<20)
	require.NoError(t, owner.inner.Expose(0, mem))
	l, q := dial(t, asker, owner), ports.NewCompletions()
	b := &ports.Batch{}
	for i := range uint32(32) {
		b.Ops = append(b.Ops, ports.Op{Tag: uint64(i), First: i, Count: 1})
		b.Segments = append(b.Segments, ports.Segment{RemoteOff: uint64(i) * 4096, Local: dst, LocalOff: uint64(i) * 8192, Len: 1728})
	}
	var done []ports.Completion
	once := func() {
		if err := l.Submit(b, q); err != nil {
			panic(err)
		}
		for done = done[:0]; len(done) < len(b.Ops); {
			done, _ = q.Take(t.Context(), 10*time.Second, done)
		}
	}
	for range 10 {
		once()
	}
	require.Less(t, testing.AllocsPerRun(200, once), 1.0)
	for _, c := range done {
		require.NoError(t, c.Err)
	}
}

func TestAPeerOfAnotherPlaceIsRefusedByName(t *testing.T) {
	n := open(t, "owner", Config{})
	there := n.inner.host
	there.boot[3]++
	_, err := n.inner.Answer(t.Context(), ports.Peer{ID: "a", Incarnation: 1}, offer{host: there}.encode())
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "another host")
	there = n.inner.host
	there.net++
	_, err = n.inner.Answer(t.Context(), ports.Peer{ID: "a", Incarnation: 1}, offer{host: there}.encode())
	require.ErrorContains(t, err, "network namespace")
}
