package proxy_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/ports/porttest/content"
	"github.com/spanpool/spanpool/ports/porttest/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second // for what comes at once, on a machine that is busy with something else

// echo sends back what comes, and ends when that ends.
func echo(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { require.NoError(t, l.Close()); wg.Wait() })
	return l.Addr().String()
}

// there sends n bytes through the proxy and returns what came back, to the end of the connection.
func there(t *testing.T, p *proxy.Proxy, n int) (back []byte, err error) {
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	b := make([]byte, n)
	content.Fill(b, 1, 0)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = c.Write(b) // an error is seen by who reads
		_ = c.(*net.TCPConn).CloseWrite()
	})
	back, err = io.ReadAll(c)
	require.Equal(t, -1, content.Check(back, 1, 0), "first byte that is another one")
	return back, err
}

func TestNoByteIsLostOrChangedByAWayThatCutsNothing(t *testing.T) {
	target := echo(t)
	for name, w := range map[string]proxy.Way{
		"clean":   {},
		"pieces":  {Piece: 1000},
		"split":   {Piece: 5000, Split: true},
		"delayed": {Piece: 16 << 10, Delay: 2 * time.Millisecond},
		"stalls":  {Piece: 4 << 10, Stall: 20 * time.Millisecond, StallOneIn: 20},
		"all":     {Piece: 9999, Split: true, Delay: time.Millisecond, Stall: 10 * time.Millisecond, StallOneIn: 20, Rate: 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			back, err := there(t, proxy.New(t, target, 7, w), 300_001)
			require.NoError(t, err)
			require.Len(t, back, 300_001)
		})
	}
}

func TestARateBoundsBothDirections(t *testing.T) {
	p, began := proxy.New(t, echo(t), 1, proxy.Way{Piece: 4 << 10, Rate: 1 << 20}), time.Now()
	back, err := there(t, p, 128<<10)
	require.NoError(t, err)
	require.Len(t, back, 128<<10)
	require.GreaterOrEqual(t, time.Since(began), 125*time.Millisecond)
}

// TestACutWithholdsBytes: whoever sends into a connection that is cut gets a part back, and a reset.
func TestACutWithholdsBytes(t *testing.T) {
	p := proxy.New(t, echo(t), 1, proxy.Way{Piece: 1 << 10, Cut: 20_000})
	for i := range 4 {
		back, err := there(t, p, 100_000)
		require.Error(t, err)
		require.LessOrEqual(t, len(back), 30_000, "one and a half times the middle")
		require.GreaterOrEqual(t, p.Cuts(), i+1)
	}
	p.Set(proxy.Way{})
	back, err := there(t, p, 100_000)
	require.NoError(t, err)
	require.Len(t, back, 100_000)
}

func TestWhatIsHeldComesLater(t *testing.T) {
	p := proxy.New(t, echo(t), 1, proxy.Way{})
	p.Hold(true)
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte{7})
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	var b [1]byte
	_, err = c.Read(b[:])
	var timeout net.Error
	require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
	p.Hold(false)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err = c.Read(b[:])
	require.NoError(t, err)
	require.Equal(t, byte(7), b[0])
}

func TestHoldAfterPassesSoMuchAndNoMoreUntilItIsTakenBack(t *testing.T) {
	p := proxy.New(t, echo(t), 1, proxy.Way{Piece: 100})
	p.HoldAfter(proxy.ToDialler, 250)
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(make([]byte, 1_000))
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 1_000)
	first, err := io.ReadAtLeast(c, b, 250)
	require.NoError(t, err)
	require.Less(t, first, 350, "less than a piece more")
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	_, err = c.Read(b)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	p.HoldAfter(proxy.ToDialler, 1)
	p.Hold(false)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err = io.ReadFull(c, b[first:])
	require.NoError(t, err)
}

func TestCutAfterCountsAllConnections(t *testing.T) {
	p := proxy.New(t, echo(t), 1, proxy.Way{})
	p.CutAfter(proxy.ToDialler, 1_500)
	back, err := there(t, p, 1_000)
	require.NoError(t, err)
	require.Len(t, back, 1_000)
	back, err = there(t, p, 1_000)
	require.Error(t, err)
	require.LessOrEqual(t, len(back), 500)
	require.Equal(t, 1, p.Cuts())
	p.CutAfter(proxy.ToDialler, -1)
	_, err = there(t, p, 1_000)
	require.NoError(t, err)
}

// TestAProxyEndsWithItsTest: with connections that nobody ends, held and in the middle of a stall. TestMain looks for what is left.
func TestAProxyEndsWithItsTest(t *testing.T) {
	var c net.Conn
	t.Run("held", func(t *testing.T) {
		p := proxy.New(t, echo(t), 1, proxy.Way{Stall: time.Hour, StallOneIn: 1})
		var err error
		c, err = net.Dial("tcp", p.Addr())
		require.NoError(t, err)
		_, err = c.Write(make([]byte, 100))
		require.NoError(t, err)
		p.Hold(true)
	})
	require.NoError(t, c.Close())
}
