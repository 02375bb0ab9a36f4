package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
)

var update = flag.Bool("update", false, "write the golden files anew")

// load resolves flags and variables.
func load(t *testing.T, environ []string, args ...string) (*Settings, error) {
	t.Helper()
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Flags(f)
	require.NoError(t, f.Parse(args))
	return Load(f, environ)
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const secret = "0123456789abcdef-and-more"

func TestPrintIsGolden(t *testing.T) {
	path := file(t, "spanpool.yaml", "node:\n  id: from-file\ndram:\n  bytes: 2GiB\n  page_bytes: 1MiB\nlease: 250ms\npeers: [b=b.example:7400, \"c=[::1]:7400\"]\ninsecure: false\n")
	s, err := load(t, []string{"SPANPOOL_DRAM_BYTES=3GiB", "SPANPOOL_ADMISSION_MAX_BYTES=1MiB", "HOME=/root", "SPANPOOL_REQUIRE=rdma"},
		"--config", path, "--lease", "300ms", "--admission", "always", "--secret-file", file(t, "secret", secret+"\n"))
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, s.Print(&b))
	require.NotContains(t, b.String(), secret)
	got := strings.ReplaceAll(b.String(), path, "FILE")
	got = strings.ReplaceAll(got, s.SecretFile, "SECRET")
	var trimmed strings.Builder
	for line := range strings.Lines(got) { // the width of a column follows from the longest path
		key, rest, _ := strings.Cut(line, ":")
		trimmed.WriteString(key + ": " + strings.Join(strings.Fields(rest), " ") + "\n")
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/print.txt", []byte(trimmed.String()), 0o600))
	}
	want, err := os.ReadFile("testdata/print.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), trimmed.String(), "go test ./cmd/spanpool/config -update writes it anew")

	require.Equal(t, []byte(secret), s.Secret, "white space around it is no part of it")
	require.Equal(t, uint64(3<<30), s.MediumBytes)
	require.Equal(t, 300*time.Millisecond, s.Node.PeerLease)
	require.Equal(t, []Peer{{"b", "b.example:7400"}, {"c", "[::1]:7400"}}, s.Peers)
	require.Equal(t, domain.AdmitAlways, s.Node.Admission.Kind)
}

// TestWhatIsPrintedIsReadAsTheSame: config print is a way to begin a file.
func TestWhatIsPrintedIsReadAsTheSame(t *testing.T) {
	first, err := load(t, nil, "--node-id", "a", "--peers", "b=h:1", "--locality", "pull", "--http", "off")
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, first.Print(&b))
	again, err := load(t, nil, "--config", file(t, "printed.yaml", b.String()))
	require.NoError(t, err)
	first.from, again.from = nil, nil
	require.Equal(t, first, again)
}

// TestTheOrderIsFlagVariableFileDefault takes the sources away one by one.
func TestTheOrderIsFlagVariableFileDefault(t *testing.T) {
	path := file(t, "f.yaml", "lease: 3s")
	for _, tt := range []struct {
		environ []string
		args    []string
		want    time.Duration
		source  string
	}{
		{[]string{"SPANPOOL_LEASE=2s"}, []string{"--config", path, "--lease", "1s"}, time.Second, "--lease"},
		{[]string{"SPANPOOL_LEASE=2s"}, []string{"--config", path}, 2 * time.Second, "SPANPOOL_LEASE"},
		{nil, []string{"--config", path}, 3 * time.Second, path},
		{[]string{"SPANPOOL_CONFIG=" + path}, nil, 3 * time.Second, path},
		{nil, nil, 500 * time.Millisecond, "default"},
	} {
		s, err := load(t, tt.environ, tt.args...)
		require.NoError(t, err)
		require.Equal(t, tt.want, s.Node.PeerLease)
		require.Equal(t, tt.source, s.from["lease"].source)
	}
}

// bad is a value for each setting that can be wrong by itself.
var bad = map[string]string{
	"listen": "7400", "data.listen": "localhost", "data.advertise": "host", "data.connections": "17", "peers": "b", "tls": "on", "insecure": "maybe",
	"clients.max": "0", "clients.bytes_in_flight": "much", "clients.regions": "65537", "clients.sessions": "-1",
	"http": "7402", "transport": "pigeon", "medium": "tape", "dram.bytes": "lots", "dram.page_bytes": "-1", "dram.huge_pages": "2",
	"rdma.gid": "ipv5", "rdma.read_pairs": "17", "rdma.write_pairs": "0", "rdma.depth": "1", "rdma.scatter": "0", "rdma.reads": "256",
	"gpu.runtime": "metal", "gpu.clients": "maybe", "gpu.nic": "perhaps", "gpu.devices": "0,0", "gpu.reserve_bytes": "some", "gpu.deadline": "0s",
	"arena.get_bytes": "1.5GiB", "arena.put_bytes": "x", "locality": "some", "ranged_locality_prefetch": "yes!", "cache_remote_fetches": "?",
	"checksum": "yes", "admission": "some", "admission.max_bytes": "16 MB", "filling_share": "1.5", "watermark.high": "NaN", "watermark.low": "-0.1", "lease": "500",
	"reservation": "0s", "hold": "-1s", "timeout.dial": "2h", "timeout.control": "1", "timeout.transfer": "s", "timeout.arena": "1 s", "timeout.call": "",
	"breaker.min": "none", "breaker.max": "0", "drain": "10", "log.level": "loud", "tracing.otlp": "collector", "tracing.sample": "2",
}

// free are the settings whose text can be anything.
var free = []string{"node.id", "secret_file", "socket", "gpu.library", "rdma.device"}

func TestEveryBadValueNamesItsKeyValueAndSource(t *testing.T) {
	for _, o := range options {
		if value, ok := bad[o.key]; ok {
			_, err := load(t, nil, "--"+flagOf(o.key)+"="+value)
			requireNamed(t, err, o.key, value, "--"+flagOf(o.key))
			_, err = load(t, []string{variableOf(o.key) + "=" + value})
			requireNamed(t, err, o.key, value, variableOf(o.key))
			path := file(t, "bad.yaml", o.key+": '"+value+"'")
			_, err = load(t, nil, "--config", path)
			requireNamed(t, err, o.key, value, path)
			continue
		}
		require.Contains(t, free, o.key, "no bad value of this setting is tested")
	}
}

func requireNamed(t *testing.T, err error, key, value, source string) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e, "%s = %q", key, value)
	require.Equal(t, key, e.Key)
	require.Equal(t, value, e.Value)
	require.Equal(t, source, e.Source)
	require.NotEmpty(t, e.Want)
}

func TestUnknownKeysAreErrorsThatNameThem(t *testing.T) {
	_, err := load(t, []string{"SPANPOOL_LEASES=1s"})
	require.ErrorContains(t, err, "SPANPOOL_LEASES")
	path := file(t, "f.yaml", "dram:\n  bites: 1GiB")
	_, err = load(t, nil, "--config", path)
	require.ErrorContains(t, err, "dram.bites")
	require.ErrorContains(t, err, path)
	_, err = load(t, nil, "--config", file(t, "f.yaml", "lease: [\n"))
	require.ErrorContains(t, err, "f.yaml")
	_, err = load(t, nil, "--config", "/nowhere/f.yaml")
	require.ErrorContains(t, err, "/nowhere/f.yaml")
}

func TestAFileIsOneDocumentOfBoundedSize(t *testing.T) {
	for content, fine := range map[string]bool{
		"":                                      true,
		"# nothing\n---\n":                      true,
		"---\nlease: 1s\n":                      true,
		"# a comment\n---\n# more\nlease: 1s\n": true,
		"lease: 1s\n---\n":                      true,
		"lease: 1s\n---\n# no more\n":           true,
		"lease: 1s\n---\nhold: 1s\n":            false,
		"lease: 1s\n---\n: [nonsense":           false,
		"---\nlease: 1s\n---\nholds: 1s\n":      false,
		"---\nlease: 1s\n--- # two\n\nhold: 1s": false,
	} {
		_, err := load(t, nil, "--config", file(t, "f.yaml", content))
		if fine {
			require.NoError(t, err, "%q", content)
		} else {
			require.ErrorContains(t, err, "2 YAML documents, want one", "%q", content)
		}
	}
	_, err := load(t, nil, "--config", file(t, "f.yaml", strings.Repeat("#", maxFile+1)))
	require.ErrorContains(t, err, "holds more than 1048576 bytes")
	_, err = load(t, nil, "--config", "/dev/zero")
	require.ErrorContains(t, err, "holds more than 1048576 bytes")
}

// TestVariablesOfOthersAreNoSettings: an engine's, which may share the daemon's container, and those that Kubernetes sets there for a
// service that is called spanpool. What only looks like them is still a mistake.
func TestVariablesOfOthersAreNoSettings(t *testing.T) {
	files, err := filepath.Glob("../../../python/spanpool/*.py")
	require.NoError(t, err)
	var engines []string
	for _, f := range files {
		source, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`"(SPANPOOL_[A-Z_]+)"`).FindAllStringSubmatch(string(source), -1) {
			if m[1] != variableOf("socket") { // of both
				engines = append(engines, m[1]+"=5")
			}
		}
	}
	require.GreaterOrEqual(t, len(engines), 4)
	_, err = load(t, engines)
	require.NoError(t, err)
	_, err = load(t, []string{"SPANPOOL_SERVICE_HOST=10.0.0.7", "SPANPOOL_SERVICE_PORT=7400", "SPANPOOL_SERVICE_PORT_GRPC=7400",
		"SPANPOOL_PORT=tcp://10.0.0.7:7400", "SPANPOOL_PORT_7400_TCP=tcp://10.0.0.7:7400", "SPANPOOL_PORT_7400_TCP_PROTO=tcp",
		"SPANPOOL_PORT_7400_TCP_PORT=7400", "SPANPOOL_PORT_7400_TCP_ADDR=10.0.0.7", "SPANPOOL_PEERS_SERVICE_HOST=10.0.0.7", "SPANPOOL_PEERS_PORT=tcp://10.0.0.7:7400"})
	require.NoError(t, err)
	for _, mistake := range []string{"SPANPOOL_LISTEN_PORT=7400", "SPANPOOL_PORT=7400", "SPANPOOL_SERVICE=x", "SPANPOOL_NAMESPACES=x"} {
		_, err = load(t, []string{mistake})
		require.ErrorContains(t, err, "no such setting", mistake)
	}
	for _, o := range options {
		require.False(t, ofService.MatchString(variableOf(o.key)+"=tcp://x"), o.key)
	}
}

// TestEverythingThatIsWrongIsNamedAtOnce: whoever mends a file does not run the check once a line.
func TestEverythingThatIsWrongIsNamedAtOnce(t *testing.T) {
	path := file(t, "f.yaml", "dram:\n  bites: 1GiB\nlease: fast\nhold: [\"x\"]\nleases: 1s\ndram.bytes: 1GiB\nwatermark.high: 2")
	_, err := load(t, []string{"SPANPOOL_LEESE=1s", "SPANPOOL_TRANSPORT=pigeon", "SPANPOOL_PIERS=b"}, "--config", path, "--drain", "soon")
	for _, want := range []string{"dram.bites (" + path + "): no such setting", "leases (" + path + "): no such", `lease = "fast" (` + path, `hold = "x" (`,
		`watermark.high = "2" (`, "SPANPOOL_LEESE (environment): no such", "SPANPOOL_PIERS (environment)", `transport = "pigeon" (SPANPOOL_TRANSPORT)`, `drain = "soon" (--drain)`} {
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, 8, strings.Count(err.Error(), "\n"), "a line each: %v", err)

	_, err = load(t, nil, "--breaker-min", "20s", "--filling-share", "0", "--listen", ":7400", "--data-listen", ":7401", "--http", ":7402", "--secret-file", "/nowhere")
	for _, want := range []string{"breaker.min", "filling_share", "secret_file", "data.advertise", "http"} {
		require.ErrorContains(t, err, want+" = ")
	}
	require.NotContains(t, err.Error(), "beyond loopback", "it has a secret, which cannot be read")

	s, err := load(t, nil, "--medium", "hbm", "--transport", "rdma")
	require.NoError(t, err)
	err = s.CheckBuild(Build{})
	require.ErrorContains(t, err, "medium = ")
	require.ErrorContains(t, err, "transport = ")
}

// TestASettingInBothFormsOfAFileIsAnError: which of the two counted would be by chance.
func TestASettingInBothFormsOfAFileIsAnError(t *testing.T) {
	path := file(t, "f.yaml", "dram.bytes: 1GiB\ndram:\n  bytes: 2GiB")
	_, err := load(t, nil, "--config", path)
	require.ErrorContains(t, err, "dram.bytes ("+path+"): it stands there twice")
	_, err = load(t, nil, "--config", file(t, "f.yaml", "dram.bytes: 1GiB\ndram:\n  page_bytes: 4KiB\nadmission: size\nadmission.max_bytes: 1MiB"))
	require.NoError(t, err)
}

func TestAListOfAFileMayBeEmpty(t *testing.T) {
	s, err := load(t, nil, "--config", file(t, "f.yaml", "peers: []"))
	require.NoError(t, err)
	require.Empty(t, s.Peers)
}

func TestBackgroundEvictionIsOffWithAHighWatermarkOf0(t *testing.T) {
	s, err := load(t, nil, "--watermark-high", "0")
	require.NoError(t, err)
	require.Zero(t, s.Node.HighWatermark)
	require.Zero(t, s.Node.LowWatermark)
}

// TestAValueOfAnUnknownKeyIsNotPrinted: who writes the secret where no setting is does not find it in the log.
func TestAValueOfAnUnknownKeyIsNotPrinted(t *testing.T) {
	_, err := load(t, []string{"SPANPOOL_SECRET=" + secret})
	require.ErrorContains(t, err, "SPANPOOL_SECRET")
	require.NotContains(t, err.Error(), secret)
	_, err = load(t, nil, "--config", file(t, "f.yaml", "secret: "+secret))
	require.ErrorContains(t, err, "secret")
	require.NotContains(t, err.Error(), secret)
}

func TestSettingsThatDoNotGoTogetherAreRefused(t *testing.T) {
	short, long := file(t, "short", "too short"), file(t, "long", strings.Repeat("s", maxSecret+1))
	for _, tt := range []struct {
		args []string
		key  string
	}{
		{[]string{"--watermark-high", "0.5", "--watermark-low", "0.6"}, "watermark.low"},
		{[]string{"--filling-share", "0"}, "filling_share"},
		{[]string{"--admission-max-bytes", "0"}, "admission.max_bytes"},
		{[]string{"--node-id", strings.Repeat("a", 256)}, "node.id"},
		{[]string{"--node-id", "a\xff"}, "node.id"},
		{[]string{"--node-id", "a,b"}, "node.id"},
		{[]string{"--node-id", "a=b"}, "node.id"},
		{[]string{"--listen", "127.0.0.1:65536"}, "listen"},
		{[]string{"--data-listen", "127.0.0.1:"}, "data.listen"},
		{[]string{"--http", "127.0.0.1:http"}, "http"},
		{[]string{"--data-advertise", "node.example:-1"}, "data.advertise"},
		{[]string{"--data-advertise", "node.example:0"}, "data.advertise"},
		{[]string{"--tracing-otlp", "127.0.0.1:0"}, "tracing.otlp"},
		{[]string{"--secret-file", long}, "secret_file"},
		{[]string{"--data-advertise", "0.0.0.0:7401"}, "data.advertise"},
		{[]string{"--data-advertise", ":7401"}, "data.advertise"},
		{[]string{"--peers", "b=h:0"}, "peers"},
		{[]string{"--peers", "b=h:65536"}, "peers"},
		{[]string{"--peers", strings.Repeat("b", 256) + "=h:1"}, "peers"},
		{[]string{"--socket", "/" + strings.Repeat("s", maxSocket)}, "socket"},
		{[]string{"--dram-bytes", "100KiB"}, "dram.bytes"},
		{[]string{"--dram-bytes", "0"}, "dram.bytes"},
		{[]string{"--dram-page-bytes", "0"}, "dram.page_bytes"},
		{[]string{"--clients-bytes-in-flight", "0"}, "clients.bytes_in_flight"},
		{[]string{"--breaker-min", "20s"}, "breaker.min"},
		{[]string{"--secret-file", short}, "secret_file"},
		{[]string{"--listen", "0.0.0.0:7400"}, "listen"},
		{[]string{"--listen", ":7400"}, "listen"},
		{[]string{"--listen", "[::]:7400"}, "listen"},
		{[]string{"--listen", "node.example:7400"}, "listen"},
		{[]string{"--data-listen", "192.0.2.1:7401"}, "data.listen"},
		{[]string{"--data-listen", "[::]:7401", "--insecure"}, "data.advertise"},
		{[]string{"--data-listen", ":7401", "--insecure"}, "data.advertise"},
		{[]string{"--http", "0.0.0.0:7402"}, "http"},
		{[]string{"--http", "0.0.0.0:7402", "--insecure"}, "http"},
		{[]string{"--socket", ""}, "socket"},
		{[]string{"--node-id", "a", "--peers", "a=h:1,b=h:2,b=h:3"}, "peers"},
	} {
		_, err := load(t, nil, tt.args...)
		var e *Error
		require.ErrorAs(t, err, &e, tt.args)
		require.Equal(t, tt.key, e.Key, tt.args)
		require.NotContains(t, err.Error(), "too short", "that is the secret")
	}
	_, err := load(t, nil, "--secret-file", "/nowhere/secret")
	require.ErrorContains(t, err, "/nowhere/secret")
}

func TestListenersBeyondLoopbackWantASecretOrToBeToldSo(t *testing.T) {
	path := file(t, "secret", secret)
	for _, tt := range []struct {
		args     []string
		warnings int
	}{
		{[]string{"--listen", "0.0.0.0:7400", "--secret-file", path}, 0},
		{[]string{"--listen", "0.0.0.0:7400", "--insecure"}, 1},
		{[]string{"--data-listen", "[::]:7401", "--data-advertise", "node.example:7401", "--insecure"}, 1},
		{[]string{"--listen", "0.0.0.0:7400", "--insecure", "--secret-file", path}, 0},
		{[]string{"--listen", "localhost:7400", "--data-listen", "[::1]:7401"}, 0},
		{[]string{"--listen", "127.9.9.9:7400", "--insecure"}, 0},
	} {
		s, err := load(t, nil, tt.args...)
		require.NoError(t, err, tt.args)
		require.Len(t, s.Warnings(), tt.warnings, tt.args)
	}
}

func TestANodeHasItsHostsNameUnlessToldOtherwise(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	s, err := load(t, nil)
	require.NoError(t, err)
	require.Equal(t, host, string(s.ID))
	require.Equal(t, s.ID, s.Node.ID)
	require.Equal(t, origin{host, "host name"}, s.from["node.id"])
}

// TestAListThatNamesThisNodeAloneIsWarnedOf: nodes that all have their hosts' one name find nobody, and would not say so.
func TestAListThatNamesThisNodeAloneIsWarnedOf(t *testing.T) {
	for peers, warnings := range map[string]int{"": 0, "a=h:1": 1, "a=h:1,b=h:2": 0, "b=h:2": 0} {
		s, err := load(t, nil, "--node-id", "a", "--peers", peers)
		require.NoError(t, err)
		require.Len(t, s.Warnings(), warnings, peers)
	}
}

func TestSwitchesReachTheNode(t *testing.T) {
	s, err := load(t, nil, "--ranged-locality-prefetch", "false", "--cache-remote-fetches", "false", "--locality", "off", "--admission", "never",
		"--checksum", "off")
	require.NoError(t, err)
	require.True(t, s.Node.NoChecksums)
	require.True(t, s.Node.NoRangedLocalityPrefetch)
	require.True(t, s.Node.NoCacheRemoteFetches)
	require.Equal(t, domain.LocalityOff, s.Node.Locality)
	require.Equal(t, domain.AdmitNever, s.Node.Admission.Kind)
}

func FuzzAFileIsSettingsOrAnError(f *testing.F) {
	f.Add("lease: 1s\nnode: {id: a}")
	f.Add("peers: [a=b:1]")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := load(t, nil, "--config", file(t, "f.yaml", text))
		if err == nil {
			require.NotEmpty(t, s.ID)
		}
	})
}

func TestABuildThatLacksWhatIsNamedIsRefused(t *testing.T) {
	for _, tt := range []struct {
		args     []string
		key, tag string
		with     Build
	}{
		{[]string{"--medium", "hbm"}, "medium", "gpu", Build{GPU: true}},
		{[]string{"--gpu-clients", "true"}, "gpu.clients", "gpu", Build{GPU: true}},
		{[]string{"--transport", "rdma"}, "transport", "rdma", Build{RDMA: true}},
	} {
		s, err := load(t, nil, tt.args...)
		require.NoError(t, err)
		require.NoError(t, s.CheckBuild(tt.with))
		var bad *Error
		require.ErrorAs(t, s.CheckBuild(Build{GPU: !tt.with.GPU, RDMA: !tt.with.RDMA}), &bad)
		require.Equal(t, tt.key, bad.Key)
		require.Contains(t, bad.Error(), "the tag "+tt.tag)
	}
	s, err := load(t, nil, "--transport", "auto")
	require.NoError(t, err)
	require.NoError(t, s.CheckBuild(Build{}), "auto takes what there is")
}
