package broker

import (
	"maps"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// Report sums up the books of GPUs.
type Report struct {
	stats         wire.Stats
	turns, denied float64
}

// NewReport returns a report without any GPU.
func NewReport() *Report {
	return &Report{stats: wire.Stats{Sessions: map[string]int{"active": 0}, Hooks: []wire.HookStats{},
		Faults:   map[string]uint64{"slow": 0, "flood": 0, "slowed": 0, "starved": 0},
		Enforcer: &wire.EnforcerStats{}}}
}

// Add adds the books of a GPU.
func (r *Report) Add(g *GPU) {
	s := &r.stats
	if len(g.books) > 0 {
		s.GPUs = append(s.GPUs, wire.GPUStats{GPU: g.options.UUID, HandoverSeconds: g.handover,
			TogetherSeconds: g.together})
	}
	for _, b := range g.books {
		if len(b.workloads) == 0 {
			continue // it was never here
		}
		r.turns, r.denied = r.turns+b.turns, r.denied+b.denied
		s.Sessions["active"] += b.sessions
		s.Tenants = append(s.Tenants, g.tenantStats(b))
		s.Enforcer.Quotas = append(s.Enforcer.Quotas, g.quotaStats(b))
		g.standings(b, s.Enforcer)
	}
	g.jobs(s.Enforcer)
}

// Stats returns the answer of a broker that began that long ago.
func (r *Report) Stats(uptime time.Duration) wire.Stats {
	s, denied := r.stats, uint64(r.denied)
	s.Hooks = append(s.Hooks, wire.HookStats{Version: "1.0.0", ABI: "1.0", Sessions: s.Sessions["active"]})
	decided := uint64(uptime/(5*time.Second)) + 240 + denied
	s.Admission = wire.Durations{Bounds: []float64{0.0001, 0.001}, Counts: []uint64{decided, 0, 0},
		Seconds: float64(decided) * 0.00003}
	s.Requests = []wire.RequestStats{{Op: "acquire", Result: "ok", Count: uint64(r.turns)},
		{Op: "yield", Result: "ok", Count: uint64(r.turns)},
		{Op: "reserve", Result: "ok", Count: decided - denied},
		{Op: "reserve", Result: "denied", Count: denied}}
	slices.SortFunc(s.Enforcer.Escalation, func(a, b wire.EscalationStats) int {
		return strings.Compare(a.Tenant+"\x00"+a.Workload, b.Tenant+"\x00"+b.Workload)
	})
	return s
}

// tenantStats returns the broker's books of a tenant.
func (g *GPU) tenantStats(b *books) wire.TenantStats {
	lag := 0.004 * g.options.Noise(noise.Hash(1, uint64(len(b.Name)))) // a part of a turn, behind or ahead
	if b.starved {
		lag = 0.05
	}
	return wire.TenantStats{
		Tenant: b.Name, GPU: g.options.UUID, Sessions: b.sessions, Weight: max(b.Guarantee, 0.01), Limit: b.Limit,
		Share1s: g.shareOf(b, second), Share10s: g.shareOf(b, 10*second),
		ServedSeconds: b.served, WantedSeconds: b.wants, LagSeconds: lag,
		LongestSeconds: 0.0005 + 0.003*noise.Ratio(noise.Hash(2, uint64(len(b.Name)))),
		ChargedSeconds: b.seconds, Turns: uint64(b.turns), OverrunSeconds: b.overrun, WaitSeconds: b.wait,
		ThrottledSeconds: b.throttled,
		Launches:         uint64(b.launches), CopiedBytes: uint64(b.copied), Waits: uint64(b.waits),
		LateWaits: uint64(b.late),
		MemoryCap: b.Memory, MemoryUsed: b.held, MemoryPeak: b.peak, MemoryDenied: uint64(b.denied),
	}
}

// shareOf averages the last n steps.
func (g *GPU) shareOf(b *books, n int64) (s wire.ShareStats) {
	for i := range n {
		at := b.recent[(g.steps-i+int64(len(b.recent)))%int64(len(b.recent))]
		s.Target += at.target / float64(n)
		s.Actual += at.actual / float64(n)
	}
	return s
}

// quotaStats returns the promises to a tenant, and how they were kept.
func (g *GPU) quotaStats(b *books) wire.QuotaStats {
	drift, bus := 0.003*g.options.Noise(noise.Hash(0, uint64(len(b.Name)))), b.dram
	q := wire.QuotaStats{Tenant: b.Name, GPU: g.options.UUID, Quota: b.Quota, Charge: &drift, Bus: &bus}
	for o := range quota.Objectives {
		if q.Promises(o) {
			q.QoS = append(q.QoS, wire.QoSStats{Objective: o.String(), Windows: b.windows[o], Violations: b.missed[o]})
		}
	}
	if b.sessions > 0 {
		for _, resource := range []string{"compute", "memory", "copies"} {
			q.Holders = append(q.Holders, wire.Holder{Resource: resource, Backend: "hook"})
		}
	}
	return q
}

// standings adds b's workloads. A workload on several GPUs has its highest
// standing.
func (g *GPU) standings(b *books, e *wire.EnforcerStats) {
	for _, s := range b.workloads {
		if s.processes > 0 {
			drift := s.drift
			e.Workloads = append(e.Workloads,
				wire.WorkloadStats{Tenant: b.Name, Workload: s.workload, GPU: g.options.UUID, Processes: s.processes,
					Unhooked: s.unhooked, Drift: &drift, Violations: maps.Clone(s.violations)})
		}
		if !s.ever {
			continue
		}
		row := wire.EscalationStats{Tenant: b.Name, Workload: s.workload, Level: scenarios.Levels[s.level], Shadow: b.Shadow}
		at := slices.IndexFunc(e.Escalation,
			func(l wire.EscalationStats) bool { return l.Tenant == row.Tenant && l.Workload == row.Workload })
		switch {
		case at < 0:
			e.Escalation = append(e.Escalation, row)
		case s.level > slices.Index(scenarios.Levels, e.Escalation[at].Level):
			e.Escalation[at] = row
		}
		addActions(e, b.Name, s)
	}
}

// addActions adds escalation's actions for a workload on one GPU.
func addActions(e *wire.EnforcerStats, tenant string, s *standing) {
	for _, what := range slices.SortedFunc(maps.Keys(s.actions),
		func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		a := wire.ActionStats{Tenant: tenant, Workload: s.workload, Action: what[0], Result: what[1]}
		at := slices.IndexFunc(e.Actions, func(o wire.ActionStats) bool { o.Count = 0; return o == a })
		if at < 0 {
			at, e.Actions = len(e.Actions), append(e.Actions, a)
		}
		e.Actions[at].Count += s.actions[what]
	}
}
