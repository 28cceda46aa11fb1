package scenarios

import (
	"math"
	"time"
)

// Step is the length of a simulation step, in simulated time. Faults begin and
// end with one.
const Step = 100 * time.Millisecond

// Forever is the end of a window without end.
const Forever = time.Duration(math.MaxInt64)

// Window returns the window of f that contains the simulated time t, if any.
func (f *Fault) Window(t time.Duration) (from, to time.Duration, ok bool) {
	from = ceil(time.Duration(f.At))
	if t < from {
		return from, 0, false
	}
	if every := ceil(time.Duration(f.Every)); every > 0 {
		from += (t - from) / every * every
	}
	to = Forever
	if f.For > 0 {
		to = from + ceil(time.Duration(f.For))
	}
	return from, to, t < to
}

// Next returns the first time after t at which a window of f begins or ends.
func (f *Fault) Next(t time.Duration) time.Duration {
	from, to, active := f.Window(t)
	switch {
	case t < from || active:
		if active {
			if f.Every > 0 && to == Forever {
				return from + ceil(time.Duration(f.Every))
			}
			return to
		}
		return from
	case f.Every > 0:
		return from + ceil(time.Duration(f.Every))
	}
	return Forever
}

// ceil rounds a time up to a whole step, when the state changes.
func ceil(t time.Duration) time.Duration { return (t + Step - 1) / Step * Step }

// Begun returns the number of windows of f that have begun by t.
func (f *Fault) Begun(t time.Duration) uint64 {
	from, every := ceil(time.Duration(f.At)), ceil(time.Duration(f.Every))
	switch {
	case t < from:
		return 0
	case every == 0:
		return 1
	}
	return 1 + uint64((t-from)/every)
}
