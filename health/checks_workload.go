package health

import (
	"time"

	"gpusteward/collectors"
)

// missed are the windows in which a workload did not get what its quota guarantees.
var missed = Increase(collectors.QoSViolations, 5*time.Minute, "by", "workload")

var workloadChecks = []*Check{
	{
		ID: "mem_leak", Alert: "GPUMemoryLeak", Class: ApplicationFault,
		Levels:  []Level{{Severity: Warning, When: Value(MemoryExhaustion, "by", "workload").Optional().Below(3600, 7200), For: of(6, 6)}},
		Summary: "A workload's GPU memory grows and will fill the GPU within an hour.",
		Detail:  "{entity} will have filled the GPU's memory in {value} seconds.",
		Action:  "Tell the owner; limit the workload.",
		Cause:   "The trend of 15 minutes (Theil-Sen), and its confidence interval excludes that it does not grow.",
	},
	{
		ID: "tenant_stall", Alert: "TenantStalled", Class: ApplicationFault,
		Levels:  []Level{{Severity: Info, When: Value(WorkloadLag, "by", "workload").Above(.5, .3), For: of(60, 60)}},
		Summary: "A workload does nothing on one of its GPUs while the others work.",
		Detail:  "{entity} is {percent} less busy than on its busiest GPU.",
		Action:  "Ask the owner whether a rank died.",
		Cause:   "Ten minutes of it are no pause between two steps.",
	},
	{
		ID: "qos", Alert: "QuotaQoSViolation",
		// One window of a few is no part of many: it takes three.
		Levels:  []Level{{Severity: Warning, When: Div(missed, Increase(collectors.QoSWindows, 5*time.Minute, "by", "workload")).Above(.01).And(missed.AtLeast(3)), For: of(3, 3)}},
		Summary: "A workload does not get what its quota guarantees.",
		Detail:  "{entity} missed its guarantee in {percent} of the windows.",
		Action:  "Throttle who takes more than its share, or lower the guarantees.",
		Cause:   "Counted only while the workload wanted more: compute share, launch wait, memory bandwidth.",
	},
	{
		ID: "quota_violation", Alert: "QuotaViolation",
		Levels:  []Level{{Severity: Warning, When: Increase(collectors.QuotaViolations, 5*time.Minute, "by", "workload").Above(0), For: of(3, 3)}},
		Summary: "A workload takes more than its quota allows.",
		Detail:  "{entity} violated its quota {value} times in 5 minutes.",
		Action:  "See what the enforcer did: nvgpu_quota_violations_total by action.",
		Cause:   "The ladder of the enforcer handles it; this tells people.",
	},
}
