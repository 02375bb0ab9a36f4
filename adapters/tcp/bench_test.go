//go:build linux

package tcp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

// shape is what one rank reads in one call: a few fragments of each of 32 objects.
type shape struct {
	name                   string
	objects, each          int
	fragment, stride, size uint64
}

var shapes = []shape{
	{"32x576KiB", 32, 1, 576 << 10, 0, 4392 << 10},
	{"32x9x64KiB", 32, 9, 64 << 10, 64 << 10, 4392 << 10}, // the same over pages
	{"32x61x1728B", 32, 61, 1728, 3456, 4392 << 10},
	{"1x8448B", 1, 1, 8448, 0, 503 << 10},
}

func (s shape) bytes() int64 { return int64(s.objects) * int64(s.each) * int64(s.fragment) }

// at is where fragment k of object o lies at the owner, and lands lies where it is to land.
func (s shape) at(o, k int) uint64 { return uint64(o)*s.size + uint64(k)*s.stride }
func (s shape) lands(o, k int) uint64 {
	return (uint64(o)*uint64(s.each) + uint64(k)) * (s.fragment + 64)
}
func (s shape) room() int { return s.objects * s.each * int(s.fragment+64) }

func (s shape) batch(dst ports.Region) *ports.Batch {
	b := &ports.Batch{}
	for o := range s.objects {
		b.Ops = append(b.Ops, ports.Op{Tag: uint64(o), First: uint32(len(b.Segments)), Count: uint32(s.each)})
		for k := range s.each {
			b.Segments = append(b.Segments, ports.Segment{RemoteOff: s.at(o, k), Local: dst, LocalOff: s.lands(o, k), Len: s.fragment})
		}
	}
	return b
}

// offHeap is touched memory that the collector does not look into.
func offHeap(t testing.TB, n int) []byte {
	b := mapped(t, n)
	for i := 0; i < n; i += 4096 {
		b[i] = byte(i >> 12)
	}
	return b
}

func BenchmarkRead(b *testing.B) {
	for _, s := range shapes {
		for _, conns := range []int{1, 4} {
			b.Run(fmt.Sprintf("%s/conns=%d", s.name, conns), func(b *testing.B) { s.read(b, conns) })
		}
	}
}

func (s shape) read(b *testing.B, conns int) {
	owner, asker := listen(b, "owner", Config{}), listen(b, "asker", Config{Conns: conns})
	require.NoError(b, owner.Transport.Expose(0, ports.HostRegionOf(offHeap(b, s.objects*int(s.size)))))
	l, err := tryDial(context.Background(), asker, owner)
	require.NoError(b, err)
	batch, q := s.batch(ports.HostRegionOf(offHeap(b, s.room()))), ports.NewCompletions()
	var done []ports.Completion
	b.SetBytes(s.bytes())
	b.ReportAllocs()
	for b.Loop() {
		done = submitAll(b, l, batch, q, done)
	}
	require.NoError(b, l.Close())
}

func submitAll(b testing.TB, l *Link, batch *ports.Batch, q *ports.Completions, done []ports.Completion) []ports.Completion {
	now := l.t.cfg.Clock.Now()
	for i := range batch.Ops {
		batch.Ops[i].Deadline = now.Add(10 * time.Second)
	}
	if err := l.Submit(batch, q); err != nil {
		b.Fatal(err)
	}
	for done = done[:0]; len(done) < len(batch.Ops); {
		done, _ = q.Take(context.Background(), 10*time.Second, done)
	}
	for _, c := range done {
		if c.Err != nil {
			b.Fatal(c.Err)
		}
	}
	return done
}

func BenchmarkTransport(b *testing.B) {
	porttest.BenchmarkTransport(b, openTransports(Config{}, nil, nil))
}

// BenchmarkWrite puts the same shapes into granted pages.
func BenchmarkWrite(b *testing.B) {
	for _, s := range shapes[:3] {
		b.Run(s.name, func(b *testing.B) {
			owner, asker := listen(b, "owner", Config{}), listen(b, "asker", Config{})
			require.NoError(b, owner.Transport.Expose(0, ports.HostRegionOf(offHeap(b, s.objects*int(s.size)))))
			l, err := tryDial(context.Background(), asker, owner)
			require.NoError(b, err)
			batch, q := s.batch(ports.HostRegionOf(offHeap(b, s.room()))), ports.NewCompletions()
			for i := range batch.Ops {
				o := &batch.Ops[i]
				o.Dir, o.Purpose = ports.Write, ports.PurposePut
				_, o.Grant, err = owner.Transport.Grant(asker.Self, s.size, []domain.PageRef{{Page: uint32(i)}})
				require.NoError(b, err)
			}
			var done []ports.Completion
			b.SetBytes(s.bytes())
			b.ReportAllocs()
			for b.Loop() {
				done = submitAll(b, l, batch, q, done)
			}
			require.NoError(b, l.Close())
		})
	}
}

// BenchmarkAgainstBare moves the same fragments, turn about, over a link and by sockets alone: a byte asks each connection for
// its share of the objects; the other end sends them gathered, and ours reads each into place, directly or through a buffer of
// 256 KiB. It reports the median rates and, as "ratio", ours against the best of the bare ones.
func BenchmarkAgainstBare(b *testing.B) {
	for _, s := range shapes[:3] {
		b.Run(s.name, s.againstBare)
	}
}

func (s shape) againstBare(b *testing.B) {
	src, dst := offHeap(b, s.objects*int(s.size)), offHeap(b, s.room())
	owner := listen(b, "owner", Config{})
	require.NoError(b, owner.Transport.Expose(0, ports.HostRegionOf(src)))
	var names []string
	var runs []func()
	for _, conns := range []int{4, 1} {
		l, err := tryDial(context.Background(), listen(b, "asker", Config{Conns: conns}), owner)
		require.NoError(b, err)
		defer l.Close()
		batch, q := s.batch(ports.HostRegionOf(dst)), ports.NewCompletions()
		var done []ports.Completion
		names = append(names, fmt.Sprintf("link-%d", conns))
		runs = append(runs, func() { done = submitAll(b, l, batch, q, done) })
	}
	for _, conns := range []int{1, 4} {
		for _, buffered := range []bool{false, true} {
			run, end := s.bare(b, src, dst, conns, buffered)
			defer end()
			names = append(names, fmt.Sprintf("bare-%d-%t", conns, buffered))
			runs = append(runs, run)
		}
	}
	times := make([][]time.Duration, len(runs))
	for b.Loop() {
		for i, run := range runs {
			begin := time.Now()
			run()
			times[i] = append(times[i], time.Since(begin))
		}
	}
	best := 0.0
	rates := make([]float64, len(runs))
	for i, t := range times {
		slices.Sort(t)
		rates[i] = float64(s.bytes()) / t[len(t)/2].Seconds() / 1e6
		b.ReportMetric(rates[i], names[i]+"-MB/s")
		if i > 1 {
			best = max(best, rates[i])
		}
	}
	b.ReportMetric(rates[0]/best, "ratio")
	b.ReportMetric(0, "ns/op") // of all in turn: means nothing
}

// bare makes one way of the yardstick.
func (s shape) bare(b *testing.B, src, dst []byte, conns int, buffered bool) (run, end func()) {
	var owners, askers sync.WaitGroup
	start := make([]chan struct{}, conns)
	for i := range conns {
		c, o := socketPair(b)
		start[i] = make(chan struct{})
		owners.Go(func() { s.gather(o, src, i, conns) })
		var r io.Reader = c
		if buffered {
			r = bufio.NewReaderSize(c, 256<<10)
		}
		owners.Go(func() {
			defer c.Close()
			for range start[i] {
				_, _ = c.Write([]byte{1})
				for o := i; o < s.objects; o += conns {
					for k := range s.each {
						if _, err := io.ReadFull(r, dst[s.lands(o, k):][:s.fragment]); err != nil {
							b.Error(err)
						}
					}
				}
				askers.Done()
			}
		})
	}
	run = func() {
		askers.Add(conns)
		for _, c := range start {
			c <- struct{}{}
		}
		askers.Wait()
	}
	end = func() {
		for _, c := range start {
			close(c)
		}
		owners.Wait()
	}
	return run, end
}

// gather sends one connection's share at each request.
func (s shape) gather(o net.Conn, src []byte, first, step int) {
	defer o.Close()
	ask := make([]byte, 1)
	var pieces, v net.Buffers
	for {
		if _, err := io.ReadFull(o, ask); err != nil {
			return
		}
		pieces = pieces[:0]
		for i := first; i < s.objects; i += step {
			for k := range s.each {
				pieces = append(pieces, src[s.at(i, k):][:s.fragment])
			}
		}
		v = pieces
		if _, err := v.WriteTo(o); err != nil {
			return
		}
	}
}

func socketPair(t testing.TB) (a, b *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	o, err := l.Accept()
	require.NoError(t, err)
	return c.(*net.TCPConn), o.(*net.TCPConn)
}
