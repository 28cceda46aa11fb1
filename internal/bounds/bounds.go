// Package bounds has the table of what the programs take at most. A row names
// the constants that hold each bound, and their values are read from the source
// code: no number is written twice. The table of docs/operations.md and the limits
// of the systemd units follow from the rows.
package bounds

import (
	_ "embed"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"math/bits"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed bounds.tsv
var rows string

// module is the path that our packages begin with.
const module = "gpusteward/"

// A Bound is a row of the table.
type Bound struct {
	Program string // observer, broker, or both
	What    string
	Of      string            // whom it holds for: a process, a host
	Unit    string            // count, bytes, ms
	Value   uint64            // in the unit
	By      string            // the constants: enforcer/broker.maxSessions
	Then    string            // what happens beyond it
	Takes   map[string]uint64 // what each of it takes of Limits
}

// Read reads the table of a source tree.
func Read(root string) (all []Bound, err error) {
	s := source{root: root, files: token.NewFileSet(), read: map[string]*types.Package{}}
	if build.Default.GOROOT == "" { // this program was built with -trimpath
		out, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return nil, fmt.Errorf("find Go's library: %w", err)
		}
		build.Default.GOROOT = strings.TrimSpace(string(out))
	}
	s.library = importer.ForCompiler(s.files, "source", nil)
	for n, line := range strings.Split(strings.TrimSpace(rows), "\n") {
		if n == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		c := strings.Split(line, "\t")
		if len(c) != 7 {
			return nil, fmt.Errorf("bounds.tsv:%d: %d columns, not 7", n+1, len(c))
		}
		b := Bound{Program: c[0], What: c[1], Of: c[2], Unit: c[3], By: c[4], Then: c[5], Takes: map[string]uint64{}}
		if b.Value, err = s.value(b.By, b.Unit); err != nil {
			return nil, fmt.Errorf("bounds.tsv:%d: %w", n+1, err)
		}
		for _, one := range strings.Fields(c[6]) {
			key, each, _ := strings.Cut(one, "=")
			if b.Takes[key], err = s.value(each, "count"); err != nil {
				return nil, fmt.Errorf("bounds.tsv:%d: %w", n+1, err)
			}
		}
		all = append(all, b)
	}
	return all, nil
}

// Table returns the table as Markdown.
func Table(all []Bound) string {
	var b strings.Builder
	b.WriteString("| what | of | bound | constant | beyond it |\n|---|---|---|---|---|\n")
	for _, r := range all {
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` | %s |\n", r.What, r.Of, r.text(), directories.ReplaceAllString(r.By, ""), r.Then)
	}
	return b.String()
}

var directories = regexp.MustCompile(`[a-z]+/`)

// text returns the value with its unit.
func (b Bound) text() string {
	n := b.Value
	switch b.Unit {
	case "ms":
		if n%1000 == 0 {
			return fmt.Sprintf("%d s", n/1000)
		}
		return fmt.Sprintf("%d ms", n)
	case "bytes":
		for _, unit := range []string{"bytes", "KiB", "MiB", "GiB"} {
			if n%1024 != 0 || n == 0 || unit == "GiB" {
				return fmt.Sprintf("%d %s", n, unit)
			}
			n /= 1024
		}
	}
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && n > 9999; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// Limits are the keys of the units that follow from the table.
var Limits = []string{"LimitNOFILE", "MemoryMax", "TasksMax"}

// Limit returns a limit of a program's unit: twice the sum of what its bounds
// take, up to the next power of two.
func Limit(all []Bound, program, key string) uint64 {
	sum := uint64(0)
	for _, b := range all {
		if b.Program == program || b.Program == "both" {
			sum += b.Value * b.Takes[key]
		}
	}
	return 1 << bits.Len64(2*sum-1)
}

// Unit returns the text of a program's unit with its limits.
func Unit(all []Bound, program, text string) string {
	for _, key := range Limits {
		n := Limit(all, program, key)
		value := fmt.Sprint(n)
		switch {
		case key == "MemoryMax" && n%(1<<30) == 0:
			value = fmt.Sprintf("%dG", n>>30)
		case key == "MemoryMax":
			value = fmt.Sprintf("%dM", n>>20)
		}
		text = regexp.MustCompile(`(?m)^`+key+`=.*$`).ReplaceAllString(text, key+"="+value)
	}
	return text
}

// A source is a tree of packages, of which it reads the constants.
type source struct {
	root    string
	files   *token.FileSet
	read    map[string]*types.Package
	library types.Importer
}

// Import reads a package without its functions. Constants need no other modules.
func (s source) Import(path string) (*types.Package, error) {
	dir, ours := strings.CutPrefix(path, module)
	if path == "time" || path == "math" {
		return s.library.Import(path)
	}
	if !ours {
		return nil, errors.New("no constant follows from it")
	}
	if p := s.read[dir]; p != nil {
		return p, nil
	}
	found, err := build.ImportDir(filepath.Join(s.root, dir), 0)
	if err != nil {
		return nil, err
	}
	var parsed []*ast.File
	for _, name := range append(found.GoFiles, found.CgoFiles...) {
		file, err := parser.ParseFile(s.files, filepath.Join(found.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, file)
	}
	c := types.Config{Importer: s, IgnoreFuncBodies: true, FakeImportC: true, Error: func(error) {}}
	p, _ := c.Check(path, s.files, parsed, nil) // without other modules it has errors
	s.read[dir] = p
	return p, nil
}

var named = regexp.MustCompile(`([a-z][a-z/]*)\.([A-Za-z]\w*)`)

// value returns the value of an expression over constants, in a unit.
func (s source) value(expression, unit string) (value uint64, err error) {
	numbers := named.ReplaceAllStringFunc(expression, func(name string) string {
		m := named.FindStringSubmatch(name)
		p, failed := s.Import(module + m[1])
		if failed != nil {
			err = failed
			return "0"
		}
		c, is := p.Scope().Lookup(m[2]).(*types.Const)
		if !is || c.Val().Kind() == constant.Unknown {
			err = fmt.Errorf("%s is no constant", name)
			return "0"
		}
		return c.Val().ExactString()
	})
	if err != nil {
		return 0, err
	}
	if unit == "ms" {
		numbers = "(" + numbers + ")/1000000" // of a time.Duration
	}
	v, err := types.Eval(s.files, nil, token.NoPos, numbers)
	if err != nil {
		return 0, err
	}
	whole, exact := constant.Uint64Val(constant.ToInt(v.Value))
	if !exact {
		return 0, fmt.Errorf("%s is %s", expression, v.Value)
	}
	return whole, nil
}
