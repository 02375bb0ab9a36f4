//go:build gpu && linux && cgo

package hip

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

func copyAll(t testing.TB, c ports.Copier, ops ...ports.CopyOp) []error {
	errs := make([]error, len(ops))
	c.Copy(t.Context(), ops, errs)
	return errs
}

func filled(n int, key uint64) ports.HostRegion {
	b := make([]byte, n)
	content.Fill(b, key, 0)
	return ports.HostRegionOf(b)
}

func poisoned(n int) ports.HostRegion {
	b := make([]byte, n)
	content.Poison(b)
	return ports.HostRegionOf(b)
}

// TestWhatADeviceRefusesFailsAlone: the driver refuses the round as a whole, and the error is that of the op it hit.
func TestWhatADeviceRefusesFailsAlone(t *testing.T) {
	for name, o := range map[string]fakehip.Options{"batched": {}, "single": {WithoutBatch: true}} {
		t.Run(name, func(t *testing.T) {
			r := open(t, fake(t, o), nil)
			m := deviceMemory(r, 0)
			dev := m.New(t, 8192).(ports.DeviceRegion)
			m.Write(dev, 0, filled(8192, 1).Bytes())
			pinned, err := mapBounce(4096)
			require.NoError(t, err)
			defer func() { require.NoError(t, unmapBounce(pinned)) }()
			overrun := ports.DeviceRegionOf(0, dev.Addr(), 3*8192)
			host := ports.DeviceRegionOf(0, ports.DevAddrOf(hiprt.HostAddr(pinned)), 4096) // host memory that is said to be a device's
			dst := poisoned(3 * 4096)
			errs := copyAll(t, r.Copier(),
				ports.CopyOp{Dst: dst, Src: dev, SrcOff: 100, Len: 1000},
				ports.CopyOp{Dst: dst, DstOff: 2000, Src: overrun, SrcOff: 8000, Len: 1000},
				ports.CopyOp{Dst: dst, DstOff: 4000, Src: host, Len: 1000},
				ports.CopyOp{Dst: dst, DstOff: 8000, Src: dev, SrcOff: 7000, Len: 1192})
			require.NoError(t, errs[0])
			require.ErrorIs(t, errs[1], hiprt.InvalidValue, "a copy past the end of its allocation")
			require.ErrorIs(t, errs[3], nil)
			require.Equal(t, -1, content.Check(dst.Bytes()[:1000], 1, 100))
			require.Equal(t, -1, content.Check(dst.Bytes()[8000:9192], 1, 7000))
			if o.WithoutBatch {
				require.ErrorIs(t, errs[2], hiprt.InvalidValue, "a copy in the wrong direction") // a batched call has no direction
			}
			var op *OpError
			require.ErrorAs(t, errs[1], &op)
			require.Equal(t, 0, op.Ordinal)
			stats := r.devices[0].stats.read()
			require.NotZero(t, stats.Errors)
			copied := uint64(1000 + 1192)
			if errs[2] == nil {
				copied += 1000
			}
			require.Equal(t, copied, stats.Bytes, "what was refused, or tried again, is no copied byte")
		})
	}
}

func TestAnErrorThatShowsAtTheWaitIsItsOps(t *testing.T) {
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, nil)
	dev := deviceMemory(r, 0).New(t, 4096)
	lib.FailAsync.Store(719)
	op := ports.CopyOp{Dst: dev, Src: filled(4096, 2), Len: 4096}
	require.ErrorIs(t, copyAll(t, r.Copier(), op)[0], hiprt.Code(719))
	require.NoError(t, copyAll(t, r.Copier(), op)[0])
	require.False(t, r.devices[0].isLost())
}

func TestMemoryThatIsNotThereIsNoSpace(t *testing.T) {
	lib := fake(t, fakehip.Options{Memory: 1 << 20})
	r := open(t, lib, nil)
	for _, tt := range []struct {
		c    MediumConfig
		want []string
	}{
		{MediumConfig{Bytes: 2 << 20, PageSize: 4096}, []string{"2097152 bytes", "1048576 that are free"}},
		{MediumConfig{Bytes: 1 << 20, PageSize: 4096, Reserve: 1}, []string{"reserve of 1"}},
		{MediumConfig{Bytes: 1 << 20, PageSize: 4096, Reserve: 1 << 63}, []string{"reserve of"}},
	} {
		_, err := r.OpenMedium(tt.c)
		require.ErrorIs(t, err, ports.ErrNoSpace)
		for _, w := range tt.want {
			require.ErrorContains(t, err, w)
		}
	}
	_, err := r.OpenMedium(MediumConfig{Bytes: 1 << 20, PageSize: 4096, Ordinals: []int{0, 7}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "device 7 of 2")
	require.Zero(t, lib.Allocations.Load(), "what device 0 gave went back")
	require.ErrorIs(t, fail("take memory", 0, &hiprt.CallError{Call: "hipMalloc", Code: hiprt.OutOfMemory}), ports.ErrNoSpace)
	for _, c := range []MediumConfig{{Bytes: 4096, PageSize: 100}, {Bytes: 4096, PageSize: 0}, {Bytes: 4097, PageSize: 4096}, {PageSize: 4096}, {Bytes: 256, PageSize: 256, Ordinals: []int{0, 1}}} {
		_, err := r.OpenMedium(c)
		require.ErrorIs(t, err, domain.ErrInvalid, "%+v", c)
	}
}

func quick(c *Config) { c.Deadline, c.Threads = 2*time.Second, 2 }

// TestAHangingDeviceLeavesHostMemoryQuiet: every call returns, queued ones too, none of them waits for the device, and what the device
// writes when it goes on is not the callers' memory.
func TestAHangingDeviceLeavesHostMemoryQuiet(t *testing.T) {
	for name, knob := range map[string]func(*fakehip.Library) interface{ Store(int64) }{
		"streams stand still":    func(l *fakehip.Library) interface{ Store(int64) } { return l.Hang },
		"a call does not return": func(l *fakehip.Library) interface{ Store(int64) } { return l.Block },
	} {
		t.Run(name, func(t *testing.T) {
			lib := fake(t, fakehip.Options{})
			r := open(t, lib, quick)
			m := deviceMemory(r, 0)
			dev := m.New(t, 1<<20)
			medium, err := r.OpenMedium(MediumConfig{Bytes: 4096, PageSize: 4096})
			require.NoError(t, err)
			other := deviceMemory(r, 1).New(t, 4096)
			knob(lib).Store(1)
			defer knob(lib).Store(0)
			const callers = 6 // three times the threads
			var dst [callers]ports.HostRegion
			var wg sync.WaitGroup
			for i := range dst {
				dst[i] = poisoned(300_000)
				wg.Go(func() {
					errs := copyAll(t, r.Copier(), ports.CopyOp{Dst: dst[i], Src: dev, Len: 1000}, ports.CopyOp{Dst: dst[i], DstOff: 5000, Src: dev, Len: 200_000})
					for _, err := range errs {
						if !errors.Is(err, ErrLost) {
							t.Errorf("copy from a device that hangs: %v", err)
						}
					}
				})
			}
			wg.Wait()
			knob(lib).Store(0)
			errs := copyAll(t, r.Copier(), ports.CopyOp{Dst: dst[0], Src: dev, Len: 10})
			require.ErrorIs(t, errs[0], ErrLost, "it is not used any more")
			for i := range dst {
				require.Equal(t, -1, content.CheckPoison(dst[i].Bytes()), "destination %d", i)
			}
			require.ErrorIs(t, medium.Close(), ErrLost, "its memory stays taken")
			require.NoError(t, medium.Close())
			require.NoError(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: dst[0], Src: other, Len: 10})[0], "another device goes on")
			report, err := r.Report()
			require.ErrorIs(t, err, ErrLost)
			require.True(t, report.Devices[0].Lost)
			require.NotZero(t, report.Devices[0].Stats.Timeouts)
			require.NotZero(t, report.Devices[0].Stats.Refused)
			require.False(t, report.Devices[1].Lost)
			require.Len(t, r.Notes(), 1)
			require.Contains(t, r.Notes()[0], "device 0 (0000:01:00.0) is lost")
		})
	}
}

// TestADeviceThatGoesAwayFailsItsCopies: every call of the library is an error from then on, and none of them hangs.
func TestADeviceThatGoesAwayFailsItsCopies(t *testing.T) {
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, quick)
	dev := deviceMemory(r, 0).New(t, 4096)
	lib.Gone.Store(46)
	dst := poisoned(4096)
	err := copyAll(t, r.Copier(), ports.CopyOp{Dst: dst, Src: dev, Len: 4096})[0]
	require.ErrorIs(t, err, hiprt.Code(46))
	require.ErrorIs(t, err, ErrLost, "nothing tells whether what was submitted is over")
	require.ErrorIs(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: dev, Src: dst, Len: 1})[0], ErrLost)
	require.Equal(t, -1, content.CheckPoison(dst.Bytes()))
	require.ErrorIs(t, r.Close(), ErrLost)
}

// TestALostDeviceIsNotReadFromAnother: a copy from it would hang there too, and take the other device along.
func TestALostDeviceIsNotReadFromAnother(t *testing.T) {
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, nil)
	gone, other := deviceMemory(r, 0).New(t, 4096), deviceMemory(r, 1).New(t, 4096)
	r.devices[0].markLost()
	before := lib.High.Load()
	refused := r.devices[0].stats.read().Refused
	errs := copyAll(t, r.Copier(), ports.CopyOp{Dst: other, Src: gone, Len: 64}, ports.CopyOp{Dst: other, DstOff: 64, Src: filled(64, 5), Len: 64})
	require.ErrorIs(t, errs[0], ErrLost)
	var op *OpError
	require.ErrorAs(t, errs[0], &op)
	require.Equal(t, 0, op.Ordinal, "the one that is lost")
	require.NoError(t, errs[1], "another device goes on")
	require.Equal(t, before+1, lib.High.Load(), "nothing of it was submitted")
	require.Equal(t, refused+1, r.devices[0].stats.read().Refused)
}

// TestCloseCarriesOutWhatIsQueued: who waits for it would wait for ever.
func TestCloseCarriesOutWhatIsQueued(t *testing.T) {
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, func(c *Config) { c.Threads = 1 })
	d := r.devices[0]
	dev, err := r.take(0, 4096, 0)
	require.NoError(t, err)
	lib.Block.Store(1)
	const callers = 4
	ended := make(chan error, callers)
	for i := range callers {
		go func() { // awaited by ended
			ended <- copyAll(t, r.Copier(), ports.CopyOp{Dst: dev, DstOff: uint64(i), Src: filled(1, 1), Len: 1})[0]
		}()
	}
	freed := make(chan error, 1)
	require.Eventually(t, func() bool { return queuedJobs(d) == callers-1 }, 10*time.Second, time.Millisecond)
	go func() { freed <- r.release(dev) }() // a call that is no copy, as a report is; last, for it frees what they write
	require.Eventually(t, func() bool { return queuedJobs(d) == callers }, 10*time.Second, time.Millisecond)
	closing := make(chan error, 1)
	go func() { closing <- r.Close() }()
	require.Eventually(t, func() bool { return isClosed(d) }, 10*time.Second, time.Millisecond)
	lib.Block.Store(0)
	for range callers {
		requireWord(t, ended)
	}
	requireWord(t, freed)
	requireWord(t, closing)
}

func isClosed(d *device) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.closed
}

func requireWord(t *testing.T, c <-chan error) {
	t.Helper()
	select {
	case err := <-c:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("who waits for a queued job waits for ever")
	}
}

// callOrder notes the first byte of what each gathering copies.
type callOrder struct {
	goCopier
	mu   sync.Mutex
	seen []byte
}

func (o *callOrder) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	o.mu.Lock()
	o.seen = append(o.seen, ops[0].Src.(ports.HostRegion).Bytes()[ops[0].SrcOff])
	o.mu.Unlock()
	o.goCopier.Copy(ctx, ops, errs)
}

func TestForegroundGoesBeforeBackground(t *testing.T) {
	lib := fake(t, fakehip.Options{})
	order := &callOrder{}
	r := open(t, lib, func(c *Config) { c.Threads, c.Host = 1, order })
	d := r.devices[0]
	dev := deviceMemory(r, 0).New(t, 64)
	lib.Block.Store(1)
	var wg sync.WaitGroup
	for i, c := range []ports.Copier{r.Copier(), r.Background(), r.Copier()} {
		wg.Go(func() {
			if err := copyAll(t, c, ports.CopyOp{Dst: dev, Src: ports.HostRegionOf([]byte{byte(i)}), Len: 1})[0]; err != nil {
				t.Error(err)
			}
		})
		require.Eventually(t, func() bool { return queuedJobs(d) == i }, 10*time.Second, time.Millisecond, "job %d", i)
		require.Eventually(t, func() bool { return i > 0 || len(orderOf(order)) == 1 }, 10*time.Second, time.Millisecond)
	}
	lib.Block.Store(0)
	wg.Wait()
	require.Equal(t, []byte{0, 2, 1}, orderOf(order))
	require.EqualValues(t, 2, lib.High.Load())
	require.EqualValues(t, 1, lib.Low.Load(), "on streams of their priority")
}

func queuedJobs(d *device) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.queues[0]) + len(d.mu.queues[1])
}

func orderOf(o *callOrder) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]byte(nil), o.seen...)
}

// TestBackgroundLeavesThreadsToForeground: half of them.
func TestBackgroundLeavesThreadsToForeground(t *testing.T) {
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, func(c *Config) { c.Threads = 4 })
	d := r.devices[0]
	dev := deviceMemory(r, 0).New(t, 64)
	lib.Hang.Store(1)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			_ = copyAll(t, r.Background(), ports.CopyOp{Dst: dev, Src: ports.HostRegionOf(make([]byte, 1)), Len: 1})
		})
	}
	require.Eventually(t, func() bool { return queuedJobs(d) == 4 && lib.Low.Load() == 2 }, 10*time.Second, time.Millisecond)
	lib.Hang.Store(0)
	wg.Wait()
}

func fragments(dst, src ports.Region, n int, size, dstStride, srcStride uint64) []ports.CopyOp {
	ops := make([]ports.CopyOp, n)
	for i := range ops {
		ops[i] = ports.CopyOp{Dst: dst, DstOff: uint64(i) * dstStride, Src: src, SrcOff: uint64(i) * srcStride, Len: size}
	}
	return ops
}

// TestFragmentsAreGathered counts the library's calls: not one a fragment.
func TestFragmentsAreGathered(t *testing.T) {
	const n, size = 500, 1728
	for _, tt := range []struct {
		name                    string
		o                       fakehip.Options
		toDevice                bool
		deviceStride            uint64
		singles, rects, batches int64
	}{
		{"neighbours on the device are one copy", fakehip.Options{}, true, size, 1, 0, 0},
		{"equal strides are rows", fakehip.Options{}, true, 4096, 0, 1, 0},
		{"equal strides are rows, from the device", fakehip.Options{WithoutBatch: true}, false, 4096, 0, 1, 0},
		{"no stride: one batch", fakehip.Options{}, false, 0, 0, 0, 1},
		{"no stride, no batch: one a fragment", fakehip.Options{WithoutBatch: true}, false, 0, n, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lib := fake(t, tt.o)
			r := open(t, lib, func(c *Config) { c.BounceBytes = 1 << 20 })
			m := deviceMemory(r, 0)
			dev := m.New(t, 8<<20)
			m.Write(dev, 0, filled(8<<20, 3).Bytes())
			host := filled(n*4096, 4)
			var ops []ports.CopyOp
			if tt.toDevice {
				ops = fragments(dev, host, n, size, tt.deviceStride, 4096)
			} else {
				ops = fragments(host, dev, n, size, 4096, tt.deviceStride)
			}
			if tt.deviceStride == 0 {
				for i := range ops {
					ops[i].SrcOff = uint64(i*i) * 16
				}
			}
			before := [3]int64{lib.Singles.Load(), lib.Rects.Load(), lib.Batches.Load()}
			for i, err := range copyAll(t, r.Copier(), ops...) {
				require.NoError(t, err, "op %d", i)
			}
			require.Equal(t, [3]int64{tt.singles, tt.rects, tt.batches}, [3]int64{lib.Singles.Load() - before[0], lib.Rects.Load() - before[1], lib.Batches.Load() - before[2]},
				"single copies, rectangles, batches")
			b := make([]byte, size)
			for i, op := range ops {
				if tt.toDevice {
					m.Read(dev, op.DstOff, b)
					require.Equal(t, -1, content.Check(b, 4, op.SrcOff), "fragment %d", i)
					continue
				}
				require.Equal(t, -1, content.Check(host.Bytes()[op.DstOff:][:size], 3, op.SrcOff), "fragment %d", i)
			}
		})
	}
}

// TestNeighboursInTwoAllocationsAreTwoCopies: for a driver there is no run from one into the next.
func TestNeighboursInTwoAllocationsAreTwoCopies(t *testing.T) {
	w := &worker{}
	at := func(base uint64) piece {
		return piece{kind: hiprt.HostToDevice, dst: base, dstBase: base, src: base, n: 4096}
	}
	w.lay([]piece{at(0), at(4096), at(8192), at(12288)})
	require.Len(t, w.columns.Dst, 4)
	require.Empty(t, w.columns.Rects)
}

// failsOnce is a host copier for which one source is not there.
type failsOnce struct {
	goCopier
	bad *byte
}

var errNotThere = errors.New("memory is not there")

func (f failsOnce) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	f.goCopier.Copy(ctx, ops, errs)
	for i := range ops {
		for _, r := range []ports.Region{ops[i].Src, ops[i].Dst} {
			if &r.(ports.HostRegion).Bytes()[0] == f.bad {
				errs[i] = errNotThere
			}
		}
	}
}

// TestHostMemoryThatVanishesFailsItsOpOnly in either direction.
func TestHostMemoryThatVanishesFailsItsOpOnly(t *testing.T) {
	bad := poisoned(64)
	r := open(t, fake(t, fakehip.Options{}), func(c *Config) { c.Host = failsOnce{bad: &bad.Bytes()[0]} })
	m := deviceMemory(r, 0)
	dev := m.New(t, 4096)
	good := filled(64, 5)
	errs := copyAll(t, r.Copier(), ports.CopyOp{Dst: dev, Src: good, Len: 64}, ports.CopyOp{Dst: dev, DstOff: 64, Src: bad, Len: 64}, ports.CopyOp{Dst: dev, DstOff: 128, Src: good, Len: 64})
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], errNotThere)
	require.NoError(t, errs[2])
	b := make([]byte, 64)
	m.Read(dev, 128, b)
	require.Equal(t, -1, content.Check(b, 5, 0))
	back := poisoned(64)
	errs = copyAll(t, r.Copier(), ports.CopyOp{Dst: bad, Src: dev, Len: 64}, ports.CopyOp{Dst: back, Src: dev, SrcOff: 128, Len: 64})
	require.ErrorIs(t, errs[0], errNotThere)
	require.NoError(t, errs[1])
	require.Equal(t, -1, content.Check(back.Bytes(), 5, 0))
}

func TestAnOpLargerThanTheBounceBufferGoesInRounds(t *testing.T) {
	r := open(t, fake(t, fakehip.Options{}), func(c *Config) { c.BounceBytes = 4096 })
	m := deviceMemory(r, 0)
	const n = 100_003
	dev := m.New(t, n)
	back := poisoned(n)
	require.NoError(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: dev, Src: filled(n, 6), Len: n})[0])
	require.NoError(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: back, Src: dev, Len: n})[0])
	require.Equal(t, -1, content.Check(back.Bytes(), 6, 0))
	require.EqualValues(t, 2*25, r.devices[0].stats.read().Rounds)
}
