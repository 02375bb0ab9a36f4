package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

const (
	corrupt  = enginev1.KeyStatus_KEY_STATUS_CORRUPT
	notFound = enginev1.KeyStatus_KEY_STATUS_NOT_FOUND
)

// flipper turns over one bit of the first word that it was told to look for on the way to who asked.
type flipper struct {
	seek    atomic.Pointer[map[[8]byte]bool]
	flipped atomic.Uint64
}

// pass carries what the owner sends.
func (f *flipper) pass(dst io.Writer, src io.Reader) {
	b := make([]byte, 256<<10)
	for {
		n, err := src.Read(b)
		f.flip(b[:n])
		if _, werr := dst.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (f *flipper) flip(b []byte) {
	for i := 0; i+8 <= len(b); i++ {
		words := f.seek.Load()
		if words == nil {
			return
		}
		if (*words)[[8]byte(b[i:i+8])] && f.seek.CompareAndSwap(words, nil) {
			b[i+3] ^= 4
			f.flipped.Add(1)
			return
		}
	}
}

// wordsOf is what to look for: many, for one may be cut in two.
func wordsOf(b []byte) *map[[8]byte]bool {
	words := make(map[[8]byte]bool)
	for i := 0; i+8 <= len(b); i += 8 {
		words[[8]byte(b[i:i+8])] = true
	}
	return &words
}

// TestABitThatTurnsOverOnTheWireIsNoHit: the reader says so, the owner finds its copy right, and the next read is right.
func TestABitThatTurnsOverOnTheWireIsNoHit(t *testing.T) {
	onLoopbackOnly(t, "the proxy stands on this host")
	p := layOut(t, []string{"a", "b"})
	a, b := p.nodes["a"], p.nodes["b"]
	f := &flipper{}
	a.args = []string{"--data-advertise", startRelay(t, a.data, plainly, f.pass)}
	p.start("a")
	p.start("b")
	p.together("a", "b")
	object := content("k", 0, 700_003)
	a.mustPut(t, "k", object)
	f.seek.Store(wordsOf(object))
	r, _, err := b.get(t.Context(), "k")
	require.NoError(t, err)
	require.EqualValues(t, 1, f.flipped.Load(), "nothing was spoiled")
	require.Equal(t, corrupt, r.GetStatus(), "%s", r.GetReason())
	p.eventually(func() bool { return a.counts(t)["complaints.kept"] == 1 }, "the owner does not hear of it")
	counts := b.counts(t)
	require.EqualValues(t, 1, counts["corrupt_ranges"])
	require.EqualValues(t, 1, counts["complaints_made"])
	require.EqualValues(t, 1, counts["get_keys.corrupt"])
	require.Zero(t, counts["now.slots.committed"])
	require.True(t, b.mustGet(t, "k", object).GetVerified())
	require.EqualValues(t, 1, a.counts(t)["now.slots.committed"])
}

// spoil turns over a bit of every place in the node's memory where these bytes are, and returns how many there were.
func (n *node) spoil(t *testing.T, find []byte) (found int) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", n.cmd.Process.Pid)
	mem, err := os.OpenFile(proc+"mem", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("the memory of another process cannot be had here: %v", err)
	}
	defer mem.Close()
	maps, err := os.ReadFile(proc + "maps")
	require.NoError(t, err)
	for s := bufio.NewScanner(bytes.NewReader(maps)); s.Scan(); {
		var lo, hi uint64
		var mode string
		_, err := fmt.Sscanf(s.Text(), "%x-%x %s", &lo, &hi, &mode)
		require.NoError(t, err)
		if !strings.HasPrefix(mode, "rw") || hi-lo > 64<<20 {
			continue // a medium has 16 MiB here
		}
		b := make([]byte, hi-lo)
		if k, err := mem.ReadAt(b, int64(lo)); err != nil {
			b = b[:k]
		}
		for at := 0; ; at += len(find) {
			i := bytes.Index(b[at:], find)
			if i < 0 {
				break
			}
			at += i
			_, err := mem.WriteAt([]byte{find[0] ^ 1}, int64(lo)+int64(at))
			require.NoError(t, err)
			found++
		}
	}
	return found
}

// TestABitThatTurnsOverOnAHolderIsNoHit: the owner looks at its copy and drops it; another holder's copy is read.
func TestABitThatTurnsOverOnAHolderIsNoHit(t *testing.T) {
	onLoopbackOnly(t, "it writes into the memory of a process of this host")
	p := newPool(t, []string{"a", "b", "c"})
	a, b, c := p.nodes["a"], p.nodes["b"], p.nodes["c"]
	object := content("k", 0, 300_000)
	a.mustPut(t, "k", object)
	a.mustPut(t, "two", content("two", 0, 300_000))
	c.mustGet(t, "two", content("two", 0, 300_000))
	require.Positive(t, a.spoil(t, object[200_000:200_064]))
	require.Positive(t, a.spoil(t, content("two", 0, 300_000)[100_000:100_064]))

	r, _, err := b.get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, corrupt, r.GetStatus(), "%s", r.GetReason())
	p.eventually(func() bool { return a.counts(t)["complaints.dropped"] == 1 }, "the owner keeps its bad copy")
	require.EqualValues(t, 1, a.counts(t)["doomed.corrupt"])
	r, _, err = b.get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, notFound, r.GetStatus(), "%s", r.GetReason())
	require.True(t, b.mustGet(t, "two", content("two", 0, 300_000)).GetVerified(), "from c, whoever is asked first")
}
