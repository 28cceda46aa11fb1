package incident

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A companion is a row of data/companions.tsv: an incident that accompanies
// another one, and does not count by itself then.
type companion struct {
	what, after pattern
	where       string // it is on the "gpu" of the other, or names none; only "unnamed"; on another of the
	// "node", or of the "process" that both name
	action string // the action for the other incident then
}

// together is the longest time between observations of one fault, and between
// faults that belong together.
const together = 5 * time.Second

// A pattern matches incidents.
type pattern struct {
	what string
	code int // anyCode: any code except those that are companions of any code
}

const anyCode = -1

var companions = sync.OnceValue(func() (all []companion) {
	readFacts("companions", func(row map[string]string) error {
		c := companion{what: pattern{row["what"], anyCode}, after: pattern{row["after"], anyCode},
			where: row["where"], action: row["action"]}
		for p, text := range map[*pattern]string{&c.what: row["code"], &c.after: row["after_code"]} {
			if text != "*" {
				var err error
				if p.code, err = strconv.Atoi(text); err != nil {
					return err
				}
			}
		}
		all = append(all, c)
		return nil
	})
	return all
})

// isOne reports whether p matches i.
func (p pattern) isOne(i *openIncident) bool {
	return p.what == i.What && (p.code == anyCode || p.code == i.Code)
}

// causes reports whether p matches i as a cause. A pattern for any code leaves
// out the codes that follow any code themselves, such as the XIDs 45 and 154.
func (p pattern) causes(i *openIncident) bool {
	if p.code != anyCode {
		return p.isOne(i)
	}
	for _, c := range companions() {
		if c.after == p && c.what.isOne(i) {
			return false
		}
	}
	return p.isOne(i)
}

// follows returns the row by which i is a companion of o.
func (i *openIncident) follows(o *openIncident) (companion, bool) {
	if d := i.First.Sub(o.Last); i == o || d > together || o.First.Sub(i.Last) > together {
		return companion{}, false
	}
	if i.isOthers(o) {
		return companion{}, false
	}
	same, unnamed := i.key.entity == o.key.entity, i.key.entity == Entity{}
	for _, c := range companions() {
		near := map[string]bool{"gpu": same || unnamed, "unnamed": unnamed && !same, "node": !same, "process": !same && i.shares(o)}[c.where]
		if (c.where == "node" || c.where == "process") && o.Severity < i.Severity || c.after.code == anyCode && i.outranks(o) {
			continue
		}
		if near && c.what.isOne(i) && c.after.causes(o) {
			return c, true
		}
	}
	return companion{}, false
}

// outranks reports whether i is a fault of the driver or the GPU, and o an XID
// that a process can cause when it likes: it must not hide that fault.
func (i *openIncident) outranks(o *openIncident) bool {
	return i.What != WhatXID && i.What != WhatRecovery && o.What == WhatXID && XIDs()[o.Code].Tenant()
}

// shares reports whether i and o name the same process.
func (i *openIncident) shares(o *openIncident) bool {
	return slices.ContainsFunc(i.mentions, func(a Observation) bool {
		return slices.ContainsFunc(o.mentions, func(b Observation) bool { return a.PID == b.PID })
	})
}

// isOthers reports whether i and o are XIDs of two workloads, each of its own.
func (i *openIncident) isOthers(o *openIncident) bool {
	return i.tenants() && o.tenants() && i.Workload != "" && o.Workload != "" && i.Workload != o.Workload
}

// parts ends that i follows an incident on another GPU that is less severe than
// i has become, or one of another workload.
func (i *openIncident) parts() bool {
	o := i.cause
	if o == nil || !i.isOthers(o) &&
		(o.key.entity == i.key.entity || i.key.entity == (Entity{}) || o.Severity >= i.Severity) {
		return false
	}
	i.cause = nil
	return true
}

// relate finds the open incidents that i follows and those that follow i.
func (c *Correlator) relate(i *openIncident) {
	for _, o := range c.open {
		if i.cause == nil && i.due != 0 && o.What == WhatXID && o.Code == i.due && o.key.entity == i.key.entity {
			i.cause = o // the driver says so, however long ago it was
		}
	}
	if i.cause == nil {
		for _, o := range c.open {
			if o.root() != i && i.join(o) {
				break
			}
		}
	}
	for _, o := range c.open {
		if o.cause == nil && i.root() != o {
			o.join(i)
		}
	}
	for _, o := range c.open {
		if follows := o.follow(); follows != o.Follows {
			o.Follows, o.news = follows, true
		}
	}
}

// join makes o the cause of i, if i is a companion of it. What only a reset ends
// does not end earlier with its cause.
func (i *openIncident) join(o *openIncident) bool {
	row, ok := i.follows(o)
	if ok {
		i.cause = o
		i.advise(row.action)
		if r := i.root(); i.NeedsReset && !r.NeedsReset {
			r.NeedsReset, r.news = true, true
		}
	}
	return ok
}

// root returns the first cause in the chain, which may be i.
func (i *openIncident) root() *openIncident {
	for i.cause != nil {
		i = i.cause
	}
	return i
}

// follow returns the ID of the first cause, or its XID if only the driver's
// word tells it; empty if i has none.
func (i *openIncident) follow() string {
	switch {
	case i.cause != nil:
		return i.root().ID
	case i.due != 0:
		return fmt.Sprintf("%s %d", WhatXID, i.due)
	}
	return ""
}

// advise sets the action for i's cause. The driver's verdict overrides the
// table, which does not know the case.
func (i *openIncident) advise(action string) {
	r := i.root()
	if r == i {
		return
	}
	if verdict, ok := i.verdict(); ok && verdict.severity > Info {
		action, r.NeedsReset = verdict.name, r.NeedsReset || verdict.reset
		if r.What == WhatXID && r.Code == RecoveryXID {
			r.decide(verdict) // NVML's XID has no text that says it
		}
	}
	if action != "" && r.Action != action {
		r.Action, r.news = action, true
	}
}

// An action is a row of data/actions.tsv: a value of the driver's recovery
// action.
type action struct {
	name     string
	severity Severity
	reset    bool // only a reset ends the need for it
}

// isNone reports whether the driver asks for nothing.
func (a action) isNone() bool { return a == actions()[0] }

var actions = sync.OnceValue(func() map[int]action {
	all := map[int]action{}
	readFacts("actions", func(row map[string]string) error {
		value, err := strconv.Atoi(row["value"])
		if err != nil {
			return err
		}
		_, severity, err := verdictOf(row)
		all[value] = action{row["action"], severity, row["ends"] == byReset}
		return err
	})
	return all
})

// EndsRecovery reports whether e is the driver's word that it asks for no
// recovery of the GPU any more.
func EndsRecovery(e *Event) bool {
	return e.Kind == KindIncident && e.Check == RecoveryCheck && e.Action == actions()[0].name
}

// newAction finds the verdict in the text of XID 154: "GPU recovery action
// changed from 0x0 (None) to 0x1 (GPU Reset Required)".
var newAction = regexp.MustCompile(`recovery action changed from .* to 0x([0-9a-f]{1,4})\b`)

// verdict returns the recovery action that i reports.
func (i *openIncident) verdict() (action, bool) {
	value := -1
	switch {
	case i.What == WhatRecovery:
		value = i.Code
	case i.What == WhatXID && i.Code == RecoveryXID:
		return verdictIn(i.text)
	}
	a, ok := actions()[value]
	return a, ok
}

// verdictIn returns the recovery action that the text of an XID 154 tells.
func verdictIn(text string) (a action, ok bool) {
	if m := newAction.FindStringSubmatch(text); m != nil {
		n, _ := strconv.ParseInt(m[1], 16, 32)
		a, ok = actions()[int(n)]
	}
	return a, ok
}

// AsksForReset reports whether a value of the driver's recovery action asks for
// a reset or a reboot.
func AsksForReset(value int) bool { return actions()[value].reset }

// Recovery says in words what a value of the driver's recovery action asks for.
func Recovery(value int) string {
	if a, known := actions()[value]; known {
		return Remedy(a.name)
	}
	return fmt.Sprintf("take recovery action %d", value)
}

// KnowsRecovery reports whether the table has a value of the driver's recovery
// action.
func KnowsRecovery(value int) bool { return actions()[value].name != "" }
