package health

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/input"
)

// A Check is a row of Checks: it says when something is wrong with an entity.
// The judgement on the host, the rules of Prometheus with their tests, and the
// entry in the runbook come from this one row.
type Check struct {
	ID      string         // "thermal_margin"
	Alert   string         // name of its alerts: "GPUThermalMargin"
	Class   incident.Class // of the fault; empty if it is no fault of a GPU
	Levels  []Level
	Latched bool // stays until a reset, a reboot or an operator's word; see also Incidents.Holds
	Accepts bool // an acknowledgement makes the present state the normal one
	Shadow  bool // its threshold is a matter of judgement: no alerts until it is enabled

	Summary string // one sentence, the same for every entity
	// Detail is a sentence that says what was measured and can stand alone. It has
	// places for the {entity}, a Quantity, the {labels} of its series, its {xids} or
	// its {event}; verbs are {present|past}.
	Detail   string
	Rule     string // in place of the details, in a rule of Prometheus; see Ruled
	Action   string // one thing to do; {ack} is the command that acknowledges the fault
	Remedies bool   // the tables of incidents know better what to do than Action
	Cause    string // what it means and how to find out more; it does not repeat the others
}

// Is reports whether the check has a name: its ID or that of its alerts.
func (c *Check) Is(name string) bool { return name != "" && (name == c.ID || name == c.Alert) }

// OfWork reports whether the check judges workloads or tenants: its faults are
// theirs and not the host's.
func (c *Check) OfWork() bool {
	by := c.Levels[0].When.Signal.by
	return slices.Contains(by, "workload") || slices.Contains(by, "tenant")
}

// Named returns the check of a name.
func Named(name string) (*Check, error) {
	var ids []string
	for _, c := range Checks() {
		if c.Is(name) {
			return c, nil
		}
		ids = append(ids, c.ID)
	}
	return nil, fmt.Errorf("there is no check %q%s", name, input.Instead(name, ids))
}

// A Level is when a check fails, and how badly.
type Level struct {
	Severity incident.Severity
	When     Condition
	For      Persistence // how often in how many samples; the zero value is at once
	Detail   string      // in place of the check's, if its value has another meaning
	Rule     string      // in place of the check's
	Action   string      // in place of the check's
}

// Persistence is how many of the last samples must meet a condition.
type Persistence struct {
	K, N  int           // K of the last N samples, at most 64
	Every time.Duration // between samples; 10 s if 0
}

// of returns k of n samples, each 10 s.
func of(k, n int) Persistence { return Persistence{K: k, N: n} }

// every returns p with samples that are d apart.
func (p Persistence) every(d time.Duration) Persistence {
	p.Every = d
	return p
}

// step is the interval of the host's judgements; events are judged at once.
const step = derived.Step

// spelled returns p with its defaults filled in.
func (p Persistence) spelled() Persistence {
	if p.N == 0 {
		return Persistence{K: 1, N: 1}
	}
	if p.Every == 0 {
		p.Every = step
	}
	return p
}

// String returns p for people: "6 of 6 in 1m".
func (p Persistence) String() string {
	p = p.spelled()
	if p.N == 1 {
		return "at once"
	}
	return fmt.Sprintf("%d of %d in %s", p.K, p.N, PromDuration(time.Duration(p.N)*p.Every))
}

// A Condition compares a signal with a threshold.
type Condition struct {
	Signal    *Signal
	Op        string  // >, >=, <, <=, ==, !=
	Threshold float64 // at which it begins
	Clear     float64 // at which it ends; mostly the same as Threshold
	While     []Condition
}

// Above holds above set, until the signal is at or below clear.
func (g *Signal) Above(set float64, clear ...float64) Condition { return condition(g, ">", set, clear) }

// AtLeast holds at or above set, until the signal is below clear.
func (g *Signal) AtLeast(set float64, clear ...float64) Condition {
	return condition(g, ">=", set, clear)
}

// Below holds below set, until the signal is at or above clear.
func (g *Signal) Below(set float64, clear ...float64) Condition { return condition(g, "<", set, clear) }

// AtMost holds at or below set, until the signal is above clear.
func (g *Signal) AtMost(set float64, clear ...float64) Condition {
	return condition(g, "<=", set, clear)
}

// Is holds while the signal equals v.
func (g *Signal) Is(v float64) Condition { return condition(g, "==", v, nil) }

// Not holds while the signal is anything but v.
func (g *Signal) Not(v float64) Condition { return condition(g, "!=", v, nil) }

func condition(g *Signal, op string, set float64, clear []float64) Condition {
	c := Condition{Signal: g, Op: op, Threshold: set, Clear: set}
	if len(clear) > 0 {
		c.Clear = clear[0]
	}
	return c
}

// And makes c hold only while others hold too. They concern the same entity,
// its GPU or the node.
func (c Condition) And(others ...Condition) Condition {
	c.While = append(slices.Clone(c.While), others...)
	return c
}

// Zeros says what a condition needs of the series that are 0.
type Zeros string

// What a condition needs, more than by the one before.
const (
	NoZeros  Zeros = "found" // one that is 0 means the same as one that is absent
	OneZero  Zeros = "one"   // one of each GPU means the same as all
	AllZeros Zeros = "all"
)

// Zeros returns what the condition, by itself, needs of its signal's series.
func (c Condition) Zeros() Zeros {
	switch g := c.Signal; {
	case g.merges == nil || c.Threshold < 0 && !g.merges.alone():
		return AllZeros
	case !c.holds(0, c.Threshold):
		return NoZeros
	case len(g.by) > 0:
		return AllZeros
	}
	return OneZero
}

// holds compares v with the threshold.
func (c Condition) holds(v, threshold float64) bool {
	switch c.Op {
	case ">":
		return v > threshold
	case ">=":
		return v >= threshold
	case "<":
		return v < threshold
	case "<=":
		return v <= threshold
	case "==":
		return v == threshold
	}
	return v != threshold
}

// worse reports whether v is further on the wrong side of the threshold than w.
func (c Condition) worse(v, w float64) bool {
	switch c.Op {
	case ">", ">=":
		return v > w
	case "<", "<=":
		return v < w
	}
	return v != w // no value is worse than another: the latest counts
}

// String returns the condition as PromQL, for its series that meet it.
func (c Condition) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", c.Signal, c.Op, number(c.Threshold))
	for _, w := range c.While {
		var extra []string // labels that only one of them has
		for _, l := range c.Signal.by {
			if !slices.Contains(w.Signal.by, l) {
				extra = append(extra, l)
			}
		}
		if w.Signal.node && !c.Signal.node {
			extra = append(extra, "gpu", "uuid")
		}
		b.WriteString(" and ")
		if extra != nil {
			fmt.Fprintf(&b, "ignoring (%s) ", strings.Join(extra, ", "))
		}
		fmt.Fprintf(&b, "(%s)", w)
	}
	return b.String()
}

// Words returns the condition for people, in Markdown.
func (c Condition) Words() string {
	op := map[string]string{">": "above", ">=": "at least", "<": "below", "<=": "at most", "==": "is",
		"!=": "is not"}[c.Op]
	text := fmt.Sprintf("%s %s %s", c.Signal.Words(), op, number(c.Threshold))
	for i, w := range c.While {
		text += []string{", while ", " and "}[min(i, 1)] + w.Words()
	}
	return text
}

// number writes v without an exponent, unless it is tiny.
func number(v float64) string {
	if math.Abs(v) < 1 {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// Holds reports whether incidents that only a reset ends latch the check.
func (c *Check) Holds() bool {
	return slices.ContainsFunc(c.Levels, func(l Level) bool {
		return l.When.Signal.counts != nil && l.When.Signal.counts.Holds
	})
}

// Detailed returns the sentence for a level, with its placeholders.
func (c *Check) Detailed(l Level) string { return cmp.Or(l.Detail, c.Detail) }

// Ruled returns the sentence for the rule of Prometheus that stands for several
// levels of a severity, which begin with l. If their sentences differ, or are
// about an event, which Prometheus does not know, it is the check's Rule or l's.
func (c *Check) Ruled(l Level, others ...Level) string {
	detail := c.Detailed(l)
	if strings.Contains(detail, "{event}") ||
		slices.ContainsFunc(others, func(o Level) bool { return c.Detailed(o) != detail }) {
		return cmp.Or(l.Rule, c.Rule)
	}
	return detail
}

// Advised returns the action for a level that an entity failed.
func (c *Check) Advised(l Level, failed incident.Entity) string {
	return strings.ReplaceAll(cmp.Or(l.Action, c.Action), "{ack}", c.Ack(failed))
}

// Ack returns the command that acknowledges a fault of an entity.
func (c *Check) Ack(failed incident.Entity) string { return toAck(c.ID, failed) }

func toAck(check string, failed incident.Entity) string {
	return "gpusteward ack " + check + " " + failed.String()
}

// Metrics returns the metrics that the check uses, some of them perhaps twice.
func (c *Check) Metrics() (all []*collectors.Metric) {
	var add func(Condition)
	add = func(k Condition) {
		all = append(all, k.Signal.uses...)
		for _, w := range k.While {
			add(w)
		}
	}
	for _, l := range c.Levels {
		add(l.When)
	}
	return all
}

// Expr returns the expression that Prometheus evaluates for the level: the
// condition, in K of N samples unless K is N. Its value is the signal's.
func (l Level) Expr() string {
	if p := l.For.spelled(); p.K == p.N {
		return l.When.String()
	}
	return l.Counted()
}

// Counted returns the expression for places where Prometheus cannot wait for
// the level: the signal, if the condition held in K of N samples.
func (l Level) Counted() string {
	p := l.For.spelled()
	return fmt.Sprintf("%s and (count_over_time((%s)[%s:%s]) >= %d)", l.When.Signal, l.When,
		PromDuration(time.Duration(p.N)*p.Every), PromDuration(p.Every), p.K)
}

// Wait returns the time for which Expr must hold before Prometheus fires.
func (l Level) Wait() time.Duration {
	p := l.For.spelled()
	if p.K != p.N {
		return 0
	}
	return time.Duration(p.N-1) * p.Every
}

// Delay returns the time from the beginning of the condition until the level is
// entered.
func (l Level) Delay() time.Duration {
	p := l.For.spelled()
	return time.Duration(p.K-1) * p.Every
}

// labelName matches the label names that Prometheus allows.
var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// ownLabels are the labels that alerts have themselves.
var ownLabels = []string{"alertname", "severity", "check", "class", "source", "node", "gpu", "uuid", "link", "tenant",
	"workload", "device"}
