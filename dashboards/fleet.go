package dashboards

import (
	"gpusteward/collectors"
	"gpusteward/health"
	"gpusteward/health/derived"
)

// Metrics that marks in time are made of.
var (
	alertFiring = health.AlertFiring
	xidLast     = collectors.XIDLast
)

// fleet is all hosts at once: what is wrong, and where.
var fleet = dashboard{
	name: "fleet", title: "GPU Steward / Fleet",
	description: "All GPU hosts: what is wrong and where, how busy the GPUs are, what they draw.",
	variables:   []variable{anyHosts},
	rows: []row{
		{title: "Now", panels: []panel{
			{kind: stat, width: 3, title: "Hosts that answer", unit: "percentunit", steps: []step{{0, red}, {.95, orange}, {1, green}},
				description: "Part of the agents that Prometheus can scrape. Below 100 %, nobody watches some hosts' GPUs.",
				queries:     one("avg("+hosts.of(targetUp)+")", "hosts")},
			{kind: stat, width: 3, title: "GPUs", unit: "short",
				description: "GPUs that the drivers list.",
				queries:     one("sum("+hosts.of(collectors.Devices)+")", "GPUs")},
			{kind: stat, width: 3, title: "GPUs missing", unit: "short", steps: anyIsBad,
				description: "GPUs that hosts should have, or were seen to have, and do not list. Drained hosts do not count.",
				queries: one("sum("+hosts.of(collectors.DevicesExpected)+" - "+hosts.of(collectors.Devices)+")"+
					" or vector(0)", "missing")},
			{kind: stat, width: 3, title: "Hosts failed", unit: "short", steps: anyIsBad,
				description: "Hosts of which a GPU, or the host itself, has failed: a critical check or worse.",
				queries:     one("count("+hosts.of(health.NodeStatus)+" == 2) or vector(0)", "failed")},
			{kind: stat, width: 3, title: "GPUs not well", unit: "short", steps: anyWarns,
				description: "GPUs that are degraded or failed. A GPU whose health is not known is not counted here: see GPUs that do not answer.",
				queries:     one("count("+hosts.of(health.Status, `gpu!=""`)+" > 0) or vector(0)", "not well")},
			{kind: stat, width: 3, title: "GPUs that do not answer", unit: "short", steps: anyIsBad,
				description: "GPUs that are lost, or whose driver calls hang.",
				queries:     one("count("+hosts.of(collectors.Up)+" == 0) or vector(0)", "silent")},
			{kind: stat, width: 3, title: "Power", unit: "watt",
				description: "What all GPUs draw, on average over the driver's window.",
				queries:     one("sum("+hosts.of(collectors.Power, `kind="average"`, `scope="gpu"`)+")", "power")},
			{kind: stat, width: 3, title: "GPU load", unit: "percentunit",
				description: "Mean part of time in which a kernel ran, over all GPUs.",
				queries:     one("avg("+hosts.of(collectors.Utilization, `engine="gpu"`)+")", "load")},
		}},
		{title: "Hosts", panels: []panel{
			{kind: table, height: 10, title: "Hosts", unit: "short", sort: "Health",
				description: "One row for each host, the worst first. A host's name leads to its dashboard.",
				keys:        []key{hostKey},
				columns: []column{
					{title: "Health", expr: by("max", perHost, hosts.of(health.NodeStatus)), unit: "none", values: healths, steps: []step{{0, green}, {1, orange}, {2, red}}},
					{title: "GPUs", expr: by("sum", perHost, hosts.of(collectors.Devices)), unit: "short"},
					{title: "Alerts", expr: by("sum", perHost, hosts.of(health.AlertFiring)), unit: "short", steps: anyWarns},
					{title: "Load", expr: by("avg", perHost, hosts.of(collectors.Utilization, `engine="gpu"`)), unit: "percentunit", gauge: true, steps: plain},
					{title: "Memory", expr: by("max", perHost, hosts.of(derived.MemoryPressure)), unit: "percentunit", gauge: true, steps: plain},
					{title: "Power", expr: by("sum", perHost, hosts.of(collectors.Power, `kind="average"`, `scope="gpu"`)), unit: "watt"},
					{title: "Hottest", expr: by("max", perHost, hosts.of(collectors.Temperature, `sensor="gpu"`)), unit: "celsius"},
					{title: "Margin", expr: by("min", perHost, hosts.of(collectors.TemperatureMargin)), unit: "celsius", steps: falling("thermal_margin")},
					{title: "Workloads", expr: by("count", perHost, hosts.of(collectors.WorkloadInfo)), unit: "short"},
				}},
		}},
		{title: "Health", panels: []panel{
			{kind: states, width: 12, title: "Health of hosts", unit: "none", values: healths, link: toHost,
				description: "The worst of a host's GPUs and of the checks on the host itself, over time. A gap: not known.",
				queries:     one(by("max", perHost, hosts.of(health.NodeStatus)), ofHost)},
			{kind: lines, title: "Alerts that fire", unit: "short", link: toHost,
				description: "Entities for which an alert fires by the agents' own judgement, by alert.",
				queries:     one(by("sum", "alert", hosts.of(health.AlertFiring))+" > 0", "{{alert}}")},
			{kind: lines, title: "Incidents by class", unit: "short",
				description: "Faults in the time looked at, one for each however many messages there were. What tenants did themselves is application-fault.",
				queries:     one(by("sum", "class", "increase("+hosts.of(health.IncidentsTotal)+"[$__rate_interval])"), "{{class}}")},
			{kind: table, width: 12, height: 8, title: "GPUs that failed most", unit: "short", sort: "Score",
				description: "Faults of the last weeks that were not a tenant's doing, one an hour at most: GPUs to be replaced come first.",
				keys:        []key{hostKey, gpuKey},
				columns: []column{
					{title: "Score", expr: "topk(20, " + by("max", perGPU, hosts.of(derived.LemonScore, `gpu!=""`)) + ")", unit: "short", steps: rising("gpu_lemon")},
				}},
		}},
		{title: "Use", panels: []panel{
			{kind: lines, title: "GPU load by host", unit: "percentunit", least: at(0), most: at(1), link: toHost,
				description: "Part of time in which a kernel ran, mean over the host's GPUs.",
				queries:     one(by("avg", perHost, hosts.of(collectors.Utilization, `engine="gpu"`)), ofHost)},
			{kind: lines, title: "Tensor activity by host", unit: "percentunit", least: at(0), most: at(1), link: toHost,
				description: "Part of time in which the tensor cores worked, mean over the host's GPUs (Hopper on): load says busy, this says busy with matrices.",
				queries:     one(by("avg", perHost, hosts.of(collectors.GPMActivity, `pipe="tensor"`)), ofHost)},
			{kind: lines, title: "Memory in use by host", unit: "percentunit", least: at(0), most: at(1), link: toHost,
				description: "GPU memory in use, of all that the host's GPUs have.",
				queries: one(by("sum", perHost, hosts.of(collectors.MemoryBytes, `state="used"`))+" / "+
					by("sum", perHost, hosts.of(collectors.MemoryTotal)), ofHost)},
			{kind: areas, title: "Power by host", unit: "watt", least: at(0), link: toHost,
				description: "What the GPUs draw, by host.",
				queries:     one(by("sum", perHost, hosts.of(collectors.Power, `kind="average"`, `scope="gpu"`)), ofHost)},
		}},
		{title: "Versions", panels: []panel{
			{kind: table, width: 12, height: 7, title: "Drivers", unit: "short", sort: "Hosts",
				description: "Versions of the driver and on how many hosts: more than one for long is a rollout that stopped half-way.",
				keys:        []key{{label: "driver_version", title: "Driver"}, {label: "cuda_version", title: "CUDA"}},
				columns:     []column{{title: "Hosts", expr: by("count", "driver_version, cuda_version", hosts.of(collectors.DriverInfo)), unit: "short"}}},
			{kind: table, width: 12, height: 7, title: "Models", unit: "short", sort: "GPUs",
				description: "Models of GPU, with their VBIOS, and how many there are.",
				keys:        []key{{label: "name", title: "Model"}, {label: "vbios", title: "VBIOS"}},
				columns:     []column{{title: "GPUs", expr: by("count", "name, vbios", hosts.of(collectors.Info)), unit: "short"}}},
		}},
	},
}
