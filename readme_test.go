package spanpool_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeShowsAnExampleThatRuns holds the README's code against examples/embed_test.go, which runs.
func TestReadmeShowsAnExampleThatRuns(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	example, err := os.ReadFile("examples/embed_test.go")
	require.NoError(t, err)
	_, code, ok := strings.Cut(string(readme), "```go\n")
	require.True(t, ok, "README.md shows no Go")
	code, _, ok = strings.Cut(code, "```")
	require.True(t, ok)
	for line := range strings.Lines(code) {
		if line != "\n" {
			line = "\t" + line
		}
		require.Contains(t, string(example), "\n"+line)
	}
}

// TestDependenciesHaveTheirReasons holds docs/dependencies.md against go.mod, both ways.
func TestDependenciesHaveTheirReasons(t *testing.T) {
	page, err := os.ReadFile("docs/dependencies.md")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	require.NoError(t, err)
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	require.NoError(t, json.Unmarshal(out, &mod))
	modules := map[string]bool{} // direct
	for _, m := range mod.Require {
		modules[m.Path] = !m.Indirect
	}
	require.Contains(t, modules, "github.com/stretchr/testify")
	for name, direct := range modules {
		require.True(t, !direct || strings.Contains(string(page), "\n| "+name+" |"), "%s has no line in docs/dependencies.md", name)
	}
	for line := range strings.Lines(string(page)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "|" && strings.Contains(f[1], ".") {
			require.Contains(t, modules, f[1], "docs/dependencies.md explains what is not in go.mod")
		}
	}
}
