package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Quota is what a tenant may use of one GPU: all its processes together.
type Quota struct {
	Guarantee  float64       // of the GPU's time, that it gets whenever it wants it; 0 to 1
	Limit      float64       // most of the GPU's time, also where nobody else wants it; 1 is no limit
	Memory     uint64        // most of the GPU's memory, bytes; 0 is no cap
	MemoryPart float64       // the same as a part of it, 0 to 1; 0 is that Memory says it
	Reserved   uint64        // of the GPU's memory, that is kept for it, bytes
	LaunchWait time.Duration // that 99 of 100 waits for a turn should not be longer than; 0 is no objective
	Bandwidth  float64       // most of the bandwidth of the GPU's memory and link; 1 is no limit
}

// A Priority says who gets what nobody is guaranteed.
type Priority int

// The priorities.
const (
	PriorityIdle     Priority = iota // only what nobody else wants
	PriorityLow                      // half of normal's part
	PriorityNormal                   //
	PriorityHigh                     // twice normal's part
	PriorityRealtime                 // a turn at once; it must have a limit, which counts as guaranteed
)

// Priorities are the names of the priorities, as configuration and metrics
// have them.
var Priorities = [...]string{"idle", "low", "normal", "high", "realtime"}

// String returns the name of the priority.
func (p Priority) String() string { return Priorities[p] }

// MarshalText returns the name of the priority.
func (p Priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText takes the name of a priority.
func (p *Priority) UnmarshalText(text []byte) error {
	i := slices.Index(Priorities[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is not a priority: %s", text, strings.Join(Priorities[:], ", "))
	}
	*p = Priority(i)
	return nil
}

// claims say how what nobody is guaranteed is divided: in these proportions.
var claims = [...]float64{PriorityIdle: 0, PriorityLow: 1, PriorityNormal: 2, PriorityHigh: 4, PriorityRealtime: 4}

// A Rung of the ladder: what is done about a workload that violates its quota.
type Rung int

// The rungs.
const (
	Observe   Rung = iota // it is counted
	Warn                  // an alert, and a line in the program's own log
	Throttle              // a smaller part of the GPU
	Pause                 // nothing runs
	Terminate             // SIGTERM, and SIGKILL after a grace
)

// Rungs are the names of the rungs, as configuration, metrics and journal
// have them.
var Rungs = [...]string{"observe", "warn", "throttle", "pause", "terminate"}

// String returns the name of the rung.
func (r Rung) String() string { return Rungs[r] }

// MarshalText returns the name of the rung.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText takes the name of a rung.
func (r *Rung) UnmarshalText(text []byte) error {
	i := slices.Index(Rungs[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is not a rung of the ladder: %s", text, strings.Join(Rungs[:], ", "))
	}
	*r = Rung(i)
	return nil
}

// Steps say how far the ladder may climb for a tenant's workloads, and how.
type Steps struct {
	Mode     Rung          // the highest rung
	Shadow   bool          // beyond Warn it is only said what would be done
	Confirm  int           // audits with a violation, of the last Of, that confirm it: one rung up
	Of       int           // at most 64
	Hold     time.Duration // without a violation for so long: one rung down
	Throttle float64       // part of its limit and weight that Throttle leaves, 0 to 1
	Pause    []string      // ways to pause, the first that works is taken: broker, freezer, signal
	Grace    time.Duration // from SIGTERM to SIGKILL
}

// pauseWays are the ways to pause, as Steps and configuration have them.
var pauseWays = []string{"broker", "freezer", "signal"}

// check reports the first term that cannot be, by its key.
func (q Quota) check(p Priority) error {
	switch {
	case !(q.Limit > 0 && q.Limit <= 1):
		return fmt.Errorf("limit: %v is not a part of the GPU's time, above 0 and at most 1; 1 is no limit", q.Limit)
	case !(q.Guarantee >= 0 && q.Guarantee <= 1):
		return fmt.Errorf("guarantee: %v is not a part of the GPU's time, from 0 to 1", q.Guarantee)
	case q.Guarantee > q.Limit:
		return fmt.Errorf("guarantee: %s is more than the limit, %s: lower it, or raise the limit", percent(q.Guarantee), percent(q.Limit))
	case p == PriorityRealtime && q.Limit == 1:
		return errors.New("limit: who is realtime goes before everybody, so it needs a limit below 100 %, which counts as its guarantee")
	case p == PriorityIdle && q.Guarantee > 0:
		return errors.New("guarantee: who is idle gets what nobody else wants, so it is guaranteed nothing: leave it out, or make the priority low")
	case !(q.MemoryPart >= 0 && q.MemoryPart <= 1):
		return fmt.Errorf("memory: %s is not a part of the GPU's memory, above 0 %% and at most 100 %%", percent(q.MemoryPart))
	case q.Memory > 0 && q.Reserved > q.Memory:
		return fmt.Errorf("memory_guarantee: %s is more than memory, the cap of %s: lower it, or raise the cap", amount(q.Reserved), amount(q.Memory))
	case q.LaunchWait < 0:
		return fmt.Errorf("launch_wait: %v is no time to wait; 0 is no objective", q.LaunchWait)
	case q.LaunchWait > 0 && q.Guarantee == 0 && p != PriorityRealtime:
		return errors.New("launch_wait: nobody can be held to it without a guarantee: give one, or leave it out")
	case !(q.Bandwidth > 0 && q.Bandwidth <= 1):
		return fmt.Errorf("bandwidth: %v is not a part of the bandwidth, above 0 and at most 1; 1 is no limit", q.Bandwidth)
	}
	return nil
}

// check reports the first key of the ladder that cannot be.
func (s Steps) check() error {
	switch {
	case s.Mode < Observe || s.Mode > Terminate:
		return fmt.Errorf("mode: %d is not a rung of the ladder: %s", s.Mode, strings.Join(Rungs[:], ", "))
	case s.Of < 1 || s.Of > 64:
		return fmt.Errorf("of: %d is not a number of audits from 1 to 64", s.Of)
	case s.Confirm < 1 || s.Confirm > s.Of:
		return fmt.Errorf("confirm: %d is not between 1 and of, the last %d audits", s.Confirm, s.Of)
	case s.Hold < time.Second || s.Hold > 24*time.Hour:
		return fmt.Errorf("hold: %v is not between 1s and 24h", s.Hold)
	case !(s.Throttle > 0 && s.Throttle < 1):
		return fmt.Errorf("throttle: %v is not what is left of a limit, above 0 and below 1", s.Throttle)
	case len(s.Pause) == 0:
		return fmt.Errorf("pause: there is no way in it; ways are %s. Not to pause at all, set mode to throttle", strings.Join(pauseWays, ", "))
	case s.Grace < 0 || s.Grace > time.Hour:
		return fmt.Errorf("grace: %v is not between 0s and 1h", s.Grace)
	}
	for i, way := range s.Pause {
		switch {
		case !slices.Contains(pauseWays, way):
			return fmt.Errorf("pause: %q is no way to pause; ways are %s", way, strings.Join(pauseWays, ", "))
		case slices.Contains(s.Pause[:i], way):
			return fmt.Errorf("pause: %q is in it twice", way)
		}
	}
	return nil
}

// percent writes a part as configuration does.
func percent(part float64) string { return fmt.Sprintf("%.4g %%", 100*part) }

// amount writes a size as configuration does.
func amount(n uint64) string {
	for _, unit := range []struct {
		name string
		size uint64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= unit.size {
			return fmt.Sprintf("%.4g %s", float64(n)/float64(unit.size), unit.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
