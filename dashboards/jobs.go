package dashboards

import (
	"fmt"

	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
)

// traced shows what programs under the hook do: their steps, collectives and
// hangs.
var traced = dashboard{
	name: "jobs", title: "GPU Steward / Jobs",
	description: "What programs under the hook do: steps and their parts, collectives by rank, slow steps and hangs.",
	variables:   []variable{anyHosts, anyGPUs, anyJobs},
	rows: []row{
		{title: "Now", panels: []panel{
			{kind: stat, width: 4, title: "Jobs", unit: "short",
				description: "Workloads with a process under the hook.",
				queries:     one("count(count by (workload) ("+ofWork.of(workloads.JobStepping)+"))", "jobs")},
			{kind: stat, width: 4, title: "Stepping", unit: "short",
				description: "Workloads that repeat a step now. Servers and programs that begin do not.",
				queries: one("count(max by (workload) ("+ofWork.of(workloads.JobStepping)+") == 1) or vector(0)",
					"stepping")},
			{kind: stat, width: 4, title: "Goodput", unit: "percentunit", none: "no steps",
				description: "Fraction of the jobs' time in steps. The rest is evaluations, checkpoints and other work " +
					"between steps.",
				queries: one(goodput("cluster"), "goodput")},
			{kind: stat, width: 4, title: "Busy GPUs", unit: "short",
				description: "GPU time with work of the jobs, per second.",
				queries:     one("sum("+ofWork.rate(workloads.JobBusy)+")", "busy")},
			{kind: stat, width: 4, title: "Slow steps", unit: "short",
				description: "Steps in the time range that took at least 1.2 times as long as usual.",
				queries:     one("sum("+ofWork.risen(workloads.JobSlow)+") or vector(0)", "steps")},
			{kind: stat, width: 4, title: "Hanging jobs", unit: "short", steps: anyIsBad,
				description: "Jobs that no longer get on.",
				queries:     one("count("+ofWork.of(workloads.JobHang)+") or vector(0)", "hangs")},
		}},
		{title: "Steps", panels: []panel{
			{kind: lines, title: "Step time", unit: "s", least: at(0), link: toWorkload,
				description: "Time of a step: the median, and the time that one of a hundred exceeds.",
				queries:     []query{{stepTime(.5), "{{workload}} p50"}, {stepTime(.99), "{{workload}} p99"}}},
			{kind: areas, title: "Parts of the steps", unit: "percentunit", least: at(0), link: toWorkload,
				description: "Where the steps' time goes, of each process: launching kernels, waiting for the GPU, " +
					"copying, held back by the quota, or on the host without any call of the driver.",
				queries: one(by("avg", perWorkload+", part", ofWork.rate(workloads.JobParts)), "{{workload}} {{part}}")},
			{kind: lines, title: "Goodput by job", unit: "percentunit", least: at(0), most: at(1), link: toWorkload,
				description: "Fraction of the job's time in steps. Checkpoints and evaluations lower it.",
				queries:     one(goodput(perWorkload), "{{workload}}")},
			{kind: lines, title: "FLOP/s", unit: "flops", least: at(0), link: toWorkload,
				description: "Estimate from the activity of the GPUs' pipes, on Hopper and later, of jobs that have their " +
					"GPUs alone. It counts tensor cores as dense FP16: halve it for TF32, double it for FP8.",
				queries: one(by("sum", perWorkload, ofWork.of(derived.JobFlops)), "{{workload}}")},
			{kind: lines, title: "Steps per second", unit: "cps", least: at(0), link: toWorkload,
				description: "Steps of each process of the job: all ranks of a job do the same number.",
				queries:     one(by("avg", perWorkload, ofWork.rate(workloads.JobSteps)), "{{workload}}")},
			{kind: lines, title: "Median of the last steps", unit: "s", least: at(0), link: toGPU,
				description: "The agent's own median. It needs no query over buckets.",
				queries:     one(by("max", perGPU+", workload", ofWork.of(workloads.JobMedian)), "{{workload}} GPU {{gpu}}")},
			{kind: areas, title: "Slow steps by cause", unit: "cps", least: at(0), link: toWorkload,
				description: "Steps that took at least 1.2 times as long as usual, by the part or the circumstance " +
					"that accounts for it.",
				queries: one(by("sum", perWorkload+", cause", ofWork.rate(workloads.JobSlow)), "{{workload}} {{cause}}")},
		}},
		{title: "GPU", panels: []panel{
			{kind: lines, title: "GPU busy", unit: "percentunit", least: at(0), link: toGPU,
				description: "Fraction of time in which the GPU had work of the job, by the hook's samples.",
				queries:     one(by("sum", perGPU+", workload", ofWork.rate(workloads.JobBusy)), "{{workload}} GPU {{gpu}}")},
			{kind: lines, title: "GPU time by kernel", unit: "percentunit", least: at(0), link: toWorkload,
				none: "enforcer.kernel_times is not set, or nothing runs under the hook",
				description: "Fraction of time in which the GPU ran a kernel of the job, or a graph, for the ten with the " +
					"most time on each GPU. It is an estimate from one second in about twenty.",
				queries: one(by("sum", perWorkload+", kernel", ofWork.rate(workloads.WorkloadKernels)), "{{workload}} {{kernel}}")},
			{kind: lines, title: "Energy of a step", unit: "joule", least: at(0), link: toWorkload,
				description: "Joules that the GPUs of the job use for a step, by the job's share of their SM time. " +
					"The energy of idle GPUs is left out.",
				queries: one(by("sum", perWorkload, ofWork.rate(workloads.WorkloadEnergy))+" / "+
					by("avg", perWorkload, ofWork.rate(workloads.JobSteps)), "{{workload}}")},
			{kind: lines, title: "Launches", unit: "cps", least: at(0), link: toWorkload,
				description: "Kernels and graphs that the job launches. Many short kernels keep the host busy.",
				queries: []query{{by("sum", perWorkload, ofWork.rate(workloads.JobLaunches)), "{{workload}} kernels"},
					{by("sum", perWorkload, ofWork.rate(workloads.JobGraphs)), "{{workload}} graphs"}}},
			{kind: lines, title: "Waits and allocations", unit: "cps", least: at(0), link: toWorkload,
				description: "Times that the job waits for the GPU, and allocates GPU memory. Both stop it from " +
					"launching ahead.",
				queries: []query{{by("sum", perWorkload, ofWork.rate(workloads.JobWaits)), "{{workload}} waits"},
					{by("sum", perWorkload, ofWork.rate(workloads.JobAllocations)), "{{workload}} allocations"}}},
			{kind: lines, title: "Copies", unit: "binBps", least: at(0), link: toWorkload,
				description: "Bytes that the job requests to copy.",
				queries:     one(by("sum", perWorkload, ofWork.rate(workloads.JobCopied)), "{{workload}}")},
		}},
		{title: "Collectives", panels: []panel{
			{kind: lines, title: "Time of a collective by rank", unit: "s", least: at(0), link: toGPU,
				description: "GPU time of a collective, with the wait for other ranks. The rank with the least is " +
					"the one that comes last: the others wait for it.",
				queries: one(by("max", perRank, ofWork.rate(workloads.RankSeconds)+" / ("+
					ofWork.rate(workloads.RankMeasured)+" > 0)"), "{{workload}} {{communicator}} rank {{rank}}")},
			{kind: lines, title: "Collectives by rank", unit: "cps", least: at(0), link: toGPU,
				description: "Collectives that each rank calls. The stages of a pipeline differ.",
				queries: one(by("max", perRank, ofWork.rate(workloads.RankCollectives)),
					"{{workload}} {{communicator}} rank {{rank}}")},
			{kind: lines, title: "Collectives", unit: "cps", least: at(0), link: toWorkload,
				description: "Collectives that the processes of each job call.",
				queries:     one(by("sum", perWorkload, ofWork.rate(workloads.JobCollectives)), "{{workload}}")},
			{kind: lines, title: "Bytes of collectives", unit: "binBps", least: at(0), link: toWorkload,
				description: "Bytes of those collectives, as they are called.",
				queries:     one(by("sum", perWorkload, ofWork.rate(workloads.JobCollectiveBytes)), "{{workload}}")},
		}},
		{title: "Trouble", panels: []panel{
			{kind: table, height: 8, title: "Hangs", unit: "short", none: "no job hangs",
				description: "Jobs that no longer get on, with the process for which the others wait: its rank, why " +
					"it is the one, and where it stands.",
				keys: []key{hostKey, gpuKey, workloadKey, {label: "rank", title: "Rank"}, {label: "reason", title: "Reason"},
					{label: "where", title: "Where"}},
				columns: []column{{title: "For", expr: by("max", perGPU+", workload, rank, reason, where",
					ofWork.of(workloads.JobHang)), unit: "s"}}},
			{kind: lines, title: "Clients wait", unit: "s", least: at(0), link: toWorkload,
				description: "How long input of a server has waited while the server did nothing. It is stuck after " +
					"30 s, or more if it paused for long before.",
				queries: one(by("max", perWorkload, ofWork.of(workloads.WorkloadUnread)), "{{workload}}")},
			{kind: table, height: 8, title: "Slow jobs", unit: "percentunit", none: "no job is slow",
				description: "Jobs whose steps take longer than they usually do, with the cause and the evidence at the " +
					"time it was first told.",
				keys: []key{hostKey, gpuKey, workloadKey, {label: "cause", title: "Cause"},
					{label: "evidence", title: "Evidence"}},
				columns: []column{{title: "Time lost", expr: by("max", perGPU+", workload, cause, evidence",
					ofWork.of(workloads.JobSlowdown)), unit: "percentunit"}}},
			{kind: table, height: 8, title: "Stragglers", unit: "percentunit", none: "no rank comes last again and again",
				description: "Ranks for which the other ranks on their host wait, and what takes longer than on those.",
				keys:        []key{hostKey, gpuKey, workloadKey, {label: "rank", title: "Rank"}, {label: "cause", title: "Cause"}},
				columns: []column{{title: "Lost", expr: by("max", perGPU+", workload, rank, cause",
					ofWork.of(workloads.JobStraggler)), unit: "percentunit"}}},
			{kind: lines, title: "Events lost", unit: "cps", least: at(0), link: toWorkload,
				description: "Events that a trace had no room for. Steps of the job may be incomplete then.",
				queries:     one(by("sum", perWorkload, ofWork.rate(workloads.JobLost)), "{{workload}}")},
		}},
	},
}

// perRank are the labels of a rank.
const perRank = perGPU + ", workload, communicator, rank"

// anyJobs is the variable of the workloads with a process under the hook.
var anyJobs = variable{"workload", "Workload", workloads.JobStepping, hosts, true}

// goodput is the fraction of time in steps.
func goodput(labels string) string {
	steps := by("sum", labels, ofWork.rate(workloads.JobParts))
	outside := by("sum", labels, ofWork.rate(workloads.JobOutside))
	return fmt.Sprintf("%s / (%[1]s + %s > 0)", steps, outside)
}

// stepTime is a quantile of the time of steps. Prometheus has their histogram
// with classic buckets or, if it scrapes these, with native ones.
func stepTime(q float64) string {
	return fmt.Sprintf("histogram_quantile(%v, %s or %s)", q,
		by("sum", perWorkload+", le", ofWork.rate(stepBuckets)), by("sum", perWorkload, ofWork.rate(workloads.JobStep)))
}
