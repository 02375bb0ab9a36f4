package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/golang/mock/gomock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/mocks"
	"github.com/spanpool/spanpool/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listed is what go list says of a package.
type listed struct {
	ImportPath string
	Standard   bool
	CgoFiles   []string
}

// unwanted says why a program that embeds a node should not link p, or "".
func unwanted(p listed) string {
	if !p.Standard && len(p.CgoFiles) > 0 {
		return "it uses cgo"
	}
	for prefix, why := range map[string]string{
		"github.com/ebitengine/purego":                 "it makes a static binary dynamic",
		"github.com/redis/":                            "it is a client of a server",
		"github.com/valkey-io/":                        "it is a client of a server",
		"go.uber.org/fx":                               "it is a container at run time",
		"go.uber.org/dig":                              "it is a container at run time",
		"github.com/google/wire":                       "it is needed at build time only",
		"github.com/spf13/":                            "it reads flags",
		"github.com/golang/mock":                       "it is for tests",
		"github.com/stretchr/testify":                  "it is for tests",
		"testing":                                      "it is for tests",
		"github.com/spanpool/spanpool/bench":           "it is a workload",
		"github.com/spanpool/spanpool/cmd":             "it is a program",
		"github.com/spanpool/spanpool/mocks":           "it is for tests",
		"github.com/spanpool/spanpool/adapters/rdma":   "it is not Embedded's",
		"github.com/spanpool/spanpool/adapters/redis":  "it is not Embedded's",
		"github.com/spanpool/spanpool/adapters/hip":    "it is not Embedded's",
		"github.com/spanpool/spanpool/adapters/engine": "it is not Embedded's",
	} {
		if strings.HasPrefix(p.ImportPath, prefix) {
			return why
		}
	}
	return ""
}

func TestEmbeddedLinksNoContainerNoCgoAndNoServersClient(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Standard,CgoFiles", ".").Output()
	require.NoError(t, err)
	seen := map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		seen[p.ImportPath] = true
		require.Empty(t, unwanted(p), "Embedded links %s", p.ImportPath)
	}
	for _, want := range []string{"app", "adapters/dram", "adapters/inproc", "adapters/boottime"} {
		require.True(t, seen["github.com/spanpool/spanpool/"+want], "%s is missing from the graph of %d packages", want, len(seen))
	}
}

func TestUnwantedPackagesAreFound(t *testing.T) {
	for _, p := range []listed{
		{ImportPath: "go.uber.org/fx"}, {ImportPath: "go.uber.org/dig/internal/graph"}, {ImportPath: "github.com/redis/rueidis"},
		{ImportPath: "github.com/ebitengine/purego"}, {ImportPath: "example.org/c", CgoFiles: []string{"c.go"}},
	} {
		require.NotEmpty(t, unwanted(p), p.ImportPath)
	}
	for _, p := range []listed{{ImportPath: "net", Standard: true, CgoFiles: []string{"cgo_linux.go"}}, {ImportPath: "golang.org/x/sys/unix"}} {
		require.Empty(t, unwanted(p), p.ImportPath)
	}
}

func TestSizesThatAreNotSetHaveDefaults(t *testing.T) {
	const mib = 1 << 20
	peers := &inproc.Endpoint{}
	for _, tt := range []struct {
		name string
		in   Config
		want Config
	}{
		{"with peers", Config{Endpoint: peers},
			Config{Endpoint: peers, MediumBytes: 256 * mib, PageSize: 64 << 10, GetArenaBytes: 256 * mib, PutArenaBytes: 256 * mib}},
		{"without peers", Config{}, Config{MediumBytes: 256 * mib, PageSize: 64 << 10, GetArenaBytes: Off, PutArenaBytes: Off}},
		{"whole pages of a prime size", Config{PageSize: 65_537},
			Config{MediumBytes: 256*mib - 256*mib%65_537, PageSize: 65_537, GetArenaBytes: Off, PutArenaBytes: Off}},
		{"a page larger than that", Config{PageSize: 512 * mib},
			Config{MediumBytes: 512 * mib, PageSize: 512 * mib, GetArenaBytes: Off, PutArenaBytes: Off}},
		{"what is set stays", Config{MediumBytes: Off, PageSize: 1, GetArenaBytes: 2, PutArenaBytes: 3},
			Config{MediumBytes: Off, PageSize: 1, GetArenaBytes: 2, PutArenaBytes: 3}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, settings(tt.want), settle(tt.in)) })
	}
}

func TestMemoryThatIsOffIsNotMapped(t *testing.T) {
	m, closeAll, err := openMemory(settings{MediumBytes: 2 << 20, PageSize: 1 << 20, GetArenaBytes: Off, PutArenaBytes: 1 << 20})
	require.NoError(t, err)
	defer closeAll()
	require.NotNil(t, m.medium)
	require.Equal(t, uint64(1<<20), m.medium.PageSize())
	require.Nil(t, m.get)
	require.NotNil(t, m.put)
	require.Len(t, m.put.Buffers(), 1)
}

// TestMemoryComesBack compares what is resident: 64 MiB are far more than the rest of the test changes.
func TestMemoryComesBack(t *testing.T) {
	const bytes, slack = 64 << 20, 16 << 20
	settings := settings{MediumBytes: bytes, PageSize: 1 << 20, GetArenaBytes: Off, PutArenaBytes: Off}
	for _, tt := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"when a later part cannot be had", func(t *testing.T) {
			s := settings
			s.PutArenaBytes = 1 << 60
			_, _, err := openMemory(s)
			require.Error(t, err)
		}},
		{"when the node is refused", func(t *testing.T) {
			_, _, err := Embedded(Config{Node: app.Config{ID: "a", FillingShare: 2}, MediumBytes: bytes, PageSize: 1 << 20})
			require.ErrorContains(t, err, "FillingShare: 2")
		}},
		{"when the node is stopped", func(t *testing.T) {
			before := resident(t)
			_, stop, err := Embedded(Config{Node: app.Config{ID: "a"}, MediumBytes: bytes, PageSize: 1 << 20})
			require.NoError(t, err)
			require.Greater(t, resident(t), before+bytes-slack, "the medium is not populated: this test would see nothing")
			stop()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := resident(t)
			tt.run(t)
			require.Less(t, resident(t), before+slack)
		})
	}
}

// TestMemoryStaysWhileATransportHoldsIt: late bytes would land in whatever is mapped there next.
func TestMemoryStaysWhileATransportHoldsIt(t *testing.T) {
	for _, tt := range []struct {
		name    string
		share   float64
		closing error
	}{
		{"a node that stopped", 0, nil},
		{"a node that stopped, a transport that did not", 0, errors.New("a write is under way")},
		{"a node that was refused", 2, nil},
		{"a node that was refused, a transport that holds on", 2, errors.New("a write is under way")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, unmap, err := openMemory(settings{MediumBytes: 1 << 20, PageSize: 1 << 20, GetArenaBytes: Off, PutArenaBytes: Off})
			require.NoError(t, err)
			transport := mocks.NewMockTransport(gomock.NewController(t))
			transport.EXPECT().Kind().Return(ports.TransportKind("mock")).AnyTimes()
			transport.EXPECT().Caps().Return(ports.Caps{}).AnyTimes()
			transport.EXPECT().Expose(gomock.Any(), gomock.Any()).Return(nil).AnyTimes()
			transport.EXPECT().Close().Return(tt.closing).Times(1)
			place, leave := placeOf(settings{Node: app.Config{ID: "a"}}, boottime.New())
			defer leave()
			p := newPorts(boottime.New(), dram.NewCopier(), m, place)
			p.Transports = []ports.Transport{transport}

			_, stop, err := startNode(app.Config{ID: "a", FillingShare: tt.share}, p, m, place)
			require.Equal(t, tt.share > 1, err != nil, "%v", err)
			if err == nil {
				stop()
			}
			unmap()
			require.Equal(t, tt.closing != nil, m.inUse)
			if m.inUse {
				m.medium.Buffers()[0].(ports.HostRegion).Bytes()[0] = 1 // faults when it is unmapped
				m.inUse = false
				unmap()
			}
		})
	}
}

// resident is this process's anonymous memory.
func resident(t *testing.T) uint64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(status), "RssAnon:")
	require.True(t, ok)
	var kib uint64
	_, err = fmt.Sscan(rest, &kib)
	require.NoError(t, err)
	return kib << 10
}

func TestEmbeddedNodesServeEachOtherUntilTheyStop(t *testing.T) {
	network := inproc.NewNetwork(inproc.Options{Clock: boottime.New()})
	defer func() { require.NoError(t, network.Close()) }()
	open := func(id ports.PeerID) (*app.Node, func()) {
		n, stop, err := Embedded(Config{
			Node: app.Config{ID: id}, MediumBytes: 1 << 20, PageSize: 4 << 10, GetArenaBytes: 1 << 20, PutArenaBytes: 1 << 20,
			Endpoint: network.Endpoint(id),
		})
		require.NoError(t, err)
		return n, stop
	}
	a, stopA := open("a")
	b, stopB := open("b")
	defer stopB()
	object := ports.HostRegionOf(bytes.Repeat([]byte("spanpool"), 2000))
	for _, key := range []string{"read", "never read"} {
		require.Equal(t, ports.Stored, a.Put(t.Context(), "model", key, object).Status)
	}

	into := make([]byte, object.Len())
	got := b.Get(t.Context(), "model", "read", ports.HostRegionOf(into))
	require.Equal(t, ports.Hit, got.Status)
	require.Equal(t, object.Len(), got.Fetched)
	require.Equal(t, object.Bytes(), into)

	stopA()
	require.Equal(t, ports.PeerUnavailable, b.Get(t.Context(), "model", "never read", ports.HostRegionOf(into)).Status)
	require.Equal(t, ports.Hit, b.Get(t.Context(), "model", "read", ports.HostRegionOf(into)).Status, "what was installed is b's own")
	_, err := a.OpenRead(context.Background(), "model")
	require.ErrorIs(t, err, ports.ErrClosed)

	// The place is free for another start.
	a, stopA = open("a")
	defer stopA()
	require.Equal(t, ports.Stored, a.Put(t.Context(), "model", "never read", object).Status)
}

func TestANodeHasItsEndpointsName(t *testing.T) {
	network := inproc.NewNetwork(inproc.Options{Clock: boottime.New()})
	defer network.Close()
	_, _, err := Embedded(Config{Node: app.Config{ID: "a"}, MediumBytes: 1 << 20, Endpoint: network.Endpoint("b"),
		GetArenaBytes: Off, PutArenaBytes: Off})
	require.ErrorIs(t, err, domain.ErrInvalid)
}
