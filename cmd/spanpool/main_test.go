package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/bench"
)

var update = flag.Bool("update", false, "write the golden files anew")

// outcome is what a person sees of one command.
type outcome struct {
	code           int
	stdout, stderr string
	spec           *bench.ClusterSpec // of the nodes that were asked for
	procs          int
}

var errNoNodes = errors.New("no nodes in this test")

// invoke runs a command line on a machine of 2 cores and 1 GiB without nodes.
func invoke(t *testing.T, args ...string) outcome {
	t.Helper()
	var o outcome
	var stdout, stderr bytes.Buffer
	env := environment{maxMemory: 1 << 30, cores: 2, raiseProc: func(n int) { o.procs = n },
		open: func(_ context.Context, s bench.ClusterSpec) (*bench.Cluster, error) {
			o.spec = &s
			return nil, errNoNodes
		}}
	o.code = run(t.Context(), args, &stdout, &stderr, env)
	o.stdout, o.stderr = stdout.String(), stderr.String()
	return o
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "go test ./cmd/spanpool -update writes it anew")
}

func TestHelpIsGolden(t *testing.T) {
	for _, args := range [][]string{{}, {"bench"}, {"bench", "layerwise"}, {"bench", "replay"}, {"version"}} {
		o := invoke(t, append(args, "--help")...)
		require.Equal(t, exitOK, o.code, o.stderr)
		golden(t, strings.Join(append([]string{"help"}, args...), "-")+".txt", o.stdout)
	}
}

// Every option of rules.md section 7 is there by its name, and says its default.
func TestEveryOptionOfTheReferenceIsThere(t *testing.T) {
	flags := newLayerwise(environment{}).Flags()
	for name, def := range map[string]string{"ranks": "[1,2,4,8]", "layers": "61", "layer-group": "8", "layer-bytes": "73728", "pools": "",
		"pages": "64", "requests": "3", "compute-us-per-layer": "150", "offload-ranks": "-1", "ranges-per-call": "8192", "scratch-mib": "256",
		"page-bytes": "0", "no-prefetch": "false", "interleave-groups": "false", "verify": "true", "local-only": "false", "transport": "inproc",
		"fetch": "ranged", "locality": "fill", "compute": "sleep", "preset": "", "output": "table", "runs": "1", "medium-mib": "0", "medium": "dram",
		"destination": "host", "shared-keys": "false", "shared-arena": "false", "link-gbps": "0", "link-delay-us": "0", "checksum": "on",
		"max-memory": "", "offload-to": "remote", "fill": "0"} {
		f := flags.Lookup(name)
		require.NotNil(t, f, name)
		require.Equal(t, def, f.DefValue, name)
	}
}

func TestHelpSaysEveryDefault(t *testing.T) {
	for _, name := range []string{"layerwise", "replay", "mixed", "ratios", "ceiling", "ranges", "engine", "report", "gpu", "rdma"} {
		_, flags, _ := strings.Cut(invoke(t, "bench", name, "--help").stdout, "Flags:\n")
		for line := range strings.Lines(flags) {
			exempt := strings.Contains(line, "--help") || strings.Contains(line, "(required)")
			require.True(t, exempt || strings.Contains(line, "(default ") || strings.Contains(line, "; default: "), line)
		}
	}
}

func TestTheFlagVersionIsTheCommandVersion(t *testing.T) {
	o := invoke(t, "--version")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Equal(t, invoke(t, "version").stdout, o.stdout)
	require.Contains(t, o.stdout, "protocol")
}

func TestBadCommandLinesNameWhatIsWrongAndExitWith2(t *testing.T) {
	layerwise := func(args ...string) []string { return append([]string{"bench", "layerwise"}, args...) }
	replay := func(args ...string) []string { return append([]string{"bench", "replay", "--trace", "t"}, args...) }
	for want, args := range map[string][]string{
		"unknown flag: --no-such":                                                  layerwise("--no-such"),
		`unknown argument "extra"`:                                                 layerwise("extra"),
		`unknown argument "serv"`:                                                  {"serv"},
		`spanpool bench: unknown argument "layer"`:                                 {"bench", "layer"},
		`"x" for "--pages"`:                                                        layerwise("--pages", "x"),
		`"1,x" for "--ranks"`:                                                      layerwise("--ranks", "1,x"),
		`--pages "0": want 1 to`:                                                   layerwise("--pages", "0"),
		`--preset "gpt": unknown; available: deepseek-v3.2`:                        layerwise("--preset", "gpt"),
		`--preset "deepseek-v4": --pools is given too`:                             layerwise("--preset", "deepseek-v4", "--pools", "kv:1:8"),
		`--pools "kv:0:8": pool "kv:0:8": layers 0: want 1 to 4096`:                layerwise("--pools", "kv:0:8"),
		`--layers and --layer-bytes "kv:0:73728"`:                                  layerwise("--layers", "0"),
		`--layer-bytes "4": --preset says the layers' bytes already`:               layerwise("--preset", "deepseek-v4", "--layer-bytes", "4"),
		`--layers "60": a pool names layer 60 of a model of 60 layers`:             layerwise("--preset", "deepseek-v4", "--layers", "60"),
		`--transport "pigeon": unknown; available: inproc, tcp, shm, rdma`:         layerwise("--transport", "pigeon"),
		`--transport "auto": not available yet; available: inproc, tcp, shm, rdma`: replay("--transport", "auto"),
		`--peer "b=h:1,b=h:2": peer "b" is named twice`:                            layerwise("--transport", "tcp", "--peer", "b=h:1", "--peer", "b=h:2"),
		`--peer "b": nodes of other processes are reached by --transport tcp`:      replay("--peer", "b=h:1"),
		`--peer "b": with --local-only there is no peer`:                           layerwise("--transport", "tcp", "--peer", "b=h:1", "--local-only"),
		`--secret-file "/nowhere": open /nowhere`:                                  layerwise("--secret-file", "/nowhere"),
		`--nodes "2": with --peer this process is 1 node`:                          replay("--transport", "tcp", "--peer", "b=h:1", "--nodes", "2"),
		`--transport "tcp": --link-gbps and --link-delay-us model`:                 layerwise("--transport", "tcp", "--link-gbps", "16"),
		`--fetch "whole": not available with --peer`:                               layerwise("--transport", "tcp", "--peer", "a=127.0.0.1:1", "--fetch", "whole"),
		`--medium "hbm": gpu runtime: unsupported`:                                 layerwise("--medium", "hbm", "--gpu-library", "/nowhere"),
		`--destination "gpu": gpu runtime: unsupported`:                            layerwise("--destination", "gpu", "--gpu-library", "/nowhere"),
		`--gpu-device "1": nothing lies on a GPU`:                                  layerwise("--gpu-device", "1"),
		`--gpu-runtime "metal": unknown; available: auto, hip, cuda`:               layerwise("--destination", "gpu", "--gpu-runtime", "metal"),
		`--fragments "0": want 1 to`:                                               {"bench", "gpu", "--fragments", "0"},
		`--medium "tape": unknown; available: dram, hbm`:                           layerwise("--medium", "tape"),
		`--checksum "some": unknown; available: off, on`:                           layerwise("--checksum", "some"),
		`--compute-us-per-layer "18446744073709552": want 0 to 10000000`:           layerwise("--compute-us-per-layer", "18446744073709552"),
		`--link-gbps "1e-12": want 1e-06 to`:                                       layerwise("--link-gbps", "1e-12"),
		`spanpool: unknown argument "serv"`:                                        {"help", "serv"},
		`spanpool bench: unknown argument "lay"`:                                   {"help", "bench", "lay"},
		`spanpool completion: unknown argument "tcsh"`:                             {"completion", "tcsh"},
		`spanpool completion bash: unknown argument "x"`:                           {"completion", "bash", "x"},
		`spanpool bench report: 0 arguments, want FOLDER`:                          {"bench", "report"},
		`spanpool bench report: 2 arguments, want FOLDER`:                          {"bench", "report", "a", "b"},
		`--offload-to "moon": unknown; available: local, remote`:                   layerwise("--offload-to", "moon"),
		`--offload-to "remote": with --local-only there is no peer`:                layerwise("--local-only", "--offload-to", "remote"),
		`--locality "some": unknown; available: off, pull, fill`:                   layerwise("--locality", "some"),
		`--compute "gpu": unknown; available: sleep, spin`:                         layerwise("--compute", "gpu"),
		`--output "xml": unknown; available: table, csv, json`:                     layerwise("--output", "xml"),
		`--max-memory "lots": size "lots": want bytes`:                             layerwise("--max-memory", "lots"),
		`--trace "": want a file`:                                                  {"bench", "replay"},
		`--nodes "0": want 1 to 64`:                                                replay("--nodes", "0"),
		`--capacity-blocks "0": want 1 to`:                                         replay("--capacity-blocks", "10,0"),
		`--assign "hash": unknown; available: round-robin, first`:                  replay("--assign", "hash"),
		`spanpool version: unknown argument "x"`:                                   {"version", "x"},
		`unknown argument "a.yaml" (a file with settings is named by --config)`:    {"config", "check", "a.yaml"},
	} {
		o := invoke(t, args...)
		require.Equal(t, exitUsage, o.code, "%v: %s", args, o.stderr)
		require.Contains(t, o.stderr, want, args)
		require.Empty(t, o.stdout, args)
		require.Nil(t, o.spec, "nothing was started")
	}
}

// TestOutputThatIsNotTakenIsAnError, also of what prints without a look.
func TestOutputThatIsNotTakenIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(errors.Join(err, errors.ErrUnsupported))
	}
	defer full.Close()
	for _, args := range [][]string{{}, {"help"}, {"help", "bench"}, {"bench", "layerwise", "--help"}, {"version"}, {"config", "check"}, {"completion"}, {"completion", "zsh"}} {
		var stderr bytes.Buffer
		require.Equal(t, exitFailed, run(t.Context(), args, full, &stderr, environment{}), args)
		require.Contains(t, stderr.String(), "no space left on device", args)
	}
}

func TestHelpIsOfWhatIsNamed(t *testing.T) {
	require.Equal(t, invoke(t, "bench", "replay", "--help").stdout, invoke(t, "help", "bench", "replay").stdout)
	require.Equal(t, invoke(t, "--help").stdout, invoke(t, "help").stdout)
}

func TestAFailedRunExitsWith1(t *testing.T) {
	o := invoke(t, "bench", "layerwise", "--pages", "1", "--ranks", "1")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, errNoNodes.Error())

	o = invoke(t, "bench", "layerwise", "--ranks", "8")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "row of 8 ranks: it needs")
	require.Nil(t, o.spec, "refused before anything was started")

	o = invoke(t, "bench", "replay", "--trace", filepath.Join(t.TempDir(), "none"))
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "no such file")
}

func TestFlagsReachTheNodes(t *testing.T) {
	o := invoke(t, "bench", "layerwise", "--preset", "deepseek-v3.2", "--pages", "2", "--ranks", "1", "--offload-ranks", "0", "--scratch-mib", "3",
		"--locality", "pull", "--no-prefetch", "--link-gbps", "16", "--link-delay-us", "50")
	require.Equal(t, 4, o.procs, "twice the cores")
	require.NotNil(t, o.spec.Copier, "copies take places of the limiter")
	o.spec.Copier = nil // functions are not equal to anything
	const object = 61 * 73728
	require.Equal(t, &bench.ClusterSpec{Transport: "inproc", Locality: 1, NoPrefetch: true, Link: bench.LinkSpec{Gbps: 16, DelayUs: 50},
		Nodes: []bench.NodeSpec{{MediumBytes: 8 * object, PageBytes: object, GetArena: 3 << 20, PutArena: 3 << 20}, {MediumBytes: 8 * object, PageBytes: object}}}, o.spec)

	o = invoke(t, "bench", "layerwise", "--pools", "a:2:64;b:1:8", "--pages", "1", "--ranks", "1", "--local-only", "--compute", "spin")
	require.Equal(t, 5, o.procs, "a spinning rank is one more")
	// Four sets that are read and two that offload keeps, each of two objects of one page.
	require.Equal(t, []bench.NodeSpec{{MediumBytes: 6 * 2 * 65536, PageBytes: 65536, GetArena: 256 << 20, PutArena: 256 << 20}}, o.spec.Nodes)
}

func TestVersionSaysWhatTheBuildRecorded(t *testing.T) {
	var b bytes.Buffer
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}}
	info.Main.Version = "v1.2.3"
	require.NoError(t, writeVersion(&b, info))
	require.Regexp(t, `^spanpool v1\.2\.3\ncommit   abc with changes\ngo       go1\.\S+ \S+/\S+\nprotocol 1\n$`, b.String())
	b.Reset()
	require.NoError(t, writeVersion(&b, nil))
	require.Contains(t, b.String(), "spanpool unknown\ncommit   unknown\n")
	require.Equal(t, exitOK, invoke(t, "version").code)
}
