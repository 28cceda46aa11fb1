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

func newTable(job *Training) *table {
	t := &table{processes: []Process{
		{PID: 1, Name: "python3", Workload: "unit:big", Memory: 16 << 30, Own: 1},
		{PID: 2, Name: "server", Workload: "unit:small", Memory: 1 << 30, Own: 1},
		{PID: 3, Name: "other", Workload: "unit:other", Memory: 1 << 30, Own: 1},
	}}
	big, small := quota.Free(), quota.Free()
	big.Guarantee, small.Limit = 0.6, 0.5
	t.GPU = New(Options{UUID: "GPU-1", Training: job, Noise: func(uint64) float64 { return 0 },
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
		g := newTable(nil)
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
	g := newTable(nil)
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
// up to them. A checkpoint and a hang are outside of steps.
func TestSteps(t *testing.T) {
	t.Parallel()
	saves, faults := false, map[string]*scenarios.Fault{}
	g := newTable(&Training{Job: scenarios.Job{ID: 7, Step: scenarios.Duration(250 * time.Millisecond)}, Ranks: 2,
		Saves: func() bool { return saves },
		Fault: func(kind string) (*scenarios.Fault, time.Duration) { return faults[kind], time.Minute }})
	job := func() wire.JobStats {
		jobs := g.stats().Enforcer.Jobs
		if len(jobs) != 2 || jobs[1].Stepping || jobs[1].Steps != 0 {
			t.Fatalf("%+v", jobs)
		}
		parts := 0.0
		for _, seconds := range jobs[0].Parts {
			parts += seconds
		}
		if j := jobs[0]; math.Abs(parts-j.Seconds.Sum) > 1e-9 || j.Communicators[0].Entered != j.Steps*collectives {
			t.Errorf("%+v; the parts are %v s", j, parts)
		}
		return jobs[0]
	}
	g.windows(2, Work{})
	if j := job(); !j.Stepping || j.Steps < 70 || j.Steps > 90 || j.Outside != 0 || j.Slowdown != nil {
		t.Errorf("in 20 s: %+v", j)
	}
	saves = true
	g.windows(1, Work{})
	was := job()
	if !was.Stepping || math.Abs(was.Outside-10) > 1e-6 {
		t.Errorf("during a checkpoint: %+v", was)
	}
	saves, faults["job_hang"] = false, &scenarios.Fault{Kind: "job_hang", Value: "absent"}
	g.windows(1, Work{})
	hangs := g.stats().Enforcer.Hangs
	if j := job(); j.Stepping || j.Steps != was.Steps || j.Launches != was.Launches || len(hangs) != 1 ||
		hangs[0].PID != 1 || hangs[0].Waiting != 1 {
		t.Errorf("in a hang: %+v, %+v", j, hangs)
	}
	faults = map[string]*scenarios.Fault{"job_slow": {Value: "storage", Count: 100}, "job_straggler": {Count: 20}}
	g.windows(1, Work{})
	if j := job(); j.Slow["storage"] < 15 || j.Slowdown == nil || math.Abs(j.Slowdown.Seconds-0.5) > 1e-9 ||
		len(g.stats().Enforcer.Stragglers) != 1 {
		t.Errorf("slow: %+v", j)
	}
}
