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

// escalation writes a line for each workload in s.Escalation.
func (st style) escalation(b *strings.Builder, all []Escalated) {
	wide := (st.width - 31) / 2 // width of the last column
	row := func(name, tenant, violations, paint string, level cell) {
		b.WriteString(st.line(cell{name, st.width - 35 - wide, paint}, cell{tenant, 14, paint}, level,
			cell{violations, wide, paint}))
	}
	row("ESCALATED", "TENANT", "VIOLATIONS", dim, cell{"LEVEL", 18, dim})
	for i, l := range all {
		if i == shownEscalated {
			b.WriteString(st.line(cell{text: fmt.Sprintf("and %d more", len(all)-i), paint: dim}))
			break
		}
		row(l.Workload, l.Tenant, l.found(), "", standing(l.Level, l.Shadow, 18))
	}
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

// standing returns a level as a cell, in the colour of the action.
func standing(level string, shadow bool, width int) cell {
	paint := ""
	switch h := height(level); {
	case h > height("throttle") && !shadow:
		paint = red
	case h > 0:
		paint = yellow
	}
	if shadow && height(level) > height("warn") {
		level += " (shadow)"
	}
	return cell{level, width, paint}
}
