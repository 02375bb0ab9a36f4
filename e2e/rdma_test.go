package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// rdmaDevices are devices that reach each other (SPANPOOL_E2E_RDMA, separated by commas). Nodes are dealt out to them, and every case
// of this package that starts nodes runs over them. None: over sockets.
func rdmaDevices() []string {
	if v := os.Getenv("SPANPOOL_E2E_RDMA"); v != "" {
		return strings.Split(v, ",")
	}
	return nil
}

func overRDMA(ids []string, id string) []string {
	devices := rdmaDevices()
	if len(devices) == 0 {
		return []string{"--transport", "tcp"}
	}
	return []string{"--transport", "rdma", "--rdma-device", devices[slices.Index(ids, id)%len(devices)]}
}

// needsRDMA is for cases that break the way between two devices, which those of scripts/rdma/vm.sh bear: they are the ends of a veth pair.
func needsRDMA(t *testing.T) {
	t.Helper()
	if len(rdmaDevices()) < 2 {
		t.Skip("SPANPOOL_E2E_RDMA does not name two devices (make test-rdma has them)")
	}
}

// veth does something to both ends of the pair; mend undoes everything.
func veth(t *testing.T, script string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", "set -e\n"+script).CombinedOutput()
	require.NoError(t, err, "%s: %s", script, out)
}

const (
	mend = `for i in 0 1; do tc qdisc del dev veth$i root 2>/dev/null || true; ip link set veth$i up; done
ip route replace 10.78.0.2 dev veth0 table 101
ip route replace 10.78.0.1 dev veth1 table 102
ip neigh replace 10.78.0.2 lladdr $(cat /sys/class/net/veth1/address) dev veth0 nud permanent
ip neigh replace 10.78.0.1 lladdr $(cat /sys/class/net/veth0/address) dev veth1 nud permanent`
	partition = `for i in 0 1; do tc qdisc add dev veth$i root netem loss 100%; done`
	down      = `ip link set veth0 down`
)

// slow is for a processor that is emulated on a busy machine.
var slow = []string{"--locality", "off", "--timeout-call", "60s", "--timeout-dial", "8s", "--timeout-control", "8s", "--timeout-transfer", "8s", "--lease", "5s"}

// rdmaPair is two nodes that reach each other over rdma, and an object of the first. Nothing that is read stays here.
func rdmaPair(t *testing.T, args ...string) (p *pool, a, b *node, object []byte) {
	needsRDMA(t)
	t.Cleanup(func() { veth(t, mend) })
	p = newPool(t, []string{"a", "b"}, append(slow, args...)...)
	a, b = p.nodes["a"], p.nodes["b"]
	p.by("b", "a", "rdma")
	object = content("k", 0, 600_000)
	a.mustPut(t, "k", object)
	return p, a, b, object
}

// by waits until a node reaches another by that transport.
func (p *pool) by(from, to, transport string) {
	p.t.Helper()
	p.eventually(func() bool { return p.nodes[from].peer(p.t, to).GetTransport() == transport }, "%s does not reach %s by %s", from, to, transport)
}

// moved is what a node moved by a transport for its calls.
func (n *node) moved(t *testing.T, transport string) (bytes float64) {
	t.Helper()
	for line := range strings.Lines(n.metrics(t)) {
		if strings.HasPrefix(line, "spanpool_peer_wire_bytes_total{") && strings.Contains(line, `transport="`+transport+`"`) {
			_, value, _ := strings.Cut(line, "} ")
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(t, err, line)
			bytes += v
		}
	}
	return bytes
}

func TestRDMAMovesWhatIsAskedForAndNothingMore(t *testing.T) {
	_, a, b, object := rdmaPair(t)
	b.mustGet(t, "k", object, span(5, 100_000), span(300_001, 1728))
	require.EqualValues(t, 101_728, b.moved(t, "rdma"))
	require.Zero(t, b.moved(t, "tcp"))
	r, err := b.put(t.Context(), "theirs", object, "a")
	require.NoError(t, err)
	require.Equal(t, stored, r.GetStatus(), r.GetReason())
	a.mustGet(t, "theirs", object)
	require.EqualValues(t, 101_728+len(object), b.moved(t, "rdma"))
	require.Contains(t, b.metrics(t), "spanpool_rdma_registered_bytes")
	out, errs, code := b.ctl(t, "peers")
	require.Zero(t, code, errs)
	require.Contains(t, out, "rdma")
}

// TestRDMAGivesWayToTCPAndComesBack: the way over the devices is cut in two ways, while sockets go on.
func TestRDMAGivesWayToTCPAndComesBack(t *testing.T) {
	for name, cut := range map[string]string{"partition": partition, "link down": down} {
		t.Run(name, func(t *testing.T) {
			p, _, b, object := rdmaPair(t)
			b.mustGet(t, "k", object)
			veth(t, cut)
			p.eventually(func() bool {
				r, got, err := b.get(t.Context(), "k")
				require.NoError(t, err)
				if r.GetStatus() != hit {
					return false
				}
				requireBytes(t, object, got)
				return b.peer(t, "a").GetTransport() == "tcp"
			}, "tcp does not take over")
			p.eventually(func() bool {
				out, _, _ := b.ctl(t, "peers")
				return strings.Contains(out, "rdma") && strings.Contains(out, "tcp")
			}, "ctl peers does not say why it is tcp")
			require.Positive(t, b.moved(t, "tcp"))
			veth(t, mend)
			p.by("b", "a", "rdma")
			before := b.moved(t, "rdma")
			b.mustGet(t, "k", object)
			require.EqualValues(t, len(object), b.moved(t, "rdma")-before)
		})
	}
}

func TestRDMABearsDelayAndLoss(t *testing.T) {
	for name, how := range map[string]string{"20 ms": "delay 20ms limit 100000", "1 in 100 lost": "loss 1% limit 100000"} {
		t.Run(name, func(t *testing.T) {
			p, a, b, object := rdmaPair(t)
			veth(t, "for i in 0 1; do tc qdisc add dev veth$i root netem "+how+"; done")
			for range 3 {
				b.mustGet(t, "k", object)
			}
			p.eventually(func() bool {
				r, err := b.put(t.Context(), "theirs", object, "a")
				require.NoError(t, err)
				return r.GetStatus() == stored
			}, "a put does not come through")
			a.mustGet(t, "theirs", object)
		})
	}
}

// TestRDMASurvivesThePeersDeathInMidTransfer kills the owner while it is read, again and again by two readers, and starts it anew.
func TestRDMASurvivesThePeersDeathInMidTransfer(t *testing.T) {
	p, a, b, object := rdmaPair(t)
	var stop atomic.Bool
	var hits, failed atomic.Uint64
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !stop.Load() {
				r, got, err := b.get(t.Context(), "k")
				switch {
				case err != nil:
					t.Errorf("b itself fails: %v", err)
					return
				case r.GetStatus() != hit:
					failed.Add(1)
				case string(got) != string(object):
					t.Errorf("wrong bytes under a hit")
				default:
					hits.Add(1)
				}
			}
		})
	}
	p.eventually(func() bool { return hits.Load() > 3 }, "nothing is read")
	a.kill(t)
	p.eventually(func() bool { return failed.Load() > 1 }, "reads of a dead peer's keys do not end")
	stop.Store(true)
	readers.Wait()
	p.start("a")
	a.mustPut(t, "k2", object)
	p.eventually(func() bool {
		r, got, err := b.get(t.Context(), "k2")
		require.NoError(t, err)
		return r.GetStatus() == hit && string(got) == string(object)
	}, "a returned and is not used")
	p.by("b", "a", "rdma")
}

// TestRDMAFencesAWriterThatIsStopped: the writer stands still behind its reservation; its pages become another key's, which stays right.
func TestRDMAFencesAWriterThatIsStopped(t *testing.T) {
	needsRDMA(t)
	veth(t, "for i in 0 1; do tc qdisc add dev veth$i root netem rate 40mbit limit 100000; done") // a put takes more than a second
	t.Cleanup(func() { veth(t, mend) })
	p := newPool(t, []string{"owner", "writer"}, "--dram-bytes", "8MiB", "--arena-put-bytes", "1MiB", "--reservation", "3s", "--watermark-high", "0", "--watermark-low", "0",
		"--timeout-call", "40s", "--timeout-transfer", "20s", "--lease", "100ms", "--timeout-dial", "8s", "--timeout-control", "8s")
	owner, writer := p.nodes["owner"], p.nodes["writer"]
	p.by("writer", "owner", "rdma")
	const size = 6 << 20
	late, other := content("late", 0, size), content("other", 0, size)
	var over atomic.Bool
	caught := false
	for attempt := 0; attempt < 10 && !caught; attempt++ {
		over.Store(false)
		before := writer.moved(t, "rdma")
		go func() { _, _ = writer.put(t.Context(), fmt.Sprint("late-", attempt), late, "owner"); over.Store(true) }()
		p.eventually(func() bool { return writer.moved(t, "rdma") > before || over.Load() }, "the put does not begin") // one of six rounds is through
		writer.signal(t, syscall.SIGSTOP)
		if caught = owner.counts(t)["now.slots.pending"] > 0; !caught { // it was through when the signal came
			writer.signal(t, syscall.SIGCONT)
			p.eventually(over.Load, "the put does not end")
		}
	}
	require.True(t, caught, "every put was over before its writer could be stopped")
	p.eventually(func() bool {
		c := owner.counts(t)
		return c["doomed.deadline"] > 0 && c["now.revokes_pending"] == 0 && c["now.slots.doomed"] == 0
	}, "the reservation does not end")
	m := owner.metrics(t) // a peer that is silent for so long may have lost its whole link by then
	require.True(t, !strings.Contains(m, `spanpool_rdma_events_total{event="fenced"} 0`) || strings.Contains(m, "spanpool_rdma_links_inbound 0"),
		"the writer's queue pairs were left to it")
	owner.mustPut(t, "other", other)
	writer.signal(t, syscall.SIGCONT)
	p.eventually(over.Load, "the writer's call does not end")
	if r, b, err := owner.get(t.Context(), "other"); err == nil && r.GetStatus() == hit { // else the writer reserved anew, and evicted it
		requireBytes(t, other, b)
	}
}

// TestRDMABringsBytesToANodeInDeviceMemoryByTheArena: the device here takes no memory of a GPU, whether it is to or not. SPANPOOL_E2E_GPU_LIBRARY
// is a runtime whose device memory no NIC and no CPU can touch.
func TestRDMABringsBytesToANodeInDeviceMemoryByTheArena(t *testing.T) {
	needsRDMA(t)
	library := os.Getenv("SPANPOOL_E2E_GPU_LIBRARY")
	if library == "" {
		t.Skip("SPANPOOL_E2E_GPU_LIBRARY names no runtime (make test-rdma has one)")
	}
	for _, nic := range []string{"false", "true"} {
		t.Run("gpu.nic="+nic, func(t *testing.T) {
			p := layOut(t, []string{"a", "b"}, slow[2:]...)
			a, b := p.nodes["a"], p.nodes["b"]
			b.args = []string{"--medium", "hbm", "--gpu-library", library, "--gpu-reserve-bytes", "1MiB", "--gpu-deadline", "30s", "--gpu-nic", nic}
			p.start("a")
			p.start("b")
			p.together("a", "b")
			p.by("b", "a", "rdma")
			p.by("a", "b", "tcp")
			out, errs, code := a.ctl(t, "peers")
			require.Zero(t, code, errs)
			require.Contains(t, out, "it does not reach the pool here")
			object := content("k", 0, 600_000)
			for _, key := range []string{"whole", "part"} {
				a.mustPut(t, key, object)
			}
			b.mustGet(t, "whole", object)
			b.mustGet(t, "part", object, span(5, 100_000), span(300_001, 1728))
			require.EqualValues(t, len(object)+101_728, b.moved(t, "rdma"))
			require.Contains(t, b.metrics(t), `spanpool_downgrades_total{reason="unreached"} 2`)
			p.eventually(func() bool { return b.moved(t, "tcp") == float64(len(object)) }, "what was read in part is not pulled")
			b.mustGet(t, "whole", object)
			b.mustGet(t, "part", object)
			r, err := b.put(t.Context(), "theirs", object, "a")
			require.NoError(t, err)
			require.Equal(t, stored, r.GetStatus(), r.GetReason())
			a.mustGet(t, "theirs", object)
			b.mustPut(t, "mine", object)
			a.mustGet(t, "mine", object)
			require.EqualValues(t, len(object), a.moved(t, "tcp"))
			require.EqualValues(t, 2*len(object)+101_728, b.moved(t, "rdma"))
		})
	}
}
