package enforcer

import (
	"slices"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/jobs"
	"gpusteward/internal/wire"
)

// observed returns what the traces of hooked processes tell, and NCCL about
// others, under the names of their workloads.
func (e *Enforcer) observed(b audit.Books) ([]wire.JobStats, []wire.HangStats) {
	e.neighbours.look(b)
	if e.jobs.RAS != "" {
		e.jobs.See(gpuProcesses(b))
	}
	all, hangs := e.jobs.Look(e.workload)
	return all, e.unsuspended(hangs)
}

// unsuspended returns the hangs of workloads that run: one that is suspended
// stands still because somebody wanted it.
func (e *Enforcer) unsuspended(hangs []wire.HangStats) []wire.HangStats {
	return slices.DeleteFunc(hangs, func(h wire.HangStats) bool {
		_, suspended := e.suspender.Record(audit.Subject{Tenant: h.Tenant, Workload: h.Workload})
		return suspended
	})
}

// workload returns the workload of a process with a session, which the driver
// may not list; empty: it is not known.
func (e *Enforcer) workload(pid int) string {
	p, err := e.Host.Process(pid)
	if err != nil || p.Workload == nil {
		return ""
	}
	return p.Workload.Key
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

// evidence returns what is known of a GPU for slow steps of a process.
func (e *Enforcer) evidence(uuid string, pid int) (known jobs.Evidence) {
	if e.Evidence != nil {
		known = e.Evidence(uuid)
	}
	known.Neighbours = e.neighbours.others(uuid, pid)
	return known
}
