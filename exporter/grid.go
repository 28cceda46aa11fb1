package exporter

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A grid is a table whose rows can be sorted, filtered and unfolded.
type grid struct {
	title   string // of its section
	columns []column
	rows    []row
	empty   string // text in place of rows
}

// A column has the width of a cell.
type column struct {
	title string
	width int
}

// A row is one line, and the text that explains it.
type row struct {
	key    string // which no other row of the grid has
	fields []field
	more   string // lines
}

// A field is what a row says in a column.
type field struct {
	text  string
	by    float64 // the number that rows are sorted by, the highest first; NaN: they are sorted by text
	paint string
}

func words(text string) field                   { return field{text: text, by: math.NaN()} }
func figure(format string, value float64) field { return field{text: show(format, value), by: value} }

// sorted returns the rows in the order of a column, or as they are if it is
// negative. Rows without a value come last.
func (g grid) sorted(column int, reverse bool) []row {
	if column < 0 {
		if reverse {
			rows := slices.Clone(g.rows)
			slices.Reverse(rows)
			return rows
		}
		return g.rows
	}
	direction := 1
	if reverse {
		direction = -1
	}
	rows := slices.Clone(g.rows)
	slices.SortStableFunc(rows, func(a, b row) int {
		x, y := a.fields[column], b.fields[column]
		switch known := [2]bool{!math.IsNaN(x.by), !math.IsNaN(y.by)}; {
		case known[0] && known[1]:
			return direction * cmp.Compare(y.by, x.by)
		case known[0]:
			return -1
		case known[1]:
			return 1
		case (x.text == "") != (y.text == ""):
			return len(y.text) - len(x.text)
		}
		return direction * cmp.Compare(x.text, y.text)
	})
	return rows
}

// matches reports whether the row has text somewhere, in upper or lower case.
func (r row) matches(text string) bool {
	text = strings.ToLower(text)
	has := func(in string) bool { return strings.Contains(strings.ToLower(in), text) }
	return has(strings.Join(strings.Fields(plain(r.more)), " ")) ||
		slices.ContainsFunc(r.fields, func(f field) bool { return has(f.text) })
}

// header returns the line above the rows; the title of the column by which they
// are sorted stands out.
func (st style) header(g grid, sort int) string {
	cells := make([]cell, len(g.columns))
	for i, c := range g.columns {
		cells[i] = cell{c.title, c.width, dim}
		if i == sort {
			cells[i].paint = bold
		}
	}
	return st.line(cells...)
}

// row returns the line of r.
func (st style) row(g grid, r row) string {
	cells := make([]cell, len(g.columns))
	for i, c := range g.columns {
		cells[i] = cell{r.fields[i].text, c.width, r.fields[i].paint}
	}
	return st.line(cells...)
}

// grid writes g with all that explains its rows, and with at most so many rows.
func (st style) grid(b *strings.Builder, g grid, most int) {
	b.WriteString(st.header(g, -1))
	for i, r := range g.rows {
		if i == most {
			b.WriteString(st.line(cell{text: fmt.Sprintf("and %d more", len(g.rows)-i), paint: dim}))
			break
		}
		b.WriteString(st.row(g, r))
		b.WriteString(r.more)
	}
}
