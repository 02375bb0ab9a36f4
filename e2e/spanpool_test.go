// Package e2e_test starts real binaries and speaks to them from outside only: arguments, exit status, what they print.
package e2e_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// binary is what TestMain built, or what SPANPOOL_E2E_BINARY names.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "spanpool-e2e")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = os.Getenv("SPANPOOL_E2E_BINARY") // where there is no compiler
	if binary == "" {
		binary = filepath.Join(dir, "spanpool")
		build(binary)
	}
	away, err := findPlaces(dir)
	if err != nil {
		panic(err)
	}
	defer away()
	m.Run()
}

func build(binary string) {
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/spanpool/spanpool/cmd/spanpool").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("go build: %v\n%s", err, out))
	}
}

// spanpool runs the binary to its end, which has a bound.
func spanpool(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, binary, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	require.NoError(t, ctx.Err(), "spanpool %v did not end", args)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// row is the one row of a CSV by its columns.
func row(t *testing.T, text string) map[string]float64 {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 2, "a header and a row: %s", text)
	out := map[string]float64{}
	for i, name := range rows[0] {
		if v, err := strconv.ParseFloat(rows[1][i], 64); err == nil { // else it is text
			out[name] = v
		}
	}
	return out
}

const mib = 1 << 20

// TestARestoreMovesEachByteOnce is the line that the project publishes, at a smaller size: 2 requests of 4 pages of 61 layers.
func TestARestoreMovesEachByteOnce(t *testing.T) {
	const want = 2 * 4 * 61 * 73728 / float64(mib)
	for _, tt := range []struct {
		name  string
		ranks string
		args  []string
		local float64
	}{
		{"adjacent layers", "1", nil, want},
		{"interleaved layers", "1", []string{"--interleave-groups"}, want},
		{"a layer at a time", "1", []string{"--layer-group", "1"}, want},
		{"many ranks on the same keys", "8", []string{"--shared-keys"}, want},
		{"nothing becomes local", "1", []string{"--locality", "off"}, 0},
		{"no pull", "1", []string{"--no-prefetch"}, want},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"bench", "layerwise", "--preset", "deepseek-v3.2", "--pages", "4", "--ranks", tt.ranks, "--requests", "2",
				"--offload-ranks", "0", "--compute-us-per-layer", "0", "--output", "csv"}, tt.args...)
			var stdout string
			var r map[string]float64
			for range 3 { // on a busy machine a read may come after its lease, and is made again
				out, stderr, code := spanpool(t, args...)
				require.Zero(t, code, stderr)
				if stdout, r = out, row(t, out); r["wire_duplicate_mib"] == 0 {
					break
				}
			}
			require.InEpsilon(t, want, r["wire_range_mib"]+r["wire_background_mib"], 0.01, "on the wire: %s", stdout)
			require.Zero(t, r["wire_duplicate_mib"], stdout)
			require.InDelta(t, tt.local, r["local_write_mib"], 0.01*want, "local: %s", stdout)
			require.Contains(t, r, "failed_reads", "the run was not verified")
			require.Zero(t, r["failed_reads"])
		})
	}
}

func TestTheTableIsForPeople(t *testing.T) {
	stdout, stderr, code := spanpool(t, "bench", "layerwise", "--layers", "4", "--layer-bytes", "4096", "--layer-group", "2", "--pages", "2",
		"--ranks", "1,2", "--requests", "1", "--offload-ranks", "1", "--compute-us-per-layer", "0")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "ttfl_us_p50")
	require.Empty(t, stderr, "nobody watches: no progress")
}

func TestAReplayFindsItsPrefixes(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(trace, []byte(`{"timestamp": 0, "input_length": 2048, "output_length": 1, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 1, "input_length": 2048, "output_length": 1, "hash_ids": [0, 1, 2, 4]}
{"timestamp": 2, "input_length": 1024, "output_length": 1, "hash_ids": [5, 1]}
{"timestamp": 3, "input_length": 2048, "output_length": 1, "hash_ids": [0, 1, 2, 3]}
`), 0o600))
	for _, nodes := range []string{"1", "2"} {
		stdout, stderr, code := spanpool(t, "bench", "replay", "--trace", trace, "--nodes", nodes, "--capacity-blocks", "100", "--output", "csv")
		require.Zero(t, code, stderr)
		r := row(t, stdout)
		require.EqualValues(t, 4, r["requests"])
		require.EqualValues(t, 7, r["hit_blocks"], "0-2 of the second request, nothing of the third, 0-3 of the fourth: %s", stdout)
		require.Contains(t, r, "failed_reads", "the run was not verified")
		require.Zero(t, r["failed_reads"])
	}
}

func TestVersionSaysWhatIsRun(t *testing.T) {
	stdout, stderr, code := spanpool(t, "version")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "spanpool ")
	require.Contains(t, stdout, "go1.")
}

// TestBadInputIsRefusedByName: an exit status that is not 0, one line that names the value, and no figures.
func TestBadInputIsRefusedByName(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "garbage")
	require.NoError(t, os.WriteFile(garbage, []byte("\x00\xffnot json\n"), 0o600))
	layerwise := func(args ...string) []string { return append([]string{"bench", "layerwise"}, args...) }
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"serv"}, "serv"},
		{layerwise("--pagez", "3"), "pagez"},
		{layerwise("--preset", "gpt-0"), "gpt-0"},
		{layerwise("--pages", "0"), "0"},
		{layerwise("--ranks", "0"), "0"},
		{layerwise("--ranks", "-7"), "-7"},
		{layerwise("--layer-group", "0"), "0"},
		{layerwise("--layer-bytes", "18446744073709551615"), "18446744073709551615"},
		{layerwise("--pools", "a:1"), "a:1"},
		{layerwise("--pools", "a:2:64:1,2,3"), "a:2:64:1,2,3"},
		{layerwise("--max-memory", "a lot"), "a lot"},
		{layerwise("--output", "xml"), "xml"},
		{layerwise("--transport", "pigeon"), "pigeon"},
		{layerwise("--fetch", "parts"), "parts"},
		{layerwise("extra"), "extra"},
		{[]string{"bench", "replay"}, "trace"},
		{[]string{"bench", "replay", "--trace", "/nowhere/trace"}, "/nowhere/trace"},
		{[]string{"bench", "replay", "--trace", garbage}, garbage},
		{[]string{"bench", "replay", "--trace", garbage, "--nodes", "0"}, "0"},
		{[]string{"bench", "replay", "--trace", os.DevNull}, os.DevNull},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			stdout, stderr, code := spanpool(t, tt.args...)
			require.NotZero(t, code)
			require.Contains(t, stderr, tt.want)
			require.NotContains(t, stderr, "goroutine ", "it panicked")
			require.Empty(t, stdout)
		})
	}
}

func TestARunThatDoesNotFitIsRefusedWithItsNeed(t *testing.T) {
	_, stderr, code := spanpool(t, "bench", "layerwise", "--ranks", "1", "--pages", "2", "--requests", "1", "--max-memory", "1MiB")
	require.NotZero(t, code)
	require.Contains(t, stderr, "1")
	require.NotContains(t, stderr, "goroutine ")
}
