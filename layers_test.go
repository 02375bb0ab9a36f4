package spanpool_test

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type list = []string

// rules is who may know whom and do what (docs/layers.md says it in words). Dependencies point inwards: domain <- ports <- app
// and adapters (neither knows the other) <- inject <- bench, cmd. crc32c is a leaf beside them.
var rules = []rule{
	// Layers.
	{name: "domain/layer", in: "domain/...", tests: true, find: imports(list{"./..."}, list{"./domain/...", "./crc32c"}),
		reason: "domain is the innermost layer"},
	{name: "domain/library", in: "domain/...", find: imports(list{thirdParty}, nil),
		reason: "domain is the standard library and rules"},
	{name: "domain/outside", in: "domain/...", find: imports(list{"os/...", "io/fs", "net/...", "syscall", "unsafe", "C", "log/...", "context"}, nil),
		reason: "domain does no I/O and reads no memory by address; plans are values that the caller carries out"},
	{name: "domain/lock", in: "domain/...", find: all(imports(list{"sync/..."}, nil), goStatements),
		reason: "domain has no goroutine and no lock: its callers serialise"},
	{name: "domain/clock", in: "domain/...", find: uses("time", "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"),
		reason: "now is an argument"},
	{name: "domain/random", in: "domain/...", find: imports(list{"math/rand/...", "crypto/rand"}, nil),
		reason: "a rule that draws cannot be checked by an oracle"},
	{name: "crc32c/layer", in: "crc32c", tests: true, find: imports(list{"./..."}, nil),
		reason: "crc32c is a leaf, which is why every layer may use it"},
	{name: "crc32c/library", in: "crc32c", find: imports(list{thirdParty}, list{"golang.org/x/sys/cpu"}),
		reason: "domain uses it: the standard library, and what the processor can"},
	{name: "ports/layer", in: "ports", find: imports(list{"./...", thirdParty}, list{"./domain"}),
		reason: "ports know domain only"},
	{name: "ports/outside", in: "ports", find: imports(list{"os/...", "net/...", "syscall", "unsafe", "C", "log/..."}, nil),
		reason: "a port is an interface; what it needs of the system is an adapter's"},
	{name: "ports/plain", in: "ports", find: imports(list{"iter"}, nil),
		reason: "mockgen does not read generic types in signatures"},
	{name: "porttest/layer", in: "ports/porttest/...", tests: true, find: imports(list{"./..."}, list{"./ports/...", "./domain", "./mocks"}),
		reason: "a contract suite knows no adapter: every adapter runs it"},
	{name: "app/layer", in: "app/...", find: imports(list{"./..."}, list{"./app/...", "./ports", "./domain", "./crc32c"}),
		reason: "app knows ports and domain; adapters reach it by app.New"},
	{name: "app/library", in: "app/...", find: imports(list{thirdParty}, nil),
		reason: "what app needs of a library is a port"},
	{name: "app/outside", in: "app/...", find: imports(list{"os/...", "net/...", "syscall", "unsafe", "C"}, nil),
		reason: "app touches the system by its ports only"},
	{name: "adapters/layer", in: "adapters/...", find: imports(list{"./..."}, list{"./ports", "./domain", "./crc32c", "./adapters/self/...", "./adapters/internal/...", "./proto/..."}),
		reason: "an adapter knows ports and domain, and no other adapter"},
	{name: "adapters/testlayer", in: "adapters/...", tests: true,
		find:   imports(list{"./..."}, list{"./ports/...", "./domain", "./crc32c", "./adapters/self/...", "./adapters/internal/...", "./proto/...", "./mocks"}),
		reason: "an adapter's tests are the contract suite and its own"},
	{name: "inject/callers", in: "...", except: list{"inject", "cmd/...", "bench/...", "examples/..."}, tests: true, find: imports(list{"./inject"}, nil),
		reason: "only what is on top composes nodes"},
	{name: "cmd/callers", in: "...", except: list{"cmd/..."}, tests: true, find: imports(list{"./cmd/..."}, nil),
		reason: "cmd is on top"},
	{name: "bench/callers", in: "...", except: list{"cmd/...", "bench/..."}, tests: true, find: imports(list{"./bench/..."}, nil),
		reason: "comparison modes and workloads are no part of a node"},
	{name: "e2e/layer", in: "e2e/...", tests: true, find: imports(list{"./..."}, list{"./e2e/...", "./proto/...", "./client"}),
		reason: "e2e speaks to real binaries from outside"},
	{name: "client/layer", in: "client/...", tests: true, find: imports(list{"./..."}, list{"./client/...", "./proto/..."}),
		reason: "a client is another program: it knows the protocol and nothing of the node"},
	{name: "mocks/callers", in: "...", except: list{"mocks"}, find: imports(list{"./mocks", "github.com/golang/mock/..."}, nil),
		reason: "mocks are for tests"},
	{name: "testing/callers", in: "...", except: list{"ports/porttest/..."}, find: imports(list{"testing/...", "github.com/stretchr/testify/...", "pgregory.net/rapid", "go.uber.org/goleak"}, nil),
		reason: "production code carries no test library"},

	// Libraries.
	{name: "fx", in: "...", except: list{"cmd/..."}, tests: true, find: imports(list{"go.uber.org/fx/...", "go.uber.org/dig/..."}, nil),
		reason: "fx runs the daemon; an embedded node has no container at run time"},
	{name: "wire", in: "...", tests: true, find: wireOutsideInjector,
		reason: "wire is for injector files: in inject, behind the build tag wireinject"},
	{name: "wire/injectors", in: "inject", find: injectorFileHoldsMore,
		reason: "an injector file holds injectors only: wire reads it with its own loader"},
	{name: "configuration", in: "...", except: list{"cmd/...", "ports/porttest"},
		find:   all(imports(list{"flag", "github.com/spf13/...", "github.com/knadh/..."}, nil), uses("os", "Getenv", "LookupEnv", "Environ", "Args")),
		reason: "configuration is read in cmd and handed down as values"},
	{name: "cgo", in: "...", except: list{"adapters/*/internal/..."}, find: imports(list{"C"}, nil),
		reason: "C is kept in one dull package of the adapter that needs it"},
	{name: "purego", in: "...", except: list{"adapters/hip/..."}, tests: true, find: imports(list{"github.com/ebitengine/purego/..."}, nil),
		reason: "purego makes a static binary dynamic: only the GPU's adapter, behind its build tag, has it"},
	{name: "redis", in: "...", except: list{"adapters/redis/..."}, tests: true, find: imports(list{"github.com/redis/...", "github.com/valkey-io/..."}, nil),
		reason: "the directory's server is its adapter's affair"},
	{name: "telemetry", in: "...", except: list{"adapters/telemetry/..."}, tests: true,
		find:   imports(list{"go.opentelemetry.io/...", "github.com/prometheus/..."}, nil),
		reason: "what is counted is ports.Stats; how it is shown is one adapter's affair"},

	// Memory.
	{name: "device address", in: "...", except: list{"ports", "adapters/hip/...", "adapters/rdma/..."}, tests: true, find: rawAddress,
		reason: "a device's address goes to a driver and nowhere else"},
	{name: "unsafe", in: "...", tests: true, find: unsafeInOtherFile,
		reason: "code that goes around the type system is found by its file's name: x_unsafe.go, x_unsafe_linux.go, x_unsafe_test.go"},
	{name: "finalizers", in: "...", find: uses("runtime", "SetFinalizer"),
		reason: "resources come back by Close; AddCleanup reports leaks"},

	// Program.
	{name: "exit", in: "...", except: list{"cmd/..."}, find: all(uses("os", "Exit"), uses("log", "Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln")),
		reason: "a library returns errors; the one exit is main's"},
	{name: "logging", in: "...", except: list{"cmd/...", "app/..."}, find: imports(list{"log/..."}, nil),
		reason: "only app and cmd log; a library returns what it has to say"},
	{name: "init", in: "...", tests: true, find: initFunctions,
		reason: "nothing happens by importing"},
	{name: "package names", in: "...", tests: true, find: vaguePackages,
		reason: "a package is named for what it provides"},
	{name: "dot imports", in: "...", tests: true, find: dotImports,
		reason: "a name says where it comes from, here and to these rules"},
	{name: "todo", in: "...", tests: true, find: vagueTodos,
		reason: "TODO(topic) with a reason, or none"},
}

func TestSourcesKeepTheRules(t *testing.T) {
	for _, s := range sources(t) {
		for i := range rules {
			for _, f := range rules[i].faults(s) {
				t.Error(f)
			}
		}
	}
}

// TestEveryPackageHasAComment looks at packages, not at files: one comment is enough.
func TestEveryPackageHasAComment(t *testing.T) {
	require.Empty(t, uncommented(sources(t)), "packages without a comment that says what they are for")
}

func uncommented(all []*source) []string {
	has := map[string]bool{}
	for _, s := range all {
		if !s.test() && s.dir() != "mocks" {
			has[s.dir()] = has[s.dir()] || s.file.Doc != nil
		}
	}
	var out []string
	for dir, ok := range has {
		if !ok {
			out = append(out, dir)
		}
	}
	slices.Sort(out)
	return out
}

func TestTheOnlyExitIsMains(t *testing.T) {
	var exits []string
	for _, s := range sources(t) {
		if !s.test() && len(uses("os", "Exit")(s)) > 0 {
			exits = append(exits, s.path)
		}
	}
	require.LessOrEqual(t, len(exits), 1, "files that exit: %v", exits)
}

func goStatements(s *source) []found {
	return inspect(s, func(n ast.Node) string {
		if _, ok := n.(*ast.GoStmt); ok {
			return "go statement"
		}
		return ""
	})
}

func importsPath(s *source, path string) bool {
	return slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool { return importPath(i) == path })
}

const wirePath = "github.com/google/wire"

// injector reports whether a file is wire's: behind its build tag.
func injector(s *source) bool {
	for _, g := range s.file.Comments {
		for _, c := range g.List {
			if c.Text == "//go:build wireinject" {
				return true
			}
		}
	}
	return false
}

func wireOutsideInjector(s *source) []found {
	if importsPath(s, wirePath) && (s.dir() != "inject" || !injector(s)) {
		return []found{{s.file.Package, "import of " + wirePath}}
	}
	return nil
}

// injectorFileHoldsMore finds declarations of an injector file that are neither imports nor functions that call wire.Build.
func injectorFileHoldsMore(s *source) []found {
	if !injector(s) {
		return nil
	}
	var out []found
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if g, gen := d.(*ast.GenDecl); gen && g.Tok.String() == "import" {
			continue
		}
		if !ok || f.Recv != nil || !callsBuild(s, f) {
			out = append(out, found{d.Pos(), "declaration that is no injector"})
		}
	}
	return out
}

func callsBuild(s *source, f *ast.FuncDecl) bool {
	calls := uses(wirePath, "Build")(s)
	return slices.ContainsFunc(calls, func(c found) bool { return f.Pos() <= c.pos && c.pos < f.End() })
}

// rawAddress finds calls of a method Raw without arguments, whatever its receiver is: nothing else here has such a method.
func rawAddress(s *source) []found {
	return inspect(s, func(n ast.Node) string {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Raw" {
			return "use of DevAddr.Raw"
		}
		return ""
	})
}

var unsafeFile = regexp.MustCompile(`_unsafe(_[a-z0-9]+)*\.go$`)

func unsafeInOtherFile(s *source) []found {
	if importsPath(s, "unsafe") && !unsafeFile.MatchString(s.path) && !s.generated() {
		return []found{{s.file.Package, "import of unsafe"}}
	}
	return nil
}

func initFunctions(s *source) []found {
	if s.generated() {
		return nil
	}
	return inspect(s, func(n ast.Node) string {
		if f, ok := n.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			return "init function"
		}
		return ""
	})
}

var vaguePackage = regexp.MustCompile(`^(utils?|commons?|helpers?|types?|models?|impls?|misc|base|shared)(_test)?$`)

func vaguePackages(s *source) []found {
	if vaguePackage.MatchString(s.file.Name.Name) || slices.ContainsFunc(strings.Split(s.dir(), "/"), vaguePackage.MatchString) {
		return []found{{s.file.Package, "package " + s.file.Name.Name + " in " + s.dir()}}
	}
	return nil
}

func dotImports(s *source) []found {
	return inspect(s, func(n ast.Node) string {
		if i, ok := n.(*ast.ImportSpec); ok && i.Name != nil && i.Name.Name == "." {
			return "dot import of " + importPath(i)
		}
		return ""
	})
}

var todo = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)
var todoWithTopic = regexp.MustCompile(`\bTODO\([a-z0-9 /_-]+\):? \S`)

func vagueTodos(s *source) []found {
	return inspect(s, func(n ast.Node) string {
		if c, ok := n.(*ast.Comment); ok && todo.MatchString(c.Text) && !todoWithTopic.MatchString(c.Text) {
			return c.Text
		}
		return ""
	})
}
