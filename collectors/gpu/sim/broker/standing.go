package broker

import (
	"slices"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/quota"
)

// A standing is a workload's level of escalation, from its conduct on one
// GPU.
type standing struct {
	workload   string
	processes  int
	unhooked   int
	drift      float64 // bytes that the driver counts beyond the books
	violations map[string]uint64
	bad, clean int // windows in a row
	level      int
	ever       bool
	actions    map[[2]string]uint64 // by action and result
}

// standing returns the standing of a workload, which starts on the lowest level.
func (b *books) standing(workload string) *standing {
	for _, s := range b.workloads {
		if s.workload == workload {
			return s
		}
	}
	s := &standing{workload: workload, violations: map[string]uint64{}, actions: map[[2]string]uint64{}}
	b.workloads = append(b.workloads, s)
	return s
}

// audit judges the window that ends, and moves the tenant's workloads on the
// escalation.
func (b *books) audit() {
	w := b.window
	b.window = window{}
	if b.members == 0 {
		w = window{}
	}
	b.judge(quota.Compute, b.Promises(quota.Compute) && w.wanted > 0.01, w.used < min(w.wanted, b.Guarantee)-0.01)
	b.judge(quota.Memory, b.Promises(quota.Memory) && b.members > 0 && w.used > 0, false)
	b.judge(quota.LaunchWait, b.Promises(quota.LaunchWait) && w.waits > 0, w.late > 0.01*w.waits)
	if b.greedy && b.Memory > 0 && b.members > 0 {
		b.denied++
	}
	for _, s := range b.workloads {
		over := b.greedy && s.processes > 0 && w.used > b.Limit+0.02
		if over {
			s.violations["compute"]++
		}
		if s.unhooked > 0 {
			s.violations["unhooked"]++
		}
		s.move(over || s.unhooked > 0, b.Tenant)
	}
}

// judge counts a window of an objective.
func (b *books) judge(objective quota.Objective, wanted, missed bool) {
	if !wanted {
		return
	}
	b.windows[objective]++
	if missed {
		b.missed[objective]++
	}
}

// move goes up a level after consecutive violations, and down one after clean
// windows.
func (s *standing) move(bad bool, t *scenarios.Tenant) {
	if bad {
		s.bad, s.clean = s.bad+1, 0
	} else {
		s.bad, s.clean = 0, s.clean+1
	}
	switch {
	case s.bad >= t.Confirm && s.level < slices.Index(scenarios.Levels, t.Escalation):
		s.level, s.bad, s.ever = s.level+1, 0, true
		result := "done"
		if t.Shadow && scenarios.Levels[s.level] != "warn" {
			result = "shadow"
		}
		s.actions[[2]string{scenarios.Levels[s.level], result}]++
	case s.clean >= holdDown && s.level > 0:
		action := "observe" // the enforcer's name: the level that was entered
		if scenarios.Levels[s.level] != "warn" {
			action = "resume"
		}
		s.level, s.clean = s.level-1, 0
		s.actions[[2]string{action, "done"}]++
	}
}
