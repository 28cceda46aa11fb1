// Package half is tested by halves.
package half

// Most is how many there may be.
const Most = 8

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
	if a > b { // mutant: equivalent because this is how a line is marked
		a, b = b, a
	}
	return a + b
}

// Never is not run.
func Never() bool {
	// mutant: equivalent because
	return !false
}
