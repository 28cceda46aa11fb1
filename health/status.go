package health

import (
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// How long a state is held.
const (
	holdFirst = 5 * time.Minute // after its condition last held; doubled for each flap
	holdMost  = time.Hour       // at most
	flapping  = time.Hour       // what comes back within this flaps
	forgotten = time.Hour       // after which an entity without data is no more
	echoes    = 2 * step        // after what was latched is cleared: what is read may still be from before
	silent    = 3               // intervals without data, and the state is unknown
)

// A status is the state machine of one check and entity. Each level of the
// check is entered and left by itself; the state is that of the worst.
type status struct {
	incident.Entity
	levels  []level
	state   incident.State
	since   time.Time     // of the state
	read    time.Time     // when there last was data
	cleared time.Time     // when it was last cleared
	left    time.Time     // when the last level was left
	hold    time.Duration // how long a level is held
	latched bool
	passing bool // that it is gone is no loss of data: a workload that ended
}

// level is where a status stands with one level of its check.
type level struct {
	bits   uint64 // the last samples, the newest lowest: 1 is bad
	clear  int    // clear samples in a row
	active bool
	read   time.Time // when there last was a sample
	since  time.Time // when it became active
	bad    time.Time // when a sample was last bad
	value  float64   // of the last sample
	worst  float64   // of the bad samples of this fault, or of one that was just left
	when   time.Time // the first of them came that was as bad; zero where there is none
}

// sample takes one sample of a level that enters and leaves as of says. One
// between the thresholds is neither bad nor clear.
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
		l.worst, l.when, l.bad = 0, time.Time{}, time.Time{}
	}
	if l.clear++; !clear {
		l.clear = 0
	}
}

// leave ends the level. What it was is known until the next sample.
func (l *level) leave() {
	*l = level{value: l.value, read: l.read, bad: l.bad, worst: l.worst, when: l.when}
}

// gone reports whether a level has no signal any more, whatever the others of
// its row have.
func (l *level) gone(of Level, now time.Time) bool {
	return now.Sub(l.read) >= silent*max(step, of.For.spelled().Every)
}

// isLeft reports whether the level was left since the last sample.
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
		case l.active && !st.latched && now.Sub(l.bad) >= st.hold && (l.clear >= p.N || now.Sub(l.read) >= st.hold && l.gone(c.Levels[i], now)):
			l.leave()
			st.left = now
		}
	}
	return st.become(st.now(c, quiet >= silent*interval, now), now)
}

// enter sets for how long what begins now is held: longer if it flaps.
func (st *status) enter(now time.Time) {
	if st.hold == 0 || now.Sub(st.left) >= flapping {
		st.hold = holdFirst
		return
	}
	st.hold = min(2*st.hold, holdMost)
}

// now returns the state; gone is that there is no data any more.
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

func (st *status) become(to incident.State, now time.Time) bool {
	if to == st.state {
		return false
	}
	st.state, st.since = to, now
	return true
}

// severity returns how badly the check fails.
func (st *status) severity(c *Check) (worst incident.Severity) {
	for i := range st.levels {
		if st.levels[i].active {
			worst = max(worst, c.Levels[i].Severity)
		}
	}
	return worst
}

// clear ends what is latched, and all else that fails.
func (st *status) clear(now time.Time) {
	for i := range st.levels {
		st.levels[i].leave()
	}
	st.latched, st.left, st.cleared = false, now, now
	st.become(incident.OK, now)
}

// over reports whether nothing was heard of the entity for long.
func (st *status) over(c *Check, now time.Time) bool {
	quiet := now.Sub(st.read)
	return !st.latched && (quiet > forgotten || st.passing && quiet >= silent*step && st.severity(c) == incident.None)
}
