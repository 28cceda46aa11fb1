package broker

import (
	"slices"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// Strike begins or ends a fault of a tenant. The tenants may have other parts
// then: Enrol gives them.
func (g *GPU) Strike(f *scenarios.Fault, on bool) {
	for _, b := range g.books {
		if b.Name != f.Tenant {
			continue
		}
		switch f.Kind {
		case "bypass":
			b.bypass = on
		case "greedy":
			b.greedy = on
		case "starved":
			b.starved = on
		}
	}
}

// Pressed reports whether a tenant has a fault that takes or loses GPU time.
func (g *GPU) Pressed() bool {
	return slices.ContainsFunc(g.books, func(b *books) bool { return b.pressed() > 0 })
}

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
func (g *GPU) press(b *books, part float64) {
	mine, others := 0.0, 0.0
	for p := range g.options.Processes {
		if p.books == b {
			mine += p.Share
		} else {
			others += p.Share
		}
	}
	if mine == 0 || others == 0 {
		return // alone, it has all of it
	}
	for p := range g.options.Processes {
		if p.books == b {
			p.Share *= part * (mine + others) / mine
		} else {
			p.Share *= (1 - part) * (mine + others) / others
		}
	}
}
