//go:build linux

package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// childVar names, in the environment of a process of this test, what it is to be instead of a run of the tests.
const childVar = "SPANPOOL_SHM_CHILD"

var children = map[string]func(){"owner": beOwner, "reader": beReader}

const (
	childBytes  = 64 << 20
	ownersFiles = "spanpool-shm-owner"
)

// beOwner exposes memory, answers one offer that comes by its input, and stays until it is killed.
func beOwner() {
	t, err := Open(Config{Clock: newClock()})
	must(err)
	fd, err := unix.MemfdCreate(ownersFiles, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(err)
	must(unix.Ftruncate(fd, childBytes))
	b, err := unix.Mmap(fd, 0, childBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	content.Fill(b, 1, 0)
	must(t.Expose(0, ports.HostRegionOfFile(b, &ports.File{FD: uintptr(fd)})))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		asked, err := hex.DecodeString(in.Text())
		must(err)
		answer, err := t.Answer(context.Background(), ports.Peer{ID: "asker", Incarnation: 1}, asked)
		must(err)
		fmt.Println(hex.EncodeToString(answer))
	}
}

// beReader makes an offer, links with the answer that comes by its input, and stays until it is killed.
func beReader() {
	t, err := Open(Config{Clock: newClock()})
	must(err)
	p, err := t.Offer(context.Background(), "owner")
	must(err)
	fmt.Println(hex.EncodeToString(p.Bytes()))
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	answer, err := hex.DecodeString(in.Text())
	must(err)
	_, err = p.Link(context.Background(), answer)
	must(err)
	fmt.Println("linked")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// child is a process of its own.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func spawn(t *testing.T, what string) *child {
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childVar+"="+what)
	c.cmd.Stderr = os.Stderr
	var err error
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewScanner(out)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // its status is that it was killed
}

// stop is SIGSTOP, and waits until it has come.
func (c *child) stop() {
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(c.t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	}, 30*time.Second, time.Millisecond)
}

func (c *child) tell(line string) {
	_, err := io.WriteString(c.in, line+"\n")
	require.NoError(c.t, err)
}

func (c *child) hear() string {
	require.True(c.t, c.out.Scan(), "the process has ended: %v", c.out.Err())
	return c.out.Text()
}

// linkTo makes a link to an owner's process.
func (c *child) linkFrom(n *node) *Link {
	p, err := n.inner.Offer(c.t.Context(), "owner")
	require.NoError(c.t, err)
	c.tell(hex.EncodeToString(p.Bytes()))
	answer, err := hex.DecodeString(c.hear())
	require.NoError(c.t, err)
	l, err := p.Link(c.t.Context(), answer)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, l.Close()) })
	return l.(*Link)
}

// holds says how many mappings and descriptors of files of that name this process has.
func holds(t *testing.T, name string) (n int) {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	n = strings.Count(string(maps), name)
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, name) {
			n++
		}
	}
	return n
}

// TestADeadOwnersMemoryIsLetGoUnderItsReaders: whoever reads when it dies goes on to a right end or a reset, and then this process
// holds nothing of it any more, which is when its memory is the host's again.
func TestADeadOwnersMemoryIsLetGoUnderItsReaders(t *testing.T) {
	asker := open(t, "asker", Config{Workers: 2})
	for range 3 {
		owner := spawn(t, "owner")
		l := owner.linkFrom(asker)
		require.Positive(t, holds(t, ownersFiles))
		var wg sync.WaitGroup
		started := make(chan struct{}, 4)
		for i := range 4 {
			dst := shared(t, childBytes/4)
			wg.Go(func() {
				for round := 0; ; round++ {
					off := uint64(i) * 7919
					b := &ports.Batch{Ops: []ports.Op{{Count: 1}}, Segments: []ports.Segment{{RemoteOff: off, Local: dst, Len: dst.Len()}}}
					q := ports.NewCompletions()
					err := l.Submit(b, q)
					if err == nil {
						done, _ := q.Take(context.Background(), time.Minute, nil)
						if err = done[0].Err; err == nil && content.Check(dst.Bytes(), 1, off) != -1 {
							t.Errorf("reader %d, round %d: wrong bytes", i, round)
						}
					}
					if round == 0 {
						started <- struct{}{}
					}
					if err != nil {
						if !isReset(err) {
							t.Errorf("reader %d, round %d: %v", i, round, err)
						}
						return
					}
				}
			})
		}
		for range 4 {
			<-started
		}
		owner.kill()
		select {
		case <-l.Done():
		case <-time.After(30 * time.Second):
			require.FailNow(t, "the link outlives its owner")
		}
		wg.Wait() // before their memory goes
		require.Zero(t, holds(t, ownersFiles))
	}
	require.Zero(t, asker.inner.Stats().Outbound)
}

func isReset(err error) bool { return strings.Contains(err.Error(), ports.ErrReset.Error()) }

// reader is a process that has the node's memory mapped.
func reader(t *testing.T, n *node) *child {
	c := spawn(t, "reader")
	asked, err := hex.DecodeString(c.hear())
	require.NoError(t, err)
	answer, err := n.inner.Answer(t.Context(), ports.Peer{ID: "reader", Incarnation: 1}, asked)
	require.NoError(t, err)
	c.tell(hex.EncodeToString(answer))
	require.Equal(t, "linked", c.hear())
	require.Equal(t, 1, n.inner.Stats().Inbound)
	return c
}

func TestADeadReaderIsForgotten(t *testing.T) {
	owner := open(t, "owner", Config{})
	require.NoError(t, owner.inner.Expose(0, shared(t, 4096)))
	c := reader(t, owner)
	c.kill()
	require.Eventually(t, func() bool { return owner.inner.Stats().Inbound == 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, owner.inner.Close())
}

// TestCloseSaysThatAReaderHasNotLetGo: one that is stopped cannot. It does not hold the owner up for long, dropped before or not.
func TestCloseSaysThatAReaderHasNotLetGo(t *testing.T) {
	for _, dropped := range []bool{false, true} {
		owner, err := Open(Config{Clock: newClock()})
		require.NoError(t, err)
		noted(t, owner)
		n := &node{inner: owner}
		require.NoError(t, owner.Expose(0, shared(t, 4096)))
		c := reader(t, n)
		c.stop()
		if dropped {
			owner.Drop(ports.Peer{ID: "reader", Incarnation: 1})
		}
		begin := time.Now()
		err = owner.Close()
		require.ErrorIs(t, err, ports.ErrTimeout)
		require.Less(t, time.Since(begin), 30*time.Second)
		require.EqualValues(t, 1, owner.Stats().Refused[Lingered])
		require.NoError(t, owner.Close(), "twice: it has let go of it")
		c.kill()
	}
}
