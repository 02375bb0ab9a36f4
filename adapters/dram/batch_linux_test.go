package dram

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// cutShort is n bytes of a client's file, of which the client then leaves the first so many.
func cutShort(t *testing.T, n, left uint64) ports.HostRegion {
	fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	mem, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	content.Fill(mem[:left], 5, 0)
	require.NoError(t, unix.Ftruncate(fd, int64(left)))
	return ports.HostRegionOf(mem)
}

// TestFaultsOfALargeBatchFailTheirOpsAlone: in every goroutine that copies, in assembly, of ops in pieces and of small ones,
// reading and writing.
func TestFaultsOfALargeBatchFailTheirOpsAlone(t *testing.T) {
	const n, left, small = 12 << 20, 8 << 20, 3000
	for name, c := range copiers() {
		for _, reading := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/reading=%v", name, reading), func(t *testing.T) {
				client, ours := cutShort(t, n, left), ports.HostRegionOf(make([]byte, n))
				from, to := ports.Region(client), ports.Region(ours)
				if !reading {
					from, to = ours, client
					content.Fill(ours.Bytes(), 5, 0)
				}
				var ops []ports.CopyOp
				for off := uint64(3 << 20); off+small <= n; off += 4096 {
					if off < 6<<20 || off >= 10<<20 {
						ops = append(ops, ports.CopyOp{Dst: to, Src: from, DstOff: off, SrcOff: off, Len: small})
					}
				}
				across := ports.CopyOp{Dst: to, Src: from, DstOff: 6 << 20, SrcOff: 6 << 20, Len: 4 << 20}
				none := ports.CopyOp{Dst: to, Src: from, DstOff: n, Len: 1}
				head := ports.CopyOp{Dst: to, Src: from, Len: 2*turnBytes + 1}
				ops = append(ops, across, none, head)
				errs := make([]error, len(ops))
				c.Copy(t.Context(), ops, errs)
				for i, op := range ops {
					switch {
					case i == len(ops)-2:
						require.ErrorIs(t, errs[i], ports.ErrBounds)
					case op.DstOff+op.Len > left:
						require.ErrorAs(t, errs[i], new(*FaultError), "op %d at %d", i, op.DstOff)
					default:
						require.NoError(t, errs[i], "op %d at %d", i, op.DstOff)
						require.Equal(t, -1, content.Check(to.(ports.HostRegion).Bytes()[op.DstOff:][:op.Len], 5, op.SrcOff), "op %d", i)
					}
				}
				require.Empty(t, c.places)
			})
		}
	}
}

// TestSumsAreOfWhatWasStoredWhoeverWritesToTheSource: source and destination are one memory, a little apart, at two places, so that a
// byte of the source is another one as soon as it was copied.
func TestSumsAreOfWhatWasStoredWhoeverWritesToTheSource(t *testing.T) {
	const room = 2 * cachedBatch
	fd, err := unix.MemfdCreate("twice", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Ftruncate(fd, room))
	var twice [2]ports.HostRegion
	for i := range twice {
		b, err := unix.Mmap(fd, 0, room, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
		twice[i] = ports.HostRegionOf(b)
	}
	for name, c := range copiers() {
		for _, apart := range []uint64{1, 64, 200, 4096} {
			for _, n := range []uint64{40, 1728, 5000, shortBatch + 1, cachedBatch + 5} {
				content.Fill(twice[0].Bytes(), 7, 0)
				op := []ports.CopyOp{{Dst: twice[0], Src: twice[1], SrcOff: apart, Len: n, Sum: true}}
				c.Copy(t.Context(), op, make([]error, 1))
				require.True(t, op[0].Summed)
				require.Equal(t, crc32c.Update(0, twice[0].Bytes()[:n]), op[0].CRC, "%s: %d bytes, %d apart", name, n, apart)
			}
		}
	}
}
