package dashboards

import (
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
)

// quotas shows what tenants were promised, what they have, and the consequences
// for those that take more.
var quotas = dashboard{
	name: "quotas", title: "GPU Steward / Quotas",
	description: "What tenants were promised and what they have: shares, memory, objectives and escalation.",
	variables:   []variable{anyHosts, anyGPUs, anyTenants},
	rows: []row{
		{title: "Now", panels: []panel{
			{kind: stat, width: 4, title: "Brokers", unit: "percentunit", steps: []step{{0, red}, {1, green}},
				description: "Fraction of the brokers that answer. Without a broker, jobs continue and do not share " +
					"fairly.",
				queries: one("avg("+hosts.of(workloads.BrokerUp)+")", "brokers")},
			{kind: stat, width: 4, title: "Sessions", unit: "short",
				description: "Processes under the hook with a session.",
				queries:     one("sum("+hosts.of(workloads.BrokerSessions, `state="active"`)+")", "sessions")},
			{kind: stat, width: 4, title: "Objectives missed", unit: "percentunit",
				steps: []step{{0, green}, {.01, orange}, {.05, red}}, none: "no window",
				description: "Fraction of the windows in the time range in which a tenant wanted its guarantee and " +
					"did not get it.",
				queries: one("sum("+ofTenants.risen(workloads.QoSViolations)+") / (sum("+
					ofTenants.risen(workloads.QoSWindows)+") > 0)", "missed")},
			{kind: stat, width: 4, title: "Violations", unit: "short", steps: anyWarns,
				description: "Audits in the time range that found a workload beyond its quota.",
				queries:     one("sum("+ofTenants.risen(workloads.QuotaViolations)+") or vector(0)", "violations")},
			{kind: stat, width: 4, title: "Escalated workloads", unit: "short", steps: anyWarns,
				description: "Workloads that are throttled, paused or terminated, or would be without shadow mode.",
				queries: one("count("+tenants.of(workloads.QuotaLevel,
					`rung=~"throttle|pause|terminate"`)+" == 1) or vector(0)", "workloads")},
			{kind: stat, width: 4, title: "Unhooked processes", unit: "short", steps: anyWarns,
				description: "Processes of tenants on GPUs without a session. They are not held to a quota.",
				queries:     one("sum("+ofTenants.of(workloads.UnhookedProcesses)+") or vector(0)", "processes")},
		}},
		{title: "Tenants", panels: []panel{
			{kind: table, height: 10, title: "Tenants by GPU", unit: "short", sort: "Share",
				description: "What each tenant is promised of each GPU, and what it has, over ten seconds.",
				keys:        []key{hostKey, gpuKey, tenantKey},
				columns: []column{
					{title: "Guarantee", expr: by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaGuarantee)),
						unit: "percentunit"},
					{title: "Limit", expr: by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaLimit)),
						unit: "percentunit"},
					{title: "Share", expr: by("max", perGPU+", tenant",
						ofTenants.of(workloads.QuotaShare, `window="10s"`)), unit: "percentunit", gauge: true,
						steps: plain},
					{title: "Lag", expr: by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaLag)), unit: "s"},
					{title: "Target", expr: by("max", perGPU+", tenant",
						ofTenants.of(workloads.QuotaTarget, `window="10s"`)), unit: "percentunit"},
					{title: "Memory", expr: by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaMemoryUsed)),
						unit: "bytes"},
					{title: "Memory cap", expr: by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaMemoryLimit)),
						unit: "bytes"},
					{title: "Memory guarantee", expr: by("max", perGPU+", tenant",
						ofTenants.of(workloads.QuotaMemoryGuarantee)), unit: "bytes"},
					{title: "Sessions", expr: by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaSessions)),
						unit: "short"},
				}},
		}},
		{title: "Time", panels: []panel{
			{kind: lines, title: "Share against target", unit: "percentunit", least: at(0), most: at(1), link: toGPU,
				description: "Fraction of the GPU's time that the tenant got, and its target by weight and limit, " +
					"over ten seconds. A share below the target while work waits is unfair.",
				queries: []query{{by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaShare, `window="10s"`)),
					"{{tenant}} GPU {{gpu}}"},
					{by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaTarget, `window="10s"`)),
						"{{tenant}} GPU {{gpu}} target"}}},
			{kind: lines, title: "Service against guarantee", unit: "percentunit", least: at(0), link: toGPU,
				description: "Work of the tenant, as a fraction of what it would have done alone in the time in " +
					"which it wanted the GPU, and its guarantee of that fraction.",
				queries: []query{{by("sum", perGPU+", tenant", ofTenants.rate(workloads.QuotaServed)) + " / (" +
					by("sum", perGPU+", tenant", ofTenants.rate(workloads.QuotaWanted)) + " > 0)",
					"{{tenant}} GPU {{gpu}}"},
					{by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaGuarantee)),
						"{{tenant}} GPU {{gpu}} guarantee"}}},
			{kind: lines, title: "Lag", unit: "s", link: toGPU,
				description: "Service that each tenant is owed; below 0 it is ahead. A tenant that is ahead is held " +
					"back while another one that wants the GPU is owed service.",
				queries: one(by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaLag)),
					"{{tenant}} GPU {{gpu}}")},
			{kind: areas, title: "GPU time", unit: "short", least: at(0), link: toTenant,
				description: "GPU time of each tenant per second, with the time of concurrent tenants divided among " +
					"them: 2.5 is two and a half GPUs.",
				queries: one(by("sum", "tenant", ofTenants.rate(workloads.QuotaCompute)), "{{tenant}}")},
			{kind: lines, title: "Concurrency", unit: "percentunit", least: at(0), link: toGPU,
				description: "Fraction of each GPU's time in which several tenants ran concurrently.",
				queries:     one(by("sum", perGPU, gpus.rate(workloads.BrokerTogether)), ofGPU)},
			{kind: lines, title: "Waiting", unit: "percentunit", least: at(0), link: toTenant,
				description: "Fraction of time in which each tenant wanted the GPU and was held back.",
				queries:     one(by("sum", "tenant", ofTenants.rate(workloads.QuotaWait)), "{{tenant}}")},
			{kind: lines, title: "Threads waiting to launch", unit: "short", least: at(0), link: toTenant,
				description: "Mean number of threads of each tenant that wait, as the hook reports it.",
				queries:     one(by("sum", "tenant", ofTenants.rate(workloads.QuotaThrottled)), "{{tenant}}")},
			{kind: lines, title: "Releases", unit: "cps", least: at(0), link: toTenant,
				description: "How often per second each tenant may run again after it was held back.",
				queries:     one(by("sum", "tenant", ofTenants.rate(workloads.QuotaTurns)), "{{tenant}}")},
			{kind: lines, title: "Overrun", unit: "percentunit", least: at(0), link: toTenant,
				description: "Fraction of time in which each tenant still had work on the GPU long after it should " +
					"hold back: kernels that do not end.",
				queries: one(by("sum", "tenant", ofTenants.rate(workloads.QuotaOverrun)), "{{tenant}}")},
			{kind: lines, title: "Longest launch", unit: "s", least: at(0), none: "nothing was launched", link: toGPU,
				description: "Longest launch of each tenant in the last minutes. A kernel is not interrupted, so " +
					"other tenants may have to wait that long.",
				queries: one(by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaLongest)),
					"{{tenant}} GPU {{gpu}}")},
			{kind: lines, title: "Convoys", unit: "percentunit", least: at(0), link: toTenant,
				description: "Fraction of time in which a job's work on one GPU waited for its work on another, " +
					"which was held back.",
				queries: one(by("sum", perGPU+", tenant", ofTenants.rate(workloads.QuotaConvoy)),
					"{{tenant}} GPU {{gpu}}")},
		}},
		{title: "Objectives", panels: []panel{
			{kind: lines, title: "Windows missed", unit: "percentunit", least: at(0), most: at(1), link: toTenant,
				description: "Fraction of the windows in which a tenant wanted its guarantee and did not get it, by " +
					"objective.",
				queries: one(by("sum", "tenant, objective", ofTenants.rate(workloads.QoSViolations))+" / ("+
					by("sum", "tenant, objective", ofTenants.rate(workloads.QoSWindows))+" > 0)",
					"{{tenant}} {{objective}}")},
			{kind: lines, title: "Late waits", unit: "percentunit", least: at(0), most: at(1), link: toTenant,
				description: "Fraction of the tenant's waits that exceeded its objective. One in a hundred may.",
				queries: one(by("sum", "tenant", ofTenants.rate(workloads.QuotaLateWaits))+" / ("+
					by("sum", "tenant", ofTenants.rate(workloads.QuotaLaunchWaits))+" > 0)", "{{tenant}}")},
			{kind: lines, title: "Mean wait", unit: "s", least: at(0), link: toTenant,
				description: "Mean time until the tenant may run, and its objective for 99 of 100 waits.",
				queries: []query{{by("sum", "tenant", ofTenants.rate(workloads.QuotaWait)) + " / (" +
					by("sum", "tenant", ofTenants.rate(workloads.QuotaLaunchWaits)) + " > 0)", "{{tenant}}"},
					{by("min", "tenant", ofTenants.of(workloads.QuotaLaunchObjective)), "{{tenant}} objective"}}},
			{kind: lines, title: "Memory bandwidth", unit: "percentunit", least: at(0), most: at(1), link: toTenant,
				description: "Fraction of the memory bandwidth that each tenant used in the audit's last window, " +
					"and its limit.",
				queries: []query{{by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaBandwidth)),
					"{{tenant}} GPU {{gpu}}"},
					{by("min", perGPU+", tenant", ofTenants.of(workloads.QuotaBandwidthLimit)),
						"{{tenant}} GPU {{gpu}} limit"}}},
		}},
		{title: "Memory", panels: []panel{
			{kind: lines, title: "Memory against cap", unit: "bytes", least: at(0), link: toGPU,
				description: "GPU memory charged to each tenant, and its cap.",
				queries: []query{{by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaMemoryUsed)),
					"{{tenant}} GPU {{gpu}}"},
					{by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaMemoryLimit)),
						"{{tenant}} GPU {{gpu}} cap"}}},
			{kind: lines, title: "Memory reserved and peak", unit: "bytes", least: at(0), link: toGPU,
				description: "Memory that was granted and is not yet allocated, and the highest charge so far.",
				queries: []query{{by("sum", "tenant", ofTenants.of(workloads.QuotaMemoryReserved)),
					"{{tenant}} reserved"},
					{by("sum", "tenant", ofTenants.of(workloads.QuotaMemoryPeak)), "{{tenant}} peak"}}},
			{kind: lines, title: "Allocations refused", unit: "short", least: at(0), link: toTenant,
				description: "Allocations in the last interval that the cap refused.",
				queries: one(by("sum", "tenant",
					"increase("+ofTenants.of(workloads.QuotaMemoryDenied)+"[$__rate_interval])"), "{{tenant}}")},
			{kind: lines, title: "Time until the memory cap", unit: "s", none: "no tenant has such a trend",
				link:        toGPU,
				description: "Time until a tenant's memory reaches its cap, by its trend over 15 minutes.",
				queries: one(by("min", perGPU+", tenant", ofTenants.of(derived.QuotaMemoryExhaustion)),
					"{{tenant}} GPU {{gpu}}")},
		}},
		{title: "Audit and escalation", panels: []panel{
			{kind: states, width: 12, title: "Levels of escalation", unit: "none", none: "no workload is escalated",
				values: map[string]value{"0": {"observe", green}, "1": {"warn", yellow}, "2": {"throttle", orange},
					"3": {"pause", red}, "4": {"suspend", red}, "5": {"terminate", purple}},
				description: "Level of escalation of each workload.",
				queries:     one(levelNumbers(), "{{tenant}} {{workload}}")},
			{kind: lines, title: "Violations by workload", unit: "short", least: at(0), none: "no violation",
				description: "Audits in the last interval that found the workload beyond its quota, by objective.",
				queries: one(by("sum", "tenant, workload, objective",
					"increase("+ofTenants.of(workloads.QuotaViolations)+"[$__rate_interval])"),
					"{{tenant}} {{workload}} {{objective}}")},
			{kind: lines, title: "Actions", unit: "short", least: at(0), none: "no action",
				description: "Actions of escalation in the last interval, by result. Shadow mode only reports them.",
				queries: one(by("sum", "tenant, action, result",
					"increase("+tenants.of(workloads.QuotaActions)+"[$__rate_interval])"),
					"{{tenant}} {{action}} {{result}}")},
			{kind: lines, title: "Processes outside the books", unit: "short", least: at(0), none: "none",
				description: "Processes of each workload without a session, or with a hook that reports less than " +
					"the driver.",
				queries: []query{{by("sum", "tenant, workload", ofTenants.of(workloads.UnhookedProcesses)),
					"{{tenant}} {{workload}} unhooked"},
					{by("sum", "tenant, workload", ofTenants.of(workloads.UnderreportingProcesses)),
						"{{tenant}} {{workload}} underreporting"}}},
			{kind: lines, title: "Drift of the memory books", unit: "bytes",
				description: "Memory that the driver counts beyond the broker's books; below 0 if it counts less.",
				queries: one(by("max", perGPU+", tenant, workload", ofTenants.of(workloads.QuotaLedgerDrift)),
					"{{tenant}} {{workload}} GPU {{gpu}}")},
			{kind: lines, title: "Drift of the time books", unit: "percentunit",
				description: "GPU time by the driver's samples beyond the charged time, as a fraction of the GPU's " +
					"time.",
				queries: one(by("max", perGPU+", tenant", ofTenants.of(workloads.QuotaChargeDrift)),
					"{{tenant}} GPU {{gpu}}")},
		}},
		{title: "Broker", panels: []panel{
			{kind: lines, title: "Sessions by state", unit: "short", least: at(0), link: toHost,
				description: "Sessions of hooked processes with the brokers.",
				queries:     one(by("sum", "state", hosts.of(workloads.BrokerSessions)), "{{state}}")},
			{kind: lines, title: "Requests", unit: "reqps", least: at(0),
				description: "Messages to the brokers, by operation and result.",
				queries:     one(by("sum", "op, result", hosts.rate(workloads.BrokerRequests)), "{{op}} {{result}}")},
			{kind: lines, title: "Memory admission time", unit: "s", least: at(0), none: "no request",
				description: "Mean time in which a broker decides a memory request.",
				queries: one(by("sum", perHost, hosts.rate(workloads.BrokerAdmissionSeconds))+" / ("+
					by("sum", perHost, hosts.rate(workloads.BrokerAdmissions))+" > 0)", ofHost)},
			{kind: lines, title: "Handover cost", unit: "percentunit", least: at(0), link: toGPU,
				description: "Fraction of each GPU's time that handovers from one tenant to the next take.",
				queries:     one(by("sum", perGPU, gpus.rate(workloads.BrokerHandover)), ofGPU)},
			{kind: lines, title: "Gangs", unit: "short", least: at(0), link: toGPU,
				description: "Tenants found in the last interval that wait for themselves across GPUs. From then on " +
					"they are held back and released on all their GPUs together.",
				queries: one(by("sum", perGPU, "increase("+gpus.of(workloads.BrokerGangs)+"[$__rate_interval])"),
					ofGPU)},
			{kind: lines, title: "Ungoverned work", unit: "short", least: at(0), link: toTenant,
				description: "Launches in the last interval that passed because their wait timed out, failures to " +
					"measure launches, and allocations that could not be booked.",
				queries: []query{{by("sum", "tenant",
					"increase("+ofTenants.of(workloads.QuotaGatePassed)+"[$__rate_interval])"), "{{tenant}} passed"},
					{by("sum", "tenant", "increase("+ofTenants.of(workloads.QuotaGateErrors)+"[$__rate_interval])"),
						"{{tenant}} not measured"},
					{by("sum", "tenant", "increase("+ofTenants.of(workloads.QuotaUncounted)+"[$__rate_interval])"),
						"{{tenant}} not booked"}}},
			{kind: lines, title: "Faults", unit: "short", least: at(0),
				description: "Faults between processes and the brokers in the last interval, by kind.",
				queries: one(by("sum", "kind", "increase("+hosts.of(workloads.BrokerFaults)+"[$__rate_interval])"),
					"{{kind}}")},
			{kind: lines, title: "Suspended workloads", unit: "bytes", least: at(0), link: toTenant, none: "none is suspended",
				description: "GPU memory that suspended workloads had, and that is in host memory meanwhile.",
				queries: one(by("sum", "tenant, workload", ofTenants.of(workloads.SuspendedBytes)),
					"{{tenant}} {{workload}}")},
			{kind: lines, title: "Time suspended", unit: "s", least: at(0), link: toTenant, none: "none is suspended",
				description: "Time for which workloads have been suspended, or have been in the course of it.",
				queries: one(by("max", "tenant, workload, phase", ofTenants.of(workloads.SuspendedSeconds)),
					"{{tenant}} {{workload}} {{phase}}")},
			{kind: lines, title: "Suspensions", unit: "short", least: at(0),
				description: "Workloads that were suspended or resumed in the last interval, failed attempts by reason, and " +
					"processes that the driver broke.",
				queries: []query{{by("sum", perHost, "increase("+hosts.of(workloads.Suspensions)+"[$__rate_interval])"),
					ofHost + " suspended"},
					{by("sum", perHost, "increase("+hosts.of(workloads.Resumptions)+"[$__rate_interval])"), ofHost + " resumed"},
					{by("sum", perHost+", reason", "increase("+hosts.of(workloads.SuspendRefusals)+"[$__rate_interval])"),
						ofHost + " failed: {{reason}}"},
					{by("sum", perHost, "increase("+hosts.of(workloads.SuspendBroken)+"[$__rate_interval])"),
						ofHost + " broken processes"}}},
			{kind: lines, title: "Power saved by suspension", unit: "watt", least: at(0), none: "no GPU is idle or empty",
				description: "Mean power of the GPUs without a process, as after the suspension of the last one, and of " +
					"those whose processes are idle: the difference is what the end of the last context saves.",
				queries: []query{{averagePower("== 0"), "no process"},
					{averagePower("> 0 and " + by("max", perGPU, gpus.of(activity.Utilization, `engine="gpu"`)) + " == 0"),
						"idle processes"}}},
			{kind: lines, title: "Waits for overcommitted GPUs", unit: "s", least: at(0), link: toGPU,
				none: "no GPU in use is overcommitted",
				description: "Longest wait of a workload for memory of each overcommitted GPU, and how long a workload stays " +
					"there at least.",
				queries: []query{{by("max", perGPU, gpus.of(workloads.OvercommitWait)), ofGPU + " longest wait"},
					{by("max", perGPU, gpus.of(workloads.OvercommitTurn)), ofGPU + " turn"}}},
			{kind: lines, title: "Queue for overcommitted GPUs", unit: "short", least: at(0), link: toGPU,
				none:        "no GPU in use is overcommitted",
				description: "Workloads and allocations that wait for memory of each overcommitted GPU.",
				queries:     one(by("sum", perGPU, gpus.of(workloads.OvercommitWaiting)), ofGPU)},
			{kind: lines, title: "Suspension time", unit: "s", least: at(0), none: "none was suspended",
				description: "Mean time in which a workload was suspended, and in which it was resumed.",
				queries: []query{{by("sum", perHost, hosts.rate(workloads.SuspendTime)) + " / (" +
					by("sum", perHost, hosts.rate(workloads.Suspensions)) + " > 0)", ofHost + " suspend"},
					{by("sum", perHost, hosts.rate(workloads.ResumeTime)) + " / (" +
						by("sum", perHost, hosts.rate(workloads.Resumptions)) + " > 0)", ofHost + " resume"}}},
			{kind: lines, title: "Gemini", unit: "short", least: at(0),
				description: "Processes under Gemini's hook, their requests per second, and their faults.",
				queries: []query{{by("sum", "listen", hosts.of(workloads.GeminiClients)), "{{listen}} processes"},
					{by("sum", "listen, op", "rate("+hosts.of(workloads.GeminiRequests)+"[$__rate_interval])"),
						"{{listen}} {{op}}"},
					{by("sum", "listen, kind", "increase("+hosts.of(workloads.GeminiFaults)+"[$__rate_interval])"),
						"{{listen}} {{kind}}"},
					{by("sum", "listen", hosts.of(workloads.GeminiBadLines)), "{{listen}} bad lines"}}},
			{kind: lines, title: "MPS", unit: "short", least: at(0),
				description: "CUDA MPS servers and their clients.",
				queries: []query{{by("sum", perHost, hosts.of(workloads.MPSServers)), ofHost + " servers"},
					{by("sum", perHost+", tenant", hosts.of(workloads.MPSClients)), ofHost + " clients {{tenant}}"}}},
		}},
	},
}

// averagePower returns the mean power of the GPUs whose number of processes
// fulfils a condition.
func averagePower(processes string) string {
	return "avg(" + by("max", perGPU, gpus.of(device.Power, `kind="average"`, `scope="gpu"`)) + " and (" +
		by("sum", perGPU, gpus.of(workloads.Processes)) + " " + processes + "))"
}

// levelNumbers is the number of the level of each workload.
func levelNumbers() string {
	expr := ""
	for i, level := range workloads.Levels {
		if i > 0 {
			expr += " or "
		}
		expr += by("max", "tenant, workload", tenants.of(workloads.QuotaLevel, `rung="`+level+`"`)+" == 1") + " * " +
			string(rune('0'+i))
	}
	return expr
}
