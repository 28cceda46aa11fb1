package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A choice is a test binary with many mutants. The environment selects one of them. This saves
// time, because compiling takes longer than most tests.
type choice struct {
	bin      string
	misspelt map[int]bool // mutants that do not compile
}

// chosen is the variable, in the environment and in the package, with the number of the selected
// mutant plus one.
const chosen = "MUTATE_MUTANT"

// A place is code that can occur twice in one file: the body of a function, or a composite
// literal in a package-level declaration.
type place struct {
	start, end int    // of the code
	gives      string // the type of its value
	literal    bool
}

// enter records the outermost place around n.
func (f *finder) enter(n ast.Node) {
	var p place
	body := func(t *ast.FuncType, b *ast.BlockStmt) {
		if p = (place{f.file.Offset(b.Lbrace) + 1, f.file.Offset(b.Rbrace), "", false}); t.Results != nil {
			p.gives = f.text(t.Results)
		}
	}
	literal := func(n ast.Node, pointer string, l *ast.CompositeLit) {
		if a, ok := l.Type.(*ast.ArrayType); l.Type == nil || ok && a.Len != nil || !f.data {
			return // an array may count its elements
		}
		p = place{f.file.Offset(n.Pos()), f.file.Offset(n.End()), pointer + f.text(l.Type), true}
	}
	if n == nil || f.file.Offset(n.Pos()) < f.place.end {
		return
	}
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Body != nil {
			body(n.Type, n.Body)
		}
	case *ast.FuncLit:
		body(n.Type, n.Body)
	case *ast.UnaryExpr:
		if l, ok := n.X.(*ast.CompositeLit); ok && n.Op == token.AND {
			literal(n, "*", l)
		}
	case *ast.CompositeLit:
		literal(n, "", n)
	}
	if p.end > 0 {
		f.place = p
	}
}

// call returns code with the value of the place if its code were code.
func (p place) call(code string) string {
	if p.literal {
		return "return " + code
	}
	if p.gives == "" {
		return "func() {" + code + "}(); return"
	}
	return "return func() " + p.gives + " {" + code + "}()"
}

// lines is the position of a mutant in a file with many mutants.
type lines struct{ first, last, mutant int }

// beside returns a file with several of its mutants, which must be in places, and their positions.
func beside(numbers []int, all []mutant) (source string, where []lines) {
	var b strings.Builder
	f, done, line := all[numbers[0]].old, 0, 1
	write := func(text string) {
		b.WriteString(text)
		line += strings.Count(text, "\n")
	}
	for len(numbers) > 0 {
		p, n := all[numbers[0]].place, 0
		write(f.src[done:p.start])
		if p.literal {
			write("func() " + p.gives + " {")
		}
		for ; n < len(numbers) && all[numbers[n]].place == p; n++ {
			m := all[numbers[n]]
			at := lines{line + 1, 0, numbers[n]}
			code := p.call(f.src[p.start:m.start] + m.with + f.src[m.end:p.end])
			write(fmt.Sprintf("\nif %s == %d {\n%s\n}\n", chosen, numbers[n]+1, code))
			at.last = line - 1
			where = append(where, at)
		}
		if p.literal {
			write("return " + f.src[p.start:p.end] + "}()")
		} else {
			write(f.src[p.start:p.end])
		}
		numbers, done = numbers[n:], p.end
	}
	write(f.src[done:])
	return b.String(), where
}

var complaint = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: `)

// together compiles all mutants that are in places. It compiles again without those that the
// compiler rejects.
func together(dir string, all []mutant) choice {
	c := choice{filepath.Join(temp, "choice.test"), map[int]bool{}}
	for {
		files, sources, where := map[string][]int{}, map[string]string{}, map[string][]lines{}
		for i, m := range all {
			if m.place.end > 0 && !c.misspelt[i] {
				files[m.path] = append(files[m.path], i)
			}
		}
		if len(files) == 0 {
			return c
		}
		for path, numbers := range files {
			slices.SortStableFunc(numbers, func(a, b int) int { return all[a].place.start - all[b].place.start })
			sources[path], where["choice-"+filepath.Base(path)] = beside(numbers, all)
		}
		sources[filepath.Join(dir, "mutate_choice.go")] = fmt.Sprintf(
			"package %s\n\nimport (\n\"os\"\n\"strconv\"\n)\n\nvar %s, _ = strconv.Atoi(os.Getenv(%q))\n",
			all[0].old.name, chosen, chosen)
		err := compile(dir, c.bin, overlay(filepath.Join(temp, "choice"), sources), "-gcflags=-e")
		if err == nil {
			return c
		}
		before := len(c.misspelt)
		for _, m := range complaint.FindAllStringSubmatch(err.Error(), -1) {
			line, _ := strconv.Atoi(m[2])
			for _, l := range where[filepath.Base(m[1])] {
				if l.first <= line && line <= l.last {
					c.misspelt[l.mutant] = true
				}
			}
		}
		if len(c.misspelt) == before {
			check(err)
		}
	}
}

// overlay writes files whose names begin with path, and returns the compiler flag that replaces
// the originals by them.
func overlay(path string, sources map[string]string) (flag string) {
	replace := map[string]string{}
	var failed error
	for name, source := range sources {
		replace[name] = path + "-" + filepath.Base(name)
		failed = errors.Join(failed, os.WriteFile(replace[name], []byte(source), 0o600))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	check(errors.Join(failed, err, os.WriteFile(path+".json", text, 0o600)))
	return "-overlay=" + path + ".json"
}
