//go:build gpu && linux && cgo

package inject

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// gpu is a runtime and what calls lend to nodes on its devices. The fake's device memory faults when a CPU touches it, so a route that
// does is a crash here.
type gpu struct {
	*hip.Runtime
	t *testing.T
}

// openGPU opens the fake, or the host's own device where SPANPOOL_E2E_GPU asks for that.
func openGPU(t *testing.T) gpu {
	t.Helper()
	cfg := hip.Config{Host: dram.NewCopier(), BounceBytes: 64 << 10, Deadline: 20 * time.Second}
	if os.Getenv("SPANPOOL_E2E_GPU") == "" {
		if _, err := exec.LookPath("cc"); err != nil {
			if strings.Contains(os.Getenv("SPANPOOL_REQUIRE"), "hip") {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		lib, err := fakehip.Build(t.TempDir(), fakehip.Options{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.Zero(t, lib.Allocations.Load()+lib.Streams.Load()+lib.Registered.Load(), "something of the device was not given back")
			require.NoError(t, lib.Close())
		})
		cfg.Library = lib.Path
	}
	r, err := hip.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return gpu{r, t}
}

func (g gpu) lastOrdinal() int { return g.Devices() - 1 }

// lend makes a caller's memory: of the host, or of the last device, which is not the media's where there are two.
func (g gpu) lend(t *testing.T, kind string, n uint64) ports.Region {
	t.Helper()
	if kind == "host" {
		return ports.HostRegionOf(make([]byte, n))
	}
	n = (n + hip.PageAlign - 1) / hip.PageAlign * hip.PageAlign
	m, err := g.OpenMedium(hip.MediumConfig{Bytes: n, PageSize: n, Ordinals: []int{g.lastOrdinal()}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m.Buffers()[0]
}

// write and read go by the copier, whose contract other tests look at past it.
func (g gpu) write(to ports.Region, b []byte) { g.move(to, ports.HostRegionOf(b), len(b)) }

func (g gpu) read(from ports.Region, n int) []byte {
	b := make([]byte, n)
	g.move(ports.HostRegionOf(b), from, n)
	return b
}

func (g gpu) move(dst, src ports.Region, n int) {
	g.t.Helper()
	errs := make([]error, 1)
	g.Copier().Copy(g.t.Context(), []ports.CopyOp{{Dst: dst, Src: src, Len: uint64(n)}}, errs)
	require.NoError(g.t, errs[0])
}

// place is a node of these tests.
type place struct {
	medium string // dram, hbm
	page   uint64
	app.Config
}

const (
	hbmObject    = 29 * 4096 // a prime number of pages of 4 KiB, and of whole 256 B
	hbmNamespace = "ns"
)

func (g gpu) node(t *testing.T, net *inproc.Network, id ports.PeerID, p place) *app.Node {
	t.Helper()
	c := settle(Config{Node: p.Config, MediumBytes: 16 * hbmObject / p.page * p.page, PageSize: p.page, GetArenaBytes: 2 * hbmObject,
		PutArenaBytes: 2 * hbmObject, Endpoint: net.Endpoint(id)})
	c.Node.ID, c.Node.Scatter = id, true
	m, closeMemory, err := openMemory(c)
	require.NoError(t, err)
	if p.medium == "hbm" {
		require.NoError(t, m.medium.Close())
		m.medium, err = g.OpenMedium(hip.MediumConfig{Bytes: c.MediumBytes, PageSize: c.PageSize})
		require.NoError(t, err)
	}
	n, stop, err := startNode(c.Node, newPorts(boottime.New(), g.Copier(), m, c.Endpoint), m, c.Endpoint)
	require.NoError(t, err)
	t.Cleanup(func() { stop(); closeMemory() })
	return n
}

// pair is an owner and a reader, and the kind of memory that their callers lend.
type pair struct {
	gpu
	owner, reader *app.Node
	lent          string
}

// route is one way of bytes between nodes and callers.
type route struct {
	name string
	app.Config
	claim func(p pair, t *testing.T)
}

var routes = []route{
	{"local", app.Config{}, pair.local},
	{"slot whole", app.Config{}, pair.slotWhole},
	{"slot partial and pull", app.Config{}, pair.slotPartial},
	{"slot partial without pull", app.Config{NoRangedLocalityPrefetch: true}, pair.slotByExtents},
	{"arena", app.Config{Locality: domain.LocalityOff}, pair.arena},
	{"arena and pull", app.Config{Locality: domain.LocalityPullOnly}, pair.arenaThenPull},
	{"direct", app.Config{Locality: domain.LocalityOff}, pair.direct},
	{"put to the peer", app.Config{}, pair.putRemote},
	{"put to the peer directly", app.Config{}, pair.putDirect},
}

// TestEveryRouteServesDeviceMemory has HBM on either side and both, GPU and host memory as source and destination, pages that are the
// object and a prime number of small ones, scattered over the medium.
func TestEveryRouteServesDeviceMemory(t *testing.T) {
	g := openGPU(t)
	for _, media := range [][2]string{{"hbm", "hbm"}, {"hbm", "dram"}, {"dram", "hbm"}, {"dram", "dram"}} {
		for _, lent := range []string{"gpu", "host"} {
			for _, page := range []uint64{hbmObject, 4096} {
				for _, r := range routes {
					t.Run(fmt.Sprintf("owner=%s/reader=%s/caller=%s/page=%d/%s", media[0], media[1], lent, page, r.name), func(t *testing.T) {
						net := inproc.NewNetwork(inproc.Options{Clock: boottime.New(), Copier: g.Copier(), Background: g.Background()})
						t.Cleanup(func() { require.NoError(t, net.Close()) })
						own := gpu{g.Runtime, t}
						r.claim(pair{own, own.node(t, net, "owner", place{media[0], page, app.Config{}}),
							own.node(t, net, "reader", place{media[1], page, r.Config}), lent}, t)
					})
				}
			}
		}
	}
}

// Ranges of one key, in another order than the object's.
var (
	wholeOutOfOrder = []domain.Run{{Off: 50_000, Len: hbmObject - 50_000}, {Off: 0, Len: 1}, {Off: 1, Len: 49_999}}
	scattered       = []domain.Run{{Off: 100_000, Len: 5000}, {Off: 4095, Len: 2}, {Off: 8192, Len: 4096}, {Off: hbmObject - 7, Len: 7}}
)

const guard = 64

func (p pair) put(t *testing.T, at *app.Node, to ports.PeerID, name string, registered bool) {
	t.Helper()
	b := make([]byte, hbmObject)
	content.Fill(b, content.KeyOf(name, 0), 0)
	src := ports.Memory{Region: p.lend(t, p.lent, hbmObject)}
	p.write(src.Region, b)
	if registered {
		src = p.register(t, at, src.Region)
	}
	out := make([]ports.Result, 1)
	require.NoError(t, at.BatchPutRanges(t.Context(), &ports.PutBatch{Namespace: hbmNamespace, Keys: []string{name}, Sizes: []uint64{hbmObject},
		End: []uint32{2}, Ranges: []domain.Range{{Off: 60_000, Len: hbmObject - 60_000, RegionOff: 60_000}, {Len: 60_000}}, Regions: []ports.Memory{src}, To: to}, out))
	require.Equal(t, ports.Stored, out[0].Status, "%v", out[0].Err)
}

func (p pair) register(t *testing.T, at *app.Node, r ports.Region) ports.Memory {
	t.Helper()
	m, err := at.RegisterMemory(t.Context(), r)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, at.DeregisterMemory(t.Context(), m.ID)) })
	return m
}

// get reads runs of a key and checks every byte of the destination, guards included.
func (p pair) get(t *testing.T, at *app.Node, name string, runs []domain.Run, want ports.Source, registered bool) ports.Result {
	t.Helper()
	size := uint64(guard)
	for _, r := range runs {
		size += r.Len + guard
	}
	poison := make([]byte, size)
	content.Poison(poison)
	due := append([]byte(nil), poison...)
	ranges, off := make([]domain.Range, len(runs)), uint64(guard)
	for i, r := range runs {
		ranges[i] = domain.Range{Off: r.Off, Len: r.Len, RegionOff: off}
		content.Fill(due[off:off+r.Len], content.KeyOf(name, 0), r.Off)
		off += r.Len + guard
	}
	dst := ports.Memory{Region: p.lend(t, p.lent, size)}
	p.write(dst.Region, poison)
	if registered {
		dst = p.register(t, at, dst.Region)
	}
	out := make([]ports.Result, 1)
	require.NoError(t, at.BatchGetRanges(t.Context(), &ports.GetBatch{Namespace: hbmNamespace, Keys: []string{name}, End: []uint32{uint32(len(ranges))},
		Ranges: ranges, Regions: []ports.Memory{dst}}, out))
	require.Equal(t, ports.Hit, out[0].Status, "%v", out[0].Err)
	require.Equal(t, want, out[0].Source)
	got := p.read(dst.Region, len(due))
	for i := range due {
		if got[i] != due[i] {
			require.FailNow(t, "wrong byte", "byte %d of the destination is %#x, due %#x", i, got[i], due[i])
		}
	}
	return out[0]
}

func (p pair) local(t *testing.T) {
	p.put(t, p.reader, "", "k", false)
	p.get(t, p.reader, "k", scattered, ports.FromLocal, false)
	p.get(t, p.reader, "k", wholeOutOfOrder, ports.FromLocal, false)
}

func (p pair) slotWhole(t *testing.T) {
	p.put(t, p.owner, "", "k", false)
	require.EqualValues(t, hbmObject, p.get(t, p.reader, "k", wholeOutOfOrder, ports.FromSlot, false).Fetched)
	p.get(t, p.reader, "k", scattered, ports.FromLocal, false)
}

func (p pair) becomesLocal(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return p.reader.Stats().PullDone == 1 }, 10*time.Second, time.Millisecond)
	p.get(t, p.reader, "k", wholeOutOfOrder, ports.FromLocal, false)
}

func (p pair) slotPartial(t *testing.T) {
	p.put(t, p.owner, "", "k", false)
	p.get(t, p.reader, "k", scattered, ports.FromSlot, false)
	p.becomesLocal(t)
}

func (p pair) slotByExtents(t *testing.T) {
	p.put(t, p.owner, "", "k", false)
	p.get(t, p.reader, "k", scattered, ports.FromSlot, false)
	require.EqualValues(t, hbmObject-5000-2-4096-7, p.get(t, p.reader, "k", wholeOutOfOrder, ports.FromSlot, false).Fetched)
	p.get(t, p.reader, "k", scattered, ports.FromLocal, false)
}

func (p pair) arena(t *testing.T) {
	p.put(t, p.owner, "", "k", false)
	p.get(t, p.reader, "k", scattered, ports.FromArena, false)
	p.get(t, p.reader, "k", wholeOutOfOrder, ports.FromArena, false)
}

func (p pair) arenaThenPull(t *testing.T) {
	p.put(t, p.owner, "", "k", false)
	p.get(t, p.reader, "k", scattered, ports.FromArena, false)
	p.becomesLocal(t)
}

func (p pair) direct(t *testing.T) {
	p.put(t, p.owner, "", "k", false)
	p.get(t, p.reader, "k", scattered, ports.FromDirect, true)
	p.get(t, p.reader, "k", wholeOutOfOrder, ports.FromDirect, true)
}

func (p pair) putRemote(t *testing.T) {
	p.put(t, p.reader, "owner", "k", false)
	p.get(t, p.owner, "k", wholeOutOfOrder, ports.FromLocal, false)
}

func (p pair) putDirect(t *testing.T) {
	p.put(t, p.reader, "owner", "k", true)
	p.get(t, p.owner, "k", scattered, ports.FromLocal, false)
}
