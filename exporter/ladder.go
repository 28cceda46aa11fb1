package exporter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpusteward/collectors"
)

// An OnLadder is a workload of which the enforcer does more than count what it
// violates.
type OnLadder struct {
	Workload   string  `json:"workload"`
	Tenant     string  `json:"tenant"`
	Rung       string  `json:"rung"` // observe, warn, throttle, pause, terminate
	Shadow     bool    `json:"shadow"`
	Violations byLabel `json:"violations,omitempty"` // audits that found one since the enforcer began, by objective, of all GPUs
}

// ladderFacts are what samples with the labels tenant and workload say of it.
var ladderFacts = map[*collectors.Metric]func(l *OnLadder, s collectors.Sample){
	collectors.QuotaShadow: func(l *OnLadder, s collectors.Sample) { l.Shadow = s.Value == 1 },
	collectors.QuotaRung: func(l *OnLadder, s collectors.Sample) {
		if s.Value == 1 {
			l.Rung = label(s, "rung")
		}
	},
	collectors.QuotaViolations: func(l *OnLadder, s collectors.Sample) {
		if s.Value > 0 {
			l.Violations.add(label(s, "objective"), s.Value)
		}
	},
}

// seenLadder are the workloads that were seen so far, by tenant and name.
type seenLadder map[[2]string]*OnLadder

// of returns the entry of s's workload.
func (seen seenLadder) of(s collectors.Sample) *OnLadder {
	id := [2]string{label(s, "tenant"), label(s, "workload")}
	if seen[id] == nil {
		seen[id] = &OnLadder{Tenant: id[0], Workload: id[1]}
	}
	return seen[id]
}

// height is how high a rung is; -1 for none.
func height(rung string) int { return slices.Index(collectors.Rungs, rung) }

// above returns the workloads above observe, the highest first, and notes the
// highest of all in the tenants.
func (seen seenLadder) above(tenants []Tenant) (all []OnLadder) {
	sorted := slices.SortedFunc(maps.Values(seen), func(a, b *OnLadder) int {
		real := func(l *OnLadder) int { return int(collectors.Bool(l.Shadow)) } // before what is only said
		return cmp.Or(cmp.Compare(height(b.Rung), height(a.Rung)), cmp.Compare(real(a), real(b)), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Workload, b.Workload))
	})
	for _, l := range sorted {
		if height(l.Rung) > 0 {
			all = append(all, *l)
		}
		for i := range tenants {
			if t := &tenants[i]; t.Name == l.Tenant && t.Rung == "" {
				t.Rung, t.Shadow = l.Rung, l.Shadow
			}
		}
	}
	return all
}

// shownOnLadder bounds the lines of workloads on the ladder in a status.
const shownOnLadder = 10

// ladder writes a line for each workload on it.
func (st style) ladder(b *strings.Builder, all []OnLadder) {
	wide := (st.width - 31) / 2 // of the last column
	row := func(name, tenant, violations, paint string, rung cell) {
		b.WriteString(st.line(cell{name, st.width - 35 - wide, paint}, cell{tenant, 14, paint}, rung, cell{violations, wide, paint}))
	}
	row("ON THE LADDER", "TENANT", "VIOLATIONS", dim, cell{"RUNG", 18, dim})
	for i, l := range all {
		if i == shownOnLadder {
			b.WriteString(st.line(cell{text: fmt.Sprintf("and %d more", len(all)-i), paint: dim}))
			break
		}
		row(l.Workload, l.Tenant, l.found(), "", standing(l.Rung, l.Shadow, 18))
	}
}

// found writes what was found, what was found most first.
func (l OnLadder) found() string {
	objectives := slices.SortedFunc(maps.Keys(l.Violations), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.Violations[b], l.Violations[a]), cmp.Compare(a, b))
	})
	for i, o := range objectives {
		objectives[i] = fmt.Sprintf("%s ×%.0f", o, l.Violations[o])
	}
	return strings.Join(objectives, ", ")
}

// standing is a rung as a cell, in the colour of what is done.
func standing(rung string, shadow bool, width int) cell {
	paint := ""
	switch h := height(rung); {
	case h > height("throttle") && !shadow:
		paint = red
	case h > 0:
		paint = yellow
	}
	if shadow && height(rung) > height("warn") {
		rung += " (shadow)"
	}
	return cell{rung, width, paint}
}
