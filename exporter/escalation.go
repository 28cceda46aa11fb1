package exporter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// An Escalated is a workload that the enforcer does more about than count its
// violations.
type Escalated struct {
	Workload string `json:"workload"`
	Tenant   string `json:"tenant"`
	Level    string `json:"rung"` // observe, warn, throttle, pause, suspend, terminate
	Shadow   bool   `json:"shadow"`
	// audits with a violation since the enforcer began, by objective, over all
	// GPUs
	Violations byLabel `json:"violations,omitempty"`
}

// escalationFacts read the samples with the labels tenant and workload.
var escalationFacts = map[*collectors.Metric]func(l *Escalated, s collectors.Sample){
	workloads.QuotaShadow: func(l *Escalated, s collectors.Sample) { l.Shadow = s.Value == 1 },
	workloads.QuotaLevel: func(l *Escalated, s collectors.Sample) {
		if s.Value == 1 {
			l.Level = label(s, "rung")
		}
	},
	workloads.QuotaViolations: func(l *Escalated, s collectors.Sample) {
		if s.Value > 0 {
			l.Violations.add(label(s, "objective"), s.Value)
		}
	},
}

// seenEscalated are the workloads seen so far, by tenant and name.
type seenEscalated map[[2]string]*Escalated

// of returns the entry of s's workload.
func (seen seenEscalated) of(s collectors.Sample) *Escalated {
	id := [2]string{label(s, "tenant"), label(s, "workload")}
	if seen[id] == nil {
		seen[id] = &Escalated{Tenant: id[0], Workload: id[1]}
	}
	return seen[id]
}

// height returns the height of a level; -1 for none.
func height(level string) int { return slices.Index(workloads.Levels, level) }

// above returns the workloads above observe, the highest first, and notes each
// tenant's highest level in tenants.
func (seen seenEscalated) above(tenants []Tenant) (all []Escalated) {
	sorted := slices.SortedFunc(maps.Values(seen), func(a, b *Escalated) int {
		real := func(l *Escalated) int { return int(collectors.Bool(l.Shadow)) } // before those in shadow mode
		return cmp.Or(cmp.Compare(height(b.Level), height(a.Level)), cmp.Compare(real(a), real(b)),
			cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Workload, b.Workload))
	})
	for _, l := range sorted {
		if height(l.Level) > 0 {
			all = append(all, *l)
		}
		for i := range tenants {
			if t := &tenants[i]; t.Name == l.Tenant && t.Level == "" {
				t.Level, t.Shadow = l.Level, l.Shadow
			}
		}
	}
	return all
}

// shownEscalated bounds the lines of escalated workloads in a status.
const shownEscalated = 10

// escalation returns a row for each workload in all.
func (st style) escalation(all []Escalated) grid {
	wide := (st.width - 31) / 2 // width of the last column
	g := grid{columns: []column{{"ESCALATED", st.width - 35 - wide}, {"TENANT", 14}, {"LEVEL", 18},
		{"VIOLATIONS", wide}}}
	for _, l := range all {
		g.rows = append(g.rows, row{fields: []field{words(l.Workload), words(l.Tenant), standing(l.Level, l.Shadow),
			words(l.found())}})
	}
	return g
}

// found writes the violations, the most frequent first.
func (l Escalated) found() string {
	objectives := slices.SortedFunc(maps.Keys(l.Violations), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.Violations[b], l.Violations[a]), cmp.Compare(a, b))
	})
	for i, o := range objectives {
		objectives[i] = fmt.Sprintf("%s ×%.0f", o, l.Violations[o])
	}
	return strings.Join(objectives, ", ")
}

// standing returns a level as a field, in the colour of the action.
func standing(level string, shadow bool) field {
	f := field{text: level, by: float64(height(level))}
	switch {
	case f.by > float64(height("throttle")) && !shadow:
		f.paint = red
	case f.by > 0:
		f.paint = yellow
	}
	if shadow && f.by > float64(height("warn")) {
		f.text += " (shadow)"
	}
	return f
}
