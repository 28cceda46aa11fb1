package host

import "time"

// Rebased returns the moment t as the wall clock of now has it. Where the clock
// was set between the two it is their monotonic readings that count; where one
// has none, t stays as it is, and so does the zero time. The result has the
// monotonic reading of now.
func Rebased(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now))
}
