package policy

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// glob reports whether pattern fits all of name: * is any text, ? is one
// character. Unlike path.Match, * crosses slashes: pod:* is every container of
// every pod. It takes at most len(pattern)*len(name) steps.
func glob(pattern, name string) bool {
	star, resume := -1, 0 // the last *, and the next place in name to try the text after it
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, resume = p, n
			p++
		case p < len(pattern) && pattern[p] == '?':
			p++
			n += width(name[n:])
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			resume += width(name[resume:])
			p, n = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// width returns how many bytes the first character of s has.
func width(s string) int {
	if s[0] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRuneInString(s)
	return n
}

// A pattern is a glob prepared for many texts.
type pattern struct {
	text   string
	prefix string // of every text that it fits
	needle string // in every text that it fits: the longest part without wildcards
	rank   uint16 // its specificity: 1 plus its literal characters, or exact
}

// exact is the rank of a pattern without wildcards, and of a number.
const exact = 1<<16 - 1

func newPattern(text string) pattern {
	end := strings.IndexAny(text, "*?")
	if end < 0 {
		return pattern{text, text, text, exact}
	}
	literal, needle := 0, ""
	for part := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == '*' || c == '?' }) {
		literal += utf8.RuneCountInString(part)
		if len(part) > len(needle) {
			needle = part
		}
	}
	return pattern{text, text[:end], needle, uint16(1 + literal)} // longestPattern is far below exact
}

// fits reports whether the pattern fits all of name.
func (p *pattern) fits(name string) bool {
	if p.rank == exact {
		return p.text == name
	}
	return strings.HasPrefix(name, p.prefix) && strings.Contains(name, p.needle) &&
		glob(p.text[len(p.prefix):], name[len(p.prefix):])
}

// overlap returns a text that fits both patterns, and whether there is one.
func overlap(a, b string) (example string, ok bool) {
	x, y := []rune(a), []rune(b)
	failed := make([]bool, (len(x)+1)*(len(y)+1)) // places from which they have nothing in common
	var text []rune
	var from func(i, j int) bool
	from = func(i, j int) bool {
		at := i*(len(y)+1) + j
		if i == len(x) && j == len(y) {
			return true
		}
		if failed[at] {
			return false
		}
		length := len(text)
		try := func(i, j int, c ...rune) bool {
			text = append(text[:length], c...)
			return from(i, j)
		}
		anyX, anyY := i < len(x) && x[i] == '*', j < len(y) && y[j] == '*'
		found := false
		switch {
		case anyX && anyY:
			found = try(i+1, j, 'x') || try(i, j+1, 'x') // anything: both take it
		case anyX:
			found = try(i+1, j) || j < len(y) && try(i, j+1, sample(y[j]))
		case anyY:
			found = try(i, j+1) || i < len(x) && try(i+1, j, sample(x[i]))
		case i < len(x) && j < len(y) && (x[i] == y[j] || x[i] == '?' || y[j] == '?'):
			c := x[i]
			if c == '?' {
				c = sample(y[j])
			}
			found = try(i+1, j+1, c)
		}
		failed[at] = !found
		return found
	}
	if !apart(a, b) && from(0, 0) {
		return string(text), true
	}
	return "", false
}

// sample returns a character that fits the pattern's c.
func sample(c rune) rune {
	if c == '?' {
		return 'x'
	}
	return c
}

// apart reports whether two patterns plainly have nothing in common, because
// they begin or end differently. Most pairs do.
func apart(a, b string) bool {
	differ := func(a, b string) bool { return !strings.HasPrefix(a, b) && !strings.HasPrefix(b, a) }
	beginning := func(s string) string { return s[:end(s, strings.IndexAny(s, "*?"))] }
	if differ(beginning(a), beginning(b)) {
		return true
	}
	x, y := []byte(a[strings.LastIndexAny(a, "*?")+1:]), []byte(b[strings.LastIndexAny(b, "*?")+1:])
	slices.Reverse(x)
	slices.Reverse(y)
	return differ(string(x), string(y))
}

// end returns at, or the length of s if at is negative.
func end(s string, at int) int {
	if at < 0 {
		return len(s)
	}
	return at
}
