package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/adapters/rdma"
)

func TestHelpOfTheDaemonIsGolden(t *testing.T) {
	for _, args := range [][]string{{"serve"}, {"config"}, {"config", "print"}, {"config", "check"}, {"ctl"}, {"ctl", "put"}, {"ctl", "get"},
		{"ctl", "exists"}, {"ctl", "remove"}, {"ctl", "size"}, {"ctl", "status"}, {"ctl", "peers"}} {
		o := invoke(t, append(args, "--help")...)
		require.Equal(t, exitOK, o.code, o.stderr)
		golden(t, strings.Join(append([]string{"help"}, args...), "-")+".txt", o.stdout)
	}
}

func TestConfigPrintsWhatServeWouldDo(t *testing.T) {
	o := invoke(t, "config", "print", "--node-id", "a", "--lease", "250ms")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Regexp(t, `(?m)^node\.id: +"a" +# --node-id$`, o.stdout)
	require.Regexp(t, `(?m)^lease: +"250ms" +# --lease$`, o.stdout)
	require.Regexp(t, `(?m)^hold: +"2s" +# default$`, o.stdout)
}

// TestConfigCheckAsksThisBuild: what it passes is what serve can open, in builds with the tags and without.
func TestConfigCheckAsksThisBuild(t *testing.T) {
	for built, args := range map[string][]string{"medium": {"--medium", "hbm"}, "transport": {"--transport", "rdma"}} {
		o := invoke(t, append([]string{"config", "check"}, args...)...)
		if map[string]bool{"medium": hip.Built, "transport": rdma.Built}[built] {
			require.Equal(t, exitOK, o.code, o.stderr)
			continue
		}
		require.Equal(t, exitUsage, o.code)
		require.Contains(t, o.stderr, "a build with cgo and the tag")
		require.Empty(t, o.stdout)
	}
}

func TestConfigCheckSaysWhatIsWrong(t *testing.T) {
	o := invoke(t, "config", "check")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Equal(t, "ok\n", o.stdout)
	o = invoke(t, "config", "check", "--insecure", "--listen", ":7400")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Contains(t, o.stdout, "warning: insecure")

	path := filepath.Join(t.TempDir(), "spanpool.yaml")
	require.NoError(t, os.WriteFile(path, []byte("dram.bites: 1GiB"), 0o600))
	for _, command := range [][]string{{"config", "check"}, {"config", "print"}, {"serve"}} {
		for want, args := range map[string][]string{
			`lease = "fast" (--lease)`:  {"--lease", "fast"},
			"dram.bites (" + path + ")": {"--config", path},
			"beyond loopback":           {"--listen", ":7400"},
			"TLS is not there yet":      {"--tls", "on"},
			"unknown flag: --leases":    {"--leases", "1s"},
			`unknown argument "now"`:    {"now"},
		} {
			o := invoke(t, append(command, args...)...)
			require.Equal(t, exitUsage, o.code, "%v %v: %s", command, args, o.stderr)
			require.Contains(t, o.stderr, want)
			require.Empty(t, o.stdout)
		}
	}
}

func TestServeThatCannotStartNamesTheAddressAndExitsWith1(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	o := invoke(t, "serve", "--node-id", "a", "--listen", taken.Addr().String(), "--data-listen", "127.0.0.1:0", "--http", "off", "--socket", "off",
		"--dram-bytes", "1MiB", "--arena-get-bytes", "0", "--arena-put-bytes", "0")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "spanpool: listen: listen tcp "+taken.Addr().String()+": bind: address already in use")
	require.Equal(t, 4, o.procs, "cores, and as many workers that copy")
}

func TestShellsComplete(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitOK, run(t.Context(), []string{"completion", shell}, &stdout, &stderr, environment{}), stderr.String())
		require.Contains(t, stdout.String(), "spanpool")
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), []string{"__complete", "ctl", "ex"}, &stdout, &stderr, environment{}))
	require.Contains(t, stdout.String(), "exists")
}
