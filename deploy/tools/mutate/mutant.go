package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
)

// A mutant is a file with one change.
type mutant struct {
	path, what string
	line       string // the changed line, without surrounding space
	at         token.Position
	old        *finder // the file
	start, end int     // of the replaced code
	with       string
	place      place // around the change
}

// source returns the changed file.
func (m mutant) source() string { return m.old.src[:m.start] + m.with + m.old.src[m.end:] }

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", strings.TrimPrefix(m.path, here+"/"), m.at.Line, m.at.Column, m.what)
}

// survivor returns the key of m in survivors.tsv.
func (m mutant) survivor() survivor {
	return survivor{strings.TrimPrefix(m.path, here+"/"), m.line, m.what}
}

// A survivor is a mutant, independent of the position of its line in the file.
type survivor struct{ path, line, what string }

//go:embed survivors.tsv
var survivors string

// known returns the known survivors with their reasons.
func known() map[survivor]string {
	all := map[survivor]string{}
	for row := range strings.Lines(survivors) {
		f := strings.Split(strings.TrimSuffix(row, "\n"), "\t")
		if f[0] == "file" {
			continue
		}
		if len(f) != 4 || f[3] == "" {
			check(fmt.Errorf("survivors.tsv: %q: a row needs file, line, change and reason", row))
		}
		all[survivor{f[0], f[1], f[2]}] = f[3]
	}
	return all
}

// swaps lists the replacements of operators and names.
var swaps = map[string][]string{
	"<": {"<=", ">="}, "<=": {"<", ">"}, ">": {">=", "<="}, ">=": {">", "<"}, "==": {"!="}, "!=": {"=="},
	"&&": {"||"}, "||": {"&&"}, "+": {"-"}, "-": {"+"}, "*": {"/"}, "/": {"*"}, "%": {"*"},
	"&": {"|"}, "|": {"&"}, "^": {"&"}, "&^": {"&"}, "<<": {">>"}, ">>": {"<<"},
	"+=": {"-="}, "-=": {"+="}, "*=": {"/="}, "/=": {"*="},
	"|=": {"&^="}, "&=": {"|="}, "&^=": {"|="}, "<<=": {">>="}, ">>=": {"<<="},
	"++": {"--"}, "--": {"++"}, "break": {"continue"}, "continue": {"break"},
	"Above": {"AtLeast", "Below"}, "AtLeast": {"Above", "AtMost"},
	"Below": {"AtMost", "Above"}, "AtMost": {"Below", "AtLeast"}, "Is": {"Not"}, "Not": {"Is"},
	"min": {"max"}, "max": {"min"}, "Min": {"Max"}, "Max": {"Min"}, "true": {"false"}, "false": {"true"},
}

// A finder finds the mutants of one file.
type finder struct {
	path, src string
	name      string // of the package
	lines     []string
	file      *token.File
	data      bool // whether it is in a package-level declaration
	place     place
	found     []mutant
}

// mutants returns the mutants of one file.
func mutants(path string) []mutant {
	src, err := os.ReadFile(path)
	check(err)
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, src, parser.SkipObjectResolution)
	check(err)
	f := &finder{
		path: path, src: string(src), name: tree.Name.Name,
		lines: strings.Split(string(src), "\n"), file: set.File(tree.Pos()),
	}
	for _, d := range tree.Decls {
		_, f.data = d.(*ast.GenDecl)
		ast.Inspect(d, f.visit)
	}
	return f.found
}

func (f *finder) text(n ast.Node) string {
	return f.src[f.file.Offset(n.Pos()):f.file.Offset(n.End())]
}

// change adds a mutant that replaces was, at position at, by with. The output shows node n.
func (f *finder) change(n ast.Node, at token.Pos, was, with string) {
	p, start := f.file.Position(at), f.file.Offset(at)
	old, within := f.text(n), start-f.file.Offset(n.Pos())
	what := "without " + short(old)
	if changed := old[:within] + with + old[min(within+len(was), len(old)):]; changed != "" {
		what = short(old) + " is " + short(changed)
	}
	m := mutant{f.path, what, strings.TrimSpace(f.lines[p.Line-1]), p, f, start, start + len(was), with, place{}}
	if f.place.start <= start && start < f.place.end {
		m.place = f.place
	}
	f.found = append(f.found, m)
}

func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return s[:min(len(s), 90)]
}

func (f *finder) replace(n ast.Node, with string) { f.change(n, n.Pos(), f.text(n), with) }

func (f *finder) swap(n ast.Node, at token.Pos, what string) {
	for _, with := range swaps[what] {
		f.change(n, at, what, with)
	}
}

func (f *finder) visit(n ast.Node) bool {
	f.enter(n)
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.swap(n, n.OpPos, n.Op.String())
	case *ast.UnaryExpr:
		if n.Op == token.SUB {
			f.change(n, n.OpPos, "-", "")
		}
	case *ast.IfStmt:
		if _, compares := n.Cond.(*ast.BinaryExpr); !compares {
			f.replace(n.Cond, "!("+f.text(n.Cond)+")")
		}
	case *ast.IncDecStmt:
		f.swap(n, n.TokPos, n.Tok.String())
		f.replace(n, "")
	case *ast.AssignStmt:
		f.swap(n, n.TokPos, n.Tok.String())
		if n.Tok != token.DEFINE {
			f.replace(n, "")
		}
	case *ast.ExprStmt:
		f.replace(n, "")
	case *ast.BranchStmt:
		f.swap(n, n.TokPos, n.Tok.String())
	case *ast.Ident: // calls of min and max; other uses do not compile
		f.swap(n, n.Pos(), n.Name)
	case *ast.CallExpr:
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "And" {
			f.without(n.Args)
		}
	case *ast.BasicLit:
		f.number(n)
	case *ast.FuncDecl:
		f.returns(n.Type, n.Body)
	case *ast.FuncLit:
		f.returns(n.Type, n.Body)
	}
	return true
}

// without drops each of the arguments of And.
func (f *finder) without(conditions []ast.Expr) {
	for i, c := range conditions {
		end := c.End()
		if i+1 < len(conditions) {
			end = conditions[i+1].Pos()
		}
		f.change(c, c.Pos(), f.src[f.file.Offset(c.Pos()):f.file.Offset(end)], "")
	}
}

// number changes a constant by one, and to zero. It changes a number in a package-level
// declaration by 30 % in both directions, and an integer at least by one.
func (f *finder) number(n *ast.BasicLit) {
	switch {
	case n.Kind != token.INT && n.Kind != token.FLOAT:
	case f.data:
		for _, with := range off(n) {
			f.replace(n, with)
		}
	default:
		f.replace(n, "("+n.Value+" + 1)")
		if n.Value != "0" {
			f.replace(n, "0")
		}
	}
}

// off returns the replacements of a number in a package-level declaration.
func off(n *ast.BasicLit) []string {
	if i, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
		by := max(1, i*3/10)
		if i == 0 {
			return []string{"1"}
		}
		return []string{fmt.Sprint(i + by), fmt.Sprint(i - by)}
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	check(err, n.Value)
	if v == 0 {
		return []string{"1."}
	}
	return []string{strconv.FormatFloat(v*1.3, 'g', 12, 64), strconv.FormatFloat(v*.7, 'g', 12, 64)}
}

// returns replaces each returned value by its zero value, except for zero values and constants.
func (f *finder) returns(t *ast.FuncType, body *ast.BlockStmt) {
	var types []string
	if t.Results == nil || body == nil {
		return
	}
	for _, field := range t.Results.List {
		for range max(1, len(field.Names)) {
			types = append(types, f.text(field.Type))
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == len(types) {
			for i, value := range r.Results {
				text := f.text(value)
				switch text {
				case "nil", "true", "false", `""`, types[i] + "{}":
				default:
					if strings.Trim(text, "0123456789.") != "" {
						f.replace(value, "*new("+types[i]+")")
					}
				}
			}
		}
		_, inner := n.(*ast.FuncLit)
		return !inner
	})
}
