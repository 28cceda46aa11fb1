package dashboards

import (
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
)

// workload shows the users of the GPUs by cgroup: units, containers, pods, jobs.
var workload = dashboard{
	name: "workloads", title: "GPU Steward / Workloads",
	description: "The users of the GPUs: memory, time and energy by workload, and GPUs that are allocated and idle.",
	variables:   []variable{anyHosts, anyGPUs, anyWorkloads},
	rows: []row{
		{title: "Now", panels: []panel{
			{kind: stat, width: 4, title: "Workloads", unit: "short",
				description: "Workloads that have a process on a GPU.",
				queries:     one("count(count by (workload) ("+ofWork.of(workloads.WorkloadMemory)+"))", "workloads")},
			{kind: stat, width: 4, title: "Processes", unit: "short",
				description: "Processes of the workloads.",
				queries:     one("sum("+ofWork.of(workloads.WorkloadProcesses)+")", "processes")},
			{kind: stat, width: 4, title: "Memory held", unit: "bytes",
				description: "GPU memory that the workloads hold.",
				queries:     one("sum("+ofWork.of(workloads.WorkloadMemory)+")", "memory")},
			{kind: stat, width: 4, title: "Busy GPUs", unit: "short",
				description: "SM time of the workloads per second: 2.5 is the work of two and a half GPUs.",
				queries:     one("sum("+ofWork.rate(workloads.WorkloadSM)+")", "busy")},
			{kind: stat, width: 4, title: "Energy", unit: "watt",
				description: "Power of the workloads: their share of the GPUs' energy, estimated by SM time.",
				queries:     one("sum("+ofWork.rate(workloads.WorkloadEnergy)+")", "energy")},
			{kind: stat, width: 4, title: "GPUs allocated and idle", unit: "short", none: "none",
				steps:       []step{{0, green}, {.5, orange}},
				description: "GPUs that are allocated to a workload and idle.",
				queries:     one("sum("+ofWork.rate(workloads.AllocatedIdle)+") or vector(0)", "idle")},
		}},
		{title: "Workloads", panels: []panel{
			{kind: table, height: 10, title: "Workloads on GPUs", unit: "short", sort: "SM time",
				description: "One row for each workload and host, the busiest first. A workload is a cgroup: a " +
					"unit, a container, a pod's container, a Slurm step or a user.",
				keys: []key{hostKey, workloadKey},
				columns: []column{
					{title: "GPUs", expr: "count by (" + perWorkload + ") (" +
						by("max", perGPU+", workload", ofWork.of(workloads.WorkloadMemory)) + ")", unit: "short"},
					{title: "SM time", expr: by("sum", perWorkload, ofWork.rate(workloads.WorkloadSM)), unit: "short"},
					{title: "Memory", expr: by("sum", perWorkload, ofWork.of(workloads.WorkloadMemory)),
						unit: "bytes"},
					{title: "Processes", expr: by("sum", perWorkload, ofWork.of(workloads.WorkloadProcesses)),
						unit: "short"},
					{title: "Power", expr: by("sum", perWorkload, ofWork.rate(workloads.WorkloadEnergy)),
						unit: "watt"},
					{title: "Started", expr: by("min", perWorkload,
						hosts.of(workloads.WorkloadStart, `workload=~"$workload"`)) + " * 1000",
						unit: "dateTimeFromNow"},
				}},
			{kind: table, height: 8, title: "Names", unit: "none",
				description: "Names of the workloads in Docker, Podman, the kubelet and Slurm.",
				keys: []key{hostKey, workloadKey, {label: "kind", title: "Kind"},
					{label: "namespace", title: "Namespace"}, {label: "pod", title: "Pod"},
					{label: "container", title: "Container"},
					{label: "image", title: "Image"}, {label: "slurm_job", title: "Job"},
					{label: "slurm_user", title: "User"}, {label: "slurm_account", title: "Account"},
					{label: "unit", title: "Unit"}},
				columns: []column{{expr: by("max",
					perWorkload+", kind, namespace, pod, container, image, slurm_job, slurm_user, slurm_account, unit",
					hosts.of(workloads.WorkloadInfo, `workload=~"$workload"`)), unit: "none"}}},
		}},
		{title: "Time", panels: []panel{
			{kind: areas, title: "SM time", unit: "short", least: at(0), link: toWorkload,
				description: "GPUs that each workload kept busy, by the driver's samples of its processes.",
				queries:     one(by("sum", perWorkload, ofWork.rate(workloads.WorkloadSM)), "{{workload}}")},
			{kind: lines, title: "Memory traffic time", unit: "percentunit", least: at(0), link: toWorkload,
				description: "Fraction of time in which each workload read or wrote GPU memory, summed over its GPUs.",
				queries:     one(by("sum", perWorkload, ofWork.rate(workloads.WorkloadMemoryBusy)), "{{workload}}")},
			{kind: lines, title: "SM utilization", unit: "percentunit", least: at(0), most: at(1), link: toGPU,
				description: "SM utilization of each GPU by each workload, over the driver's last window.",
				queries: one(by("max", perGPU+", workload", ofWork.of(workloads.WorkloadUse, `engine="sm"`)),
					"{{workload}} GPU {{gpu}}")},
			{kind: lines, title: "Video engines", unit: "percentunit", least: at(0), link: toWorkload,
				description: "Fraction of time in which each workload used the video encoder and decoder.",
				queries: []query{{by("sum", perWorkload, ofWork.rate(workloads.WorkloadEncoder)) + " > 0",
					"{{workload}} encoder"},
					{by("sum", perWorkload, ofWork.rate(workloads.WorkloadDecoder)) + " > 0",
						"{{workload}} decoder"}}},
		}},
		{title: "Memory", panels: []panel{
			{kind: areas, title: "Memory", unit: "bytes", least: at(0), link: toWorkload,
				description: "GPU memory that each workload holds.",
				queries:     one(by("sum", perWorkload, ofWork.of(workloads.WorkloadMemory)), "{{workload}}")},
			{kind: lines, title: "Time until memory is full", unit: "s", none: "no workload has such a trend",
				link: toWorkload,
				description: "Time until the workload has taken all free GPU memory, by its trend over an hour. " +
					"Most workloads have no such trend.",
				queries: one(by("min", perGPU+", workload", ofWork.of(derived.MemoryExhaustion)),
					"{{workload}} GPU {{gpu}}")},
		}},
		{title: "Energy and waste", panels: []panel{
			{kind: areas, title: "Power", unit: "watt", least: at(0), link: toWorkload,
				description: "Each workload's share of the GPUs' power, estimated by SM time. The power of an idle " +
					"GPU belongs to no workload.",
				queries: one(by("sum", perWorkload, ofWork.rate(workloads.WorkloadEnergy)), "{{workload}}")},
			{kind: lines, title: "Allocated and idle", unit: "short", least: at(0),
				none: "nothing is allocated and idle", link: toWorkload,
				description: "GPUs that are allocated to each workload and idle. The allocations come from the " +
					"kubelet or Slurm.",
				queries: one(by("sum", perWorkload, ofWork.rate(workloads.AllocatedIdle)), "{{workload}}")},
			{kind: lines, title: "Lag between GPUs", unit: "percentunit", least: at(0), link: toGPU,
				description: "How much less a workload uses this GPU than the one that it uses most. A GPU that " +
					"lags delays the others.",
				queries: one(by("max", perGPU+", workload", ofWork.of(derived.WorkloadLag)),
					"{{workload}} GPU {{gpu}}")},
			{kind: lines, title: "Processes by type", unit: "short", least: at(0), link: toGPU,
				description: "Compute and graphics processes, and MPS clients.",
				queries:     one(by("sum", "type", gpus.of(workloads.Processes)), "{{type}}")},
		}},
	},
}
