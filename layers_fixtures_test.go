package spanpool_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryRuleFindsItsFault holds one small file or more against each rule: a rule that finds nothing in them is no rule.
func TestEveryRuleFindsItsFault(t *testing.T) {
	type fixture struct{ rule, path, src string }
	fixtures := []fixture{
		{"domain/layer", "domain/a.go", `import "github.com/spanpool/spanpool/ports"`},
		{"domain/layer", "domain/a_test.go", `import "github.com/spanpool/spanpool/mocks"`},
		{"domain/library", "domain/a.go", `import "golang.org/x/exp/slices"`},
		{"domain/outside", "domain/a.go", `import "os"`},
		{"domain/outside", "domain/a.go", `import "os/exec"`},
		{"domain/outside", "domain/a.go", `import "net"`},
		{"domain/outside", "domain/a.go", `import "net/netip"`},
		{"domain/outside", "domain/a.go", `import "syscall"`},
		{"domain/outside", "domain/a_unsafe.go", `import "unsafe"`},
		{"domain/outside", "domain/internal/b/a.go", `import "C"`},
		{"domain/outside", "domain/a.go", `import "log/slog"`},
		{"domain/outside", "domain/a.go", `import "context"`},
		{"domain/lock", "domain/a.go", `import "sync"`},
		{"domain/lock", "domain/a.go", `import "sync/atomic"`},
		{"domain/lock", "domain/a.go", `func f() { go f() }`},
		{"domain/clock", "domain/a.go", `import "time"; var now = time.Now`},
		{"domain/clock", "domain/a.go", `import t "time"; func f() { t.Sleep(t.Second) }`},
		{"domain/clock", "domain/a.go", `import "time"; func f() { time.NewTimer(0) }`},
		{"domain/random", "domain/a.go", `import "math/rand/v2"`},
		{"crc32c/layer", "crc32c/a_test.go", `import "github.com/spanpool/spanpool/domain"`},
		{"crc32c/library", "crc32c/a.go", `import "golang.org/x/sys/unix"`},
		{"ports/layer", "ports/a.go", `import "github.com/spanpool/spanpool/app"`},
		{"ports/layer", "ports/a.go", `import "google.golang.org/grpc"`},
		{"ports/outside", "ports/a.go", `import "net"`},
		{"ports/plain", "ports/a.go", `import "iter"`},
		{"porttest/layer", "ports/porttest/a.go", `import "github.com/spanpool/spanpool/adapters/dram"`},
		{"app/layer", "app/a.go", `import "github.com/spanpool/spanpool/adapters/dram"`},
		{"app/layer", "app/a.go", `import "github.com/spanpool/spanpool/ports/porttest"`},
		{"app/library", "app/a.go", `import "google.golang.org/grpc"`},
		{"app/outside", "app/a.go", `import "os"`},
		{"adapters/layer", "adapters/tcp/a.go", `import "github.com/spanpool/spanpool/adapters/dram"`},
		{"adapters/layer", "adapters/tcp/internal/b/a.go", `import "github.com/spanpool/spanpool/app"`},
		{"adapters/layer", "adapters/tcp/a.go", `import "github.com/spanpool/spanpool/ports/porttest"`},
		{"adapters/testlayer", "adapters/tcp/a_test.go", `import "github.com/spanpool/spanpool/app"`},
		{"inject/callers", "app/a_test.go", `import "github.com/spanpool/spanpool/inject"`},
		{"cmd/callers", "bench/a.go", `import "github.com/spanpool/spanpool/cmd/spanpool/flags"`},
		{"bench/callers", "inject/a.go", `import "github.com/spanpool/spanpool/bench"`},
		{"client/layer", "client/a.go", `import "github.com/spanpool/spanpool/domain"`},
		{"e2e/layer", "e2e/a_test.go", `import "github.com/spanpool/spanpool/domain"`},
		{"mocks/callers", "bench/a.go", `import "github.com/spanpool/spanpool/mocks"`},
		{"testing/callers", "bench/a.go", `import "testing"`},
		{"fx", "inject/a.go", `import "go.uber.org/fx"`},
		{"fx", "app/a_test.go", `import "go.uber.org/fx/fxtest"`},
		{"wire", "app/a.go", `import "github.com/google/wire"`},
		{"wire", "inject/a.go", `import "github.com/google/wire"`},
		{"wire/injectors", "inject/a.go", "//go:build wireinject\n" + `import "github.com/google/wire"; type t int; func f() { wire.Build() }`},
		{"wire/injectors", "inject/a.go", "//go:build wireinject\n" + `func f() {}`},
		{"configuration", "bench/a.go", `import "flag"`},
		{"configuration", "adapters/tcp/a.go", `import "os"; var p = os.Getenv("P")`},
		{"cgo", "adapters/rdma/a.go", `import "C"`},
		{"purego", "adapters/rdma/a.go", `import "github.com/ebitengine/purego"`},
		{"redis", "cmd/spanpool/a.go", `import "github.com/redis/rueidis"`},
		{"telemetry", "app/a_test.go", `import "go.opentelemetry.io/otel/metric"`},
		{"telemetry", "cmd/spanpool/a.go", `import "github.com/prometheus/client_golang/prometheus"`},
		{"device address", "adapters/tcp/a.go", `func f(a interface{ Raw() uint64 }) uint64 { return a.Raw() }`},
		{"device address", "bench/a_test.go", `func f(a interface{ Raw() uint64 }) func() uint64 { return a.Raw }`},
		{"unsafe", "adapters/dram/a.go", `import "unsafe"`},
		{"unsafe", "adapters/dram/unsafe.go", `import _ "unsafe"`},
		{"finalizers", "adapters/dram/a.go", `import "runtime"; func f(p *int) { runtime.SetFinalizer(p, nil) }`},
		{"exit", "bench/a.go", `import "os"; func f() { os.Exit(1) }`},
		{"exit", "app/a.go", `import "log"; func f() { log.Fatal(1) }`},
		{"logging", "adapters/tcp/a.go", `import "log/slog"`},
		{"init", "bench/a.go", `func init() {}`},
		{"package names", "bench/helpers/a.go", ``},
		{"package names", "bench/types/sub/a.go", ``},
		{"dot imports", "bench/a.go", `import . "fmt"`},
		{"todo", "bench/a.go", "// TODO: later\nvar x int"},
		{"todo", "bench/a.go", "// FIXME(x) y\nvar x int"},
	}
	seen := map[string]bool{}
	for _, f := range fixtures {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.name == f.rule })
		require.GreaterOrEqual(t, i, 0, "no rule %q", f.rule)
		seen[f.rule] = true
		require.NotEmpty(t, rules[i].faults(fixtureOf(t, f.path, f.src)), "%s: found nothing in %s: %s", f.rule, f.path, f.src)
	}
	for _, r := range rules {
		require.True(t, seen[r.name], "rule %q has no fixture", r.name)
		require.NotEmpty(t, r.reason, "rule %q has no reason", r.name)
	}
}

// TestRulesLeaveTheRestAlone holds what is allowed against all rules.
func TestRulesLeaveTheRestAlone(t *testing.T) {
	for _, f := range []struct{ path, src string }{
		{"domain/a.go", `import ("time"; "fmt"); var d time.Duration = time.Second; var _ = fmt.Errorf`},
		{"domain/a_test.go", `import ("pgregory.net/rapid"; "testing"; "time"; "sync"); var _ = time.Now`},
		{"domain/b.go", `import "github.com/spanpool/spanpool/crc32c"`},
		{"crc32c/a.go", `import ("hash/crc32"; "golang.org/x/sys/cpu")`},
		{"ports/a.go", `import ("context"; "sync"; "github.com/spanpool/spanpool/domain")`},
		{"ports/a_test.go", `func f(a interface{ Raw() uint64 }) uint64 { return a.Raw() }`},
		{"ports/porttest/a.go", `import ("testing"; "github.com/stretchr/testify/require"; "github.com/spanpool/spanpool/ports")`},
		{"app/a.go", `import ("log/slog"; "github.com/spanpool/spanpool/ports"; "github.com/spanpool/spanpool/domain")`},
		{"app/b.go", `import "github.com/spanpool/spanpool/crc32c"`},
		{"app/a_test.go", `import ("github.com/spanpool/spanpool/adapters/dram"; "github.com/spanpool/spanpool/mocks")`},
		{"adapters/tcp/a.go", `import ("net"; "os"; "github.com/spanpool/spanpool/adapters/tcp/internal/frame")`},
		{"adapters/tcp/a_test.go", `import ("github.com/spanpool/spanpool/adapters/tcp"; "github.com/spanpool/spanpool/ports/porttest")`},
		{"adapters/tcp/b.go", `import "github.com/spanpool/spanpool/crc32c"`},
		{"adapters/grpcpeer/a.go", `import "github.com/spanpool/spanpool/proto/spanpool/peer/v1"`},
		{"adapters/telemetry/a.go", `import ("go.opentelemetry.io/otel"; "github.com/spanpool/spanpool/ports")`},
		{"adapters/rdma/internal/verbs/a_unsafe.go", `import ("C"; "unsafe")`},
		{"adapters/rdma/a.go", `func f(a interface{ Raw() uint64 }) uint64 { return a.Raw() }`},
		{"adapters/dram/a_unsafe_linux.go", `import "unsafe"`},
		{"adapters/dram/a_unsafe_test.go", `import "unsafe"`},
		{"proto/a.pb.go", "// Code generated by protoc-gen-go. DO NOT EDIT.\n" + `import "unsafe"; func init() {}`},
		{"inject/a.go", "//go:build wireinject\n" + `import "github.com/google/wire"; func f() { wire.Build() }`},
		{"inject/b.go", `import ("github.com/spanpool/spanpool/app"; "github.com/spanpool/spanpool/adapters/dram")`},
		{"cmd/spanpool/a.go", `import ("os"; "go.uber.org/fx"; "github.com/spanpool/spanpool/inject"; "github.com/spanpool/spanpool/bench"); func main() { os.Exit(1) }`},
		{"bench/a.go", `import "github.com/spanpool/spanpool/inject"; type T struct{}; func (T) init() {}`},
		{"examples/embed/a_test.go", `import "github.com/spanpool/spanpool/inject"`},
		{"bench/b.go", "// TODO(pull): bound it by the link's rate, once that is measured\nvar x int"},
		{"bench/c.go", `import "fmt"; func f(os interface{ Exit(int) }) { os.Exit(1); fmt.Println() }`},
	} {
		for _, r := range rules {
			require.Empty(t, r.faults(fixtureOf(t, f.path, f.src)), "%s: %s", f.path, f.src)
		}
	}
}

func TestAPackageWithoutACommentIsFound(t *testing.T) {
	all := []*source{fixtureOf(t, "a/a.go", ""), fixtureOf(t, "a/b.go", ""), fixtureOf(t, "a/a_test.go", ""),
		fixtureOf(t, "b/a.go", "// Package b is commented.\npackage b"), fixtureOf(t, "b/b.go", "")}
	require.Equal(t, list{"a"}, uncommented(all))
}

// fixtureOf parses src at path, with a package clause where it has none.
func fixtureOf(t *testing.T, name, src string) *source {
	t.Helper()
	s, err := parse(name, withClause(name, src))
	require.NoError(t, err, src)
	return s
}

// withClause puts a package clause after the leading comments that belong before it.
func withClause(name, src string) string {
	if strings.Contains(src, "\npackage ") {
		return src
	}
	dir := strings.ReplaceAll(path.Base(path.Dir(name)), ".", "root")
	head, body, ok := strings.Cut(src, "\n")
	if ok && (strings.HasPrefix(head, "//go:build") || strings.Contains(head, "generated")) {
		return head + "\n\npackage " + dir + "\n" + body
	}
	return "package " + dir + "\n" + src
}
