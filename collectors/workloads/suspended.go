package workloads

import (
	"gpusteward/collectors"
	"gpusteward/internal/wire"
)

// Metrics of workloads whose GPU memory is in host memory.
var (
	SuspendedBytes = collectors.Gauge("nvgpu_suspended_bytes",
		"GPU memory in bytes that the workload had and that is in host memory while it is suspended: what the driver "+
			"still lists for it does not count.", "tenant", "workload")
	SuspendedSeconds = collectors.Gauge("nvgpu_suspended_seconds",
		"Time in seconds for which the workload has been suspending, suspended or resuming, by this phase.",
		"tenant", "workload", "phase")
	Suspensions = collectors.HostCounter("nvgpu_suspensions_total", "Suspensions of workloads since the enforcer's start: their GPU memory moved to the host.")
	Resumptions = collectors.HostCounter("nvgpu_resumptions_total", "Workloads resumed after a suspension.")
	SuspendTime = collectors.HostCounter("nvgpu_suspend_seconds_total",
		"Time in seconds that suspending workloads took.")
	ResumeTime = collectors.HostCounter("nvgpu_resume_seconds_total",
		"Time in seconds that resuming workloads took.")
	SuspendRefusals = collectors.HostCounter("nvgpu_suspend_refusals_total",
		"Suspensions and resumptions that were refused or failed, by reason: driver, unsupported, busy, state, "+
			"host_memory, cgroup_memory, gpu_memory, mps, no_answer, not_cuda or other.", "reason")
	SuspendBroken = collectors.HostCounter("nvgpu_suspend_broken_processes_total",
		"Processes that the driver broke while they were suspended. They cannot use their GPU any more.")
	WorkloadHeld = collectors.HostGauge("nvgpu_workload_held",
		"1 while the workload stands still because the enforcer or its broker holds it back, 0 while it has less for it, by "+
			"cause: starved, suspended, returning, paused, throttled, paced or waiting. Absent while nothing does.",
		"tenant", "workload", "cause")
	OvercommitTurn = collectors.Gauge("nvgpu_overcommit_turn_seconds",
		"Time in seconds for which a workload stays on the overcommitted GPU at least, once it is there: the configured "+
			"turn, or longer if moving workloads takes long.")
	OvercommitWaiting = collectors.Gauge("nvgpu_overcommit_waiting",
		"Workloads and allocations that wait for memory of the overcommitted GPU.")
	OvercommitWait = collectors.Gauge("nvgpu_overcommit_longest_wait_seconds",
		"Time in seconds for which the first of them has been waiting; 0 if none is.")
)

// suspendedMetrics holds all of them.
var suspendedMetrics = []*collectors.Metric{SuspendedBytes, SuspendedSeconds, Suspensions, Resumptions,
	SuspendTime, ResumeTime, SuspendRefusals, SuspendBroken,
	OvercommitTurn, OvercommitWaiting, OvercommitWait, WorkloadHeld}

const maxSuspended = 128 // pairs of workload and GPU, or cause

// putSuspended puts the suspended workloads, the overcommitted GPUs and the counters.
func putSuspended(out *collectors.Readings, s *wire.EnforcerStats, index map[string]string) {
	for i, w := range s.Suspended {
		if i >= maxSuspended {
			out.Drop(SuspendedSeconds)
			continue
		}
		put := func(m *collectors.Metric, v float64, labels ...string) {
			out.Set(m, v, append([]string{index[w.GPU], w.GPU, w.Tenant, w.Workload}, labels...)...)
		}
		put(SuspendedBytes, float64(w.Bytes))
		put(SuspendedSeconds, w.Seconds, w.Phase)
	}
	for i, w := range s.Held {
		if i >= maxSuspended {
			out.Drop(WorkloadHeld)
			continue
		}
		out.Set(WorkloadHeld, collectors.Bool(w.Stands), w.Tenant, w.Workload, w.Cause)
	}
	for _, g := range s.Overcommit {
		out.Set(OvercommitTurn, g.Turn, index[g.GPU], g.GPU)
		out.Set(OvercommitWaiting, float64(g.Waiting), index[g.GPU], g.GPU)
		out.Set(OvercommitWait, g.Longest, index[g.GPU], g.GPU)
	}
	t := s.Suspensions
	out.Set(Suspensions, float64(t.Suspended))
	out.Set(Resumptions, float64(t.Resumed))
	out.Set(SuspendTime, t.SuspendSeconds)
	out.Set(ResumeTime, t.ResumeSeconds)
	out.Set(SuspendBroken, float64(t.Broken))
	for reason, n := range t.Refused {
		out.Set(SuspendRefusals, float64(n), reason)
	}
}
