package spanpool_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/spanpool/spanpool"

// source is one Go file, parsed whatever its build constraints are, so that a rule holds for files of every system.
type source struct {
	path string // slashes, from the module's root
	fset *token.FileSet
	file *ast.File
}

func (s *source) dir() string     { return path.Dir(s.path) }
func (s *source) test() bool      { return strings.HasSuffix(s.path, "_test.go") }
func (s *source) generated() bool { return ast.IsGenerated(s.file) }

func parse(name string, src any) (*source, error) {
	s := &source{path: name, fset: token.NewFileSet()}
	var err error
	s.file, err = parser.ParseFile(s.fset, name, src, parser.ParseComments)
	return s, err
}

// sources is every Go file of the module.
func sources(t *testing.T) []*source {
	t.Helper()
	var all []*source
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(name), b)
		all = append(all, s)
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

// found is one place where a file does what a rule forbids.
type found struct {
	pos  token.Pos
	what string
}

// finder lists these places.
type finder func(s *source) []found

// rule forbids what find finds in the folders that in names and except does not. A file of tests is left out unless tests says
// so.
type rule struct {
	name   string
	in     string
	except []string
	tests  bool
	find   finder
	reason string
}

func (r *rule) faults(s *source) []string {
	if s.test() && !r.tests || !under(r.in, s.dir()) {
		return nil
	}
	for _, e := range r.except {
		if under(e, s.dir()) {
			return nil
		}
	}
	var out []string
	for _, f := range r.find(s) {
		out = append(out, fmt.Sprintf("%s: %s: %s: %s", s.fset.Position(f.pos), r.name, f.what, r.reason))
	}
	return out
}

// under reports whether a path is named by a pattern: "a/b" is that path, "a/b/..." also what is below it, "..." is every
// path, and an element "*" is any one element.
func under(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	want, deep := strings.CutSuffix(pattern, "/...")
	w, n := strings.Split(want, "/"), strings.Split(name, "/")
	if len(n) < len(w) || len(n) > len(w) && !deep {
		return false
	}
	for i := range w {
		if w[i] != "*" && w[i] != n[i] {
			return false
		}
	}
	return true
}

// thirdParty stands for every import path that is neither of this module nor of the standard library.
const thirdParty = "third party"

// names reports whether a pattern names an import path. "./x" is of this module; "./adapters/self/..." is the importing
// adapter.
func names(pattern, importPath, dir string) bool {
	if pattern == thirdParty {
		first, _, _ := strings.Cut(importPath, "/")
		return strings.Contains(first, ".") && !under(module+"/...", importPath)
	}
	if rest, ok := strings.CutPrefix(pattern, "./"); ok {
		if e := strings.Split(dir, "/"); e[0] == "adapters" && len(e) > 1 {
			rest = strings.Replace(rest, "adapters/self", "adapters/"+e[1], 1)
		}
		pattern = module + "/" + rest
	}
	return under(pattern, importPath)
}

// imports finds imports by pattern, but for those that allowed names.
func imports(forbidden, allowed []string) finder {
	return func(s *source) []found {
		var out []found
		for _, spec := range s.file.Imports {
			p := importPath(spec)
			in := func(patterns []string) bool {
				for _, pattern := range patterns {
					if names(pattern, p, s.dir()) {
						return true
					}
				}
				return false
			}
			if in(forbidden) && !in(allowed) {
				out = append(out, found{spec.Pos(), "import of " + p})
			}
		}
		return out
	}
}

func importPath(spec *ast.ImportSpec) string {
	p, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
	return p
}

// uses finds uses of names of a package, whatever the file calls it.
func uses(pkg string, forbidden ...string) finder {
	return func(s *source) []found {
		local := localName(s, pkg)
		return inspect(s, func(n ast.Node) string {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return ""
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok || x.Name != local || x.Obj != nil { // Obj is set when a variable hides the package
				return ""
			}
			for _, f := range forbidden {
				if f == sel.Sel.Name || f == "*" {
					return "use of " + pkg + "." + sel.Sel.Name
				}
			}
			return ""
		})
	}
}

// localName is what a file calls a package, or "" when it does not import it.
func localName(s *source, pkg string) string {
	for _, spec := range s.file.Imports {
		switch {
		case importPath(spec) != pkg:
		case spec.Name != nil:
			return spec.Name.Name
		default:
			return path.Base(pkg)
		}
	}
	return ""
}

// inspect finds the nodes for which what is not "".
func inspect(s *source, what func(ast.Node) string) []found {
	var out []found
	ast.Inspect(s.file, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		if w := what(n); w != "" {
			out = append(out, found{n.Pos(), w})
		}
		return true
	})
	return out
}

// all joins finders.
func all(finders ...finder) finder {
	return func(s *source) []found {
		var out []found
		for _, f := range finders {
			out = append(out, f(s)...)
		}
		return out
	}
}
