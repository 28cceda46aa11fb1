package integration

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// routers are the functions that register endpoints. TestAPIReference finds a router elsewhere.
var routers = map[string][]string{
	"exporter/exporter.go":    {"New"},
	"internal/agent/fleet.go": {"handler"},
}

// startOf returns the string of an expression, or the string that begins it.
func startOf(e ast.Expr) (text string, whole bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		text, _ := startOf(e.X)
		return text, false
	}
	return "", false
}

// routes returns the patterns that a file registers in one of the functions. A
// pattern that ends in a variable counts with the part before it, a path.
func routes(t *testing.T, file string, f *ast.File, functions []string) (all []string) {
	t.Helper()
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); !ok || !slices.Contains(functions, fn.Name.Name) {
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			to, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || to.Sel.Name != "Handle" && to.Sel.Name != "HandleFunc" {
				return true
			}
			pattern, whole := startOf(call.Args[0])
			fixture.If(t, !whole && !strings.HasSuffix(pattern, "/"),
				"%s: the path of a route is not written there: it begins with %q", file, pattern)
			all = append(all, pattern)
			return true
		})
	}
	return all
}

// orders returns the orders of the control socket: the keys of maps to actions.
func orders(f *ast.File) (all []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		m, ok := literal.Type.(*ast.MapType)
		if !ok {
			return true
		}
		if of, ok := m.Value.(*ast.SelectorExpr); ok && of.Sel.Name == "Action" {
			for _, e := range literal.Elts {
				name, _ := startOf(e.(*ast.KeyValueExpr).Key)
				all = append(all, "POST /"+name)
			}
		}
		return true
	})
	return all
}

// endpoint is a row of docs/api.md.
var endpoint = regexp.MustCompile("(?m)^\\| `((?:GET |POST )?/[^`]*)` \\|")

// TestAPIReference: docs/api.md has each endpoint and no other.
func TestAPIReference(t *testing.T) {
	t.Parallel()
	var registered []string
	for path, f := range sources(t) {
		functions, known := routers[path]
		makes := false
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			makes = makes || ok && s.Sel.Name == "NewServeMux"
			return true
		})
		fixture.If(t, makes != known && !strings.HasPrefix(path, "deploy/"),
			"%s makes a router: %v, and routers has it: %v", path, makes, known)
		registered = append(registered, routes(t, path, f, functions)...)
		if filepath.Dir(path) == "internal/agent" {
			registered = append(registered, orders(f)...)
		}
	}
	fixture.Stop(t, len(registered) < 20,
		"%d endpoints, want more: are they found? %q", len(registered), registered)
	var told []string
	for _, row := range endpoint.FindAllStringSubmatch(documents(t)["docs/api.md"], -1) {
		told = append(told, row[1])
	}
	slices.Sort(told)
	slices.Sort(registered)
	fixture.EqualSlices(t, told, slices.Compact(registered), "the endpoints of docs/api.md")
}

// keysOf returns the keys of the map in a variable of a file.
func keysOf(f *ast.File, variable string) (all []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != variable {
			return true
		}
		for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
			key, _ := startOf(e.(*ast.KeyValueExpr).Key)
			all = append(all, key)
		}
		return false
	})
	return all
}

// TestAPIParameters: docs/api.md has each parameter of /api/v1/events, each
// kind and class that it takes, and no other parameter.
func TestAPIParameters(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(documents(t)["docs/api.md"], "| parameter | selects |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var told []string
	for line := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		for _, name := range codeSpan.FindAllString(names, -1) {
			told = append(told, strings.Trim(name, "`"))
		}
	}
	takes := append(keysOf(sources(t)["health/journal/filter.go"], "parameters"), "follow")
	if slices.Sort(told); !slices.Equal(told, slices.Sorted(slices.Values(takes))) || len(takes) < 8 {
		t.Errorf("docs/api.md has the parameters %q, want %q", told, takes)
	}
	values := []string{string(incident.KindIncident), string(incident.KindTransition), string(incident.KindAck),
		string(incident.KindAgent), string(incident.KindEnforcement), string(incident.KindCrash)}
	for _, class := range incident.Classes {
		values = append(values, string(class))
	}
	for _, v := range values {
		fixture.Contains(t, table, "`"+v+"`", "docs/api.md does not have %s among the values of parameters", v)
	}
}
