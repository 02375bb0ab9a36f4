package porttest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// RunDeviceTransport is the contract of a transport whose Caps.Device is true by way of a copier: it is opened with c, and no byte of
// device memory moves but by c. Each open is a harness of its own; Restart and Partition are not used.
func RunDeviceTransport(t *testing.T, open func(t testing.TB, c ports.Copier) *TransportHarness) {
	for name, claim := range map[string]func(*testing.T, *deviceExchange){
		"ReadsFromAndToDeviceMemory":               readsFromAndToDeviceMemory,
		"NoSumIsOfDeviceMemory":                    noSumIsOfDeviceMemory,
		"WritesFromAndToDeviceMemory":              writesFromAndToDeviceMemory,
		"ADevicesErrorIsItsOps":                    aDevicesErrorIsItsOps,
		"NothingLandsInDeviceMemoryAfterRevoke":    nothingLandsInDeviceMemoryAfterRevoke,
		"OutOfBoundsOfDeviceMemoryMovesNothing":    outOfBoundsOfDeviceMemoryMovesNothing,
		"DeregisterOfDeviceMemoryReturnsWhenQuiet": deregisterOfDeviceMemoryReturnsWhenQuiet,
	} {
		t.Run(name, func(t *testing.T) {
			d := &DeviceMemory{}
			x := &deviceExchange{exchange: &exchange{TransportHarness: open(t, d)}, d: d}
			require.True(t, x.Owner.Transport.Caps().Device)
			x.remote[0], x.remote[1] = d.New(bufferBytes), x.Memory(t, bufferBytes)
			for i, r := range x.remote {
				content.Fill(x.bytes(r), uint64(i), 0)
				require.NoError(t, x.Owner.Transport.Expose(uint32(i), r))
			}
			claim(t, x)
		})
	}
}

// deviceExchange is an exchange whose buffer 0 is device memory, and buffer 1 host memory.
type deviceExchange struct {
	*exchange
	d      *DeviceMemory
	remote [2]ports.Region
}

func (x *deviceExchange) bytes(r ports.Region) []byte {
	b, _ := x.d.bytes(r)
	return b
}

// locals are poisoned memory of the asker's, of each kind.
func (x *deviceExchange) locals(t testing.TB, n int) []ports.Region {
	return []ports.Region{x.d.New(uint64(n)), x.local(t, n)}
}

// segmentsOver go from the two buffers in turns to places with gaps in a local region.
func segmentsOver(local ports.Region) []ports.Segment {
	var segs []ports.Segment
	at := uint64(3)
	for i, n := range []uint64{1, 4096, 70_000, 1728, 1728, 1728, 20_011, 5} {
		segs = append(segs, piece(uint32(i%2), 100+at, local, at, n))
		at += n + 7
	}
	return segs
}

const deviceLocal = 120_000

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func readsFromAndToDeviceMemory(t *testing.T, x *deviceExchange) {
	l := x.link(t)
	for _, why := range []ports.Purpose{ports.PurposeGet, ports.PurposePull} {
		for _, local := range x.locals(t, deviceLocal) {
			segs := segmentsOver(local)
			noErrors(t, x.submit(t, l, x.batch(ports.Read, why, ports.GrantToken{}, segs[:3], segs[3:])))
			x.requireRead(t, local, segs)
		}
	}
}

// noSumIsOfDeviceMemory: a sum is of bytes as they were stored, and nobody has looked at those of a device.
func noSumIsOfDeviceMemory(t *testing.T, x *deviceExchange) {
	l, locals := x.link(t), x.locals(t, deviceLocal)
	device, host := segmentsOver(locals[0]), segmentsOver(locals[1])
	mixed := append(host[:4:4], device[4:]...)
	b := summing(x.batch(ports.Read, ports.PurposeGet, ports.GrantToken{}, device[:4], mixed))
	for _, c := range x.complete(t, l, b) {
		require.NoError(t, c.Err)
		require.False(t, c.Summed, "op %d", c.Tag)
	}
}

// requireRead compares a region that all segments name.
func (x *deviceExchange) requireRead(t testing.TB, local ports.Region, segs []ports.Segment) {
	t.Helper()
	due := make([]byte, local.Len())
	content.Poison(due)
	for _, s := range segs {
		content.Fill(due[s.LocalOff:][:s.Len], uint64(s.Remote), s.RemoteOff)
	}
	require.Equal(t, -1, firstDifference(due, x.bytes(local)), "first wrong byte of a %T", local)
}

func (x *deviceExchange) grant(t testing.TB) (ports.GrantID, ports.GrantToken) {
	var pages []domain.PageRef
	for b := range uint32(2) {
		for p := range uint32(bufferPages) {
			pages = append(pages, domain.PageRef{Buffer: b, Page: p})
		}
	}
	id, token, err := x.Owner.Transport.Grant(x.Asker.Self, exchangePage, pages)
	require.NoError(t, err)
	return id, token
}

func writesFromAndToDeviceMemory(t *testing.T, x *deviceExchange) {
	l := x.link(t)
	_, token := x.grant(t)
	for i, local := range x.locals(t, deviceLocal) {
		key := uint64(100 + i)
		content.Fill(x.bytes(local), key, 0)
		var due [2][]byte
		for b := range due {
			content.Fill(x.bytes(x.remote[b]), uint64(b), 0)
			due[b] = append(due[b], x.bytes(x.remote[b])...)
		}
		segs := segmentsOver(local)
		for _, s := range segs {
			content.Fill(due[s.Remote][s.RemoteOff:][:s.Len], key, s.LocalOff)
		}
		noErrors(t, x.submit(t, l, x.batch(ports.Write, ports.PurposePut, token, segs[:3], segs[3:])))
		for b := range due {
			require.Equal(t, -1, firstDifference(due[b], x.bytes(x.remote[b])), "first wrong byte of buffer %d, from a %T", b, local)
		}
	}
}

// aDevicesErrorIsItsOps at either end, for reads and writes; the link goes on.
func aDevicesErrorIsItsOps(t *testing.T, x *deviceExchange) {
	l := x.link(t)
	_, token := x.grant(t)
	broken := errors.New("the device is broken")
	for _, tt := range []struct {
		dir    ports.Direction
		remote uint32
		local  ports.Region
	}{
		{ports.Read, 0, x.local(t, 4096)}, {ports.Read, 1, x.d.New(4096)},
		{ports.Write, 0, x.local(t, 4096)}, {ports.Write, 1, x.d.New(4096)},
	} {
		t.Run(fmt.Sprintf("dir=%d/remote=%T/local=%T", tt.dir, x.remote[tt.remote], tt.local), func(t *testing.T) {
			content.Poison(x.bytes(tt.local))
			segs := []ports.Segment{piece(tt.remote, 64, tt.local, 8, 4000)}
			x.d.FailNext(broken)
			errs := x.submit(t, l, x.batch(tt.dir, ports.PurposeGet, token, segs))
			require.Error(t, errs[0])
			require.NotErrorIs(t, errs[0], ports.ErrReset, "the link is not at fault")
			noErrors(t, x.submit(t, l, x.batch(tt.dir, ports.PurposeGet, token, segs)))
			require.Equal(t, -1, firstDifference(x.bytes(x.remote[tt.remote])[64:4064], x.bytes(tt.local)[8:4008]))
		})
	}
}

func nothingLandsInDeviceMemoryAfterRevoke(t *testing.T, x *deviceExchange) {
	l := x.link(t)
	id, token := x.grant(t)
	require.NoError(t, x.Owner.Transport.Revoke(t.Context(), id, false))
	for _, local := range x.locals(t, deviceLocal) {
		errs := x.submit(t, l, x.batch(ports.Write, ports.PurposePut, token, segmentsOver(local)))
		require.ErrorIs(t, errs[0], ports.ErrRevoked)
	}
	for i, r := range x.remote {
		require.Equal(t, -1, content.Check(x.bytes(r), uint64(i), 0), "buffer %d", i)
	}
}

func outOfBoundsOfDeviceMemoryMovesNothing(t *testing.T, x *deviceExchange) {
	l := x.link(t)
	local := x.d.New(4096)
	for _, s := range []ports.Segment{piece(0, bufferBytes-10, local, 0, 11), piece(0, 0, local, 4090, 7), piece(0, 1<<63, local, 0, 1), piece(2, 0, local, 0, 1)} {
		errs := x.submit(t, l, x.reads([]ports.Segment{s}))
		require.ErrorIs(t, errs[0], ports.ErrBounds)
	}
	require.Equal(t, -1, content.CheckPoison(x.bytes(local)))
}

func deregisterOfDeviceMemoryReturnsWhenQuiet(t *testing.T, x *deviceExchange) {
	l := x.link(t)
	local := x.d.New(deviceLocal)
	id, err := x.Asker.Transport.Register(local)
	require.NoError(t, err)
	segs := segmentsOver(local)
	q := ports.NewCompletions()
	b := x.reads(segs)
	require.NoError(t, l.Submit(b, q))
	require.NoError(t, x.Asker.Transport.Deregister(id))
	require.Equal(t, 1, q.Len(), "the op that names it is over")
	done := takeAll(t, q, 1)
	require.NoError(t, done[0].Err)
	x.requireRead(t, local, segs)
}
