package enforcer

import (
	"maps"
	"slices"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// terms are the present terms of the tenants: the policy's, less what the
// escalation and the pacer take. Immutable.
type terms struct {
	*policy.Policy
	rates     func(uuid string) (link, memory float64, ok bool)
	throttled map[string]float64 // part of weight and limit that is left, by tenant
	held      map[string]bool    // tenants without turns
	paced     pacer
}

// change puts other terms in force, if they differ.
func (e *Enforcer) change(edit func(*terms)) {
	was := e.terms.Load()
	is := *was
	edit(&is)
	if is.Policy == was.Policy && maps.Equal(is.throttled, was.throttled) && maps.Equal(is.held, was.held) &&
		maps.Equal(is.paced, was.paced) {
		return
	}
	e.terms.Store(&is)
	e.broker.Refresh()
}

// Tenant implements broker.Policy.
func (e *Enforcer) Tenant(f broker.Facts, wished string) (string, error) {
	return e.terms.Load().Tenant(f, wished)
}

// Tenants implements broker.Policy.
func (e *Enforcer) Tenants() []string {
	return append(e.terms.Load().Tenants(), policy.DefaultTenant)
}

// Quota implements broker.Policy.
func (e *Enforcer) Quota(tenant, gpu string) broker.Quota {
	t := e.terms.Load()
	q := t.Quota(tenant, gpu)
	weight, class := t.Weight(tenant, gpu)
	b := broker.Quota{Quota: q, Weight: weight, Class: class, Held: t.held[tenant], Differs: t.Differs(tenant)}
	b.Limit = t.paced.limit(place{tenant, gpu}, q)
	if part, ok := t.throttled[tenant]; ok {
		b.Weight *= part
		b.Limit *= part
	}
	if q.Bandwidth < 1 {
		if link, memory, ok := t.rates(gpu); ok {
			b.Link = uint64(q.Bandwidth * link)
			b.Copy = uint64(q.Bandwidth * memory / 2) // a copy reads and writes
		}
	}
	return b
}

// holds returns which tenants get less than their quota: the escalation holds them, or the pacer
// limits them below their guarantee.
func (t *terms) holds() map[string]audit.Hold {
	all := map[string]audit.Hold{}
	for at, limit := range t.paced {
		if limit < t.Quota(at.tenant, at.gpu).Guarantee {
			all[at.tenant] |= audit.Paced
		}
	}
	for tenant := range t.throttled {
		all[tenant] |= audit.Throttled
	}
	for tenant := range t.held {
		all[tenant] |= audit.Paused
	}
	return all
}

// heldBack returns whom we hold back now.
func (e *Enforcer) heldBack() audit.Holds {
	all := audit.Holds{Tenants: e.terms.Load().holds()}
	var away map[int]audit.Hold
	all.Workloads, away = e.swap.Holds()
	rows, _ := e.escalation.Stats()
	for _, row := range rows {
		if s := (audit.Subject{Tenant: row.Tenant, Workload: row.Workload}); e.stopped(s) {
			all.Workloads[s] |= audit.Paused
		}
	}
	doubtful := e.broker.Doubtful()
	if doubtful {
		for _, tenant := range e.Tenants() {
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
	for s := range e.groups {
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
