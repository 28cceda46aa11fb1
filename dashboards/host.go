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

// gpuOfHost lists the keys of a table of GPUs.
var gpuOfHost = []key{{label: "instance", title: "Host"}, gpuKey, {label: "name", title: "Model"}}

// withName adds the model's name to an expression with one series per GPU.
func withName(expr string) string {
	return expr + " * on (" + perGPU + ") group_left (name) max by (" + perGPU + ", name) (" +
		gpus.of(device.Info) + ")"
}

// host shows one host: its GPUs side by side, and what they share.
var host = dashboard{
	name: "host", title: "GPU Steward / Host",
	description: "One host, or several: the GPUs side by side, their links, the hosts' own devices and faults.",
	variables:   []variable{oneHost, anyGPUs},
	xids:        true,
	rows: []row{
		{title: "Now", panels: []panel{
			{kind: stat, width: 3, title: "Health", unit: "none", values: healths,
				description: "The worst of the GPUs and of the checks on the host itself.",
				queries:     one("max("+hosts.of(health.NodeStatus)+")", "health")},
			{kind: stat, width: 3, title: "GPUs listed", unit: "short",
				description: "GPUs that the driver lists.",
				queries:     one("sum("+hosts.of(collectors.Devices)+")", "listed")},
			{kind: stat, width: 3, title: "GPUs expected", unit: "short",
				description: "GPUs that the host should have: the configured number, or those that it ever had.",
				queries:     one("sum("+hosts.of(collectors.DevicesExpected)+")", "expected")},
			{kind: stat, width: 3, title: "Alerts", unit: "short", steps: anyWarns,
				description: "Alerts that the agent raises for this host.",
				queries:     one("sum("+hosts.of(health.AlertFiring)+")", "alerts")},
			{kind: stat, width: 3, title: "Power", unit: "watt",
				description: "Power draw of all GPUs.",
				queries:     one("sum("+gpus.of(device.Power, `kind="average"`, `scope="gpu"`)+")", "power")},
			{kind: stat, width: 3, title: "Hottest GPU", unit: "celsius",
				description: "Highest temperature of the GPUs' own sensors.",
				queries:     one("max("+gpus.of(device.Temperature, `sensor="gpu"`)+")", "hottest")},
			{kind: stat, width: 3, title: "Lowest margin", unit: "celsius", steps: falling("thermal_margin"),
				description: "Degrees left before the hottest GPU slows itself down.",
				queries:     one("min("+gpus.of(device.TemperatureMargin)+")", "margin")},
			{kind: stat, width: 3, title: "Booted", unit: "dateTimeFromNow",
				description: "Time of the last boot.",
				queries:     one("max("+hosts.of(device.NodeBoot)+") * 1000", "boot")},
		}},
		{title: "GPUs", panels: []panel{
			{kind: table, height: 10, title: "GPUs", unit: "short", sort: "Health",
				description: "One row for each GPU, the worst first. The number links to its dashboard. An empty " +
					"health is unknown, which is not healthy.",
				keys: gpuOfHost,
				columns: []column{
					{title: "Health", expr: withName(by("max", perGPU, gpus.of(health.Status))), unit: "none",
						values: healths, steps: []step{{0, green}, {1, orange}, {2, red}}},
					{title: "Load", expr: withName(by("max", perGPU, gpus.of(activity.Utilization, `engine="gpu"`))),
						unit: "percentunit", gauge: true, steps: plain},
					{title: "Memory", expr: withName(by("max", perGPU, gpus.of(derived.MemoryPressure))),
						unit: "percentunit", gauge: true, steps: plain},
					{title: "Power", expr: withName(by("max", perGPU,
						gpus.of(device.Power, `kind="average"`, `scope="gpu"`))), unit: "watt"},
					{title: "Temperature", expr: withName(by("max", perGPU,
						gpus.of(device.Temperature, `sensor="gpu"`))), unit: "celsius"},
					{title: "Margin", expr: withName(by("min", perGPU, gpus.of(device.TemperatureMargin))),
						unit: "celsius", steps: falling("thermal_margin")},
					{title: "SM clock", expr: withName(by("max", perGPU, gpus.of(device.Clock, `clock="sm"`))),
						unit: "hertz"},
					{title: "Processes", expr: withName(by("sum", perGPU, gpus.of(workloads.Processes))),
						unit: "short"},
				}},
			{kind: states, title: "Health of GPUs", unit: "none", values: healths, link: toGPU,
				description: "Health over time. In a gap it is unknown.",
				queries:     one(by("max", perGPU, gpus.of(health.Status, `gpu!=""`)), ofGPU)},
		}},
		{title: "Load", panels: []panel{
			{kind: lines, title: "GPU load", unit: "percentunit", least: at(0), most: at(1), link: toGPU,
				description: "Fraction of time in which a kernel ran.",
				queries:     one(by("max", perGPU, gpus.of(activity.Utilization, `engine="gpu"`)), ofGPU)},
			{kind: lines, title: "SM activity", unit: "percentunit", least: at(0), most: at(1), link: toGPU,
				description: "Fraction of time in which the SMs had work, mean over the SMs (since Hopper).",
				queries:     one(gpus.orDCGM(activity.GPMActivity, "sm", per("max", perGPU)), ofGPU)},
			{kind: lines, title: "Memory in use", unit: "bytes", least: at(0), link: toGPU,
				description: "Device memory that processes hold.",
				queries:     one(by("max", perGPU, gpus.of(device.MemoryBytes, `state="used"`)), ofGPU)},
			{kind: lines, title: "SM clock", unit: "hertz", least: at(0), link: toGPU,
				description: "SM clock. GPUs of one model at the same work should agree.",
				queries:     one(by("max", perGPU, gpus.of(device.Clock, `clock="sm"`)), ofGPU)},
		}},
		{title: "Power and heat", panels: []panel{
			{kind: areas, title: "Power by GPU", unit: "watt", least: at(0), link: toGPU,
				description: "Power draw of each GPU, stacked.",
				queries: one(by("max", perGPU, gpus.of(device.Power, `kind="average"`, `scope="gpu"`)),
					ofGPU)},
			{kind: lines, title: "Temperature", unit: "celsius", link: toGPU,
				description: "Temperature of the GPUs' own sensors.",
				queries:     one(by("max", perGPU, gpus.of(device.Temperature, `sensor="gpu"`)), ofGPU)},
			{kind: lines, title: "Temperature margin", unit: "celsius", steps: falling("thermal_margin"), link: toGPU,
				description: "Degrees left before the GPU slows itself down.",
				queries:     one(by("min", perGPU, gpus.of(device.TemperatureMargin)), ofGPU)},
			{kind: lines, title: "Clocks held down", unit: "percentunit", least: at(0), link: toGPU,
				description: "Fraction of time in which a reason that costs speed held the clocks down: heat, the " +
					"power cap, the power brake, reliability.",
				queries: one(by("max", perGPU+", reason",
					gpus.rate(device.ClockEventSeconds,
						`reason=~"hw_thermal|sw_thermal|sw_power_cap|hw_power_brake|reliability|board_limit"`))+" > 0",
					ofGPU+" {{reason}}")},
		}},
		{title: "Links", panels: []panel{
			{kind: lines, title: "NVLink traffic", unit: "binBps", link: toGPU,
				description: "Traffic over all of a GPU's NVLinks: since Hopper, or from dcgm-exporter.",
				queries: one(gpus.orDCGM(links.GPMNVLink, "", per("sum", perGPU+", direction"), `link="all"`),
					ofGPU+" {{direction}}")},
			{kind: lines, title: "PCIe traffic", unit: "binBps", link: toGPU,
				description: "Traffic as the GPU sees it: rx is received.",
				queries: one(by("sum", perGPU+", direction", gpus.rate(activity.PCIeBytes)),
					ofGPU+" {{direction}}")},
			{kind: lines, title: "NVLinks up", unit: "short", least: at(0), link: toGPU,
				description: "Number of a GPU's NVLinks that are up. It should not fall.",
				queries:     one(by("max", perGPU, gpus.of(links.NVLinkUp, `link="all"`)), ofGPU)},
			{kind: states, width: 12, title: "RDMA ports", unit: "none", values: upDown,
				description: "State of the ports of InfiniBand and RoCE adapters that have carried traffic.",
				queries:     one(by("max", perHost+", device", hosts.of(links.IBPortUp)), "{{device}}")},
		}},
		{title: "Host", folded: true, panels: []panel{
			{kind: stat, width: 4, title: "Driver", unit: "none", values: upDown,
				description: "Whether the agent has the driver open. It does not while the host is drained.",
				queries:     one("max("+hosts.of(collectors.DriverUp)+")", "driver")},
			{kind: stat, width: 4, title: "Drained", unit: "none",
				values:      map[string]value{"0": {"no", green}, "1": {"yes", blue}},
				description: "Whether the agent has released the driver on request (gpusteward drain).",
				queries:     one("max("+hosts.of(collectors.Drained)+")", "drained")},
			{kind: stat, width: 4, title: "Blocked driver tasks", unit: "short", steps: anyWarns,
				description: "Threads of the driver and NVIDIA programs in uninterruptible sleep. For a moment that " +
					"is normal.",
				queries: one("max("+hosts.of(faults.DriverBlockedTasks)+")", "tasks")},
			{kind: stat, width: 4, title: "Devices on the PCI bus", unit: "short",
				description: "NVIDIA devices on the bus by kind, with any driver or none.",
				queries:     one(by("sum", "kind", hosts.of(links.PCIDevices)), "{{kind}}")},
			{kind: stat, width: 4, title: "Devices missing", unit: "short", steps: anyIsBad,
				description: "Devices that read as all ones on the PCI bus, or that left the bus since the agent " +
					"started.",
				queries: one("count("+hosts.of(links.PCIDevicePresent)+" == 0) or vector(0)", "missing")},
			{kind: stat, width: 4, title: "Devices without a driver", unit: "short", steps: anyIsBad,
				description: "Devices on the PCI bus without a bound driver.",
				queries:     one("count("+hosts.of(links.PCIDeviceBound)+" == 0) or vector(0)", "unbound")},
			{kind: lines, title: "PCIe errors (AER)", unit: "short", least: at(0),
				description: "Errors per minute that devices reported to the kernel, by severity. There should be " +
					"no nonfatal and fatal ones.",
				queries: one(by("sum", perHost+", pci_bus_id, severity",
					hosts.rate(links.PCIeAERErrors))+" * 60", "{{pci_bus_id}} {{severity}}")},
			{kind: lines, title: "RDMA link failures", unit: "short", least: at(0),
				description: "Number of times that the link of a port went down, as the adapter counts them.",
				queries:     one(by("max", perHost+", device", hosts.of(links.IBPortDowned)), "{{device}}")},
		}},
	},
}
