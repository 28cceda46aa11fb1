package broker

import (
	"math"
	"slices"
	"testing"
	"time"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// a table is a GPU with three processes of equal weight, of which the last
// belongs to no tenant.
type table struct {
	*GPU
	processes []Process
}

func newTable(job wire.CommunicatorStats) *table {
	t := &table{processes: []Process{
		{PID: 1, Name: "python3", Workload: "unit:big", Memory: 16 << 30, Own: 1},
		{PID: 2, Name: "server", Workload: "unit:small", Memory: 1 << 30, Own: 1},
		{PID: 3, Name: "other", Workload: "unit:other", Memory: 1 << 30, Own: 1},
	}}
	big, small := quota.Free(), quota.Free()
	big.Guarantee, small.Limit = 0.6, 0.5
	t.GPU = New(Options{UUID: "GPU-1", Job: job, Noise: func(uint64) float64 { return 0 },
		Tenants: []scenarios.Tenant{
			{Name: "big", Workloads: []string{"unit:big"}, Escalation: "warn", Confirm: 1, Quota: big},
			{Name: "small", Workloads: []string{"unit:small"}, Escalation: "throttle", Confirm: 1, Quota: small},
		},
		Processes: func(yield func(*Process) bool) {
			for i := range t.processes {
				if !yield(&t.processes[i]) {
					return
				}
			}
		}})
	t.Enrol()
	return t
}

// shares returns the weights of the processes.
func (t *table) shares() (all []float64) {
	for _, p := range t.processes {
		all = append(all, math.Round(100*p.Share)/100)
	}
	return all
}

// windows charges that many windows of a full GPU.
func (t *table) windows(n int, w Work) {
	w.Busy, w.Weight = 1, 3
	for range int64(n) * auditEvery {
		if t.Charge(w) {
			t.Enrol()
		}
	}
}

func (t *table) stats() wire.Stats {
	r := NewReport()
	r.Add(t.GPU)
	return r.Stats(0)
}

// TestBooks charges two windows: each tenant has its third of the time, and the
// memory of its process without the context.
func TestBooks(t *testing.T) {
	t.Parallel()
	g := newTable(wire.CommunicatorStats{})
	g.windows(2, Work{PCIe: 3e6})
	s := g.stats()
	if len(s.Tenants) != 2 || s.Sessions["active"] != 2 || len(s.Enforcer.Escalation) != 0 {
		t.Fatalf("%+v", s)
	}
	for i, tenant := range s.Tenants {
		memory := g.processes[i].Memory
		if math.Abs(tenant.ChargedSeconds-20.0/3) > 1e-6 || math.Abs(tenant.Share10s.Actual-1.0/3) > 1e-6 ||
			tenant.CopiedBytes < 19_999_999 || tenant.CopiedBytes > 20_000_000 ||
			tenant.MemoryUsed != memory-min(memory/16, ofContext) {
			t.Errorf("%+v", tenant)
		}
	}
	if q := s.Enforcer.Quotas[0].QoS; len(q) != 1 || q[0].Windows != 2 || q[0].Violations != 0 {
		t.Errorf("windows of the guarantee: %+v", q)
	}
}

// TestStrike checks the parts of the work during each fault, and what the audit
// makes of it.
func TestStrike(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct {
		tenant, level string
		shares        []float64
	}{
		"greedy":  {"small", "warn", []float64{0.3, 2.4, 0.3}},
		"starved": {"big", "", []float64{0.9, 1.05, 1.05}},
		"bypass":  {"small", "warn", []float64{1, 1, 1}},
	} {
		g := newTable(wire.CommunicatorStats{})
		f := &scenarios.Fault{Kind: kind, Tenant: c.tenant}
		g.Strike(f, true)
		g.Enrol()
		if got := g.shares(); !slices.Equal(got, c.shares) || g.Pressed() == (kind == "bypass") {
			t.Errorf("%s: shares are %v, want %v; pressed: %v", kind, got, c.shares, g.Pressed())
		}
		g.windows(1, Work{})
		level := ""
		for _, e := range g.stats().Enforcer.Escalation {
			level = e.Level
		}
		if got := g.shares(); !slices.Equal(got, c.shares) || level != c.level {
			t.Errorf("%s: after a window shares are %v at the level %q, want %v at %q", kind, got, level, c.shares, c.level)
		}
		g.Strike(f, false)
		g.Enrol()
		if got := g.shares(); !slices.Equal(got, []float64{1, 1, 1}) || g.Pressed() {
			t.Errorf("%s: afterwards shares are %v", kind, got)
		}
	}
}

// TestThrottle escalates a tenant beyond its limit until it is throttled: it is
// back under the limit then.
func TestThrottle(t *testing.T) {
	t.Parallel()
	g := newTable(wire.CommunicatorStats{})
	g.Strike(&scenarios.Fault{Kind: "greedy", Tenant: "small"}, true)
	g.Enrol()
	g.windows(2, Work{})
	if got := g.shares(); !slices.Equal(got, []float64{0.83, 1.35, 0.83}) {
		t.Errorf("shares are %v", got)
	}
	g.windows(holdDown, Work{})
	if e := g.stats().Enforcer.Escalation; len(e) != 1 || e[0].Level != "warn" {
		t.Errorf("after clean windows: %+v", e)
	}
}

// TestSteps has the first process train: it alone has steps, and its parts add
// up to them.
func TestSteps(t *testing.T) {
	t.Parallel()
	g := newTable(wire.CommunicatorStats{ID: "1", Ranks: 2, Rank: 0})
	g.Charge(Work{Busy: 1, Weight: 3, Step: Step{Usual: 1, Wall: 1.25}})
	g.Charge(Work{Busy: 1, Weight: 3})
	g.Charge(Work{Busy: 1, Weight: 3, Saving: true})
	g.Charge(Work{Busy: 1, Weight: 3, Step: Step{Usual: 1, Wall: 1, Extra: 0.5}})
	jobs := g.stats().Enforcer.Jobs
	if len(jobs) != 2 || jobs[1].Stepping || jobs[1].Steps != 0 {
		t.Fatalf("%+v", jobs)
	}
	j, parts := jobs[0], 0.0
	for _, seconds := range j.Parts {
		parts += seconds
	}
	if j.Steps != 2 || j.Seconds.Sum != 2.75 || math.Abs(parts-2.75) > 1e-9 || j.Slow["storage"] != 1 || j.Median != 1 ||
		time.Duration(j.Outside*1e9) != scenarios.Step || j.Communicators[0].Entered != 2*collectives {
		t.Errorf("%+v; the parts are %v s", j, parts)
	}
}
