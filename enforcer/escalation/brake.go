package escalation

import (
	"slices"
	"time"
)

// brakeWindow is over which actions are counted.
const brakeWindow = 10 * time.Minute

// A brake bounds how much the escalation does on a host: should the policy or an
// audit be wrong, it is wrong about few before somebody looks. Its times are
// those of the escalation's clock.
type brake struct {
	actions []action  // the oldest first
	since   time.Time // when it began to hold somebody back; zero while it does not
	held    int       // who it holds back now
}

// An action is when one was.
type action struct {
	at   time.Duration // by the escalation's clock
	when time.Time     // for who restores it
}

// free reports whether one more action is within most in any ten minutes.
func (b *brake) free(at time.Duration, most int) bool {
	b.actions = slices.DeleteFunc(b.actions, func(a action) bool { return at-a.at >= brakeWindow })
	return len(b.actions) < most
}

// use counts an action.
func (b *brake) use(at time.Duration, when time.Time) {
	b.actions = append(b.actions, action{at, when})
}

// refund takes back the last action: nothing came of it. Otherwise whoever
// cannot be acted on would use up what is there for others.
func (b *brake) refund() {
	if n := len(b.actions); n > 0 {
		b.actions = b.actions[:n-1]
	}
}

// tell takes how many are held back. From the first until there is none any
// more it is one episode.
func (b *brake) tell(now time.Time, held int) {
	switch {
	case held == 0:
		b.since = time.Time{}
	case b.held == 0:
		b.since = now
	}
	b.held = held
}
