package exporter

import (
	"fmt"
	"iter"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A style is the width of a text, and whether it has colours.
type style struct {
	width  int
	colour bool
}

// Parameters of SGR, which sets the colours of a terminal (ECMA-48).
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	yellow = "33"

	escape = "\x1b[" // precedes them; m follows
)

// A cell is a piece of a line.
type cell struct {
	text  string
	width int // negative: aligned to the right; 0: as wide as the text
	paint string
}

// line returns the cells with spaces between them, at most as wide as the
// style. Every name passes it on the way to a terminal.
func (st style) line(cells ...cell) string {
	var b strings.Builder
	left := st.width
	for i, c := range cells {
		text := printable(c.text)
		switch {
		case c.width > 0:
			text = fmt.Sprintf("%-*s", c.width, cut(text, c.width))
		case c.width < 0:
			text = fmt.Sprintf("%*s", -c.width, cut(text, -c.width))
		case text == "":
			continue
		}
		if i > 0 {
			text = " " + text
		}
		text = cut(text, left)
		left -= utf8.RuneCountInString(text)
		if i == len(cells)-1 {
			text = strings.TrimRight(text, " ")
		}
		if st.colour && c.paint != "" {
			text = escape + c.paint + "m" + text + escape + "0m"
		}
		b.WriteString(text)
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// pieces returns the parts of a line with their paints.
func pieces(line string) iter.Seq2[string, string] {
	return func(yield func(paint, text string) bool) {
		paint := ""
		for line != "" {
			text, rest, _ := strings.Cut(line, escape)
			if text != "" && !yield(paint, text) {
				return
			}
			paint, line, _ = strings.Cut(rest, "m")
			if paint == "0" {
				paint = ""
			}
		}
	}
}

// plain returns text without its paints.
func plain(text string) string {
	var b strings.Builder
	for _, piece := range pieces(text) {
		b.WriteString(piece)
	}
	return b.String()
}

// wrapped returns text in as many lines as needed, each after indent.
func (st style) wrapped(paint, indent, text string) string {
	var b strings.Builder
	line := ""
	for _, word := range strings.Fields(printable(text)) {
		if line != "" && utf8.RuneCountInString(indent+line+" "+word) > st.width {
			b.WriteString(st.line(cell{text: indent + line, paint: paint}))
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	b.WriteString(st.line(cell{text: indent + line, paint: paint}))
	return b.String()
}

// cut shortens text to so many columns, with an ellipsis if it does not fit.
func cut(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	if columns < 1 {
		return ""
	}
	return string([]rune(text)[:columns-1]) + "…"
}

// printable replaces characters that could move the cursor, change a colour or
// hide text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, text)
}

// escaped escapes the same characters in JSON, which leaves its strings
// unchanged.
func escaped(json string) string {
	var b strings.Builder
	for _, r := range json {
		switch hi, lo := utf16.EncodeRune(r); {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case hi != utf8.RuneError:
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
