package policy

import "gpusteward/enforcer/schedule"

// leastWeight is the weight of a tenant without a guarantee and a part of the
// rest: it gets a turn some day.
const leastWeight = 1e-3

// Quota returns a tenant's quota on the GPU of a UUID; an empty UUID stands for
// GPUs without an override. A realtime tenant has its limit guaranteed. A part
// of the memory becomes bytes once the host knows the size, a second after it
// found the GPU; until then it is no cap.
func (p *Policy) Quota(tenant, gpu string) Quota {
	q := p.rule(tenant).quota(p.names(gpu))
	if q.MemoryPart == 0 || p.host.Memory == nil {
		return q
	}
	if total, ok := p.host.Memory(gpu); ok {
		q.Memory = max(uint64(q.MemoryPart*float64(total)), 1) // 0 would be no cap
		q.Reserved = min(q.Reserved, q.Memory)
	}
	return q
}

// Differs reports whether a tenant has other terms on some GPUs.
func (p *Policy) Differs(tenant string) bool { return len(p.rule(tenant).GPUs) > 0 }

// names returns the table's possible names of a GPU, the closest last.
func (p *Policy) names(gpu string) []string {
	if p.host.Names != nil && gpu != "" {
		if names := p.host.Names(gpu); len(names) > 0 {
			return names
		}
	}
	return []string{gpu}
}

// Weight returns a tenant's part of a GPU's time, in proportion to the others
// that want it, and its class: its guarantee, plus a part by priority of what
// nobody is guaranteed.
func (p *Policy) Weight(tenant, gpu string) (float64, schedule.Class) {
	weight, class, guaranteed := p.weight(p.rule(tenant), p.names(gpu))
	if guaranteed > whole { // Check cannot know the index of a UUID
		p.excess.Do(func() {
			p.log.Warn("more than a whole gpu is guaranteed: an index and a uuid in the table name the same gpu", "gpu",
				gpu, "guaranteed", guaranteed)
		})
	}
	return weight, class
}

// weight also returns the sum of the guarantees on the GPU with these names.
func (p *Policy) weight(r *Rule, names []string) (weight float64, class schedule.Class, guaranteed float64) {
	claimed := claims[p.table.Default.Priority]
	for i := range p.table.Rules {
		guaranteed += p.table.Rules[i].quota(names).Guarantee
		claimed += claims[p.table.Rules[i].Priority]
	}
	weight = r.quota(names).Guarantee
	if claimed > 0 {
		weight += max(0, 1-guaranteed) * claims[r.Priority] / claimed
	}
	class = schedule.Normal
	switch r.Priority {
	case PriorityIdle:
		class = schedule.Idle
	case PriorityRealtime:
		class = schedule.Realtime
	}
	return max(weight, leastWeight), class, guaranteed
}
