package enforcer

import (
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/jobs"
	"gpusteward/internal/wire"
)

// observed returns what the traces of hooked processes tell, under the names of
// their workloads.
func (e *Enforcer) observed(b audit.Books) ([]wire.JobStats, []wire.HangStats) {
	workloads, users, shared := map[int]string{}, map[string]string{}, map[string]bool{}
	for _, h := range b.DeviceProcesses {
		if h.Process.Workload == nil {
			continue
		}
		key := h.Process.Workload.Key
		workloads[h.Process.PID] = key
		if other, there := users[h.UUID]; there && other != key {
			shared[h.UUID] = true
		}
		users[h.UUID] = key
	}
	e.shared.Store(&shared)
	return e.jobs.Look(func(pid int) string { return workloads[pid] })
}

// evidence returns what is known of a GPU for a slow step.
func (e *Enforcer) evidence(uuid string) (known jobs.Evidence) {
	known.Neighbours = (*e.shared.Load())[uuid]
	if e.Throttled != nil {
		known.Power, known.Thermal = e.Throttled(uuid)
	}
	return known
}
