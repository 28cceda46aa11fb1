package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/internal/input"
	"gpusteward/internal/quota"
)

// A Quota is what all processes of a tenant together may use of one GPU.
type Quota = quota.Quota

// A Priority decides who gets the time that nobody is guaranteed.
type Priority int

// The priorities.
const (
	PriorityIdle     Priority = iota // only what nobody else wants
	PriorityLow                      // half of normal's part
	PriorityNormal                   //
	PriorityHigh                     // twice normal's part
	PriorityRealtime                 // a turn at once; needs a limit, which counts as its guarantee
)

// priorities are the names of the priorities in configuration and metrics.
var priorities = [...]string{"idle", "low", "normal", "high", "realtime"}

// String returns the name of the priority.
func (p Priority) String() string { return priorities[p] }

// MarshalText returns the name of the priority.
func (p Priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText takes the name of a priority.
func (p *Priority) UnmarshalText(text []byte) error {
	i := slices.Index(priorities[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is not a priority: %s", text, strings.Join(priorities[:], ", "))
	}
	*p = Priority(i)
	return nil
}

// claims are the proportions in which the time that nobody is guaranteed is
// divided.
var claims = [...]float64{PriorityIdle: 0, PriorityLow: 1, PriorityNormal: 2, PriorityHigh: 4, PriorityRealtime: 4}

// A Level of escalation: the action against a workload that violates its quota.
type Level int

// The levels.
const (
	Observe   Level = iota // violations are counted
	Warn                   // an alert, and a line in the program's own log
	Throttle               // a smaller part of the GPU
	Pause                  // nothing runs
	Suspend                // its GPU memory is on the host
	Terminate              // SIGTERM, and SIGKILL after a grace
)

// Levels are the names of the levels in configuration, metrics and journal.
var Levels = [...]string{"observe", "warn", "throttle", "pause", "suspend", "terminate"}

// String returns the name of the level.
func (r Level) String() string { return Levels[r] }

// MarshalText returns the name of the level.
func (r Level) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText takes the name of a level.
func (r *Level) UnmarshalText(text []byte) error {
	i := slices.Index(Levels[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is not a level of escalation: %s", text, strings.Join(Levels[:], ", "))
	}
	*r = Level(i)
	return nil
}

// Steps limit the escalation for a tenant's workloads.
type Steps struct {
	Mode     Level         // the highest level
	Shadow   bool          // beyond Warn, actions are only announced
	Confirm  int           // audits with a violation, of the last Of, for one level up
	Of       int           // at most 64
	Hold     time.Duration // time without a violation for one level down
	Throttle float64       // part of its limit and weight that Throttle leaves, 0 to 1
	Pause    []string      // ways to pause, in order of preference: broker, freezer, signal
	Grace    time.Duration // from Suspend to Terminate, and from SIGTERM to SIGKILL
}

// pauseWays are the ways to pause in Steps and configuration.
var pauseWays = []string{"broker", "freezer", "signal"}

// check reports the terms that cannot be, by their keys.
func (t Terms) check() error {
	q := t.Quota
	if t.Priority == PriorityRealtime {
		q.Guarantee = max(q.Guarantee, min(q.Limit, 1))
	}
	var wrong input.Errors
	wrong.Below("", q.Check())
	wrong.Below("", t.Reclaim.check())
	wrong.If(t.Priority == PriorityRealtime && t.Limit == 1, "limit: a realtime tenant goes before all others, so it "+
		"needs a limit below 100 %%, which counts as its guarantee")
	wrong.If(t.Priority == PriorityIdle && t.Guarantee > 0, "guarantee: an idle tenant gets only what nobody else wants, "+
		"so it has none: leave it out, or make the priority low")
	return wrong.Err()
}

// check reports the keys of the escalation that cannot be.
func (s Steps) check() error {
	var wrong input.Errors
	wrong.If(s.Mode < Observe || s.Mode > Terminate, "mode: %d is not a level of escalation: %s", s.Mode,
		strings.Join(Levels[:], ", "))
	if !wrong.If(s.Of < 1 || s.Of > 64, "of: %d is not a number of audits from 1 to 64", s.Of) {
		wrong.If(s.Confirm < 1 || s.Confirm > s.Of, "confirm: %d is not between 1 and of, the last %d audits", s.Confirm,
			s.Of)
	}
	wrong.If(s.Hold < time.Second || s.Hold > 24*time.Hour, "hold: %v is not between 1s and 24h", s.Hold)
	wrong.If(!(s.Throttle > 0 && s.Throttle < 1), "throttle: %v is not a part of the limit: write a number above 0 and "+
		"below 1%s", s.Throttle, quota.Meant(s.Throttle))
	wrong.If(len(s.Pause) == 0, "pause: it is empty: list some of %s, or set mode to throttle to avoid pauses",
		strings.Join(pauseWays, ", "))
	wrong.If(s.Grace < 0 || s.Grace > time.Hour, "grace: %v is not between 0s and 1h", s.Grace)
	for i, way := range s.Pause {
		wrong.If(!slices.Contains(pauseWays, way), "pause: %q is not a way to pause%s", way, input.Instead(way, pauseWays))
		wrong.If(slices.Contains(s.Pause[:i], way), "pause: %q is listed twice: remove one", way)
	}
	return wrong.Err()
}

// percent formats a part as in configuration.
func percent(part float64) string { return quota.Part(part).String() }
