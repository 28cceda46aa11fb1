package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/input"
	"gpusteward/internal/quota"
)

// Settings are what an operator can change while a Monitor runs. Checks have
// their ID or the name of their alerts.
type Settings struct {
	EnableAlerts []string                     // checks in shadow mode that alert nevertheless
	Disable      []string                     // checks that are not made
	Thresholds   map[string]map[string]string // by check and severity, as written
	Labels       map[string]string            // additional labels of pushed alerts
}

// Validate reports the keys that cannot work.
func (s Settings) Validate() error {
	var wrong input.Errors
	var shadow []string
	for _, c := range Checks() {
		if c.Shadow {
			shadow = append(shadow, c.ID)
		}
	}
	for i, name := range s.EnableAlerts {
		c, err := Named(name)
		wrong.If(err != nil || !c.Shadow, "health.enable_alerts[%d]: %q is not a check in shadow mode%s", i, name,
			input.Instead(name, shadow))
	}
	for i, name := range s.Disable {
		key := fmt.Sprintf("health.disable[%d]: ", i)
		c, err := Named(name)
		wrong.Below(key, err)
		wrong.If(err == nil && slices.ContainsFunc(s.EnableAlerts, c.Is), "%s%q is also in health.enable_alerts", key, name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Thresholds)) {
		key := "health.thresholds." + name
		c, err := Named(name)
		wrong.Below(key+": ", err)
		if err == nil {
			wrong.If(name != c.ID && s.Thresholds[c.ID] != nil, "%s: it is also there as %s", key, c.ID)
			_, err = c.tuned(s.Thresholds[name])
			wrong.Below(key, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		wrong.If(!labelName.MatchString(name) || slices.Contains(ownLabels, name), "health.labels: %q is not a valid "+
			"label: use letters, digits and _, and none of %s", name, strings.Join(ownLabels, ", "))
	}
	return wrong.Err()
}

// tuned returns the check with other thresholds, by severity. An error begins
// with the severity, as ".warning".
func (c *Check) tuned(by map[string]string) (*Check, error) {
	var wrong input.Errors
	own := *c
	own.Levels = slices.Clone(c.Levels)
	var can []string // the severities with a threshold that can be another
	for i := range c.Levels {
		l := &own.Levels[i]
		name := l.Severity.String()
		first := slices.IndexFunc(c.Levels, func(o Level) bool { return o.Severity == l.Severity && c.quantity(o) != "" })
		if first < 0 {
			continue
		}
		text, written := by[name]
		if first == i {
			can = append(can, name)
		}
		if !written || !c.alike(*l, c.Levels[first]) {
			continue
		}
		v, err := parse(text, c.quantity(*l), l.When.Threshold)
		if first == i {
			wrong.Below("."+name+": ", err)
		}
		if err == nil {
			l.When.Threshold, l.When.Clear = v, moved(l.When, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		if !slices.Contains(can, name) {
			what := "it has no threshold at any level"
			if len(can) > 0 {
				what = "it has no threshold at the level " + strconv.Quote(name) + input.Instead(name, can)
			}
			wrong.If(true, ".%s: %s", name, what)
		}
	}
	if len(wrong) == 0 {
		c.order(own.Levels, by, &wrong)
	}
	return &own, wrong.Err()
}

// order reports levels that are no longer milder than those that are worse.
func (c *Check) order(tuned []Level, by map[string]string, wrong *input.Errors) {
	said := map[string]bool{}
	for i, mild := range c.Levels {
		for k, bad := range c.Levels {
			name := mild.Severity.String()
			if by[name] == "" {
				name = bad.Severity.String()
			}
			if mild.Severity < bad.Severity && mild.When.Signal.query == bad.When.Signal.query && mild.When.Op == bad.When.Op &&
				mild.When.worse(bad.When.Threshold, mild.When.Threshold) && !said[name] {
				said[name] = wrong.If(!mild.When.worse(tuned[k].When.Threshold, tuned[i].When.Threshold),
					".%s: at %s, %s would not come before %s, which is at %s", name, number(tuned[i].When.Threshold),
					mild.Severity, bad.Severity, number(tuned[k].When.Threshold))
			}
		}
	}
}

// quantity returns the unit of what a level compares with its threshold; empty:
// it finds a state, which is there or not.
func (c *Check) quantity(l Level) (unit string) {
	if l.When.Op == "==" || l.When.Op == "!=" {
		return ""
	}
	Quantities(c.Detailed(l), func(q Quantity) string { unit = q.Unit; return "" })
	if unit == "recovery" {
		return ""
	}
	return unit
}

// alike reports whether two levels have one threshold.
func (c *Check) alike(a, b Level) bool {
	return a.When.Op == b.When.Op && a.When.Threshold == b.When.Threshold && c.quantity(a) == c.quantity(b)
}

// moved returns where a condition with another threshold ends: as far from it as
// before, in proportion.
func moved(c Condition, threshold float64) float64 {
	if c.Threshold == 0 || threshold == 0 {
		return threshold + c.Clear - c.Threshold
	}
	return c.Clear * threshold / c.Threshold
}

// parse reads a threshold in a unit. usual is the check's own.
func parse(text, unit string, usual float64) (float64, error) {
	switch unit {
	case "bytes":
		var size quota.Size
		err := cmp.Or(size.UnmarshalText([]byte(text)), quota.UnitForgotten(text))
		return size.Number(), err
	case "time":
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return 0, fmt.Errorf("%q is not a duration such as %v", text, time.Duration(usual*float64(time.Second)))
		}
		return d.Seconds(), nil
	case "percent", "apart":
		var part quota.Part
		if err := part.UnmarshalText([]byte(text)); err != nil || !(part.Number()*usual > 0 && part.Number() >= -1 && part <= 1) {
			return 0, fmt.Errorf("%q is not a part such as %s or %s", text, number(usual), quota.Part(usual))
		}
		return part.Number(), nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > -1e15 && v < 1e15) || v < 0 && unit != "margin" {
		return 0, fmt.Errorf("%q is not a number such as %s", text, number(usual))
	}
	return v, nil
}

// Tune applies settings, and returns the changes: the faults of checks that are
// no longer made are over.
func (e *Engine) Tune(s Settings, now time.Time) (changes []incident.Event) {
	e.memory.now, e.enabled = now, s.EnableAlerts
	for _, j := range e.judges {
		j.Check = j.own
		for name, by := range s.Thresholds {
			if j.own.Is(name) {
				j.Check, _ = j.own.tuned(by) // it is valid
			}
		}
		if j.off = slices.ContainsFunc(s.Disable, j.Is); !j.off {
			continue
		}
		for _, st := range j.order {
			if st.severity(j.Check) != incident.None {
				changes = append(changes, e.unlatch(j, st, now, "The check is disabled."))
			}
		}
		j.order, j.statuses = nil, map[incident.Entity]*status{}
	}
	return changes
}

// disabled returns the checks that are not made.
func (e *Engine) disabled() (all []string) {
	for _, j := range e.judges {
		if j.off {
			all = append(all, j.ID)
		}
	}
	return all
}
