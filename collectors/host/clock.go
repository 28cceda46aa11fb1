package host

import "time"

// Rebased returns the moment t on the wall clock of now. If the clock was set
// between the two, their monotonic readings count. If one of them has no such
// reading, t stays as it is, and so does the zero time. The result has the
// monotonic reading of now.
func Rebased(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now))
}
