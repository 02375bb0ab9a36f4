package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/client"
	"github.com/spanpool/spanpool/cmd/spanpool/config"
	"github.com/spanpool/spanpool/cmd/spanpool/daemon"
)

// node runs a daemon in this process, and is its socket.
func node(t *testing.T, args ...string) string {
	t.Helper()
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.Flags(f)
	socket := filepath.Join(t.TempDir(), "s")
	require.NoError(t, f.Parse(append([]string{"--node-id", "a", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--http", "off",
		"--dram-bytes", "1MiB", "--dram-page-bytes", "4KiB", "--arena-get-bytes", "64KiB", "--arena-put-bytes", "64KiB", "--lease", "1ms", "--socket", socket}, args...)))
	s, err := config.Load(f, nil)
	require.NoError(t, err)
	d, err := daemon.New(s, daemon.Options{Log: io.Discard, Version: "v0"})
	require.NoError(t, err)
	require.NoError(t, d.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, d.Stop()) })
	return socket
}

// ctlTo runs a ctl command line against a socket that a variable names.
func ctlTo(t *testing.T, socket, stdin string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := newRoot(environment{environ: []string{"SPANPOOL_SOCKET=" + socket}})
	root.SetIn(strings.NewReader(stdin))
	code := runRoot(t.Context(), root, append([]string{"ctl"}, args...), &stdout, &stderr)
	return outcome{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

func TestCtlPutsAndGets(t *testing.T) {
	socket := node(t)
	do := func(args ...string) outcome { return ctlTo(t, socket, "from standard input", args...) }
	dir := t.TempDir()
	object := strings.Repeat("0123456789", 50_000)
	file := filepath.Join(dir, "object")
	require.NoError(t, os.WriteFile(file, []byte(object), 0o600))

	o := do("put", "k", file)
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Regexp(t, `^key +status .*\nk +stored +- +500000 `, o.stdout)
	o = do("put", "k", file)
	require.Equal(t, exitOK, o.code, "it is there, as it was asked for: %s", o.stderr)
	require.Contains(t, o.stdout, "exists")
	o = do("put", "k", "-")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, `put "k": conflict`)

	o = do("put", "in", "-")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Equal(t, "from standard input", do("get", "in").stdout)

	o = do("get", "k")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.True(t, o.stdout == object)
	o = do("get", "k", "--range", "3:4", "--range", "1KiB:2")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Equal(t, "345645", o.stdout)

	out := filepath.Join(dir, "out")
	o = do("get", "k", "-o", out, "--output", "json")
	require.Equal(t, exitOK, o.code, o.stderr)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, string(got) == object)
	var r keyResult
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
	require.Equal(t, keyResult{Key: "k", Status: "hit", Source: "local", Size: 500_000}, r)

	o = do("get", "k", "--range", "499999:2", "-o", filepath.Join(dir, "none"))
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, `get "k": invalid: `)
	o = do("get", "nope", "-o", filepath.Join(dir, "none"))
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, `get "nope": not_found`)
	o = do("get", "k", "--namespace", "other")
	require.Equal(t, exitFailed, o.code, "namespaces are apart")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2, "a get that failed leaves no file: %v", left)

	link := filepath.Join(dir, "device")
	require.NoError(t, os.Symlink("/dev/full", link))
	o = do("get", "k", "-o", link)
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "no space left on device", "a device is written to, not replaced")
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)

	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, make([]byte, 2<<20), 0o600))
	o = do("put", "large", large)
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, `put "large": no_space: 2097152 bytes into a pool of 1048576`)
}

func TestCtlSaysHowToReachANodeWhereNoneIs(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "s")
	for _, command := range []string{"status", "peers"} {
		o := ctlTo(t, gone, "", command)
		require.Equal(t, exitFailed, o.code)
		require.Contains(t, o.stderr, "spanpool serve --socket "+gone)
		require.Contains(t, o.stderr, "SPANPOOL_SOCKET")
	}
	o := ctlTo(t, node(t), "", "get", "nope")
	require.Equal(t, exitFailed, o.code)
	require.NotContains(t, o.stderr, "SPANPOOL_SOCKET", "a node is there")
	require.ErrorContains(t, (&ctl{socket: gone}).orWhere(client.ErrUnavailable), "starts a node")
	require.Equal(t, io.EOF, (&ctl{socket: gone}).orWhere(io.EOF))
}

func TestCtlAsksAboutKeysAndTheNode(t *testing.T) {
	socket := node(t, "--peers", "b=127.0.0.1:1")
	do := func(args ...string) outcome { return ctlTo(t, socket, "value", args...) }
	require.Equal(t, exitOK, do("put", "k", "-").code)

	require.Equal(t, "key  size\nk    5\n", do("size", "k").stdout)
	o := do("size", "nope")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "unavailable", "b may have it")

	o = do("exists", "k", "--hold", "1s")
	require.Equal(t, exitOK, o.code, o.stderr)
	o = do("exists", "k", "nope", "k", "--output", "json")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "1 of 3 keys are not there, the first 1 are")
	require.JSONEq(t, `{"keys": [{"key": "k", "found": true}, {"key": "nope", "found": false}, {"key": "k", "found": true}], "leading": 1}`, o.stdout)

	o = do("status")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Regexp(t, `^node +a\nincarnation +[0-9a-f]{16}\nversion +v0\nuptime `, o.stdout)
	require.Regexp(t, `put_keys\.stored +1\n`, o.stdout)

	o = do("peers")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Regexp(t, `\nb +0{16} +- +- +(down|not connected) .*connection refused`, o.stdout)

	o = do("remove", "k")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "did not answer: b")
	require.Regexp(t, `\nk +true +b\n`, o.stdout)
	require.Equal(t, exitFailed, do("exists", "k").code)
}

func TestCtlWithoutANodeNamesTheSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nobody")
	for _, args := range [][]string{{"status"}, {"get", "k"}, {"put", "k", "-"}, {"exists", "k"}, {"remove", "k"}, {"size", "k"}, {"peers"}} {
		o := ctlTo(t, socket, "v", args...)
		require.Equal(t, exitFailed, o.code, args)
		require.Contains(t, o.stderr, socket, args)
		require.Empty(t, o.stdout, args)
	}
}

func TestBadCtlLinesExitWith2(t *testing.T) {
	for want, args := range map[string][]string{
		`ctl put: 1 arguments, want KEY and FILE`: {"put", "k"},
		`ctl get: 2 arguments, want KEY`:          {"get", "k", "l"},
		`ctl exists: 0 arguments, want KEY...`:    {"exists"},
		`--range "5": want OFF:LEN`:               {"get", "k", "--range", "5"},
		`--range "5:0": want OFF:LEN`:             {"get", "k", "--range", "5:0"},
		`--range "-1:5": want OFF:LEN`:            {"get", "k", "--range", "-1:5"},
		`--range "18446744073709551615:2": want`:  {"get", "k", "--range", "18446744073709551615:2"},
		`--output "xml": unknown`:                 {"status", "--output", "xml"},
		`--hold "-1s": want 0 to 1h`:              {"exists", "k", "--hold", "-1s"},
		`"x" for "--hold"`:                        {"exists", "k", "--hold", "x"},
		`unknown argument "extra"`:                {"status", "extra"},
		`unknown argument "stats"`:                {"stats"},
	} {
		o := ctlTo(t, "/nowhere/socket", "", args...)
		require.Equal(t, exitUsage, o.code, "%v: %s", args, o.stderr)
		require.Contains(t, o.stderr, want, args)
		require.Empty(t, o.stdout, args)
	}
	o := ctlTo(t, "/nowhere/socket", "", "put", "k", "/nowhere/file")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "/nowhere/file")
}
