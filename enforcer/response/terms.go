package response

import (
	"maps"
	"sync/atomic"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
)

// terms are the present terms of the tenants: the policy's, less what the
// escalation and the pacer take. Immutable.
type terms struct {
	*policy.Policy
	rates     func(uuid string) (link, memory float64, ok bool)
	simulated bool               // nothing is done to processes
	throttled map[string]float64 // part of weight and limit that is left, by tenant
	held      map[string]bool    // tenants without turns
	paced     pacer
}

// Terms own the terms in force, and who takes from the policy's: the pacer, and the escalation,
// which throttles tenants and holds them. They are the broker's policy. Anybody may ask; the
// enforcer's goroutine alone changes them.
type Terms struct {
	now     atomic.Pointer[terms]
	refresh func() // tells the broker of a change
	held    map[audit.Subject]bool
	pacer   pacer
	sampled map[place]*float64 // the last bandwidth samples that the pacer saw
}

// NewTerms returns the terms of a policy. Rates tells how many bytes a second a GPU copies; refresh is
// told of each change. Of simulated GPUs, no level acts on processes.
func NewTerms(p *policy.Policy, rates func(uuid string) (link, memory float64, ok bool), simulated bool, refresh func()) *Terms {
	f := &Terms{refresh: refresh, held: map[audit.Subject]bool{}, pacer: pacer{}, sampled: map[place]*float64{}}
	f.now.Store(&terms{Policy: p, rates: rates, simulated: simulated})
	return f
}

// Policy returns the policy in force.
func (f *Terms) Policy() *policy.Policy { return f.now.Load().Policy }

// Configure puts another policy in force.
func (f *Terms) Configure(p *policy.Policy) { f.change(func(t *terms) { t.Policy = p }) }

// change puts other terms in force, if they differ.
func (f *Terms) change(edit func(*terms)) {
	was := f.now.Load()
	is := *was
	edit(&is)
	if is.Policy == was.Policy && maps.Equal(is.throttled, was.throttled) && maps.Equal(is.held, was.held) &&
		maps.Equal(is.paced, was.paced) {
		return
	}
	f.now.Store(&is)
	f.refresh()
}

// Tenant implements broker.Policy.
func (f *Terms) Tenant(of broker.Facts, wished string) (string, error) {
	return f.now.Load().Tenant(of, wished)
}

// Tenants implements broker.Policy.
func (f *Terms) Tenants() []string {
	return append(f.now.Load().Tenants(), policy.DefaultTenant)
}

// Quota implements broker.Policy.
func (f *Terms) Quota(tenant, gpu string) broker.Quota {
	t := f.now.Load()
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

// Hold stops the turns of a subject's tenant at the broker, or starts them
// again.
func (f *Terms) Hold(s audit.Subject, on bool) error {
	if on {
		f.held[s] = true
	} else {
		delete(f.held, s)
	}
	held := map[string]bool{}
	for s := range f.held {
		held[s.Tenant] = true
	}
	f.change(func(t *terms) { t.held = held })
	return nil
}

// Throttle leaves tenants a part of their weight and limit.
func (f *Terms) Throttle(parts map[string]float64) { f.change(func(t *terms) { t.throttled = parts }) }

// Pace lowers the limits of tenants whose kernels exceed their part of the
// memory's bandwidth.
func (f *Terms) Pace(b audit.Books, found audit.Audited) {
	shares := map[place]float64{}
	for _, t := range b.Tenants {
		shares[place{t.Tenant, t.GPU}] = t.Share10s.Actual
	}
	t := f.now.Load()
	gone := func(at place) bool { return !t.Governed(at.tenant) }
	maps.DeleteFunc(f.sampled, func(at place, _ *float64) bool { return gone(at) })
	maps.DeleteFunc(f.pacer, func(at place, _ float64) bool { return gone(at) })
	for _, q := range found.Quotas {
		at := place{q.Tenant, q.GPU}
		// each sample counts once: the audit shows it until there is another
		if q.Bus != nil && q.Bus != f.sampled[at] {
			f.sampled[at] = q.Bus
			f.pacer.look(at, b.Quota(q.Tenant, q.GPU), *q.Bus, shares[at])
		}
	}
	f.change(func(t *terms) { t.paced = f.pacer.clone() })
}

// steps returns the escalation's limits for a tenant.
func (t *terms) steps(tenant string) policy.Steps {
	if !t.Governed(tenant) {
		return policy.Steps{}
	}
	s := t.Steps(tenant)
	s.Shadow = s.Shadow || t.simulated
	return s
}

// Holds returns which tenants get less than their quota: the escalation holds them, or the pacer
// limits them below their guarantee.
func (f *Terms) Holds() map[string]audit.Hold {
	all, t := map[string]audit.Hold{}, f.now.Load()
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
