package dashboards

import (
	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
	"gpusteward/health/derived"
)

// Metrics of the annotations.
var (
	alertFiring = health.AlertFiring
	xidLast     = faults.XIDLast
)

// fleet shows all hosts at once: what is wrong, and where.
var fleet = dashboard{
	name: "fleet", title: "GPU Steward / Fleet",
	description: "All GPU hosts: what is wrong and where, the load of the GPUs, and their power.",
	variables:   []variable{anyHosts},
	rows: []row{
		{title: "Now", panels: []panel{
			{kind: stat, width: 3, title: "Hosts up", unit: "percentunit",
				steps: []step{{0, red}, {.95, orange}, {1, green}},
				description: "Fraction of the agents that Prometheus can scrape. Below 100 %, some hosts are not " +
					"monitored.",
				queries: one("avg("+hosts.of(targetUp)+")", "hosts")},
			{kind: stat, width: 3, title: "GPUs", unit: "short",
				description: "GPUs that the drivers list.",
				queries:     one("sum("+hosts.of(collectors.Devices)+")", "GPUs")},
			{kind: stat, width: 3, title: "GPUs missing", unit: "short", steps: anyIsBad,
				description: "GPUs that hosts should have or once had, and no longer list. Drained hosts do not count.",
				queries: one("sum("+hosts.of(collectors.DevicesExpected)+" - "+hosts.of(collectors.Devices)+")"+
					" or vector(0)", "missing")},
			{kind: stat, width: 3, title: "Hosts failed", unit: "short", steps: anyIsBad,
				description: "Hosts with a failing check of severity critical or emergency, on a GPU or on the host " +
					"itself.",
				queries: one("count("+hosts.of(health.NodeStatus)+" == 2) or vector(0)", "failed")},
			{kind: stat, width: 3, title: "Unhealthy GPUs", unit: "short", steps: anyWarns,
				description: "GPUs that are degraded or failed. GPUs of unknown health are not counted here: see " +
					"GPUs down.",
				queries: one("count("+hosts.of(health.Status, `gpu!=""`)+" > 0) or vector(0)", "unhealthy")},
			{kind: stat, width: 3, title: "GPUs down", unit: "short", steps: anyIsBad,
				description: "GPUs that are lost, or that hang in a driver call.",
				queries:     one("count("+hosts.of(collectors.Up)+" == 0) or vector(0)", "silent")},
			{kind: stat, width: 3, title: "Power", unit: "watt",
				description: "Power draw of all GPUs, averaged over the driver's window.",
				queries:     one("sum("+hosts.of(device.Power, `kind="average"`, `scope="gpu"`)+")", "power")},
			{kind: stat, width: 3, title: "GPU load", unit: "percentunit",
				description: "Fraction of time in which a kernel ran, mean over all GPUs.",
				queries:     one("avg("+hosts.of(activity.Utilization, `engine="gpu"`)+")", "load")},
		}},
		{title: "Hosts", panels: []panel{
			{kind: table, height: 10, title: "Hosts", unit: "short", sort: "Health",
				description: "One row for each host, the worst first. The name of a host links to its dashboard.",
				keys:        []key{hostKey},
				columns: []column{
					{title: "Health", expr: by("max", perHost, hosts.of(health.NodeStatus)), unit: "none",
						values: healths, steps: []step{{0, green}, {1, orange}, {2, red}}},
					{title: "GPUs", expr: by("sum", perHost, hosts.of(collectors.Devices)), unit: "short"},
					{title: "Alerts", expr: by("sum", perHost, hosts.of(health.AlertFiring)), unit: "short",
						steps: anyWarns},
					{title: "Load", expr: by("avg", perHost, hosts.of(activity.Utilization, `engine="gpu"`)),
						unit: "percentunit", gauge: true, steps: plain},
					{title: "Memory", expr: by("max", perHost, hosts.of(derived.MemoryPressure)), unit: "percentunit",
						gauge: true, steps: plain},
					{title: "Power", expr: by("sum", perHost,
						hosts.of(device.Power, `kind="average"`, `scope="gpu"`)), unit: "watt"},
					{title: "Hottest", expr: by("max", perHost, hosts.of(device.Temperature, `sensor="gpu"`)),
						unit: "celsius"},
					{title: "Margin", expr: by("min", perHost, hosts.of(device.TemperatureMargin)), unit: "celsius",
						steps: falling("thermal_margin")},
					{title: "Workloads", expr: by("count", perHost, hosts.of(workloads.WorkloadInfo)), unit: "short"},
				}},
		}},
		{title: "Health", panels: []panel{
			{kind: states, width: 12, title: "Health of hosts", unit: "none", values: healths, link: toHost,
				description: "The worst of a host's GPUs and of the checks on the host itself, over time. In a gap " +
					"it is unknown.",
				queries: one(by("max", perHost, hosts.of(health.NodeStatus)), ofHost)},
			{kind: lines, title: "Firing alerts", unit: "short", link: toHost,
				description: "Entities with an alert that the agents raise, by alert.",
				queries:     one(by("sum", "alert", hosts.of(health.AlertFiring))+" > 0", "{{alert}}")},
			{kind: lines, title: "Incidents by class", unit: "short",
				description: "Faults in the last interval. Several messages about one fault count once. Faults of " +
					"tenants' programs are application-fault.",
				queries: one(by("sum", "class", "increase("+hosts.of(health.IncidentsTotal)+"[$__rate_interval])"),
					"{{class}}")},
			{kind: table, width: 12, height: 8, title: "GPUs with most faults", unit: "short", sort: "Score",
				description: "Faults of the last weeks that no tenant caused, at most one per hour. " +
					"GPUs at the top are due for replacement.",
				keys: []key{hostKey, gpuKey},
				columns: []column{
					{title: "Score", expr: "topk(20, " + by("max", perGPU, hosts.of(derived.LemonScore, `gpu!=""`)) +
						")", unit: "short", steps: rising("gpu_lemon")},
				}},
		}},
		{title: "Service levels", panels: []panel{
			{kind: lines, width: 8, title: "Service levels", unit: "percentunit", most: at(1),
				description: "Parts of the GPUs that are healthy, of the guarantees that are kept, and of the agents that " +
					"answer.",
				queries: []query{
					{"sum(" + hosts.of(health.Status, `gpu!=""`) + " == bool 0) / sum(" + hosts.of(collectors.DevicesExpected) +
						")", "GPUs ok"},
					{"1 - sum(" + hosts.rate(workloads.QoSViolations) + ") / sum(" + hosts.rate(workloads.QoSWindows) + ")",
						"guarantees kept"},
					{"avg(" + hosts.of(targetUp) + ")", "scrapes"}}},
			{kind: lines, width: 8, title: "Error budget burn", unit: "short", least: at(0),
				steps: []step{{0, green}, {1, yellow}, {6, orange}, {14.4, red}},
				description: "How many times as fast as the objective allows the error budget went in the last hour. Needs " +
					"slo.rules.yml.",
				queries: one(by("max", "cluster, slo", jobs.of(burnRate)), "{{cluster}} {{slo}}")},
			{kind: stat, width: 8, height: 8, title: "Error budget left", unit: "percentunit",
				steps: []step{{0, red}, {0, orange}, {.25, green}},
				description: "What is left of the error budget of 30 days, or of the time for which Prometheus has data. " +
					"Below 0 the objective is missed. Needs slo.rules.yml.",
				queries: one(by("min", "cluster, slo", jobs.of(budgetLeft)), "{{cluster}} {{slo}}")},
		}},
		{title: "Use", panels: []panel{
			{kind: lines, title: "GPU load by host", unit: "percentunit", least: at(0), most: at(1), link: toHost,
				description: "Fraction of time in which a kernel ran, mean over the host's GPUs.",
				queries:     one(by("avg", perHost, hosts.of(activity.Utilization, `engine="gpu"`)), ofHost)},
			{kind: lines, title: "Tensor activity by host", unit: "percentunit", least: at(0), most: at(1),
				link: toHost,
				description: "Fraction of time in which the tensor cores were active, mean over the host's GPUs: since " +
					"Hopper, or from dcgm-exporter.",
				queries: one(hosts.orDCGM(activity.GPMActivity, "tensor", per("avg", perHost)), ofHost)},
			{kind: lines, title: "Memory in use by host", unit: "percentunit", least: at(0), most: at(1), link: toHost,
				description: "GPU memory in use, as a fraction of the total of the host's GPUs.",
				queries: one(by("sum", perHost, hosts.of(device.MemoryBytes, `state="used"`))+" / "+
					by("sum", perHost, hosts.of(device.MemoryTotal)), ofHost)},
			{kind: areas, title: "Power by host", unit: "watt", least: at(0), link: toHost,
				description: "Power draw of the GPUs, by host.",
				queries: one(by("sum", perHost, hosts.of(device.Power, `kind="average"`, `scope="gpu"`)),
					ofHost)},
		}},
		{title: "Versions", panels: []panel{
			{kind: table, width: 12, height: 7, title: "Drivers", unit: "short", sort: "Hosts",
				description: "Versions of the driver, with the number of hosts. Several versions for long are a " +
					"rollout that stopped halfway.",
				keys: []key{{label: "driver_version", title: "Driver"}, {label: "cuda_version", title: "CUDA"}},
				columns: []column{{title: "Hosts",
					expr: by("count", "driver_version, cuda_version", hosts.of(device.DriverInfo)),
					unit: "short"}}},
			{kind: table, width: 12, height: 7, title: "Models", unit: "short", sort: "GPUs",
				description: "GPU models and VBIOS versions, with the number of GPUs.",
				keys:        []key{{label: "name", title: "Model"}, {label: "vbios", title: "VBIOS"}},
				columns: []column{{title: "GPUs", expr: by("count", "name, vbios", hosts.of(device.Info)),
					unit: "short"}}},
			{kind: table, height: 7, title: "NVLink domains", unit: "short", sort: "GPUs",
				description: "GPUs that reach each other over NVLink: a rack (MNNVL) has its cluster and clique on several " +
					"hosts. A GPU in a clique of its own has left the domain. The cluster of a single host is 0.",
				keys: []key{{label: "cluster_uuid", title: "NVLink cluster"}, {label: "clique_id", title: "Clique"}},
				columns: []column{
					{title: "GPUs", expr: by("count", "cluster_uuid, clique_id", hosts.of(links.FabricInfo)), unit: "short"},
					{title: "Hosts", expr: by("count", "cluster_uuid, clique_id", by("count", perHost+", cluster_uuid, clique_id",
						hosts.of(links.FabricInfo))), unit: "short"}}},
		}},
	},
}
