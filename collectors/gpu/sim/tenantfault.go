package sim

import (
	"slices"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// tenantFault returns the begin or the end of a tenant's fault; flag selects
// the fault in its books.
func tenantFault(flag func(*books) *bool, on bool) func(*gpu, *scenarios.Fault) {
	return func(g *gpu, f *scenarios.Fault) {
		for _, b := range g.books {
			if b.Name == f.Tenant {
				*flag(b) = on
			}
		}
		g.weigh()
	}
}

func (b *books) isGreedy() *bool  { return &b.greedy }
func (b *books) isStarved() *bool { return &b.starved }
func (b *books) bypasses() *bool  { return &b.bypass }

// pressed returns the share of GPU time that a fault gives the tenant, 0
// without a fault. A tenant that is throttled, and not in shadow mode, is back
// under its limit.
func (b *books) pressed() float64 {
	throttled := func(s *standing) bool { return !b.Shadow && s.level == slices.Index(scenarios.Levels, "throttle") }
	switch {
	case b.members == 0:
	case b.greedy && slices.ContainsFunc(b.workloads, throttled):
		return 0.9 * b.Limit
	case b.greedy:
		return min(b.Limit+0.3, 0.95)
	case b.starved:
		return b.Guarantee / 2
	}
	return 0
}

// press gives b's processes a part of the work, and the others the rest.
func (g *gpu) press(b *books, part float64) {
	mine, others := 0.0, 0.0
	for i := range g.procs {
		if g.procs[i].books == b {
			mine += g.procs[i].share
		} else {
			others += g.procs[i].share
		}
	}
	if mine == 0 || others == 0 {
		return // alone, it has all of it
	}
	for i := range g.procs {
		if p := &g.procs[i]; p.books == b {
			p.share *= part * (mine + others) / mine
		} else {
			p.share *= (1 - part) * (mine + others) / others
		}
	}
}

// crowded returns the work of a GPU with pressing tenants: more than it can do.
func (g *gpu) crowded(a activity) activity {
	for _, b := range g.books {
		if b.pressed() > 0 && g.weight > 0 {
			return g.compute(0.985+0.012*g.noise(1), 0.35+0.02*g.noise(2), 0.4+0.02*g.noise(3))
		}
	}
	return a
}
