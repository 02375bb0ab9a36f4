package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/domain"
)

func TestHelpOfMixedRatiosAndCeilingIsGolden(t *testing.T) {
	for name, args := range map[string][]string{"mixed": {"bench", "mixed", "--help"}, "ratios": {"bench", "ratios", "--help"},
		"ceiling": {"bench", "ceiling", "--help"}} {
		o := invoke(t, args...)
		require.Equal(t, exitOK, o.code, o.stderr)
		golden(t, "help-bench-"+name+".txt", o.stdout)
	}
}

func TestFetchAndSharedArenaReachTheNodes(t *testing.T) {
	small := []string{"bench", "layerwise", "--ranks", "1", "--pages", "1", "--layers", "2", "--layer-group", "1", "--requests", "1", "--scratch-mib", "1"}
	o := invoke(t, append(small, "--fetch", "whole", "--shared-arena")...)
	require.NotNil(t, o.spec, o.stderr)
	require.Equal(t, bench.FetchWhole, o.spec.Fetch)
	require.True(t, o.spec.SharedArena)
	require.NotNil(t, o.spec.Copier)

	o = invoke(t, "bench", "mixed", "--threads", "1", "--calls", "1", "--shared-arena", "--link-gbps", "16", "--link-delay-us", "500")
	require.NotNil(t, o.spec, o.stderr)
	require.Equal(t, bench.FetchWhole, o.spec.Fetch)
	require.Equal(t, domain.LocalityOff, o.spec.Locality)
	require.Equal(t, bench.LinkSpec{Gbps: 16, DelayUs: 500}, o.spec.Link)
	require.Equal(t, 4, o.procs)
	o = invoke(t, "bench", "mixed", "--threads", "1", "--calls", "1")
	require.Equal(t, bench.FetchRanged, o.spec.Fetch)
}

func TestComparisonsThatCannotBeAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"layerwise", "--fetch", "half"}, `--fetch "half": unknown; available: ranged, whole`},
		{[]string{"layerwise", "--shared-arena"}, `--shared-arena "true": a node's arenas are apart`},
		{[]string{"layerwise", "--fetch", "whole", "--locality", "pull"}, `--fetch "whole": whole objects are always installed`},
		{[]string{"layerwise", "--fetch", "whole", "--local-only"}, `--fetch "whole": with --local-only nothing is fetched`},
		{[]string{"layerwise", "--fetch", "whole", "--scratch-mib", "0", "--offload-ranks", "0"}, `--fetch "whole": want --scratch-mib 1 or more`},
		{[]string{"mixed", "--threads", "0"}, `--threads "0"`},
		{[]string{"mixed", "--transport", "tcp", "--link-gbps", "16"}, `--transport "tcp": --link-gbps and --link-delay-us model`},
		{[]string{"mixed", "--transport", "shm", "--shared-arena"}, `--shared-arena "true": not available over shm`},
		{[]string{"mixed", "--transport", "auto"}, `--transport "auto"`},
		{[]string{"layerwise", "--fetch", "whole", "--register"}, `--register "true": the comparison registers nothing`},
		{[]string{"ratios", "--bars", "none-such"}, `--bars "none-such": unknown; available: restore-1,`},
		{[]string{"ratios", "--bars", ""}, `--bars "": want 1 or more of their names`},
		{[]string{"ratios", "--runs", "0"}, `--runs "0"`},
		{[]string{"engine", "--runs", "0"}, `--runs "0": want 1 to`},
		{[]string{"ceiling", "--fragments", "1728,3"}, `--fragments "3": want 64 to`},
		{[]string{"ceiling", "--output", "xml"}, `--output "xml"`},
	} {
		o := invoke(t, append([]string{"bench"}, c.args...)...)
		require.Equal(t, exitUsage, o.code, "%v: %s", c.args, o.stderr)
		require.Contains(t, o.stderr, c.want)
		require.Empty(t, o.stdout, "no header of nothing")
	}
}

// A bar whose runs failed is told from one that was missed: only --strict makes the latter an exit status.
func TestAFailedBarExitsWith1(t *testing.T) {
	o := invoke(t, "bench", "ratios", "--bars", "mixed-4", "--runs", "1")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "bar mixed-4: ")
}

func TestTheCeilingNeedsMemoryAndNoNodes(t *testing.T) {
	o := invoke(t, "bench", "ceiling", "--max-memory", "1MiB")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "source 2")
	require.Contains(t, o.stderr, "limit 1.0 MiB")
	require.Nil(t, o.spec)
	require.Equal(t, 4, o.procs)
}

// TestTheScriptMakesATableOfTheBars, with what share of the ceiling each reached, and a page.
func TestTheScriptMakesATableOfTheBars(t *testing.T) {
	out := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(out, "ratios"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(out, "ratios", "some-bar.csv"), []byte(`# commit: 0
bar,figure,ours,theirs,ratio,ratio_low,ratio_high,target,verdict,pairs,repeats,noisy,ceiling_pct
some-bar,get_gibps higher,3,2,1.5,1.4,1.6,>= 1.1,met,7,0,1,48.2
some-bar,put_gibps higher,3,2,1.5,1.4,1.6,reported,reported,7,0,1,0.0
`), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(out, "ratios", "restore-1.failed"), []byte("# commit: 77\n"), 0o644))
	c := exec.CommandContext(t.Context(), "sh", "../../scripts/benchmarks.sh", "report")
	c.Env = append(os.Environ(), "OUT="+out)
	said, err := c.CombinedOutput()
	require.Equal(t, 1, c.ProcessState.ExitCode(), "%v: %s", err, said)
	require.Contains(t, string(said), "ratios/restore-1.failed: the last run of it failed")
	table, err := os.ReadFile(filepath.Join(out, "results.md"))
	require.NoError(t, err)
	require.Contains(t, string(table), "|\n| some-bar | get_gibps higher | 3 | 2 | 1.5 (1.4 to 1.6) | >= 1.1 | met | 1 of 7 | 48.2 % | 0 |\n"+
		"| some-bar | put_gibps higher | 3 | 2 | 1.5 (1.4 to 1.6) | reported | reported | 1 of 7 |  | 0 |\n", "%s", said)
	require.Contains(t, string(table), "| restore-1 | | | | | | the last run failed | | | 77 |\n")
	require.Contains(t, string(table), "| restore-8 | | | | | | not run | | | |\n")
	require.NotContains(t, string(table), "| restore-1 | | | | | | not run")
	require.FileExists(t, filepath.Join(out, "report.html"))
}
