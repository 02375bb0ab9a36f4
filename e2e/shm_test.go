package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// crossedBy is the bytes that a node's links of a transport to a peer have carried, by purpose.
func (n *node) crossedBy(t *testing.T, peer, transport string) map[string]uint64 {
	t.Helper()
	for _, s := range n.peer(t, peer).GetTransports() {
		if s.GetTransport() == transport {
			return s.GetWireBytes()
		}
	}
	return nil
}

// TestPeersOfOneHostReadEachOthersMemory: auto chooses shm for reads by itself and tcp for writes, and every byte is counted where it
// crossed.
func TestPeersOfOneHostReadEachOthersMemory(t *testing.T) {
	notOverSSH(t, "the nodes are to be on one host")
	p := newPool(t, []string{"a", "b"}, "--transport", "auto", "--dram-page-bytes", "4KiB", "--lease", "1m") // what came too late would cross again
	a, b := p.nodes["a"], p.nodes["b"]
	p.eventually(func() bool { return b.peer(t, "a").GetTransport() == "shm" }, "b does not read a's memory")
	object := content("k", 0, 3_000_001)
	a.mustPut(t, "k", object)
	for off := 0; off < 3_000_000; off += 500_000 {
		b.mustGet(t, "k", object, span(off, 1000), span(off+2000, 77))
	}
	p.eventually(func() bool { return b.counts(t)["now.slots.committed"] == 1 }, "the object does not become local")
	r, err := b.put(t.Context(), "there", object, "a")
	require.NoError(t, err)
	require.Equal(t, stored, r.GetStatus(), r.GetReason())
	a.mustGet(t, "there", object)

	s := b.peer(t, "a")
	require.Equal(t, "shm", s.GetTransport())
	require.Equal(t, "tcp", s.GetWriteTransport())
	shm, tcp := b.crossedBy(t, "a", "shm"), b.crossedBy(t, "a", "tcp")
	require.Equal(t, uint64(len(object)), shm["get"]+shm["pull"])
	require.Zero(t, shm["put"])
	require.Zero(t, tcp["get"]+tcp["pull"])
	require.Equal(t, uint64(len(object)), tcp["put"])
	out, errs, code := b.ctl(t, "peers")
	require.Zero(t, code, errs)
	require.Regexp(t, `\na +[0-9a-f]{16} +shm +tcp +up `, out)
}

// TestATransportThatOneEndLacksIsNamed: reads go by the next, and ctl says why.
func TestATransportThatOneEndLacksIsNamed(t *testing.T) {
	notOverSSH(t, "the nodes are to be on one host")
	p := layOut(t, []string{"a", "b"})
	p.nodes["b"].args = []string{"--transport", "shm"}
	p.start("a")
	b := p.start("b")
	p.together("b")
	p.eventually(func() bool { return b.peer(t, "a").GetTransport() == "tcp" }, "b has no way to a")
	out, errs, code := b.ctl(t, "peers")
	require.Zero(t, code, errs)
	require.Contains(t, out, `no shm: transport "shm" is not configured here`)
}

// shmOwnerBytes is the medium of the owner that is killed: SPANPOOL_E2E_SHM_BYTES, for a run with one as large as they are.
func shmOwnerBytes(t *testing.T) uint64 {
	v := os.Getenv("SPANPOOL_E2E_SHM_BYTES")
	if v == "" {
		return 256 << 20
	}
	n, err := strconv.ParseUint(v, 10, 63)
	require.NoError(t, err)
	return n
}

// media says how many nodes' memory a process has mapped, its own included.
func media(t *testing.T, n *node) int {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", n.cmd.Process.Pid))
	require.NoError(t, err)
	return strings.Count(string(maps), "memfd:spanpool")
}

// sharedMemory is what all memory files of the host take.
func sharedMemory(t *testing.T) uint64 {
	t.Helper()
	info, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Shmem:" {
			n, err := strconv.ParseUint(f[1], 10, 54)
			require.NoError(t, err)
			return n << 10
		}
	}
	require.FailNow(t, "no Shmem in /proc/meminfo")
	return 0
}

// TestMemoryOfAKilledOwnerComesBackUnderItsReaders: kill -9 while readers copy out of its memory, twice, and another start at the same
// address. The readers' node lives, no hit is wrong, and no process holds what is dead.
func TestMemoryOfAKilledOwnerComesBackUnderItsReaders(t *testing.T) {
	notOverSSH(t, "the nodes are to be on one host")
	size := shmOwnerBytes(t)
	p := layOut(t, []string{"a", "b"}, "--transport", "shm", "--locality", "off", "--arena-get-bytes", "64MiB")
	p.nodes["a"].args = []string{"--dram-bytes", fmt.Sprint(size)}
	p.start("b")
	p.start("a")
	p.together("a", "b")
	a, b := p.nodes["a"], p.nodes["b"]
	object := content("k", 0, 8<<20)
	a.mustPut(t, "k", object)

	var hits, failed atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range 3 {
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
	for range 2 {
		from := hits.Load()
		p.eventually(func() bool { return hits.Load() > from+3 }, "nothing is read")
		p.eventually(func() bool { return b.peer(t, "a").GetTransport() == "shm" && media(t, b) == 2 }, "b does not read a's memory")
		full := sharedMemory(t)
		a.kill(t)
		killed := time.Now()
		p.eventually(func() bool { return media(t, b) == 1 }, "b holds what is dead")
		t.Logf("unmapped %v after the owner was killed", time.Since(killed).Round(time.Millisecond))
		// Others use shared memory at the same time: half of the medium is not their doing.
		p.eventually(func() bool { return sharedMemory(t)+size/2 < full }, "the memory does not come back")
		t.Logf("%d MiB of shared memory before, %d MiB %v after", full>>20, sharedMemory(t)>>20, time.Since(killed).Round(time.Millisecond))
		p.start("a")
		a.mustPut(t, "k", object)
		p.together("b")
		t.Logf("another start is ready %v after; %d MiB of shared memory", time.Since(killed).Round(time.Millisecond), sharedMemory(t)>>20)
	}
	from := hits.Load()
	p.eventually(func() bool { return hits.Load() > from+3 }, "a returned and is not used")
	p.eventually(func() bool { return b.peer(t, "a").GetTransport() == "shm" }, "a returned and shm is not used")
	require.NotZero(t, failed.Load(), "no read met the death")
}

// TestAStoppedReaderDoesNotHoldUpAnOwnerThatEnds: it keeps what it has mapped, which is the host's affair; the owner says so and ends.
func TestAStoppedReaderDoesNotHoldUpAnOwnerThatEnds(t *testing.T) {
	notOverSSH(t, "the nodes are to be on one host")
	p := newPool(t, []string{"a", "b"}, "--transport", "shm", "--drain", "1s", "--lease", "100ms")
	a, b := p.nodes["a"], p.nodes["b"]
	p.eventually(func() bool { return b.peer(t, "a").GetTransport() == "shm" }, "b does not read a's memory")
	b.signal(t, syscall.SIGSTOP)
	p.eventually(func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	}, "b does not stop")
	a.signal(t, syscall.SIGTERM)
	p.eventually(a.hasEnded, "a does not end")
	require.Contains(t, a.log.String(), "1 peers have not let go")
	b.signal(t, syscall.SIGCONT)
	p.eventually(func() bool { return media(t, b) == 1 }, "b holds what has ended")
	r, _, err := b.get(t.Context(), "k")
	require.NoError(t, err)
	require.NotEqual(t, enginev1.KeyStatus_KEY_STATUS_HIT, r.GetStatus())
}
