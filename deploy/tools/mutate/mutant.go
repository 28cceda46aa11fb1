package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
)

// A mutant is a file with one change.
type mutant struct {
	path, what string
	at         token.Position
	source     []byte
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", strings.TrimPrefix(m.path, here+"/"), m.at.Line, m.at.Column, m.what)
}

var marked = regexp.MustCompile(`^// mutant: equivalent because \S`)

// swaps is what stands in for what; operators that end in = as their own do.
var swaps = map[string][]string{
	"<": {"<=", ">="}, "<=": {"<", ">"}, ">": {">=", "<="}, ">=": {">", "<"}, "==": {"!="}, "!=": {"=="}, "&&": {"||"}, "||": {"&&"},
	"+": {"-"}, "-": {"+"}, "*": {"/"}, "/": {"*"}, "%": {"*"}, "&": {"|"}, "|": {"&"}, "^": {"&"}, "&^": {"&"}, "<<": {">>"}, ">>": {"<<"},
	"+=": {"-="}, "-=": {"+="}, "*=": {"/="}, "/=": {"*="}, "|=": {"&^="}, "&=": {"|="}, "&^=": {"|="}, "<<=": {">>="}, ">>=": {"<<="},
	"++": {"--"}, "--": {"++"}, "break": {"continue"}, "continue": {"break"},
	"min": {"max"}, "max": {"min"}, "Min": {"Max"}, "Max": {"Min"}, "true": {"false"}, "false": {"true"},
}

// A finder finds the mutants of one file.
type finder struct {
	path, src  string
	file       *token.File
	equivalent map[int]bool // lines
	skipped    int
	found      []mutant
}

// mutants returns those of one file, and how many more are marked as equivalent.
func mutants(path string) (all []mutant, skipped int) {
	src, err := os.ReadFile(path)
	check(err)
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, src, parser.ParseComments|parser.SkipObjectResolution)
	check(err)
	f := finder{path: path, src: string(src), file: set.File(tree.Pos()), equivalent: map[int]bool{}}
	for _, group := range tree.Comments {
		for _, c := range group.List {
			if marked.MatchString(c.Text) {
				f.mark(c, group)
			}
		}
	}
	ast.Inspect(tree, f.visit)
	return f.found, f.skipped
}

// mark has the comment's line not be changed, or where it is alone the next.
func (f *finder) mark(c *ast.Comment, group *ast.CommentGroup) {
	line := f.file.Line(c.Pos())
	if before := f.src[f.file.Offset(f.file.LineStart(line)):f.file.Offset(c.Pos())]; strings.TrimSpace(before) == "" {
		line = f.file.Line(group.End()) + 1
	}
	f.equivalent[line] = true
}

func (f *finder) text(n ast.Node) string {
	return f.src[f.file.Offset(n.Pos()):f.file.Offset(n.End())]
}

// change adds a mutant: in node n, which is shown, with stands in for what was
// from at on.
func (f *finder) change(n ast.Node, at token.Pos, was, with string) {
	p, start := f.file.Position(at), f.file.Offset(at)
	if f.equivalent[p.Line] {
		f.skipped++
		return
	}
	old, within := f.text(n), start-f.file.Offset(n.Pos())
	what := "without " + short(old)
	if changed := old[:within] + with + old[within+len(was):]; changed != "" {
		what = short(old) + " is " + short(changed)
	}
	f.found = append(f.found, mutant{f.path, what, p, []byte(f.src[:start] + with + f.src[start+len(was):])})
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
	case *ast.Ident: // min and max where they are called; elsewhere it does not compile
		f.swap(n, n.Pos(), n.Name)
	case *ast.BasicLit:
		f.number(n)
	case *ast.FuncDecl:
		f.returns(n.Type, n.Body)
	case *ast.FuncLit:
		f.returns(n.Type, n.Body)
	}
	return true
}

// number has a constant be one more, and zero.
func (f *finder) number(n *ast.BasicLit) {
	if n.Kind == token.INT || n.Kind == token.FLOAT {
		f.replace(n, "("+n.Value+" + 1)")
		if n.Value != "0" {
			f.replace(n, "0")
		}
	}
}

// returns has each value that a function returns be zero, but for what is, or
// is changed as a constant.
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
				if text := f.text(value); text != "nil" && text != "true" && text != "false" && text != types[i]+"{}" && strings.Trim(text, "0123456789.") != "" {
					f.replace(value, "*new("+types[i]+")")
				}
			}
		}
		_, inner := n.(*ast.FuncLit)
		return !inner
	})
}
