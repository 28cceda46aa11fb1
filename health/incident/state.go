package incident

import (
	"fmt"
	"slices"
)

// A Severity is how bad the failure of a check is, and the severity of its alert.
type Severity int

// The severities.
const (
	None      Severity = iota
	Info               // worth knowing: the entity is suspect
	Warning            // look at it in working hours: it is degraded
	Critical           // act now: it is unhealthy
	Emergency          // it is out of service: it has failed
)

var severities = []string{"none", "info", "warning", "critical", "emergency"}

func (s Severity) String() string { return severities[s] }

// MarshalText writes a severity as its name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a severity by its name.
func (s *Severity) UnmarshalText(text []byte) error { return byName(s, text, severities, "a severity") }

// A State is the state of an entity under one check.
type State int

// The states. The first five rise with the severity. Unknown means that there is
// no data; Recovering means that the fault is gone and its hold-down is not over.
const (
	OK State = iota
	Suspect
	Degraded
	Unhealthy
	Failed
	Recovering
	Unknown
)

var states = []string{"ok", "suspect", "degraded", "unhealthy", "failed", "recovering", "unknown"}

func (s State) String() string { return states[s] }

// MarshalText writes a state as its name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a state by its name.
func (s *State) UnmarshalText(text []byte) error { return byName(s, text, states, "a state") }

// State returns the state of an entity that fails a check with this severity.
func (s Severity) State() State { return State(s) }

func byName[T ~int](v *T, text []byte, names []string, what string) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("%q is not %s; there are %v", text, what, names)
	}
	*v = T(i)
	return nil
}
