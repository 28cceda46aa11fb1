package enforcer

import (
	"math"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/audit"
	"gpusteward/internal/wire"
)

// Two programs run under Gemini's hook. One of them launches all that it is
// given (22 s of the GPU's time, of which 1.3 s are charged). A third process
// has no tenant.
func TestClaimsUnderGeminisHookAreCompared(t *testing.T) {
	t.Parallel()
	for name, gpu := range map[string]string{"a table that is named after the GPU": "GPU-a", "another": ""} {
		t.Run(name, func(t *testing.T) {
			var a besideAudit
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			process := func(pid int, gpu string, at time.Time, sm float64) collectors.DeviceProcess {
				return collectors.DeviceProcess{UUID: gpu,
					Process: host.Process{PID: pid, Start: 1, Began: start, Workload: &host.Workload{Key: "unit:w"}},
					Kind:    "compute", Known: true, Memory: 20 << 30, SM: sm, Sampled: at, At: at}
			}
			var last []wire.GeminiStats
			for s := range 31 {
				now, passed := start.Add(time.Duration(s)*time.Second), float64(s)
				last = []wire.GeminiStats{{Listen: "127.0.0.1:50052", GPU: gpu,
					Processes: map[int]string{10: "gemini:liar", 11: "gemini:honest"}, Tenants: []wire.GeminiTenant{
						{TenantStats: wire.TenantStats{Tenant: "gemini:liar", ChargedSeconds: 1.3 / 30 * passed}},
						{TenantStats: wire.TenantStats{Tenant: "gemini:honest", ChargedSeconds: 0.2 * passed}},
						{TenantStats: wire.TenantStats{Tenant: "gemini:absent"}},
					}}}
				a.look(audit.Books{Now: now, DeviceProcesses: []collectors.DeviceProcess{
					process(10, "GPU-a", now, 22./30*passed), process(11, "GPU-a", now, 0.2*passed),
					process(12, "GPU-b", now, passed)}}, last)
			}
			for i, want := range []float64{(22 - 1.3) / 30, 0} {
				n := last[0].Tenants[i]
				if n.Charge == nil || math.Abs(*n.Charge-want) > 0.02 || n.GPU != "GPU-a" {
					t.Errorf("%+v: %v, want a drift of %.2f", n, n.Charge, want)
				}
			}
			if n := last[0].Tenants[2]; n.Charge != nil {
				t.Errorf("of who is not there: %v", *n.Charge)
			}
		})
	}
}
