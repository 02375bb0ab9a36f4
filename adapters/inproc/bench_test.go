package inproc

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

// BenchmarkOSThreadBesideCopies is 61-layer restores of 32 objects over 16 Gbit/s and 50 us, one layer group after the other,
// beside goroutines that copy all the time. CI runs it once and asserts nothing about it.
func BenchmarkOSThreadBesideCopies(b *testing.B) {
	for _, busy := range []int{0, 1, 2} {
		for _, links := range []int{1, 2} {
			name := "copiers=" + string(rune('0'+busy)) + "/directions=" + string(rune('0'+links))
			b.Run(name, func(b *testing.B) { besideCopies(b, busy, links) })
		}
	}
}

func besideCopies(b *testing.B, copiers, directions int) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + copiers))
	const objects, layer, group, layers = 32, 73_728, 8, 61
	n := newNetwork(b, Options{Link: &LinkModel{BytesPerSecond: 2e9, Delay: 50 * time.Microsecond}, Driver: OSThread})
	x, y := startNode(b, n, "x", 1, mute{}), startNode(b, n, "y", 2, mute{})
	mem := ports.HostRegionOf(make([]byte, objects*layer*layers))
	require.NoError(b, x.Transport.Expose(0, mem))
	require.NoError(b, y.Transport.Expose(0, mem))
	links := []*Link{dial(b, x, y), dial(b, y, x)}[:directions]

	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for range copiers {
		wg.Go(func() {
			src, dst := make([]byte, 64<<20), make([]byte, 64<<20)
			for !stop.Load() {
				for off := 0; off < len(src); off += 64 << 10 {
					copy(dst[off:off+64<<10], src[off:off+64<<10])
				}
			}
		})
	}
	dst := ports.HostRegionOf(make([]byte, objects*layer*group))
	q := ports.NewCompletions()
	var done []ports.Completion
	n.ResetReport()
	b.SetBytes(int64(directions * objects * layer * layers))
	for b.Loop() {
		for at := 0; at < layers; at += group {
			g := min(group, layers-at)
			batch := &ports.Batch{}
			for o := range objects {
				batch.Ops = append(batch.Ops, ports.Op{Tag: uint64(o), First: uint32(o), Count: 1})
				batch.Segments = append(batch.Segments, ports.Segment{RemoteOff: uint64((o*layers + at) * layer), Local: dst, LocalOff: uint64(o * layer * group), Len: uint64(g * layer)})
			}
			for _, l := range links {
				require.NoError(b, l.Submit(batch, q))
			}
			done = done[:0]
			for len(done) < objects*directions {
				done, _ = q.Take(context.Background(), time.Second, done)
			}
		}
	}
	for _, r := range n.LinkReport() {
		if r.Bytes > 0 {
			b.ReportMetric(100*r.BytesPerSecond/2e9, "%rate")
			b.ReportMetric(float64(r.MeanLate.Nanoseconds())/1e3, "us-late")
			b.ReportMetric(float64(r.MaxLate.Nanoseconds())/1e3, "us-late-max")
		}
	}
}

func BenchmarkTransport(b *testing.B) { porttest.BenchmarkTransport(b, openTransports(Options{})) }
