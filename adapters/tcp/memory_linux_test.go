package tcp

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// mapped is anonymous memory for the length of the test.
func mapped(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// vanishing is memory of a file, and what cuts it short.
func vanishing(t testing.TB, n int) (b []byte, cut func()) {
	fd, err := unix.MemfdCreate("vanishing", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	b, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b, func() { require.NoError(t, unix.Ftruncate(fd, 0)) }
}

// TestACallersMemoryThatIsGoneFailsItsOpAlone: small fragments go there by way of a buffer, others straight, and sums are made there.
func TestACallersMemoryThatIsGoneFailsItsOpAlone(t *testing.T) {
	const size = 512 << 10
	owner, asker := listen(t, "owner", Config{}), listen(t, "asker", Config{})
	mem := heap(t, size)
	content.Fill(mem.Bytes(), 0, 0)
	require.NoError(t, owner.Transport.Expose(0, mem))
	l := dial(t, asker, owner)
	gone, cut := vanishing(t, size)
	cut()
	there := ports.HostRegionOf(mapped(t, size))
	for _, n := range []uint64{1728, direct, chunkBytes - 1} {
		for _, sum := range []bool{false, true} {
			b := &ports.Batch{}
			for i, local := range []ports.Region{ports.HostRegionOf(gone), there} {
				b.Ops = append(b.Ops, ports.Op{Tag: uint64(i), First: uint32(2 * i), Count: 2, Sum: sum})
				b.Segments = append(b.Segments, ports.Segment{Local: local, Len: n}, ports.Segment{RemoteOff: n, Local: local, LocalOff: n, Len: n})
			}
			content.Poison(there.Bytes())
			q := ports.NewCompletions()
			require.NoError(t, l.Submit(b, q))
			for _, c := range take(t, q, 2) {
				if c.Tag == 0 {
					require.ErrorContains(t, c.Err, "memory fault", "%d bytes", n)
				} else {
					require.NoError(t, c.Err, "%d bytes", n)
				}
				require.Equal(t, sum && c.Tag == 1, c.Summed)
			}
			require.Equal(t, -1, content.Check(there.Bytes()[:2*n], 0, 0))
			require.Equal(t, -1, content.CheckPoison(there.Bytes()[2*n:]))
		}
	}
}

// TestMemoryThatIsGoneWhileItIsWrittenFailsItsOpAlone: its frame may have been sent, so zeros follow.
func TestMemoryThatIsGoneWhileItIsWrittenFailsItsOpAlone(t *testing.T) {
	const size = 16 * testPage
	owner, mem := exposing(t, Config{})
	asker := listen(t, "asker", Config{Conns: 1})
	l := dial(t, asker, owner)
	content.Poison(mem.Bytes())
	gone, cut := vanishing(t, size)
	cut()
	there := ports.HostRegionOf(mapped(t, size))
	content.Fill(there.Bytes(), 0, 0)
	pages := make([]domain.PageRef, 32)
	for i := range pages {
		pages[i].Page = uint32(i)
	}
	_, token, err := owner.Transport.Grant(asker.Self, testPage, pages)
	require.NoError(t, err)
	b := &ports.Batch{Segments: []ports.Segment{{Local: there, Len: 100}, {Local: ports.HostRegionOf(gone), RemoteOff: 100, Len: size - 100},
		{Local: there, RemoteOff: size, Len: size}}}
	for _, op := range []ports.Op{{Tag: 0, Count: 2}, {Tag: 1, First: 2, Count: 1}} {
		op.Dir, op.Purpose, op.Grant = ports.Write, ports.PurposePut, token
		b.Ops = append(b.Ops, op)
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(b, q))
	for _, c := range take(t, q, 2) {
		if c.Tag == 0 {
			require.ErrorContains(t, c.Err, "memory fault")
		} else {
			require.NoError(t, c.Err)
		}
	}
	require.Equal(t, -1, content.Check(mem.Bytes()[size:2*size], 0, 0))
	require.Equal(t, -1, content.CheckPoison(mem.Bytes()[2*size:]))
	dst := heap(t, 5000)
	require.NoError(t, readInto(t, l, dst, size), "by the same link")
	require.Equal(t, -1, content.Check(dst.Bytes(), 0, 0))
}

// TestMemoryThatGoesBeforeItIsSummedFailsItsOp: between the call to the kernel and the look at what it has brought.
func TestMemoryThatGoesBeforeItIsSummedFailsItsOp(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // as receive has it
	gone, cut := vanishing(t, testPage)
	c, f := &lane{}, &flight{op: &op{sums: true}}
	c.in.place.add(gone)
	cut()
	c.sum(f, len(gone))
	require.ErrorContains(t, f.err, "memory fault")
}

// TestWhatCameForMemoryThatIsGoneGoesNoFurther: not to the device memory that is another part of the request, which would look well then.
func TestWhatCameForMemoryThatIsGoneGoesNoFurther(t *testing.T) {
	c, f := &lane{}, &flight{op: &op{}, err: errGarbage}
	c.landing.ops = append(c.landing.ops, ports.CopyOp{})
	c.deliver(f)
	require.ErrorIs(t, f.err, errGarbage)
	require.Empty(t, c.landing.ops)
}
