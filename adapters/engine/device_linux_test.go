package engine

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// lending is Devices with one device; it counts what is lent.
type lending struct {
	mu  sync.Mutex
	out int
}

func (l *lending) Lend(pci string, handle []byte, off, n uint64) (ports.DeviceRegion, func() error, error) {
	if pci != "0000:c1:00.0" || len(handle) != 64 {
		return ports.DeviceRegion{}, nil, fmt.Errorf("device %q: %w", pci, domain.ErrInvalid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out++
	return ports.DeviceRegionOf(0, ports.DevAddrOf(1<<40), n), l.release, nil
}

func (l *lending) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out--
	return nil
}

func (l *lending) lent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out
}

func (a *attached) lend(pci string, n uint64) (*enginev1.RegisterDeviceReply, error) {
	return a.rpc.RegisterDevice(a.t.Context(), &enginev1.RegisterDeviceRequest{Caller: a.caller(), IpcHandle: make([]byte, 64), Device: pci, Off: 4096, Len: n})
}

func TestDeviceMemoryIsLentUntilItsClientLeaves(t *testing.T) {
	l, p := &lending{}, &shelf{}
	a := attach(t, p, Config{Devices: l, MaxRegionBytes: 100}) // which are the host's
	require.True(t, a.hi.GetAbilities().GetDeviceIpc())
	first, err := a.lend("0000:c1:00.0", 1<<30)
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, first.GetRegion().GetLen())
	require.True(t, first.GetRegion().GetDirect(), "it is registered with the node")
	second, err := a.lend("0000:c1:00.0", 1)
	require.NoError(t, err)
	require.NotEqual(t, first.GetRegion().GetRegion(), second.GetRegion().GetRegion())
	require.Equal(t, 2, l.lent())
	_, err = a.rpc.Deregister(t.Context(), &enginev1.DeregisterRequest{Caller: a.caller(), Regions: []uint32{first.GetRegion().GetRegion()}})
	require.NoError(t, err)
	require.Equal(t, 1, l.lent())
	require.NoError(t, a.conn.Close())
	require.Eventually(t, func() bool { return l.lent() == 0 }, 10*time.Second, time.Millisecond, "a client that is gone lends nothing")
	require.Zero(t, a.count("now.engine.region_bytes"))
}

func TestDeviceMemoryThatCannotBeLentIsRefused(t *testing.T) {
	l, p := &lending{}, &shelf{}
	a := attach(t, p, Config{Devices: l})
	_, err := a.lend("0000:c2:00.0", 8)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	_, err = a.lend("0000:c1:00.0", 0)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.Zero(t, l.lent())

	b := attach(t, &shelf{}, Config{})
	require.False(t, b.hi.GetAbilities().GetDeviceIpc())
	_, err = b.lend("0000:c1:00.0", 8)
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
}

// slow is Devices that hold whoever lends.
type slow struct {
	lending
	entered, leave chan struct{}
}

func (s *slow) Lend(pci string, handle []byte, off, n uint64) (ports.DeviceRegion, func() error, error) {
	s.entered <- struct{}{}
	select {
	case <-s.leave:
	case <-time.After(20 * time.Second):
	}
	return s.lending.Lend(pci, handle, off, n)
}

// TestRegionsAreBoundedWhileTheyAreLent: a device's come by calls, any number at a time.
func TestRegionsAreBoundedWhileTheyAreLent(t *testing.T) {
	l := &slow{entered: make(chan struct{}, 3), leave: make(chan struct{})}
	a := attach(t, &shelf{}, Config{Devices: l, MaxRegions: 2})
	done := make(chan error, 2)
	for _, pci := range []string{"0000:c1:00.0", "0000:c2:00.0"} { // of which there is one
		go func() {
			_, err := a.lend(pci, 8)
			done <- err
		}()
		<-l.entered
	}
	_, err := a.lend("0000:c1:00.0", 8)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	f, _ := memory(t, 4096, 0)
	require.Equal(t, codes.ResourceExhausted, codes.Code(a.register(f, 0, 4096).GetCode()))
	close(l.leave)
	lent := []bool{<-done == nil, <-done == nil}
	require.ElementsMatch(t, []bool{true, false}, lent, "one device is not there")
	require.Zero(t, a.register(f, 0, 4096).GetCode(), "what was not lent does not count")
	require.Equal(t, codes.ResourceExhausted, codes.Code(a.register(f, 0, 4096).GetCode()))
	require.Equal(t, 1, l.lent())
}
