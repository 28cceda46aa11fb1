package health

import (
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// Times of states.
const (
	holdFirst = 5 * time.Minute // hold-down after the condition last held; doubles with each flap
	holdMost  = time.Hour       // longest hold-down
	flapping  = time.Hour       // a fault that returns within this time flaps
	forgotten = time.Hour       // an entity without data for this long is gone
	echoes    = 2 * step        // after clearing a latched fault, readings may still be older
	silent    = 3               // intervals without data after which the state is unknown
)

// A status is the state machine of one check and entity. Each level of the
// check is entered and left separately; the worst level determines the state.
type status struct {
	incident.Entity
	levels  []level
	state   incident.State
	since   time.Time     // of the state
	read    time.Time     // time of the last data
	cleared time.Time     // time of the last clearing
	left    time.Time     // time at which the last level was left
	hold    time.Duration // hold-down of a level
	latched bool
	passing bool // its end is no loss of data, as of a workload
}

// level is the state of one level of the check.
type level struct {
	bits   uint64 // the last samples, the newest lowest; 1 is bad
	clear  int    // clear samples in a row
	active bool
	read   time.Time // time of the last sample
	since  time.Time // time at which it became active
	bad    time.Time // time of the last bad sample
	value  float64   // of the last sample
	worst  float64   // of the bad samples of this fault, or of the one just left
	when   time.Time // time of the first sample as bad as worst; zero: none
	labels string    // of the series of the last bad sample
}

// sample takes one sample, v, of a level. A sample between the thresholds is
// neither bad nor clear.
func (l *level) sample(of Level, v float64, bad, clear bool, now time.Time) {
	l.bits = (l.bits<<1 | uint64(collectors.Bool(bad))) & (1<<of.For.spelled().N - 1)
	l.value, l.read = v, now
	switch {
	case bad:
		l.bad = now
		if l.when.IsZero() || of.When.worse(v, l.worst) {
			l.worst, l.when = v, now
		}
	case !l.active && l.bits == 0:
		l.worst, l.when, l.bad, l.labels = 0, time.Time{}, time.Time{}, ""
	}
	if l.clear++; !clear {
		l.clear = 0
	}
}

// leave ends the level. Its values stay until the next sample.
func (l *level) leave() {
	*l = level{value: l.value, read: l.read, bad: l.bad, worst: l.worst, when: l.when, labels: l.labels}
}

// gone reports whether a level has no signal any more, even if others of its
// row do.
func (l *level) gone(of Level, now time.Time) bool {
	return now.Sub(l.read) >= silent*max(step, of.For.spelled().Every)
}

// isLeft reports whether the level has been left since the last sample.
func (l *level) isLeft() bool { return !l.active && l.bits == 0 && !l.when.IsZero() }

// holds reports whether K of the last N samples were bad.
func (l *level) holds(p Persistence) bool {
	k := 0
	for i := range p.N {
		k += int(l.bits >> i & 1)
	}
	return k >= p.K
}

// settle enters and leaves levels, and reports whether that changed the state.
func (st *status) settle(c *Check, now time.Time) bool {
	quiet, interval := now.Sub(st.read), step
	for i := range st.levels {
		l, p := &st.levels[i], c.Levels[i].For.spelled()
		interval = max(interval, p.Every)
		switch {
		case !l.active && now.Equal(l.read) && l.holds(p):
			if st.severity(c) == incident.None {
				st.enter(now)
			}
			l.active, l.since = true, now
			st.latched = st.latched || c.Latched
		case l.active && !st.latched && now.Sub(l.bad) >= st.hold &&
			(l.clear >= p.N || now.Sub(l.read) >= st.hold && l.gone(c.Levels[i], now)):
			l.leave()
			st.left = now
		}
	}
	return st.become(st.now(c, quiet >= silent*interval, now), now)
}

// enter sets the hold-down of a fault that begins now: longer if it flaps.
func (st *status) enter(now time.Time) {
	if st.hold == 0 || now.Sub(st.left) >= flapping {
		st.hold = holdFirst
		return
	}
	st.hold = min(2*st.hold, holdMost)
}

// now returns the state; gone means that there is no data any more.
func (st *status) now(c *Check, gone bool, now time.Time) incident.State {
	severity, failing := st.severity(c), st.latched
	for i := range st.levels {
		l := &st.levels[i]
		failing = failing || l.active && l.clear == 0 && !gone && !l.gone(c.Levels[i], now)
	}
	switch {
	case severity != incident.None && failing:
		return severity.State()
	case gone && !st.passing:
		return incident.Unknown
	case severity != incident.None:
		return incident.Recovering
	}
	return incident.OK
}

// recovered reports whether the fault is over and only its hold-down is not:
// its levels have been clear for as many samples as it takes to find them bad, or
// have no signal any more.
func (st *status) recovered(c *Check, now time.Time) bool {
	for i := range st.levels {
		l, of := &st.levels[i], c.Levels[i]
		if l.active && l.clear < of.For.spelled().N && !l.gone(of, now) {
			return false
		}
	}
	return st.state == incident.Recovering
}

// clears returns when the hold-down of a fault that is over ends.
func (st *status) clears(now time.Time) (at time.Time) {
	for i := range st.levels {
		if l := &st.levels[i]; l.active {
			at = latest(at, l.bad.Add(st.hold))
		}
	}
	return latest(at, now)
}

// counted returns the severity with which the fault counts: one that is over is
// worth knowing, and no more.
func (st *status) counted(c *Check, now time.Time) incident.Severity {
	if st.recovered(c, now) {
		return incident.Info
	}
	return st.severity(c)
}

func (st *status) become(to incident.State, now time.Time) bool {
	if to == st.state {
		return false
	}
	st.state, st.since = to, now
	return true
}

// severity returns the severity of the check's failure.
func (st *status) severity(c *Check) (worst incident.Severity) {
	for i := range st.levels {
		if st.levels[i].active {
			worst = max(worst, c.Levels[i].Severity)
		}
	}
	return worst
}

// clear ends a latched fault, and all other faults.
func (st *status) clear(now time.Time) {
	for i := range st.levels {
		st.levels[i].leave()
	}
	st.latched, st.left, st.cleared = false, now, now
	st.become(incident.OK, now)
}

// over reports whether the entity has had no data for long.
func (st *status) over(c *Check, now time.Time) bool {
	quiet := now.Sub(st.read)
	return !st.latched && (quiet > forgotten || st.passing && quiet >= silent*step && st.severity(c) == incident.None)
}
