//go:build linux && cgo && rdma

package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

// counts is what the tests saw transports count.
var counts porttest.Moved

func TestMain(m *testing.M) { counts.VerifyTestMain(m, nil) }

// noted has what a transport counts noted when the test ends. Of failed completions it is those that can be had from any device: others are
// a device's own trouble, and Soft-RoCE does not always count its retries, so that StatusRetryExc is not sure to come.
func noted(t testing.TB, tr *Transport) {
	t.Cleanup(func() {
		s := tr.Stats()
		for e, n := range s.Events {
			counts.Note("event: "+Event(e).String(), n)
		}
		for _, c := range []Status{statusLocalProtection, StatusFlushed, statusRemInvalid, StatusRemAccess, StatusRNRRetryExc} {
			counts.Note("completion: "+c.String(), s.Completions[c])
		}
	})
}

// clock counts from its making, on the monotonic clock.
type clock struct{ since time.Time }

func newClock() clock { return clock{time.Now().Add(-time.Hour)} }

func (c clock) Now() domain.Instant { return domain.Instant(time.Since(c.since)) }

// devices reach each other. The machine of scripts/rdma/vm.sh has these, on the ends of a veth pair; SPANPOOL_RDMA_DEVICES names two
// others, separated by a comma, with which what needs that pair is left out.
var devices = func() []string {
	if v := os.Getenv("SPANPOOL_RDMA_DEVICES"); v != "" {
		return strings.Split(v, ",")
	}
	return []string{"rxe0", "rxe1"}
}()

// partitions is nil where the way between the devices cannot be cut.
func partitions() func(testing.TB, bool) {
	if _, err := os.Stat("/sys/class/net/veth1"); err != nil {
		return nil
	}
	return partition
}

func needsVeth(t *testing.T) {
	t.Helper()
	if partitions() == nil {
		t.Skip("the devices are not on a veth pair, whose ends can be told to lose packets")
	}
}

// node is one end.
type node struct {
	porttest.TransportEnd
	cfg Config
	fds []int // of its device
}

func (n *node) rdma() *Transport { return n.Transport.(*Transport) }

// start opens a node on a device of the machine, or says that there is none.
func start(t testing.TB, id ports.PeerID, device string, cfg Config) *node {
	n := &node{cfg: cfg}
	n.Self = ports.Peer{ID: id, Incarnation: 100}
	n.cfg.Device = device
	if n.cfg.Clock == nil {
		n.cfg.Clock = newClock()
	}
	n.open(t)
	t.Cleanup(func() { require.NoError(t, n.Transport.Close()) })
	return n
}

func (n *node) open(t testing.TB) {
	others := uverbs(t)
	tr, err := Open(n.cfg)
	require.NoError(t, err)
	n.fds = slices.DeleteFunc(uverbs(t), func(fd int) bool { return slices.Contains(others, fd) })
	noted(t, tr)
	n.Transport = tr
}

func (n *node) restart(t testing.TB) {
	require.NoError(t, n.Transport.Close())
	n.Self.Incarnation++
	n.open(t)
}

// offHeap is memory that the collector knows nothing of, between two pages that nobody may touch.
func offHeap(t testing.TB, n int) ports.HostRegion {
	page := syscall.Getpagesize()
	room := (n + page - 1) / page * page
	b, err := syscall.Mmap(-1, 0, room+2*page, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	require.NoError(t, syscall.Mprotect(b[page:page+room], syscall.PROT_READ|syscall.PROT_WRITE))
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	return ports.HostRegionOf(b[page : page+n])
}

func program(t testing.TB, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
}

// netem sets what both ends of the veth pair do to what they send; nothing: they pass it.
func netem(t testing.TB, how ...string) {
	for i := range devices {
		dev := fmt.Sprintf("veth%d", i)
		_ = exec.Command("tc", "qdisc", "del", "dev", dev, "root").Run() // there may be none
		if len(how) > 0 {
			program(t, "tc", append([]string{"qdisc", "add", "dev", dev, "root", "netem", "limit", "100000"}, how...)...)
		}
	}
}

func partition(t testing.TB, on bool) {
	how := "for i in 0 1; do tc qdisc del dev veth$i root; done"
	if on { // by one program: starting one takes a while on an emulated processor
		how = "for i in 0 1; do tc qdisc add dev veth$i root netem loss 100%; done"
	}
	program(t, "sh", "-c", how)
}

func openTransports(cfg Config) func(t testing.TB) *porttest.TransportHarness {
	return func(t testing.TB) *porttest.TransportHarness {
		cfg := cfg
		cfg.Clock = newClock()
		owner, asker, other := start(t, "owner", devices[0], cfg), start(t, "asker", devices[1], cfg), start(t, "other", devices[1], cfg)
		nodes := map[*porttest.TransportEnd]*node{&owner.TransportEnd: owner, &asker.TransportEnd: asker, &other.TransportEnd: other}
		if partitions() != nil {
			t.Cleanup(func() { netem(t) })
		}
		return &porttest.TransportHarness{
			Clock: cfg.Clock, Owner: &owner.TransportEnd, Asker: &asker.TransportEnd, Other: &other.TransportEnd,
			Memory:    offHeap,
			Restart:   func(t testing.TB, e *porttest.TransportEnd) { nodes[e].restart(t) },
			Partition: partitions(),
		}
	}
}

// slow is for machines in which a second is short.
func slow() Config {
	return Config{DialTimeout: 8 * time.Second, ControlTimeout: 8 * time.Second, Keepalive: 4 * time.Second, Timeout: 15}
}

func TestTransportSuite(t *testing.T) {
	porttest.RunTransport(t, openTransports(slow()))
}

// tryDial makes a link as the peers' hello would.
func tryDial(ctx context.Context, from, to *node) (*Link, error) {
	p, err := from.Transport.Offer(ctx, to.Self.ID)
	if err != nil {
		return nil, err
	}
	answer, err := to.Transport.Answer(ctx, from.Self, p.Bytes())
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	l, err := p.Link(ctx, answer)
	if err != nil {
		return nil, err
	}
	return l.(*Link), nil
}

func dial(t testing.TB, from, to *node) *Link {
	t.Helper()
	l, err := tryDial(t.Context(), from, to)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}
