//go:build linux

package shm

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	"github.com/spanpool/spanpool/ports/porttest/faults"
)

// counts is what the tests saw transports count.
var counts porttest.Moved

func TestMain(m *testing.M) {
	if run := os.Getenv(childVar); run != "" {
		children[run]()
		return
	}
	counts.VerifyTestMain(m, nil)
}

// clock counts from its making, on the monotonic clock.
type clock struct{ since time.Time }

func newClock() clock { return clock{time.Now().Add(-time.Hour)} }

func (c clock) Now() domain.Instant { return domain.Instant(time.Since(c.since)) }

// node is one end.
type node struct {
	porttest.TransportEnd
	cfg   Config
	inner *Transport
	wrap  func(ports.Transport) ports.Transport // nil: none
}

func open(t testing.TB, id ports.PeerID, cfg Config) *node {
	n := &node{cfg: cfg}
	n.Self = ports.Peer{ID: id, Incarnation: 100}
	if n.cfg.Clock == nil {
		n.cfg.Clock = newClock()
	}
	if n.cfg.DialTimeout == 0 {
		n.cfg.DialTimeout = 10 * time.Second
	}
	n.start(t)
	t.Cleanup(func() { require.NoError(t, n.Transport.Close()) })
	return n
}

func (n *node) start(t testing.TB) {
	tr, err := Open(n.cfg)
	require.NoError(t, err)
	noted(t, tr)
	n.inner, n.Transport = tr, tr
	if n.wrap != nil {
		n.Transport = n.wrap(tr)
	}
}

// noted has what a transport counts noted when the test ends.
func noted(t testing.TB, tr *Transport) {
	t.Cleanup(func() {
		for r, n := range tr.Stats().Refused {
			counts.Note("refused: "+Reason(r).String(), n)
		}
	})
}

func (n *node) restart(t testing.TB) {
	require.NoError(t, n.Transport.Close())
	n.Self.Incarnation++
	n.start(t)
}

// file is memory of a memfd with these seals, mapped to be written.
func file(t testing.TB, bytes, seals int) ports.HostRegion {
	fd, err := unix.MemfdCreate("spanpool-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, int64(bytes)))
	if seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
	}
	b, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(b))
		require.NoError(t, unix.Close(fd))
	})
	return ports.HostRegionOfFile(b, &ports.File{FD: uintptr(fd)})
}

// shared is memory as a medium makes it.
func shared(t testing.TB, bytes int) ports.HostRegion {
	return file(t, bytes, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
}

// tryDial makes a link as the peers' hello would.
func tryDial(ctx context.Context, from, to *node) (*Link, error) {
	p, err := from.inner.Offer(ctx, to.Self.ID)
	if err != nil {
		return nil, err
	}
	answer, err := to.inner.Answer(ctx, from.Self, p.Bytes())
	if err != nil {
		return nil, err
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

func openTransports(cfg Config, wrap func(ports.Transport) ports.Transport) func(t testing.TB) *porttest.TransportHarness {
	return func(t testing.TB) *porttest.TransportHarness {
		c := cfg
		c.Clock = newClock()
		nodes := map[*porttest.TransportEnd]*node{}
		var ends []*porttest.TransportEnd
		for _, id := range []ports.PeerID{"owner", "asker", "other"} {
			n := open(t, id, c)
			if wrap != nil {
				n.wrap = wrap
				n.Transport = wrap(n.inner)
			}
			nodes[&n.TransportEnd] = n
			ends = append(ends, &n.TransportEnd)
		}
		return &porttest.TransportHarness{Clock: c.Clock, Owner: ends[0], Asker: ends[1], Other: ends[2], Memory: shared,
			Restart: func(t testing.TB, e *porttest.TransportEnd) { nodes[e].restart(t) }}
	}
}

func TestTransportSuite(t *testing.T) {
	delayed := faults.Every("Link", "Op", faults.Verdict{Before: faults.For(time.Millisecond), After: faults.For(time.Millisecond)})
	for _, tt := range []struct {
		name string
		cfg  Config
		wrap func(ports.Transport) ports.Transport
	}{
		{name: "workers=1", cfg: Config{Workers: 1}},
		{name: "workers=4/secret", cfg: Config{Workers: 4, Secret: []byte("between us")}},
		{name: "ops delayed by a wrapper", wrap: faults.New(delayed).Transport},
	} {
		t.Run(tt.name, func(t *testing.T) { porttest.RunTransport(t, openTransports(tt.cfg, tt.wrap)) })
	}
}

func BenchmarkTransport(b *testing.B) { porttest.BenchmarkTransport(b, openTransports(Config{}, nil)) }
