package spanpool_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// sleeps are the files that may call time.Sleep, each with its reason. A test that sleeps to let another goroutine get somewhere
// passes on a quiet machine and proves nothing on a busy one: wait for the thing itself, or run in a synctest bubble, where
// sleeping is virtual (calls inside of the function that is passed to synctest.Test or rapid.SyncTest are left out).
var sleeps = map[string]string{
	"app/model_world_test.go":        "virtual: the model's worlds live in bubbles",
	"adapters/inproc/pacer_other.go": "the modelled link's pace, where there is no clock_nanosleep",
	"bench/compute_other.go":         "the modelled compute, where there is no clock_nanosleep",
}

func TestNothingWaitsBySleeping(t *testing.T) {
	for _, s := range sources(t) {
		at := sleepCalls(s)
		if sleeps[s.path] != "" {
			require.NotEmpty(t, at, "%s is in the list of sleeps and sleeps no more", s.path)
			continue
		}
		for _, f := range at {
			t.Errorf("%s: %s: wait for the thing itself", s.fset.Position(f.pos), f.what)
		}
	}
}

// sleepCalls finds uses of time.Sleep outside of bubbles.
func sleepCalls(s *source) []found {
	inBubble := bubbles(s)
	var out []found
	for _, f := range uses("time", "Sleep")(s) {
		if !inside(inBubble, f.pos) {
			out = append(out, f)
		}
	}
	return out
}

func inside(nodes []ast.Node, pos token.Pos) bool {
	return slices.ContainsFunc(nodes, func(n ast.Node) bool { return n.Pos() <= pos && pos < n.End() })
}

// bubbles are the parts of a file that run in virtual time: calls of synctest.Test and of the file's functions that call it for
// a function that they are given, and functions that are named in such parts only.
func bubbles(s *source) []ast.Node {
	starts := map[token.Pos]bool{}
	for _, f := range all(uses("testing/synctest", "Test"), uses("pgregory.net/rapid", "SyncTest"))(s) {
		starts[f.pos] = true
	}
	var out []ast.Node
	funcs, named := functions(s.file)
	for name, f := range funcs {
		for start := range starts {
			if f.Pos() <= start && start < f.End() {
				for _, at := range named[name] {
					starts[at] = true
				}
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok && starts[c.Pos()] {
			out = append(out, c)
		}
		return true
	})
	for name, f := range funcs {
		outside := slices.ContainsFunc(named[name], func(at token.Pos) bool { return !inside(out, at) })
		if len(named[name]) > 0 && !outside {
			out = append(out, f)
		}
	}
	return out
}

// functions is the functions of a file by name, and where each is named but for its declaration.
func functions(file *ast.File) (map[string]*ast.FuncDecl, map[string][]token.Pos) {
	funcs, named := map[string]*ast.FuncDecl{}, map[string][]token.Pos{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			funcs[f.Name.Name] = f
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		i, ok := n.(*ast.Ident)
		if !ok || i.Obj == nil || funcs[i.Name] == nil || i == funcs[i.Name].Name {
			return true
		}
		if i.Obj.Decl == funcs[i.Name] { // and not a variable of that name
			named[i.Name] = append(named[i.Name], i.Pos())
		}
		return true
	})
	return funcs, named
}

func TestSleepsAreFound(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      int
	}{
		{"plain", `package a; import "time"; func f() { time.Sleep(1) }`, 1},
		{"renamed", `package a; import clock "time"; func f() { clock.Sleep(1) }`, 1},
		{"as a value", `package a; import "time"; var nap = time.Sleep`, 1},
		{"in a bubble", `package a; import ("testing/synctest"; "time"); func f(t *T) { synctest.Test(t, func(*T) { time.Sleep(1) }) }`, 0},
		{"after a bubble", `package a; import ("testing/synctest"; "time"); func f(t *T) { synctest.Test(t, func(*T) {}); time.Sleep(1) }`, 1},
		{"in a function that is called in a bubble", `package a; import ("testing/synctest"; "time"); func f(t *T) { synctest.Test(t, func(*T) { g() }) }; func g() { time.Sleep(1) }`, 0},
		{"in one that is called elsewhere too", `package a; import ("testing/synctest"; "time"); func f(t *T) { g(); synctest.Test(t, func(*T) { g() }) }; func g() { time.Sleep(1) }`, 1},
		{"by a helper", `package a; import ("testing/synctest"; "time"); func in(t *T, f func()) { synctest.Test(t, func(*T) { f() }) }; func f(t *T) { in(t, func() { time.Sleep(1) }) }`, 0},
		{"after a helper", `package a; import ("testing/synctest"; "time"); func in(t *T, f func()) { synctest.Test(t, func(*T) { f() }) }; func f(t *T) { in(t, nil); time.Sleep(1) }`, 1},
		{"another Sleep", `package a; import "b/time2"; func f() { time2.Sleep(1) }`, 0},
		{"a variable called time", `package a; import "time"; var _ time.Duration; func f(time interface{ Sleep(int) }) { time.Sleep(1) }`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parse("a/a_test.go", tt.src)
			require.NoError(t, err)
			require.Len(t, sleepCalls(s), tt.want, fmt.Sprint(sleepCalls(s)))
		})
	}
}
