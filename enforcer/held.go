package enforcer

import (
	"maps"
	"slices"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// heldBack returns whom we hold back now.
func (e *Enforcer) heldBack() audit.Holds {
	all := audit.Holds{Tenants: e.terms.Holds()}
	var away map[int]audit.Hold
	all.Workloads, away = e.swap.Holds()
	e.response.Holds(all.Workloads)
	doubtful := e.broker.Doubtful()
	if doubtful {
		for _, tenant := range e.terms.Tenants() {
			all.Tenants[tenant] |= audit.Starved
		}
	}
	crowds := e.crowds
	all.Process = func(pid int, tenant string) audit.Hold {
		hold := away[pid]
		refused, excused := e.broker.Refused(pid)
		if refused {
			hold |= audit.Filled
		}
		if excused && (doubtful || tenant != crowds) {
			hold |= audit.Starved
		}
		return hold
	}
	return all
}

// crowding returns the tenant that has more than half of all sessions; empty: none has, or those of no tenant. What
// its own jobs have excuses none of its processes, whoever owns them.
func crowding(sessions []audit.Session) string {
	all := map[string]int{}
	for _, s := range sessions {
		if all[s.Tenant]++; 2*all[s.Tenant] > len(sessions) && s.Tenant != policy.DefaultTenant {
			return s.Tenant
		}
	}
	return ""
}

// heldStats returns the statistics of the workloads that are held back.
func (e *Enforcer) heldStats() (rows []wire.HeldStats) {
	holds, all := e.heldBack(), map[audit.Subject]bool{}
	for s := range holds.Workloads {
		all[s] = true
	}
	for s := range e.response.Workloads() {
		all[s] = true
	}
	for _, s := range slices.SortedFunc(maps.Keys(all), audit.Compare) {
		for cause := range holds.Of(s).Causes() {
			rows = append(rows, wire.HeldStats{Tenant: s.Tenant, Workload: s.Workload, Cause: cause.String(),
				Stands: cause.Has(audit.Standing)})
		}
	}
	return rows
}
