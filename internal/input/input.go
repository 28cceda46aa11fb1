// Package input says what is wrong with what an operator wrote: all of it at
// once, and what a name that does not exist may mean.
package input

import (
	"errors"
	"fmt"
	"strings"
)

// Errors are everything that is wrong. Each begins with its key.
type Errors []error

// If adds an error if something is wrong, and reports that.
func (e *Errors) If(wrong bool, format string, args ...any) bool {
	if wrong {
		*e = append(*e, fmt.Errorf(format, args...))
	}
	return wrong
}

// Below adds the errors of err, each with a prefix, such as "enforcer.".
func (e *Errors) Below(prefix string, err error) {
	for _, one := range Each(err) {
		*e = append(*e, fmt.Errorf("%s%w", prefix, one))
	}
}

// Err returns all of them as one; nil if there is none.
func (e Errors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// Error returns a line for each.
func (e Errors) Error() string { return errors.Join(e...).Error() }

// Unwrap returns them.
func (e Errors) Unwrap() []error { return e }

// Each returns the errors of err, if it is from Err, or else itself.
func Each(err error) Errors {
	if err == nil {
		return nil
	}
	var all Errors
	if errors.As(err, &all) && all.Error() == err.Error() { // what wraps them says more
		return all
	}
	return Errors{err}
}

// Instead says what to write instead of a name that is none of those known: the
// one that was probably meant, or any of them. It continues a sentence.
func Instead(name string, known []string) string {
	name = plain(strings.TrimLeft(name, "-"))
	best, least := "", len(name)/3+1
	for _, k := range known {
		if d := distance(name, plain(strings.TrimLeft(k, "-"))); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return " (did you mean " + best + "?)"
	}
	return "; choose from " + strings.Join(known, ", ")
}

// plain returns a name without what people confuse in names.
func plain(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(name))
}

// distance returns how many letters differ, are missing, are too many, or stand
// in the place of their neighbour.
func distance(a, b string) int {
	var before []int
	now := make([]int, len(b)+1)
	for k := range now {
		now[k] = k
	}
	for i := range len(a) {
		last := now
		now = make([]int, len(b)+1)
		now[0] = i + 1
		for k := range len(b) {
			same := 1
			if a[i] == b[k] {
				same = 0
			}
			now[k+1] = min(last[k]+same, last[k+1]+1, now[k]+1)
			if i > 0 && k > 0 && a[i] == b[k-1] && a[i-1] == b[k] {
				now[k+1] = min(now[k+1], before[k-1]+1)
			}
		}
		before = last
	}
	return now[len(b)]
}
