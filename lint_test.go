package spanpool_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

// sleeps are the files that may call time.Sleep, each with its reason. A test that sleeps to let another goroutine get somewhere
// passes on a quiet machine and proves nothing on a busy one: wait for the thing itself, or run in a synctest bubble, where
// sleeping is virtual (calls inside of the function that is passed to synctest.Test or rapid.SyncTest are left out).
var sleeps = map[string]string{
	"adapters/inproc/pacer_other.go": "the modelled link's pace, where there is no clock_nanosleep",
	"bench/compute_other.go":         "the modelled compute, where there is no clock_nanosleep",
}

func TestNothingWaitsBySleeping(t *testing.T) {
	unused := map[string]bool{}
	for path := range sleeps {
		unused[path] = true
	}
	for _, s := range sources(t) {
		at := sleepCalls(s)
		if len(at) > 0 && sleeps[s.path] != "" {
			delete(unused, s.path)
			continue
		}
		for _, f := range at {
			t.Errorf("%s: %s: wait for the thing itself", s.fset.Position(f.pos), f.what)
		}
	}
	require.Empty(t, unused, "files in the list of sleeps that sleep no more")
}

// sleepCalls finds uses of time.Sleep outside of bubbles.
func sleepCalls(s *source) []found {
	var out []found
	bubbles := bubbles(s)
	for _, f := range uses("time", "Sleep")(s) {
		inside := false
		for _, b := range bubbles {
			inside = inside || b.Pos() <= f.pos && f.pos < b.End()
		}
		if !inside {
			out = append(out, f)
		}
	}
	return out
}

// bubbles are the calls whose function runs in virtual time.
func bubbles(s *source) []ast.Node {
	starts := map[token.Pos]bool{}
	for _, f := range all(uses("testing/synctest", "Test"), uses("pgregory.net/rapid", "SyncTest"))(s) {
		starts[f.pos] = true
	}
	var out []ast.Node
	ast.Inspect(s.file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok && starts[c.Pos()] {
			out = append(out, c)
		}
		return true
	})
	return out
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
