package enforcer

import (
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/jobs"
	"gpusteward/internal/wire"
)

// observed returns what the traces of hooked processes tell, and NCCL about
// others, under the names of their workloads.
func (e *Enforcer) observed(b audit.Books) ([]wire.JobStats, []wire.HangStats) {
	e.neighbours.look(b)
	holds := e.heldBack()
	e.jobs.Held = func(tenant, workload string) bool {
		return holds.Of(audit.Subject{Tenant: tenant, Workload: workload}).Has(audit.Standing)
	}
	if !e.Simulated {
		e.jobs.See(gpuProcesses(b))
	}
	return e.jobs.Look(e.workload)
}

// Crashes returns the crashes whose records a user may read, the oldest first.
func (e *Enforcer) Crashes(uid uint32) []crash.Head { return e.crashes.Heads(uid) }

// Crash returns the JSON of a crash.Record that a user may read, and whether there is one. It
// reads the disk.
func (e *Enforcer) Crash(uid uint32, id int) ([]byte, bool, error) { return e.crashes.Record(uid, id) }

// tellCrashes keeps the crashes since the last look, and logs the new ones.
func (e *Enforcer) tellCrashes() {
	for _, h := range e.crashes.Look(func(pid int) (comm, workload string) {
		p, err := e.Host.Process(pid)
		if err != nil || p.Workload == nil {
			return p.Comm, ""
		}
		return p.Comm, p.Workload.Key
	}) {
		e.log.Warn("a program under the hook crashed", "crash", h.ID, "pid", h.PID, "comm", h.Comm, "tenant", h.Tenant,
			"workload", h.Workload, "what", h.Says)
		if e.Crashed != nil {
			e.Crashed(h)
		}
	}
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
