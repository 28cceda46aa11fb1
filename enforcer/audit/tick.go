package audit

import "time"

// A Tick is the time from one look of the enforcer to the next. All of its periods are
// multiples of it; the zero value is a second.
type Tick time.Duration

// Of returns a period, which is given as it is at a tick of a second.
func (t Tick) Of(period time.Duration) time.Duration {
	if t == 0 {
		return period
	}
	return time.Duration(float64(period) / float64(time.Second) * float64(t))
}
