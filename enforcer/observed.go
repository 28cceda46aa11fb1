package enforcer

import (
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/jobs"
	"gpusteward/internal/wire"
)

// observed returns what the traces of hooked processes tell, and NCCL about
// others, under the names of their workloads.
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
	if e.jobs.RAS != "" {
		e.jobs.See(gpuProcesses(b))
	}
	return e.jobs.Look(func(pid int) string { return workloads[pid] })
}

// gpuProcesses returns the processes that compute on GPUs.
func gpuProcesses(b audit.Books) (all []jobs.GPUProcess) {
	hooked := map[int]bool{}
	for _, s := range b.Sessions {
		hooked[s.PID] = true
	}
	for _, h := range b.DeviceProcesses {
		if h.Kind != "compute" || h.Unknown || h.Process.Workload == nil {
			continue
		}
		tenant, _ := b.Tenant(h)
		all = append(all, jobs.GPUProcess{PID: h.Process.PID, GPU: h.UUID, Tenant: tenant,
			Workload: h.Process.Workload.Key, Hooked: hooked[h.Process.PID], Used: h.SM, Sampled: h.Sampled})
	}
	return all
}

// evidence returns what is known of a GPU for a slow step.
func (e *Enforcer) evidence(uuid string) (known jobs.Evidence) {
	known.Neighbours = (*e.shared.Load())[uuid]
	if e.Throttled != nil {
		known.Power, known.Thermal = e.Throttled(uuid)
	}
	return known
}
