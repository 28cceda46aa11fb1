package escalation

import (
	"slices"
	"time"
)

// brakeWindow is the time over which actions are counted, at a tick of a second.
const brakeWindow = 10 * time.Minute

// A brake bounds the escalation's actions on a host: if the policy or an audit
// is wrong, it harms few workloads before somebody looks. Its times are on the
// escalation's clock.
type brake struct {
	actions []action  // the oldest first
	since   time.Time // when it began to hold actions back; zero while it does not
	held    int       // subjects that it holds back now
}

// An action is the time of one action.
type action struct {
	at   time.Duration // by the escalation's clock
	when time.Time     // for a restored brake
}

// window returns the time over which actions are counted.
func (l *Escalation) window() time.Duration { return l.Tick.Of(brakeWindow) }

// free reports whether there were fewer than most actions after a moment.
func (b *brake) free(after time.Duration, most int) bool {
	b.actions = slices.DeleteFunc(b.actions, func(a action) bool { return a.at <= after })
	return len(b.actions) < most
}

// use counts an action.
func (b *brake) use(at time.Duration, when time.Time) {
	b.actions = append(b.actions, action{at, when})
}

// refund takes back the last action, which had no effect. Otherwise a subject
// that cannot be acted on would use up the actions for others.
func (b *brake) refund() {
	if n := len(b.actions); n > 0 {
		b.actions = b.actions[:n-1]
	}
}

// tell takes the number of subjects held back. An episode lasts until the
// number is zero.
func (b *brake) tell(now time.Time, held int) {
	switch {
	case held == 0:
		b.since = time.Time{}
	case b.held == 0:
		b.since = now
	}
	b.held = held
}
