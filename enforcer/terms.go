package enforcer

import (
	"maps"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
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
	b := broker.Quota{Quota: q, Weight: weight, Class: class, Held: t.held[tenant]}
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

// punished reports whether a tenant gets less than its quota: the escalation
// holds it, or the pacer limits it below its guarantee.
func (t *terms) punished(tenant string) bool {
	for at, limit := range t.paced {
		if at.tenant == tenant && limit < t.Quota(tenant, at.gpu).Guarantee {
			return true
		}
	}
	_, throttled := t.throttled[tenant]
	return throttled || t.held[tenant]
}
