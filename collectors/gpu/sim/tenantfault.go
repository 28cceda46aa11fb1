package sim

import "slices"

// tenantFault returns what begins or ends a fault of a tenant: flag says which
// of its books.
func tenantFault(flag func(*books) *bool, on bool) func(*gpu, *Fault) {
	return func(g *gpu, f *Fault) {
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

// pressed returns the part of the GPU's time that a fault gives the tenant, 0
// without one. Who is throttled and not only told of is back under its limit.
func (b *books) pressed() float64 {
	throttled := func(s *standing) bool { return !b.Shadow && s.level == slices.Index(levels, "throttle") }
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
		return // who is alone has it all
	}
	for i := range g.procs {
		if p := &g.procs[i]; p.books == b {
			p.share *= part * (mine + others) / mine
		} else {
			p.share *= (1 - part) * (mine + others) / others
		}
	}
}

// crowded returns the work of a GPU that tenants press: there is more of it
// than it can do.
func (g *gpu) crowded(a activity) activity {
	for _, b := range g.books {
		if b.pressed() > 0 && g.weight > 0 {
			return g.compute(0.985+0.012*g.noise(1), 0.35+0.02*g.noise(2), 0.4+0.02*g.noise(3))
		}
	}
	return a
}
