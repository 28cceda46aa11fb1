package health

import (
	"time"

	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// missing holds if a tenant did not get its guarantee in more than one of a
// hundred windows in which it wanted it. It takes three windows, because one of
// a few is no share of many.
func missing(objective string) Condition {
	missed := Increase(workloads.QoSViolations, 5*time.Minute, "objective", objective, "by", "tenant")
	wanted := Increase(workloads.QoSWindows, 5*time.Minute, "objective", objective, "by", "tenant")
	return Div(missed, wanted).Above(.01).And(missed.AtLeast(3))
}

// atLevel holds if the escalation put a workload at a level and acts on it.
func atLevel(level string) Condition {
	done := Value(workloads.QuotaShadow, "by", "tenant", "by", "workload").Is(0)
	return Value(workloads.QuotaLevel, "rung", level, "by", "tenant", "by", "workload").Is(1).And(done)
}

// soon holds if a forecast falls within the hour.
func soon(forecast *Signal) Condition { return forecast.Optional().Below(3600, 7200) }

var workloadChecks = []*Check{
	{
		ID: "mem_leak", Alert: "GPUMemoryLeak", Class: incident.ApplicationFault,
		Levels: []Level{
			{Severity: incident.Info, When: Value(derived.MemoryExhaustion, "by", "workload").Optional().
				Below(3600, 7200), For: of(6, 6)},
			{Severity: incident.Warning, When: Value(derived.MemoryExhaustion, "by", "workload").Optional().
				Below(2*3600, 4*3600).And(Value(derived.MemoryCreeps, "by", "workload").Is(1)), For: of(6, 6)},
			// A workload that fills a GPU by design leaves some of it free:
			// growth beyond that does not mean to end.
			{Severity: incident.Warning, When: Value(derived.MemoryExhaustion, "by", "workload").Optional().
				Below(6*3600, 8*3600).And(Value(derived.MemoryPressure).Above(.975)), For: of(6, 6)},
		},
		Summary: "A workload's memory grows and will fill the GPU.",
		Detail:  "{entity} {grows|grew}, and by its trend {has|had} GPU memory for {time} more.",
		Action:  "Tell the owner.",
		Cause: "The trend of an hour (Theil-Sen) has a confidence interval that excludes zero. The memory rose in " +
			"each third of the hour, does not level off, and less than a tenth of it was given back within three " +
			"hours. Caches, KV caches and data sets are full within the hour, follow their requests, or leave some of " +
			"the GPU free. Growth is therefore info if the end is less than an hour away. It is a warning if the end " +
			"is two hours away, and it went evenly beyond the peak of a half-hour rest for an hour. It is also a " +
			"warning if the end is six hours away, and 97.5 % of the memory is in use: a GPU that is nearly full has a trend of two hours, too, " +
			"which finds a leak in steps. A leak that needs less than an hour is not foreseen.",
	},
	{
		ID: "tenant_stall", Alert: "TenantStalled", Class: incident.ApplicationFault,
		Levels: []Level{{Severity: incident.Info, When: Value(derived.WorkloadLag, "by", "workload").Above(.5, .3),
			For: of(60, 60)}},
		Summary: "A workload does nothing on one of its GPUs while the others work.",
		Detail:  "{entity} {is|was} {percent} less busy than on its busiest GPU.",
		Action:  "Ask the owner whether a rank died.",
		Cause:   "Ten minutes are too long for a pause between two steps.",
	},
	{
		ID: "hung_job", Alert: "WorkloadHangSuspected", Class: incident.ComputeTimeout,
		Levels: []Level{{Severity: incident.Warning, When: Value(derived.WorkloadWait, "by", "workload").
			Optional().AtLeast(1)}},
		Summary: "A workload seems to hang: some of its GPUs have been busy for a long time and get nothing done.",
		Detail:  "{entity} {has|had} spun on several of its GPUs for longer than a wait may last.",
		Action:  "Ask the owner; py-spy or cuda-gdb show what its ranks wait for.",
		Cause: "They spin, as GPUKernelHangSuspected describes. Ranks also do so while a checkpoint is written. The " +
			"alert therefore waits 10 minutes while another GPU of the " +
			"workload is idle, because that rank may be gone; 15 minutes while all spin, because libraries end " +
			"a collective that hangs after 10; and an hour while another GPU works or moves data, because the " +
			"others may wait for it, if two or half of them spin. A workload that waited longer on these GPUs, and then went on with the " +
			"memory that it had, makes that twice its wait, an hour at most; half of it is forgotten after a " +
			"week.",
	},
	{
		ID: "job_hang", Alert: "JobHang", Class: incident.ComputeTimeout,
		// The enforcer waits until it is sure, and there is no gauge before.
		Levels: []Level{{Severity: incident.Warning, When: Value(workloads.JobHang, "by", "tenant", "by", "workload").
			Optional().Above(0)}},
		Summary: "A program hangs: it waits for one of its processes, or for its GPU, or its clients wait for it.",
		Detail:  "{entity} {has|had} made no progress for {time}{labels}.",
		Action:  "Tell the owner to end the job. If a process is to blame, gpusteward status has the command that shows its stack.",
		Cause: "The rank, the reason and the place are of the process for which the others wait. absent: it did not " +
			"enter a collective that the others have entered. kernel: a kernel or a graph on its GPU does not end. " +
			"deadlock: it and the others that are named wait for each other. stopped: a " +
			"signal or a debugger stopped it. ended: it has ended. unlike: it entered a different collective from " +
			"the others. unread: a server leaves the input of its clients waiting, and does nothing. unknown: all have entered the same collective, and none ends it, as after a fault of the " +
			"network.",
	},
	{
		ID: "job_slow", Alert: "JobSlow", Class: incident.ApplicationFault,
		// The enforcer tells it after some 20 s, and there is no gauge before. Snapshots are 10 s apart.
		Levels: []Level{{Severity: incident.Warning, When: Value(workloads.JobSlowdown, "by", "tenant", "by", "workload").
			Optional().Above(0), For: of(4, 4)}},
		Summary: "The steps of a job under the hook take longer than they usually do.",
		Detail:  "Steps of {entity} {lose|lost} {percent} of their time{labels}.",
		Action: "Remove the cause: docs/jobs.md describes each. The host and the GPU cause cpu, reclaim, storage, power, " +
			"thermal, clocks, link and neighbour; the quota causes quota; the job itself the others.",
		Cause: "The usual time of a step is the mean of the process's own steps while it was not slow, over four hours. " +
			"A cause is told only if its part of the step accounts for half of the additional time, and if its " +
			"evidence is unlike usual. gpu, host and unknown mean that there is no such evidence. A process whose steps " +
			"launch or copy more than before does other work, and is not slow. After six hours, the slow step is the " +
			"usual one.",
	},
	{
		ID: "job_straggler", Alert: "JobStragglerOnHost", Shadow: true,
		// The enforcer waits until it is sure, and there is no gauge before.
		Levels: []Level{{Severity: incident.Warning, When: Value(workloads.JobStraggler, "by", "tenant", "by", "workload").
			Optional().Above(0)}},
		Summary: "The ranks of a job on this host wait for one of them again and again.",
		Detail:  "The other ranks {wait|waited} {percent} of a step for {entity}{labels}.",
		Action: "Compare what the cause names with that of the other ranks: the GPU's clocks, temperature and neighbours, " +
			"the data loader, the quota.",
		Cause: "The steps of the rank take longer than those of its peers on this host until the rank enters a " +
			"collective. host: its own code, its data or its launches. copy: copies between host and GPU. quota: the " +
			"gate holds it back. gpu: the work of its GPU, and thermal, power or neighbour if that is true of its GPU " +
			"and not of most of its peers' GPUs.",
	},
	{
		ID: "qos", Alert: "QuotaQoSViolation",
		Levels: []Level{
			{Severity: incident.Warning, When: missing("compute"), For: of(3, 3)},
			{Severity: incident.Warning, When: missing("launch_wait"), For: of(3, 3),
				Detail: "{entity} waited for its turn for longer than its guarantee in {percent} of the windows."},
			{Severity: incident.Warning, When: missing("memory"), For: of(3, 3),
				Detail: "{entity} missed its guarantee of memory in {percent} of the windows."},
		},
		Summary: "A tenant does not get what its quota guarantees.",
		Detail:  "{entity} missed its guarantee of GPU time in {percent} of the windows.",
		Rule:    "{entity} missed its guarantee of GPU time, of turns or of memory in {percent} of the windows.",
		Action:  "Throttle the tenant that takes more than its share, or lower the guarantees.",
		Cause: "Windows count only while the tenant wanted its guarantee, for each objective: its part of the GPU's " +
			"time (compute), its wait for a turn (launch_wait), its memory.",
	},
	{
		ID: "quota_convoy", Alert: "QuotaConvoy",
		Levels: []Level{{Severity: incident.Warning, When: Rate(workloads.QuotaConvoy, 5*time.Minute, "by", "tenant").
			Above(.05, .03), For: of(6, 6)}},
		Summary: "A job waits for itself across GPUs because its processes are held at different times.",
		Detail:  "{entity} {loses|lost} {percent} of the GPU's time waiting for its work on another GPU.",
		Action: "Give the tenant the same guarantee on all GPUs that its job spans, or GPUs of its own; throttle the " +
			"tenants that share only some of them.",
		Cause: "Processes on several GPUs wait for one another (collectives): work that is on one GPU stands " +
			"still for as long as its partner is held back on another. The broker holds back and releases such a " +
			"tenant on all of its GPUs together (nvgpu_broker_gangs_total), which should leave little of this " +
			"effect. The driver reports such a GPU as busy: its kernels spin, and other tenants get less.",
	},
	{
		ID: "quota_violation", Alert: "QuotaViolation",
		Levels: []Level{{Severity: incident.Warning, When: Increase(workloads.QuotaViolations, 5*time.Minute,
			"by", "tenant", "by", "workload").AtLeast(3), For: of(3, 3)}},
		Summary: "A workload takes more than its quota allows.",
		Detail:  "{entity} was found to take more than its quota in {count:audit|audits} in 5 minutes.",
		Action:  "Tell the owner; /api/v1/events?kind=enforcement says what the enforcer did.",
		Cause: "The enforcer escalates it (nvgpu_quota_rung); this alert informs people. The label objective of " +
			"nvgpu_quota_violations_total names the resource. A single audit may be a measurement error, so the " +
			"alert takes three.",
	},
	{
		ID: "quota_unheld", Alert: "QuotaUnheld",
		Levels: []Level{{Severity: incident.Warning, When: Value(workloads.QuotaBackend, "resource", "memory",
			"backend", "none", "by", "tenant").Above(0), For: of(3, 3)}},
		Summary: "A tenant's cap of GPU memory is not in force.",
		Detail:  "Nothing {holds|held} {entity} to its cap, a percentage, because the size of the GPU's memory {is|was} not known.",
		Action:  "Write the cap in bytes, such as memory: 40 GiB. The log of the enforcer has the reason.",
		Cause: "The cap is a percentage, and neither NVML nor CUDA tells how much memory the GPU has. NVML does not report it " +
			"for GPUs that use the host's memory, such as GB10. Until then the tenant may take all of it.",
	},
	{
		ID: "unhooked", Alert: "UnhookedProcess",
		Levels: []Level{{Severity: incident.Warning, When: Sum(workloads.UnhookedProcesses, "by", "tenant",
			"by", "workload").Above(0), For: of(3, 3)}},
		Summary: "Processes of a workload with a quota bypass the hook.",
		Detail:  "{entity} {has|had} {count:process|processes} without a session with the broker.",
		Action: "Make sure that the workload runs under the hook: gpusteward exec, or its LD_PRELOAD. Until then " +
			"only the kernel or MPS can hold it.",
		Cause: "They are statically linked, their environment was cleared, or somebody evades the quota on purpose.",
	},
	{
		ID: "quota_drift", Alert: "QuotaDrift",
		Levels: []Level{
			{Severity: incident.Warning, When: Value(workloads.QuotaChargeDrift, "by", "tenant").
				Above(.05, .03), For: of(6, 6)},
			{Severity: incident.Warning, When: Sum(workloads.UnderreportingProcesses, "by", "tenant").
				Above(0), For: of(6, 6),
				Detail: "{entity} {has|had} {count:process|processes} with a hook that {reports|reported} less than the driver."},
		},
		Summary: "The books of the enforcer and the driver disagree on what a tenant uses.",
		Detail:  "{entity} {uses|used} {percent} of the GPU's time beyond what it {is|was} charged for.",
		Rule: "{entity} uses more of the GPU's time than it is charged for, or a hook of its processes reports " +
			"less than the driver.",
		Action: "Restart the workload that nvgpu_underreporting_processes names under this version's hook; without one, " +
			"see nvgpu_quota_ledger_drift_bytes.",
		Cause: "It is charged for less than the driver counts: by more than 5 points of the GPU's time for a minute, " +
			"or by a process whose hook reports less. The hook does not see some of the work, or was tampered with.",
	},
	{
		ID: "quota_action", Alert: "QuotaEnforced", Class: incident.ApplicationFault,
		Levels: []Level{
			{Severity: incident.Info, When: atLevel("pause")},
			{Severity: incident.Info, When: atLevel("suspend"),
				Detail: "The enforcer {holds|held} {entity} suspended: it took more than its quota."},
			{Severity: incident.Warning, When: atLevel("terminate"),
				Detail: "The enforcer ended {entity}: it took more than its quota."},
		},
		Summary: "The enforcer paused, suspended or ended a workload that takes more than its quota.",
		Detail:  "The enforcer {holds|held} {entity} paused: it took more than its quota.",
		Rule:    "The enforcer holds {entity} paused or suspended: it took more than its quota.",
		Action:  "Tell the owner; /api/v1/events?kind=enforcement has the evidence.",
		Cause: "The escalation reached its last levels: info is pause or suspend, warning is terminate. In shadow mode " +
			"there is no alert, because nothing was done.",
	},
	{
		ID: "resume_late", Alert: "ResumeLate",
		Levels: []Level{{Severity: incident.Warning, When: Value(workloads.SuspendedSeconds, "phase", "resuming",
			"by", "tenant", "by", "workload").Above(60), For: of(2, 2)}},
		Summary: "A suspended workload does not get its GPU memory back.",
		Detail:  "{entity} {has|had} been waiting for its GPU memory for {time}.",
		Action:  "Make room on the GPU: suspend another workload, or end one that is not needed.",
		Cause: "The workload's memory is in host memory, and the GPU has no room for it now, or the driver does not answer: the log of the enforcer has the reason. The " +
			"enforcer tries again every 2 s to a minute. nvgpu_suspend_refusals_total counts the attempts that failed, by " +
			"reason.",
	},
	{
		ID: "overcommit_wait", Alert: "OvercommitWait",
		Levels:  []Level{{Severity: incident.Warning, When: Value(workloads.OvercommitWait).AtLeast(3600, 1800), For: of(2, 2)}},
		Summary: "A workload has been waiting for an overcommitted GPU for more than an hour.",
		Detail:  "A workload {has|had} been waiting for memory of {entity} for {time}.",
		Action: "Move a workload to another GPU, or raise the priority of the one that waits; gpusteward status names those " +
			"that are suspended.",
		Cause: "The workloads on the GPU have a higher priority or a guarantee of memory, or so many of them take " +
			"turns that each waits for longer than an hour.",
	},
	{
		ID: "suspend_broken", Alert: "SuspendBroken",
		Levels: []Level{{Severity: incident.Critical,
			When: Increase(workloads.SuspendBroken, 10*time.Minute).AtLeast(1)}},
		Summary: "The driver broke a process that was suspended.",
		Detail:  "{count:suspended process|suspended processes} lost the GPU in 10 minutes.",
		Action: "Restart the workload; /api/v1/events?kind=enforcement names it. Suspend no others on this host until the " +
			"driver is updated.",
		Cause: "A checkpoint or its restoration failed. What the workload had not saved is lost.",
	},
	{
		ID: "quota_forecast", Alert: "QuotaMemoryForecast",
		Levels: []Level{{Severity: incident.Warning, When: soon(Value(derived.QuotaMemoryExhaustion, "by", "tenant")),
			For: of(6, 6)}},
		Summary: "A tenant's GPU memory grows and will reach its cap within an hour.",
		Detail:  "{entity} {grows|grew}, and by its trend {has|had} room under its cap for {time} more.",
		Action:  "Tell the owner: allocations beyond the cap fail. Raise the cap, if it may have more.",
		Cause: "The trend of 15 minutes (Theil-Sen) has a confidence interval that excludes zero; " +
			"nvgpu_forecast_confidence_ratio shows its certainty.",
	},
	{
		ID: "guarantee_forecast", Alert: "QuotaGuaranteeForecast",
		Levels: []Level{
			{Severity: incident.Warning,
				When: soon(Value(derived.QuotaGuaranteeExhaustion, "objective", "memory", "by", "tenant")),
				For:  of(6, 6)},
			{Severity: incident.Warning,
				When:   soon(Value(derived.QuotaGuaranteeExhaustion, "objective", "compute", "by", "tenant")),
				For:    of(6, 6),
				Detail: "By the trend, the guarantee of GPU time of {entity} {is|was} safe for {time} more."},
		},
		Summary: "At the current trend, a tenant's guarantee cannot be kept within an hour.",
		Detail:  "By the trend, the memory guarantee of {entity} {is|was} safe for {time} more.",
		Rule:    "By the trend, a guarantee of {entity} is safe for {time} more: that of memory, or that of GPU time.",
		Action: "Find the user of the resource: nvgpu_workload_memory_used_bytes for memory; " +
			"nvgpu_unhooked_processes and nvgpu_quota_overrun_seconds_total for time.",
		Cause: "Memory: the free memory beyond all unused guarantees runs out. Compute: the share falls ever further " +
			"behind the due, while the tenant wants the GPU. nvgpu_forecast_confidence_ratio shows the certainty of " +
			"the trend.",
	},
}
