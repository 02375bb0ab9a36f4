package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/client"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "a secret that two nodes of these tests share"

// logged is what a daemon wrote, which may be read while it writes.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(b) }
func (l *logged) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

// settingsOf resolves flags of a small node that listens wherever there is room.
func settingsOf(t *testing.T, args ...string) *config.Settings {
	t.Helper()
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.Flags(f)
	small := []string{"--node-id", "a", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--dram-bytes", "1MiB",
		"--arena-get-bytes", "64KiB", "--arena-put-bytes", "64KiB", "--drain", "2s", "--socket", filepath.Join(t.TempDir(), "s")}
	require.NoError(t, f.Parse(append(small, args...)))
	s, err := config.Load(f, nil)
	require.NoError(t, err)
	return s
}

func secretFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(secret), 0o600))
	return path
}

// started is a daemon that runs until the test ends.
func started(t *testing.T, args ...string) *Daemon {
	t.Helper()
	d, err := New(settingsOf(t, args...), Options{Log: io.Discard, Version: "v0"})
	require.NoError(t, err)
	require.NoError(t, d.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, d.Stop()) })
	return d
}

// TestEveryCombinationOfSettingsRuns: its graph is whole, it starts, and nothing is left when it has stopped.
func TestEveryCombinationOfSettingsRuns(t *testing.T) {
	choices := [][][]string{
		{{"--transport", "auto"}, {"--transport", "tcp"}, {"--transport", "shm"}},
		{{"--medium", "dram"}},
		{nil, {"--http", "off"}},
		{nil, {"--socket", "off"}},
		{nil, {"--peers", "b=127.0.0.1:1,c=[::1]:1"}},
		{nil, {"--secret-file", secretFile(t)}, {"--insecure"}},
		{nil, {"--arena-get-bytes", "0", "--arena-put-bytes", "0"}},
	}
	all := [][]string{nil}
	for _, c := range choices {
		var longer [][]string
		for _, args := range all {
			for _, more := range c {
				longer = append(longer, append(slices.Clone(args), more...))
			}
		}
		all = longer
	}
	require.Len(t, all, 144)
	for _, args := range all {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			s := settingsOf(t, append(args, "--lease", "1ms")...) // the stop waits for leases
			o := Options{Log: io.Discard}
			require.NoError(t, fx.ValidateApp(fx.Supply(newResources(), &Addresses{}), modules(s, o), fx.Populate(new(*app.Node)), fx.NopLogger))
			d, err := New(s, o)
			require.NoError(t, err)
			require.NoError(t, d.Start(t.Context()))
			require.Equal(t, s.HTTP == config.Off, d.At.HTTP == "")
			require.Equal(t, s.Socket == config.Off, d.At.Socket == "")
			require.Equal(t, ports.Stored, d.Node.Put(t.Context(), "", "k", ports.HostRegionOf([]byte("v"))).Status)
			require.NoError(t, d.Stop())
			_, err = os.Stat(d.At.Socket)
			require.ErrorIs(t, err, os.ErrNotExist)
			_, err = net.Dial("tcp", d.At.Control)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
		})
	}
}

func TestThePartsThatWereAskedForAnswer(t *testing.T) {
	d := started(t, "--secret-file", secretFile(t))
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/debug/pprof/goroutine": 200, "/debug/pprof/": 200, "/metrics": 200, "/": 404} {
		r, err := http.Get("http://" + d.At.HTTP + path)
		require.NoError(t, err)
		_ = r.Body.Close()
		require.Equal(t, want, r.StatusCode, path)
	}
	http.DefaultClient.CloseIdleConnections()
	for _, at := range []struct{ network, address string }{{"tcp", d.At.Control}, {"tcp", d.At.Data}, {"unix", d.At.Socket}} {
		c, err := net.Dial(at.network, at.address)
		require.NoError(t, err)
		_ = c.Close()
	}
	require.Equal(t, ports.Stored, d.Node.Put(t.Context(), "", "k", ports.HostRegionOf([]byte("v"))).Status)
}

func TestReadinessFollowsStartAndStop(t *testing.T) {
	r := &readiness{}
	h := handler(r, http.NotFoundHandler())
	code := func() int {
		w := &recorder{header: http.Header{}}
		req, err := http.NewRequest(http.MethodGet, "/readyz", nil)
		require.NoError(t, err)
		h.ServeHTTP(w, req)
		return w.code
	}
	require.Equal(t, http.StatusServiceUnavailable, code())
	r.Store(true)
	require.Zero(t, code(), "no code is 200")
}

type recorder struct {
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(code int)        { r.code = code }

// TestADaemonThatIsEndedWhileItStartsHasNotFailed: who asks it to stop gets what was asked for, and the log says that it was no run.
func TestADaemonThatIsEndedWhileItStartsHasNotFailed(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("a signal (%w)", context.Canceled))
	log := &logged{}
	require.NoError(t, Run(ctx, settingsOf(t), Options{Log: log}))
	require.Contains(t, log.String(), "stopped before it was ready")
	require.Contains(t, log.String(), "a signal")
	require.NotContains(t, log.String(), "msg=ready")
}

// TestTheSettingsAreLoggedBeforeAnythingIsOpened: what fails, or takes its time, is told by them.
func TestTheSettingsAreLoggedBeforeAnythingIsOpened(t *testing.T) {
	log := &logged{}
	require.Error(t, Run(t.Context(), settingsOf(t, "--dram-bytes", "1024TiB"), Options{Log: log}))
	require.Contains(t, log.String(), `dram.bytes="1024TiB (--dram-bytes)"`)
}

// TestAStartThatFailsNamesThePartAndLeavesNothing: every address is free again, and every part that was opened before is closed.
func TestAStartThatFailsNamesThePartAndLeavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	at := taken.Addr().String()
	dir := t.TempDir()
	held := filepath.Join(dir, "held")
	other, err := New(settingsOf(t, "--socket", held), Options{Log: io.Discard})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Stop()) }()
	for _, tt := range []struct {
		args       []string
		part, says string
		is         error
	}{
		{[]string{"--listen", at}, "listen", at, syscall.EADDRINUSE},
		{[]string{"--data-listen", at}, "data.listen", at, syscall.EADDRINUSE},
		{[]string{"--http", at}, "http", at, syscall.EADDRINUSE},
		{[]string{"--socket", held}, "socket", held, syscall.EADDRINUSE},
		{[]string{"--socket", filepath.Join(dir, "no", "such", "where")}, "socket", "where", os.ErrNotExist},
		{[]string{"--transport", "rdma"}, "transport", "no RDMA support", errors.ErrUnsupported},
		{[]string{"--medium", "hbm", "--gpu-library", "/nowhere/libgpu.so"}, "gpu", "gpu runtime", errors.ErrUnsupported},
		{[]string{"--dram-bytes", "1024TiB"}, "medium", "", nil},
		{[]string{"--arena-get-bytes", "1024TiB"}, "arena.get_bytes", "", nil},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			_, err := New(settingsOf(t, append([]string{"--socket", socket}, tt.args...)...), Options{Log: io.Discard})
			var part *PartError
			require.ErrorAs(t, err, &part)
			require.Equal(t, tt.part, part.Part)
			require.True(t, strings.HasPrefix(err.Error(), tt.part+": "), "the container's own words are left out: %v", err)
			require.ErrorContains(t, err, tt.says)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			_, err = os.Stat(socket)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

func TestNodesWithOneSecretServeEachOtherAndOthersDoNot(t *testing.T) {
	file := secretFile(t)
	a := started(t, "--secret-file", file)
	peers := "a=" + a.At.Control
	b := started(t, "--node-id", "b", "--peers", peers, "--secret-file", file)
	wrong := filepath.Join(t.TempDir(), "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("another secret of the same length or so"), 0o600))
	w := started(t, "--node-id", "w", "--peers", peers, "--secret-file", wrong)
	none := started(t, "--node-id", "none", "--peers", peers)

	object := bytes.Repeat([]byte("spanpool"), 20_000)
	require.Equal(t, ports.Stored, a.Node.Put(t.Context(), "ns", "k", ports.HostRegionOf(object)).Status)
	into := make([]byte, len(object))
	r := b.Node.Get(t.Context(), "ns", "k", ports.HostRegionOf(into))
	require.Equal(t, ports.Hit, r.Status, "%v", r.Err)
	require.Equal(t, object, into)
	require.Equal(t, uint64(len(object)), r.Fetched)
	for _, d := range []*Daemon{w, none} {
		r := d.Node.Get(t.Context(), "ns", "k", ports.HostRegionOf(make([]byte, len(object))))
		require.Equal(t, ports.PeerUnavailable, r.Status, "%s: %v", d.Node.Self().ID, r.Err)
		require.ErrorContains(t, d.Node.Stats().Peers[0].Failure, "secret")
	}
}

// TestRunStopsWhenItIsAsked: from the log, since that is what people see.
func TestRunStopsWhenItIsAsked(t *testing.T) {
	log := &logged{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := settingsOf(t, "--secret-file", secretFile(t), "--peers", "b=127.0.0.1:1", "--log-level", "debug")
	go func() { done <- Run(ctx, s, Options{Log: log, Version: "v0"}) }()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "msg=ready") }, 10*time.Second, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	out := log.String()
	require.Contains(t, out, `node.id="a (--node-id)"`)
	require.Contains(t, out, `lease="500ms (default)"`)
	require.NotContains(t, out, secret)
	require.Contains(t, out, `level=DEBUG msg="OnStart hook executed"`, "the container's events are there for who asks")
	require.Contains(t, out, "msg=stopped")
	for line := range strings.SplitSeq(out, "\n") {
		require.False(t, strings.Contains(line, "level=INFO") && strings.Contains(line, "fx"), line)
	}
}

// TestAPartThatFailsStopsTheDaemon takes a listener away under it.
func TestAPartThatFailsStopsTheDaemon(t *testing.T) {
	own := newResources()
	own.serve("listen", func() error { return errors.New("accept: it is gone") })
	err := <-own.failed
	require.EqualError(t, err, "listen: accept: it is gone")
	require.NoError(t, own.close())
}

func TestPartsCloseInReverseUntilOneCannot(t *testing.T) {
	own := newResources()
	var closed []string
	part := func(name string, err error) {
		own.opened(name, func() error { closed = append(closed, name); return err })
	}
	part("memory", nil)
	part("transport", fmt.Errorf("it is not quiet"))
	part("node", nil)
	require.EqualError(t, own.close(), "close transport: it is not quiet")
	require.Equal(t, []string{"node", "transport"}, closed, "memory that a transport may write stays")
	require.NoError(t, own.close(), "once")
}

func TestTheBoundsOfClientsAreSettings(t *testing.T) {
	d := started(t, "--clients-max", "2", "--clients-regions", "1", "--clients-sessions", "1", "--clients-bytes-in-flight", "8KiB")
	c, err := client.Dial(t.Context(), d.At.Socket, client.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	l := c.Hello().GetLimits()
	require.Equal(t, []uint64{1, 1, 8 << 10}, []uint64{uint64(l.GetRegions()), uint64(l.GetSessions()), l.GetBytesInFlight()})

	r, err := c.NewMemory(t.Context(), 16<<10)
	require.NoError(t, err)
	_, err = c.NewMemory(t.Context(), 4096)
	require.ErrorIs(t, err, client.ErrRefused)
	require.ErrorContains(t, err, "regions of a client")

	_, err = c.OpenRead(t.Context())
	require.NoError(t, err)
	_, err = c.OpenRead(t.Context())
	require.ErrorIs(t, err, client.ErrRefused)

	whole := &client.Pattern{Off: []uint64{0}, Len: []uint64{16 << 10}, Region: []*client.Region{r}, Base: []uint64{0}, Stride: []uint64{0}, Row: []uint64{0}}
	a, err := c.PutRanges(t.Context(), client.PutOptions{}, client.Part{Keys: client.Keys{Names: []string{"k"}}, Pattern: whole, Sizes: []uint64{16 << 10}})
	require.NoError(t, err)
	require.ErrorContains(t, client.Failed(a), "8192")

	second, err := client.Dial(t.Context(), d.At.Socket, client.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = second.Close() })
	_, err = client.Dial(t.Context(), d.At.Socket, client.Options{})
	require.ErrorIs(t, err, client.ErrRefused)
}

func TestAGPUsMemoryIsRefusedByANodeThatTakesNone(t *testing.T) {
	d := started(t)
	c, err := client.Dial(t.Context(), d.At.Socket, client.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.False(t, c.Hello().GetAbilities().GetDeviceIpc())
	_, err = c.RegisterDevice(t.Context(), "0000:c1:00.0", make([]byte, 64), 0, 4096)
	require.ErrorIs(t, err, client.ErrUnsupported)
	r, err := c.NewMemory(t.Context(), 4096)
	require.NoError(t, err, "and the client goes on")
	require.NoError(t, r.Close())
}
