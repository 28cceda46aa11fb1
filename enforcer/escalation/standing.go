package escalation

import (
	"cmp"
	"slices"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// A standing is a subject's place in the escalation.
type standing struct {
	level   policy.Level
	shadow  bool          // beyond Warn, steps are only announced
	since   time.Time     // when it came to the level
	entered time.Duration // the same, on the escalation's clock
	window  uint64        // violations in the last known audits since then, the newest in bit 0
	clean   time.Duration // since the last violation
	held    bool          // the brake holds it back
	retry   time.Duration // on the escalation's clock: it does not climb before
	counts  map[[2]string]uint64
	// at Suspend: of the violations that led there
	evidence []audit.Violation
}

// count counts a step with a result.
func (st *standing) count(s Step) {
	action := s.To.String()
	if s.To < s.From && s.From > policy.Warn {
		action = "resume"
	}
	if st.counts == nil {
		st.counts = map[[2]string]uint64{}
	}
	st.counts[[2]string{action, s.Result}]++
}

// admit adds new subjects. If there is no room, subjects without violations in
// the last audits make room; if there are none, a new subject is not followed.
func (l *Escalation) admit(found map[audit.Subject][]audit.Violation) {
	if l.on == nil {
		l.on = map[audit.Subject]*standing{}
	}
	var fresh []audit.Subject
	for s, list := range found {
		if l.on[s] == nil && len(list) > 0 {
			fresh = append(fresh, s)
		}
	}
	if len(fresh) == 0 {
		return
	}
	slices.SortFunc(fresh, audit.Compare)
	if short := len(l.on) + len(fresh) - maxStanding; short > 0 {
		l.evict(short)
	}
	for _, s := range fresh[:min(len(fresh), maxStanding-len(l.on))] {
		l.on[s] = &standing{since: l.last, entered: l.clock}
	}
}

// evict forgets at most n subjects at Observe, the longest clean first.
func (l *Escalation) evict(n int) {
	var idle []audit.Subject
	for s, st := range l.on {
		if st.level == policy.Observe && st.window == 0 {
			idle = append(idle, s)
		}
	}
	slices.SortFunc(idle, func(a, b audit.Subject) int {
		return cmp.Or(cmp.Compare(l.on[b].clean, l.on[a].clean), audit.Compare(a, b))
	})
	for _, s := range idle[:min(n, len(idle))] {
		delete(l.on, s)
	}
}

// Level returns a subject's level. In shadow, levels beyond Warn are only
// announced.
func (l *Escalation) Level(s audit.Subject) (level policy.Level, shadow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if st := l.on[s]; st != nil {
		return st.level, st.shadow
	}
	return policy.Observe, false
}

// Stats return the subjects' levels and the counts of actions, in order.
func (l *Escalation) Stats() ([]wire.EscalationStats, []wire.ActionStats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var escalation []wire.EscalationStats
	var actions []wire.ActionStats
	for s, st := range l.on {
		escalation = append(escalation, wire.EscalationStats{Tenant: s.Tenant, Workload: s.Workload,
			Level: st.level.String(), Shadow: st.shadow})
		for what, n := range st.counts {
			actions = append(actions, wire.ActionStats{Tenant: s.Tenant, Workload: s.Workload, Action: what[0],
				Result: what[1], Count: n})
		}
	}
	slices.SortFunc(escalation, func(a, b wire.EscalationStats) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Workload, b.Workload))
	})
	slices.SortFunc(actions, func(a, b wire.ActionStats) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Workload, b.Workload),
			cmp.Compare(a.Action, b.Action), cmp.Compare(a.Result, b.Result))
	})
	return escalation, actions
}

// State is what an escalation keeps over a restart, as JSON: the subjects above
// Observe, and the brake's counts. The count of audits restarts.
type State struct {
	Standing []Standing  `json:"standing"`
	Actions  []time.Time `json:"actions"`
}

// A Standing is a subject's level, in a State.
type Standing struct {
	Tenant   string    `json:"tenant"`
	Workload string    `json:"workload"`
	Level    string    `json:"rung"`
	Shadow   bool      `json:"shadow"`
	Since    time.Time `json:"since"`
}

// Save returns the input of Restore, in order: an equal one need not be written
// again.
func (l *Escalation) Save() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	var state State
	for s, st := range l.on {
		if st.level > policy.Observe {
			state.Standing = append(state.Standing,
				Standing{Tenant: s.Tenant, Workload: s.Workload, Level: st.level.String(), Shadow: st.shadow,
					Since: st.since})
		}
	}
	slices.SortFunc(state.Standing, func(a, b Standing) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Workload, b.Workload))
	})
	for _, a := range l.brake.actions {
		state.Actions = append(state.Actions, a.when)
	}
	return state
}

// Restore brings the escalation back to the saved state, without unusable
// parts. The caller repeats or undoes the actions of the levels.
func (l *Escalation) Restore(now time.Time, state State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = map[audit.Subject]*standing{}
	for _, s := range state.Standing {
		level := policy.Level(slices.Index(policy.Levels[:], s.Level))
		if level > policy.Observe && s.Tenant != "" && s.Tenant != policy.DefaultTenant && len(l.on) < maxStanding {
			l.on[audit.Subject{Tenant: s.Tenant, Workload: s.Workload}] = &standing{level: level, shadow: s.Shadow,
				since: s.Since, entered: l.clock}
		}
	}
	l.brake = brake{}
	for _, when := range state.Actions[:min(len(state.Actions), maxStanding)] {
		if ago := max(now.Sub(when), 0); ago < l.window() {
			l.brake.use(l.clock-ago, when)
		}
	}
}
