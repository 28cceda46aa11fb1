// Package half is tested by halves.
package half

// Most is how many there may be.
const Most = 8

// A Limit holds while others do.
type Limit float64

// Above is a limit that And narrows.
func Above(l Limit) Limit { return l }

// And adds limits.
func (l Limit) And(others ...Limit) Limit {
	return append(others, l)[0]
}

var limit = Above(.5).And(3, 1)

// steps is declared with its type, so that a copy of it can stand beside it.
var steps = &[]Limit{4, 6}

// Count returns n, or Most where that is less.
func Count(n int) (count int, ok bool) {
	n = min(n, Most)
	for count < n {
		count++
	}
	return count, true
}

// Join is run, and nobody looks at what it returns.
func Join(a, b string) string {
	if a > b {
		a, b = b, a
	}
	return a + b
}

// Never is not run.
func Never() bool { return !false }
