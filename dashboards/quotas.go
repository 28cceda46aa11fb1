package dashboards

import (
	"gpusteward/collectors"
	"gpusteward/health"
)

// quotas is what tenants were promised, what they have, and what is done about
// those who take more.
var quotas = dashboard{
	name: "quotas", title: "GPU Steward / Quotas",
	description: "What tenants were promised and what they have: shares, memory, objectives, and what the ladder does.",
	variables:   []variable{anyHosts, anyGPUs, anyTenants},
	rows: []row{
		{title: "Now", panels: []panel{
			{kind: stat, width: 4, title: "Brokers", unit: "percentunit", steps: []step{{0, red}, {1, green}},
				description: "Part of the brokers that answer. Without one, jobs go on and nobody shares fairly.",
				queries:     one("avg("+hosts.of(collectors.BrokerUp)+")", "brokers")},
			{kind: stat, width: 4, title: "Sessions", unit: "short",
				description: "Processes under the hook that have a session with a broker.",
				queries:     one("sum("+hosts.of(collectors.BrokerSessions, `state="active"`)+")", "sessions")},
			{kind: stat, width: 4, title: "Objectives missed", unit: "percentunit", steps: []step{{0, green}, {.01, orange}, {.05, red}}, none: "no window",
				description: "Windows in which a tenant wanted what it is guaranteed and did not get it, of all such windows in the time looked at.",
				queries: one("sum("+ofTenants.risen(collectors.QoSViolations)+") / (sum("+
					ofTenants.risen(collectors.QoSWindows)+") > 0)", "missed")},
			{kind: stat, width: 4, title: "Violations", unit: "short", steps: anyWarns,
				description: "Audits in the time looked at that found a workload beyond its quota.",
				queries:     one("sum("+ofTenants.risen(collectors.QuotaViolations)+") or vector(0)", "violations")},
			{kind: stat, width: 4, title: "Beyond a warning", unit: "short", steps: anyWarns,
				description: "Workloads that are throttled, paused or ended, or would be in shadow mode.",
				queries:     one("count("+tenants.of(collectors.QuotaRung, `rung=~"throttle|pause|terminate"`)+" == 1) or vector(0)", "workloads")},
			{kind: stat, width: 4, title: "Unhooked processes", unit: "short", steps: anyWarns,
				description: "Processes of tenants on GPUs that no session is for: nobody holds them to a quota.",
				queries:     one("sum("+ofTenants.of(collectors.UnhookedProcesses)+") or vector(0)", "processes")},
		}},
		{title: "Tenants", panels: []panel{
			{kind: table, height: 10, title: "Tenants by GPU", unit: "short", sort: "Share",
				description: "What each tenant was promised of each GPU and what it has, over ten seconds.",
				keys:        []key{hostKey, gpuKey, tenantKey},
				columns: []column{
					{title: "Guarantee", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaGuarantee)), unit: "percentunit"},
					{title: "Limit", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaLimit)), unit: "percentunit"},
					{title: "Share", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaShare, `window="10s"`)), unit: "percentunit", gauge: true, steps: plain},
					{title: "Target", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaTarget, `window="10s"`)), unit: "percentunit"},
					{title: "Memory", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaMemoryUsed)), unit: "bytes"},
					{title: "Memory cap", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaMemoryLimit)), unit: "bytes"},
					{title: "Memory kept", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaMemoryGuarantee)), unit: "bytes"},
					{title: "Sessions", expr: by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaSessions)), unit: "short"},
				}},
		}},
		{title: "Time", panels: []panel{
			{kind: lines, title: "Share against target", unit: "percentunit", least: at(0), most: at(1), link: toGPU,
				description: "Part of the GPU's time that the tenant had, and what was its by weight and limit, over ten seconds. A share below its target with work waiting is unfair.",
				queries: []query{{by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaShare, `window="10s"`)), "{{tenant}} GPU {{gpu}}"},
					{by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaTarget, `window="10s"`)), "{{tenant}} GPU {{gpu}} target"}}},
			{kind: areas, title: "GPU time", unit: "short", least: at(0), link: toTenant,
				description: "GPU time that was charged to each tenant: 2.5 is two and a half GPUs.",
				queries:     one(by("sum", "tenant", ofTenants.rate(collectors.QuotaCompute)), "{{tenant}}")},
			{kind: lines, title: "Waiting", unit: "percentunit", least: at(0), link: toTenant,
				description: "Part of time in which each tenant wanted the GPU and had no turn.",
				queries:     one(by("sum", "tenant", ofTenants.rate(collectors.QuotaWait)), "{{tenant}}")},
			{kind: lines, title: "Threads that wait to launch", unit: "short", least: at(0), link: toTenant,
				description: "Threads of each tenant that wait at a time, as the hook says.",
				queries:     one(by("sum", "tenant", ofTenants.rate(collectors.QuotaThrottled)), "{{tenant}}")},
			{kind: lines, title: "Turns", unit: "cps", least: at(0), link: toTenant,
				description: "Turns that each tenant has a second.",
				queries:     one(by("sum", "tenant", ofTenants.rate(collectors.QuotaTurns)), "{{tenant}}")},
			{kind: lines, title: "Overrun", unit: "percentunit", least: at(0), link: toTenant,
				description: "Time that turns went on beyond their end, of all time: kernels that are longer than a turn.",
				queries:     one(by("sum", "tenant", ofTenants.rate(collectors.QuotaOverrun)), "{{tenant}}")},
		}},
		{title: "Objectives", panels: []panel{
			{kind: lines, title: "Windows missed", unit: "percentunit", least: at(0), most: at(1), link: toTenant,
				description: "Part of the windows in which a tenant wanted what it is guaranteed and did not get it, by objective.",
				queries: one(by("sum", "tenant, objective", ofTenants.rate(collectors.QoSViolations))+" / ("+
					by("sum", "tenant, objective", ofTenants.rate(collectors.QoSWindows))+" > 0)", "{{tenant}} {{objective}}")},
			{kind: lines, title: "Late waits", unit: "percentunit", least: at(0), most: at(1), link: toTenant,
				description: "Waits for a turn that were longer than the tenant's objective, of all its waits: one in a hundred may be.",
				queries: one(by("sum", "tenant", ofTenants.rate(collectors.QuotaLateWaits))+" / ("+
					by("sum", "tenant", ofTenants.rate(collectors.QuotaLaunchWaits))+" > 0)", "{{tenant}}")},
			{kind: lines, title: "Mean wait", unit: "s", least: at(0), link: toTenant,
				description: "Mean time until a turn, and each tenant's objective for 99 of 100.",
				queries: []query{{by("sum", "tenant", ofTenants.rate(collectors.QuotaWait)) + " / (" + by("sum", "tenant", ofTenants.rate(collectors.QuotaLaunchWaits)) + " > 0)", "{{tenant}}"},
					{by("min", "tenant", ofTenants.of(collectors.QuotaLaunchObjective)), "{{tenant}} objective"}}},
			{kind: lines, title: "Memory bandwidth", unit: "percentunit", least: at(0), most: at(1), link: toTenant,
				description: "Part of the memory's bandwidth that each tenant had in the audit's last window, and its limit.",
				queries: []query{{by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaBandwidth)), "{{tenant}} GPU {{gpu}}"},
					{by("min", perGPU+", tenant", ofTenants.of(collectors.QuotaBandwidthLimit)), "{{tenant}} GPU {{gpu}} limit"}}},
		}},
		{title: "Memory", panels: []panel{
			{kind: lines, title: "Memory against cap", unit: "bytes", least: at(0), link: toGPU,
				description: "GPU memory that is charged to each tenant, and its cap.",
				queries: []query{{by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaMemoryUsed)), "{{tenant}} GPU {{gpu}}"},
					{by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaMemoryLimit)), "{{tenant}} GPU {{gpu}} cap"}}},
			{kind: lines, title: "Memory reserved and at most", unit: "bytes", least: at(0), link: toGPU,
				description: "Memory that was granted and is not allocated yet, and the most that was ever charged.",
				queries: []query{{by("sum", "tenant", ofTenants.of(collectors.QuotaMemoryReserved)), "{{tenant}} reserved"},
					{by("sum", "tenant", ofTenants.of(collectors.QuotaMemoryPeak)), "{{tenant}} peak"}}},
			{kind: lines, title: "Allocations refused", unit: "short", least: at(0), link: toTenant,
				description: "Allocations in the last interval that were refused because of the cap.",
				queries:     one(by("sum", "tenant", "increase("+ofTenants.of(collectors.QuotaMemoryDenied)+"[$__rate_interval])"), "{{tenant}}")},
			{kind: lines, title: "Time until the cap", unit: "s", none: "nobody is on the way there", link: toGPU,
				description: "Until a tenant's memory reaches its cap, by the trend of a quarter of an hour.",
				queries:     one(by("min", perGPU+", tenant", ofTenants.of(health.QuotaMemoryExhaustion)), "{{tenant}} GPU {{gpu}}")},
		}},
		{title: "Audit and ladder", panels: []panel{
			{kind: states, width: 12, title: "Rungs", unit: "none", none: "nobody stands on the ladder",
				values:      map[string]value{"0": {"observe", green}, "1": {"warn", yellow}, "2": {"throttle", orange}, "3": {"pause", red}, "4": {"terminate", purple}},
				description: "The rung of the ladder on which each workload stands.",
				queries:     one(rungs(), "{{tenant}} {{workload}}")},
			{kind: lines, title: "Violations by workload", unit: "short", least: at(0), none: "no violation",
				description: "Audits in the last interval that found the workload beyond its quota, by objective.",
				queries:     one(by("sum", "tenant, workload, objective", "increase("+ofTenants.of(collectors.QuotaViolations)+"[$__rate_interval])"), "{{tenant}} {{workload}} {{objective}}")},
			{kind: lines, title: "Actions", unit: "short", least: at(0), none: "no action",
				description: "Steps of the ladder in the last interval, by what came of them: shadow is what would have been done.",
				queries:     one(by("sum", "tenant, action, result", "increase("+tenants.of(collectors.QuotaActions)+"[$__rate_interval])"), "{{tenant}} {{action}} {{result}}")},
			{kind: lines, title: "Processes beside the books", unit: "short", least: at(0), none: "none",
				description: "Processes of each workload that have no session, or whose hook says less than the driver.",
				queries: []query{{by("sum", "tenant, workload", ofTenants.of(collectors.UnhookedProcesses)), "{{tenant}} {{workload}} unhooked"},
					{by("sum", "tenant, workload", ofTenants.of(collectors.UnderreportingProcesses)), "{{tenant}} {{workload}} underreporting"}}},
			{kind: lines, title: "Drift of the memory books", unit: "bytes",
				description: "Memory that the driver counts beyond the broker's books; below 0 where it counts less.",
				queries:     one(by("max", perGPU+", tenant, workload", ofTenants.of(collectors.QuotaLedgerDrift)), "{{tenant}} {{workload}} GPU {{gpu}}")},
			{kind: lines, title: "Drift of the time books", unit: "percentunit",
				description: "GPU time by the driver's samples beyond what was charged, as a part of the GPU's time.",
				queries:     one(by("max", perGPU+", tenant", ofTenants.of(collectors.QuotaChargeDrift)), "{{tenant}} GPU {{gpu}}")},
		}},
		{title: "Broker", panels: []panel{
			{kind: lines, title: "Sessions by state", unit: "short", least: at(0), link: toHost,
				description: "Sessions of hooked processes with the brokers.",
				queries:     one(by("sum", "state", hosts.of(collectors.BrokerSessions)), "{{state}}")},
			{kind: lines, title: "Requests", unit: "reqps", least: at(0),
				description: "Messages to the brokers, by what they ask and what came of it.",
				queries:     one(by("sum", "op, result", hosts.rate(collectors.BrokerRequests)), "{{op}} {{result}}")},
			{kind: lines, title: "Time to admit memory", unit: "s", least: at(0), none: "no request",
				description: "Mean time that a broker takes to decide a request for memory.",
				queries: one(by("sum", perHost, hosts.rate(collectors.BrokerAdmissionSeconds))+" / ("+
					by("sum", perHost, hosts.rate(collectors.BrokerAdmissions))+" > 0)", ofHost)},
			{kind: lines, title: "Cost of hand-overs", unit: "percentunit", least: at(0), link: toGPU,
				description: "Part of each GPU's time that goes into passing it from one tenant to the next.",
				queries:     one(by("sum", perGPU, gpus.rate(collectors.BrokerHandover)), ofGPU)},
			{kind: lines, title: "Faults", unit: "short", least: at(0),
				description: "Things that went wrong between processes and the brokers in the last interval, by kind.",
				queries:     one(by("sum", "kind", "increase("+hosts.of(collectors.BrokerFaults)+"[$__rate_interval])"), "{{kind}}")},
			{kind: lines, title: "MPS", unit: "short", least: at(0),
				description: "Servers of CUDA MPS and their clients.",
				queries: []query{{by("sum", perHost, hosts.of(collectors.MPSServers)), ofHost + " servers"},
					{by("sum", perHost+", tenant", hosts.of(collectors.MPSClients)), ofHost + " clients {{tenant}}"}}},
		}},
	},
}

// rungs is the number of the rung on which each workload stands.
func rungs() string {
	expr := ""
	for i, rung := range collectors.Rungs {
		if i > 0 {
			expr += " or "
		}
		expr += by("max", "tenant, workload", tenants.of(collectors.QuotaRung, `rung="`+rung+`"`)+" == 1") + " * " + string(rune('0'+i))
	}
	return expr
}
