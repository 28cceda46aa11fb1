package audit

import (
	"maps"
	"slices"

	"gpusteward/collectors"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// A GeminiAudit compares the charges of programs under Gemini's hook with the
// driver's samples of them, as the audit does for tenants: some of these hooks
// launch without a turn. The escalation does nothing about them. Its zero value
// is ready; one goroutine may use it.
type GeminiAudit struct {
	Audit Audit
	gpus  map[string]string // UUID by address, of servers whose tables do not say it
}

// Look adds the results of an audit to the servers' statistics. Processes that
// a server does not know, because they are behind a pod manager or in another
// network namespace, are not compared.
func (a *GeminiAudit) Look(b Books, servers []wire.GeminiStats) {
	own := Books{Now: b.Now, DeviceProcesses: b.DeviceProcesses, Silent: b.Silent,
		Tenant: func(collectors.DeviceProcess) (string, bool) { return policy.DefaultTenant, false },
		Quota:  func(string, string) policy.Quota { return policy.Quota{} }}
	for i := range servers {
		s := &servers[i]
		a.place(s, b.DeviceProcesses)
		own.GPUs = append(own.GPUs, wire.GPUStats{GPU: s.GPU})
		for pid, tenant := range s.Processes {
			own.Sessions = append(own.Sessions,
				Session{PID: pid, Tenant: tenant, GPUs: []SessionGPU{{UUID: s.GPU}}})
		}
		for j := range s.Tenants {
			t := &s.Tenants[j]
			t.GPU = s.GPU
			own.Tenants, own.Names = append(own.Tenants, t.TenantStats), append(own.Names, t.Tenant)
		}
	}
	drift := map[qosKey]*float64{}
	for _, q := range a.Audit.Look(own).Quotas {
		drift[qosKey{q.Tenant, q.GPU}] = q.Charge
	}
	for _, s := range servers {
		known := slices.Collect(maps.Values(s.Processes))
		for j := range s.Tenants {
			if t := &s.Tenants[j]; slices.Contains(known, t.Tenant) {
				t.Charge = drift[qosKey{t.Tenant, t.GPU}]
			}
		}
	}
}

// place finds the GPU of a server by the GPU of its processes, for good.
func (a *GeminiAudit) place(s *wire.GeminiStats, deviceProcesses []collectors.DeviceProcess) {
	if s.GPU != "" {
		return
	}
	if a.gpus == nil {
		a.gpus = map[string]string{}
	}
	for _, h := range deviceProcesses {
		if _, served := s.Processes[h.Process.PID]; served && a.gpus[s.Listen] == "" {
			a.gpus[s.Listen] = h.UUID
		}
	}
	s.GPU = a.gpus[s.Listen]
}
