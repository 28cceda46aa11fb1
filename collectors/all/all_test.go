package all_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// parse returns the files of a package's directory, without tests.
func parse(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	names := fixture.Value(filepath.Glob(filepath.Join(dir, "*.go")))(t)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f := fixture.Value(parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution))(t)
		files = append(files, f)
	}
	return files
}

// imports reports whether one of files imports path.
func imports(files []*ast.File, path string) bool {
	for _, f := range files {
		for _, i := range f.Imports {
			if i.Path.Value == strconv.Quote(path) {
				return true
			}
		}
	}
	return false
}

// registers reports whether one of files registers a collector.
func registers(files []*ast.File) (yes bool) {
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			s, is := n.(*ast.SelectorExpr)
			if is && s.Sel.Name == "Register" {
				x, named := s.X.(*ast.Ident)
				yes = yes || named && x.Name == "collectors"
			}
			return true
		})
	}
	return yes
}

// TestEveryCollectorIsLinked checks that the agent links this package, and that
// this package links each package that registers a collector.
func TestEveryCollectorIsLinked(t *testing.T) {
	fixture.If(t, !imports(parse(t, "../../internal/agent"), "gpusteward/collectors/all"),
		"internal/agent does not import collectors/all: its program has no collectors")
	all, found := parse(t, "."), 0
	dirs := fixture.Value(filepath.Glob("../*"))(t)
	for _, dir := range dirs {
		if !registers(parse(t, dir)) {
			continue
		}
		found++
		path := "gpusteward/collectors/" + filepath.Base(dir)
		fixture.If(t, !imports(all, path), "%s registers collectors, and all.go does not import it", path)
	}
	fixture.AtLeast(t, found, 5, "only … packages register collectors")
}
