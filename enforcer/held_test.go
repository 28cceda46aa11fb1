package enforcer

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestHoldsExcuseWorkloads holds a workload back for each cause. It then has no session, hangs, and is
// found to take more than its quota; its tenant gets less than its guarantee. The audit, the escalation, the
// jobs and the metric for health each judge what the cause does not explain, and that alone.
func TestHoldsExcuseWorkloads(t *testing.T) {
	t.Parallel()
	s, promised := audit.Subject{Tenant: "a", Workload: "user:1001"}, policy.Quota{Guarantee: .5, Limit: 1}
	there := audit.Books{DeviceProcesses: busyHost{}.DeviceProcesses(),
		Tenant: func(collectors.DeviceProcess) (string, bool) { return "a", true }}
	record := func(phase suspend.Phase) func(*Enforcer) {
		return func(e *Enforcer) {
			e.swap.Restore(time.Now(), []suspend.Record{{Tenant: s.Tenant, Workload: s.Workload, Phase: phase,
				Processes: []suspend.Process{{Target: action.Target{PID: 7000, Start: 1}}}}})
		}
	}
	for cause, c := range map[audit.Hold]struct {
		hold   func(*Enforcer)
		judges string
	}{
		0:               {nil, "audit qos escalation jobs"},
		audit.Filled:    {nil, "audit qos escalation jobs"}, // TestRefusalsBlameTheRightOwner has the broker tell it
		audit.Starved:   {nil, "qos jobs"},                  // likewise
		audit.Suspended: {record(suspend.Suspended), "qos escalation"},
		audit.Returning: {record(suspend.Resuming), "qos"},
		audit.Paused:    {func(e *Enforcer) { fixture.Must(t, e.terms.Hold(s, true)) }, "audit escalation"},
		audit.Throttled: {func(e *Enforcer) { e.terms.Throttle(map[string]float64{"a": .5}) }, "audit escalation jobs"},
		audit.Paced: {func(e *Enforcer) {
			busy, used := 1., wire.TenantStats{Tenant: "a", GPU: "GPU-1", Share10s: wire.ShareStats{Actual: .1}}
			e.terms.Pace(audit.Books{Tenants: []wire.TenantStats{used}, Quota: e.terms.Policy().Quota},
				audit.Audited{Quotas: []wire.QuotaStats{{Tenant: "a", GPU: "GPU-1", Bus: &busy}}})
		}, "audit escalation jobs"},
		audit.Waiting: {func(e *Enforcer) {
			var o broker.Options
			e.swap.Serve(&o)
			o.Later(broker.Request{PID: os.Getpid(), Tenant: "a", GPU: "GPU-1", Bytes: 1})
			e.swap.Look(time.Now(), there)
		}, "audit qos escalation"},
	} {
		e := watching(t, "", false)
		defer e.Close()
		e.response.Group(there)
		if c.hold != nil {
			c.hold(e)
		}
		var of audit.Audit
		var qos audit.QoS
		var up escalation.Escalation
		var found audit.Audited
		rows, now := []wire.QuotaStats{{Tenant: "a", GPU: "GPU-1", Quota: promised}}, time.Unix(1e9, 0)
		process := host.Process{PID: 7000, Start: 1, Began: now, Workload: &host.Workload{Key: s.Workload}}
		for n := range 60 {
			now = now.Add(time.Second)
			b := audit.Books{Now: now, Names: []string{"a"}, Holds: e.heldBack(),
				Quota:           func(string, string) policy.Quota { return promised },
				Tenant:          func(collectors.DeviceProcess) (string, bool) { return "a", true },
				DeviceProcesses: []collectors.DeviceProcess{{UUID: "GPU-1", Kind: "compute", Process: process, At: now}},
				Tenants:         []wire.TenantStats{{Tenant: "a", GPU: "GPU-1", Sessions: 1, WantedSeconds: float64(n)}}}
			if c.hold == nil {
				b.Holds.Process = func(int, string) audit.Hold { return cause }
			}
			if n < 15 {
				b.Sessions = []audit.Session{{PID: 7000, Start: 1, Tenant: "a", GPUs: []audit.SessionGPU{{UUID: "GPU-1"}}}}
			}
			found = of.Look(b)
			qos.Look(b, rows)
			up.Judge(now, escalation.Findings{Violations: []audit.Violation{{Subject: s, GPU: "GPU-1", Text: "it takes more"}},
				Seen: map[audit.Subject]escalation.Status{s: {Known: true}}, Actions: 9, Holds: found.Holds(b.Holds),
				Steps: func(string) policy.Steps {
					return policy.Steps{Mode: policy.Throttle, Confirm: 1, Of: 1, Hold: time.Hour}
				}})
		}
		level, _ := up.Level(s)
		_, _ = e.observers.look(audit.Books{}, e.heldBack())
		judges := strings.Join(slices.DeleteFunc([]string{"audit", "qos", "escalation", "jobs"}, func(judge string) bool {
			return !map[string]bool{"audit": len(found.Violations) > 0, "qos": rows[0].QoS[0].Violations > 0,
				"escalation": level > policy.Warn, "jobs": !e.observers.jobs.Held(s.Tenant, s.Workload)}[judge]
		}), " ")
		fixture.Equal(t, judges, c.judges, "those that judge one that is held back, cause %b:", cause)
		stands := slices.ContainsFunc(e.heldStats(), func(h wire.HeldStats) bool { return h.Stands && h.Cause == cause.String() })
		fixture.Equal(t, stands, cause.Has(audit.Standing), "health is told that it stands still, cause %b:", cause)
	}
}

// TestWhoCrowdsTheBroker names a tenant whose jobs have most of the sessions: they excuse each other of nothing.
func TestWhoCrowdsTheBroker(t *testing.T) {
	t.Parallel()
	for tenants, want := range map[string]string{"": "", "a b": "", "a b b": "b", "a b c": "", "default default b": "",
		"a default a": "a"} {
		var all []audit.Session
		for _, tenant := range strings.Fields(tenants) {
			all = append(all, audit.Session{Tenant: tenant})
		}
		fixture.Equal(t, crowding(all), want, "of sessions of %q, the tenant that crowds is", tenants)
	}
}

// TestWhatWasGivenBackIsNotLost looks at a GPU of 10 bytes of which a tenant gave 6 back between
// two looks that are far apart. The reading of the memory is from before that.
func TestWhatWasGivenBackIsNotLost(t *testing.T) {
	t.Parallel()
	all, start := given{}, time.Unix(1e9, 0)
	for _, look := range []struct {
		after              time.Duration
		used, free, expect uint64
	}{{0, 8, 2, 10}, {3 * time.Second, 2, 2, 10}, {4 * time.Second, 1, 2, 10}, {5*time.Second + 999*time.Millisecond, 1, 2, 10},
		{6 * time.Second, 1, 2, 3}, {7 * time.Second, 1, 9, 10}} {
		got := all.settle(start.Add(look.after), "GPU-0", look.used, look.used+look.free)
		fixture.Equal(t, got, look.expect, "capacity after %v", look.after)
	}
}
