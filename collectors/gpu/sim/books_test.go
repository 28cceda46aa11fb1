package sim

import (
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// shared returns a GPU shared by a server and a small tenant.
func shared() scenarios.Scenario {
	return scenarios.Scenario{
		GPUs: []scenarios.GPU{{Load: "full", Processes: []scenarios.Process{
			{PID: 11, Share: 0.8, Memory: 40000, Owner: scenarios.Owner{Cgroup: "/system.slice/big.service"}},
			{PID: 12, Share: 0.1, Memory: 1000, Owner: scenarios.Owner{Cgroup: "/system.slice/small.service"}},
			{PID: 13, Share: 0.1, Memory: 1000, Owner: scenarios.Owner{Cgroup: "/system.slice/other.service"}},
		}}},
		Tenants: []scenarios.Tenant{
			{Name: "big", Workloads: []string{"unit:big.service"},
				Terms: map[string]string{"guarantee": "0.7", "memory": "50000", "memory_guarantee": "41000",
					"launch_wait": "5ms"}},
			{Name: "small", Workloads: []string{"unit:small.*"},
				Terms: map[string]string{"limit": "0.2", "memory": "1200"}, Escalation: "throttle"},
			{Name: "absent", Workloads: []string{"unit:absent.service"}},
		},
	}
}

// bookOf returns the books of one tenant.
func (h *Host) bookOf(t *testing.T, tenant string) (b wire.TenantStats, q wire.QuotaStats, w wire.WorkloadStats,
	l wire.EscalationStats) {
	t.Helper()
	s := fixture.Value(h.Books())(t)
	for i := range s.Tenants {
		if s.Tenants[i].Tenant == tenant {
			b, q = s.Tenants[i], s.Enforcer.Quotas[i]
		}
	}
	for _, row := range s.Enforcer.Workloads {
		if row.Tenant == tenant {
			w = row
		}
	}
	for _, row := range s.Enforcer.Escalation {
		if row.Tenant == tenant {
			l = row
		}
	}
	if b.Tenant != tenant || q.Tenant != tenant {
		t.Fatalf("no books for %s: %+v", tenant, s)
	}
	return b, q, w, l
}

// useOf reads the utilization of processes by PID.
func useOf(t *testing.T, d *device, since time.Time) map[uint32]nvml.ProcessUtilizationSample {
	t.Helper()
	all := map[uint32]nvml.ProcessUtilizationSample{}
	samples, ret := d.GetProcessUtilization(uint64(since.UnixMicro()))
	if ret != nvml.SUCCESS {
		want(t, "utilization", ret, nvml.ERROR_NOT_FOUND)
	}
	for _, s := range samples {
		if _, twice := all[s.Pid]; twice {
			t.Errorf("process %d is listed twice", s.Pid)
		}
		all[s.Pid] = s
	}
	return all
}

// TestBooksAgreeWithTheDriver compares the books with the driver.
func TestBooksAgreeWithTheDriver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, shared(), Options{Seed: 1})
		time.Sleep(time.Minute)
		d := gpuOf(t, h, 0)
		memory := map[uint32]uint64{}
		for _, p := range must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses()) {
			memory[p.Pid] = p.UsedGpuMemory
		}
		use := useOf(t, d, time.Now().Add(-10*time.Second))
		for pid, tenant := range map[uint32]string{11: "big", 12: "small"} {
			b, q, w, l := h.bookOf(t, tenant)
			if driver := 0.01 * float64(use[pid].SmUtil) / 0.95; b.Share10s.Actual < driver-0.02 ||
				b.Share10s.Actual > driver+0.02 {
				t.Errorf("%s had %v of the GPU, the driver says %v", tenant, b.Share10s.Actual, driver)
			}
			if sum := float64(b.MemoryUsed) + *w.Drift; sum != float64(memory[pid]) || b.MemoryUsed > b.MemoryCap ||
				b.MemoryPeak < b.MemoryUsed {
				t.Errorf("%s has %d bytes, drift %v, the driver says %d", tenant, b.MemoryUsed, *w.Drift, memory[pid])
			}
			if part := b.ServedSeconds / b.ChargedSeconds; part < 1 || part > 1.05 ||
				b.WantedSeconds < b.ChargedSeconds || b.ServedSeconds < q.Guarantee*b.WantedSeconds ||
				b.LagSeconds < -0.01 || b.LagSeconds > 0.01 || b.LongestSeconds < 0.0005 || b.LongestSeconds > 0.0035 ||
				b.ConvoySeconds != 0 {
				t.Errorf("%s: %+v", tenant, b)
			}
			if b.Sessions != 1 || w.Unhooked != 0 || len(w.Violations) > 0 || l.Level != "" || len(q.Holders) != 3 ||
				*q.Bus <= 0 {
				t.Errorf("%s: %+v %+v %+v %+v", tenant, b, q, w, l)
			}
			for _, o := range q.QoS {
				if o.Windows < 17 || o.Violations > 0 {
					t.Errorf("%s: %d windows, %d missed %s", tenant, o.Windows, o.Violations, o.Objective)
				}
			}
		}
		if s, _ := h.Books(); len(s.Tenants) != 2 || s.Sessions["active"] != 2 ||
			s.GPUs[0].GPU != must[string](t)(d.GetUUID()) || s.GPUs[0].TogetherSeconds <= 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestTenantsMatchWorkloadsInTheTable compares the workloads in the books
// with the names in the host's table of processes.
func TestTenantsMatchWorkloadsInTheTable(t *testing.T) {
	for _, name := range []string{"mixed", "workloads"} {
		bubble(t, func(t *testing.T) {
			h := begin(t, embedded(t, name), Options{Seed: 2})
			time.Sleep(time.Minute)
			table, seen := h.Table(slog.New(slog.NewTextHandler(io.Discard, nil))), 0
			go func() { _ = table.Run(t.Context()) }()
			s, _ := h.Books()
			for _, g := range h.gpus {
				for _, p := range g.procs {
					_, _ = table.Lookup(p.PID)
				}
			}
			time.Sleep(5 * time.Second)
			for _, g := range h.gpus {
				for _, p := range g.procs {
					known, err := table.Lookup(p.PID)
					if err != nil || !slices.ContainsFunc(h.scenario.Tenants,
						func(t scenarios.Tenant) bool { return t.Owns(p.Workload) }) {
						continue
					}
					seen++
					if known.Workload == nil || known.Workload.Key != p.Workload {
						t.Errorf("%s: process %d is of %q, but of %+v in the table", name, p.PID, p.Workload,
							known.Workload)
					}
				}
			}
			tenants := map[string]bool{}
			for _, b := range s.Tenants {
				tenants[b.Tenant] = b.Sessions > 0 || tenants[b.Tenant]
			}
			if seen < len(h.scenario.Tenants) || len(tenants) != len(h.scenario.Tenants) {
				t.Errorf("%s: %d processes of %v", name, seen, tenants)
			}
		})
	}
}

// TestMixedScenarioEscalatesToWarn checks that the demo shows levels, but nothing that
// three audits would alert on.
func TestMixedScenarioEscalatesToWarn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "mixed"), Options{Seed: 1})
		time.Sleep(2 * time.Minute)
		_, _, w, l := h.bookOf(t, "triton")
		if l.Level != "" || len(w.Violations) > 0 {
			t.Errorf("at first: %+v %+v", w, l)
		}
		time.Sleep(30 * time.Second)
		if _, _, w, l = h.bookOf(t, "triton"); l.Level != "warn" || w.Violations["compute"] != 2 {
			t.Errorf("then: %+v %+v", w, l)
		}
		time.Sleep(2 * time.Minute)
		if _, _, _, l = h.bookOf(t, "triton"); l.Level != "observe" {
			t.Errorf("in the end: %+v", l)
		}
	})
}
