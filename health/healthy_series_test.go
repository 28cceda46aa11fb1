package health

import (
	"cmp"
	"slices"
	"strconv"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
)

// A series is a permanent series of a host, with a pointer to its value.
type series struct {
	metric *collectors.Metric
	gpu    *healthyGPU // nil for the host
	labels []string
	value  *float64
	with   bool // also shown for a late GPU
}

// catalogue lists the host's series without its workloads.
func (h *healthyHost) catalogue() {
	for _, g := range h.gpus {
		h.ofGPU(g)
		h.ofMemory(g)
		h.ofHeat(g)
		h.ofLinks(g)
		h.ofMIG(g)
		h.lacks(g)
	}
	h.ofHost()
	// Families are contiguous, which makes their snapshots cheaper.
	slices.SortStableFunc(h.series, func(a, b series) int { return cmp.Compare(a.metric.Name, b.metric.Name) })
}

// lacks adds the features that the GPU reports as absent.
func (h *healthyHost) lacks(g *healthyGPU) {
	has := map[*collectors.Metric]bool{}
	for _, s := range h.series {
		if s.gpu == g {
			has[s.metric] = true
		}
	}
	for _, m := range []*collectors.Metric{activity.GPMActivity, links.NVLinkUp, faults.RowRemapBanks,
		device.TemperatureMargin, activity.Utilization} {
		if !has[m] {
			h.always(g, collectors.Unsupported, 1, m.Name)
		}
	}
}

func (h *healthyHost) add(g *healthyGPU, m *collectors.Metric, value *float64, labels ...string) {
	h.series = append(h.series, series{metric: m, gpu: g, labels: append([]string{g.gpu, g.uuid}, labels...),
		value: value})
}

// always adds a constant series.
func (h *healthyHost) always(g *healthyGPU, m *collectors.Metric, value float64, labels ...string) {
	h.add(g, m, &value, labels...)
}

func (h *healthyHost) ofGPU(g *healthyGPU) {
	v, n := &g.seen, g.number
	h.series = append(h.series, series{collectors.Up, g, []string{g.gpu, g.uuid}, &v.up, true})
	info := make([]string, len(device.Info.Labels)-2)
	for i, l := range device.Info.Labels[2:] {
		info[i] = g.text[l]
	}
	h.always(g, device.Info, 1, info...)
	h.add(g, device.Power, &v.instant, "instant", "gpu")
	if g.has("average_power") {
		h.add(g, device.Power, &v.average, "average", "gpu")
	}
	for _, limit := range []string{"default", "enforced", "max"} {
		h.always(g, device.PowerLimit, n["power_w.default"], limit)
	}
	h.add(g, device.Energy, &v.energy, "gpu")
	h.add(g, device.Clock, &v.clock, "sm")
	h.add(g, device.Clock, &v.clock, "graphics")
	h.add(g, device.Clock, &v.memoryClock, "memory")
	h.always(g, device.ClockMax, 1e6*n["clock_mhz.max"], "sm")
	h.always(g, faults.RecoveryAction, 0)
	h.always(g, device.ComputeMode, 0)
	for mode, on := range map[string]bool{"accounting": false, "ecc": true, "mig": h.mig, "persistence": true} {
		h.always(g, device.ModeEnabled, collectors.Bool(on), mode)
	}
	if !h.mig { // NVML has no utilization of a GPU in MIG mode
		h.add(g, activity.Utilization, &v.utilization, "gpu")
		h.add(g, activity.Utilization, &v.memoryUtilization, "memory")
		for _, engine := range []string{"encoder", "decoder"} {
			h.always(g, activity.Utilization, 0, engine)
		}
	}
	if g.has("gpm") {
		h.add(g, activity.GPMActivity, &v.sm, "sm")
		h.add(g, activity.GPMActivity, &v.tensor, "tensor")
		h.add(g, activity.GPMActivity, &v.dram, "dram")
		h.add(g, activity.PCIeBytes, &v.rx, "rx")
		h.add(g, activity.PCIeBytes, &v.tx, "tx")
	}
	h.add(g, workloads.Processes, &v.processes, "compute")
	h.always(g, workloads.Processes, 0, "graphics")
	h.always(g, workloads.Processes, 0, "mps")
}

func (h *healthyHost) ofMemory(g *healthyGPU) {
	v := &g.seen
	h.add(g, device.MemoryBytes, &v.used, "used")
	h.add(g, device.MemoryBytes, &v.free, "free")
	h.add(g, device.MemoryBytes, &v.reserved, "reserved")
	h.add(g, faults.ECCErrors, &v.corrected, "corrected", "volatile")
	h.add(g, faults.ECCErrors, &v.aggregate, "corrected", "aggregate")
	h.always(g, faults.ECCErrors, 0, "uncorrected", "volatile")
	h.always(g, faults.ECCErrors, float64(h.r.IntN(3)/2), "uncorrected", "aggregate")
	old := float64(h.r.IntN(5) / 4) // a row that was replaced long ago
	h.always(g, faults.RemappedRows, old, "uncorrectable", "active")
	h.always(g, faults.RemappedRows, 0, "uncorrectable", "inactive")
	h.always(g, faults.RemappedRows, 0, "correctable", "active")
	h.always(g, faults.RowRemapPending, 0)
	h.always(g, faults.RowRemapFailure, 0)
	if g.text["model"] != "l4" {
		h.always(g, faults.RowRemapBanks, g.number["row_banks"]-old, "max")
		h.always(g, faults.RowRemapBanks, old, "high")
		for _, state := range []string{"partial", "low", "none"} {
			h.always(g, faults.RowRemapBanks, 0, state)
		}
	}
	h.always(g, faults.SRAMThreshold, 0)
	h.always(g, faults.SRAMAddresses, float64(h.r.IntN(2)))
}

func (h *healthyHost) ofHeat(g *healthyGPU) {
	v, n := &g.seen, g.number
	h.add(g, device.Temperature, &v.core, "gpu")
	if n["temperature_c.memory_full"] > 0 {
		h.add(g, device.Temperature, &v.hbm, "memory")
	}
	if g.has("margin") {
		h.add(g, device.TemperatureMargin, &v.margin)
	}
	if g.has("tlimit") {
		h.always(g, device.TemperatureTLimit, n["temperature_c.gpu_max"]-n["temperature_c.slowdown"], "slowdown")
		h.always(g, device.TemperatureTLimit, 0, "gpu_max")
	}
	if g.has("thresholds") {
		h.always(g, device.TemperatureThreshold, n["temperature_c.gpu_max"], "gpu_max")
		h.always(g, device.TemperatureThreshold, n["temperature_c.slowdown"], "slowdown")
	}
	for reason, value := range map[string]*float64{"gpu_idle": &v.idle, "sw_power_cap": &v.capped,
		"sw_thermal": &v.thermal,
		"app_clocks": &h.zero, "hw_slowdown": &h.zero, "hw_thermal": &h.zero, "hw_power_brake": &h.zero,
		"sync_boost": &h.zero} {
		h.add(g, device.ClockEventActive, value, reason)
	}
	for reason, value := range map[string]*float64{"sw_power_cap": &v.cappedFor, "sw_thermal": &v.thermalFor,
		"low_utilization": &v.idleFor,
		"hw_thermal":      &h.zero, "hw_power_brake": &h.zero} {
		h.add(g, device.ClockEventSeconds, value, reason)
	}
}

func (h *healthyHost) ofLinks(g *healthyGPU) {
	v, n := &g.seen, g.number
	h.add(g, links.PCIeGeneration, &v.generation, "current")
	h.always(g, links.PCIeGeneration, n["pcie.generation"], "max")
	h.always(g, links.PCIeWidth, n["pcie.width"], "current")
	h.always(g, links.PCIeWidth, n["pcie.width"], "max")
	h.add(g, links.PCIeReplays, &v.replays)
	h.add(g, links.PCIeErrors, &v.correctable, "correctable")
	h.always(g, links.PCIeErrors, 0, "fatal")
	if !g.has("nvswitch") {
		return
	}
	h.add(g, links.FabricState, &v.fabricDone, "completed")
	h.add(g, links.FabricState, &v.fabricTrains, "in_progress")
	h.always(g, links.FabricState, 0, "not_started")
	for _, check := range []string{"registration", "degraded_bw", "route_recovery", "route_unhealthy",
		"access_timeout_recovery", "incorrect_configuration"} {
		h.always(g, links.FabricHealth, 0, check)
	}
	if !h.perLink {
		h.link(g, 0, derived.AllLinks)
		h.always(g, links.NVLinkUp, n["nvlink.links"], derived.AllLinks)
		h.always(g, links.NVLinkSpeed, 1e6*n["nvlink.speed_mbps"]*n["nvlink.links"], derived.AllLinks)
		return
	}
	for i := range int(n["nvlink.links"]) {
		name := strconv.Itoa(i)
		h.link(g, i, name)
		h.always(g, links.NVLinkUp, 1, name)
		h.always(g, links.NVLinkSpeed, 1e6*n["nvlink.speed_mbps"], name)
		h.always(g, links.NVLinkInfo, 1, name, "4", "switch", "")
		if g.has("nvlink5") {
			h.add(g, links.NVLinkBER, &v.linkBER[i], "effective", name)
		}
	}
}

func (h *healthyHost) link(g *healthyGPU, i int, name string) {
	v := &g.seen
	h.add(g, links.NVLinkBytes, &v.linkRX[i], "rx", "data", name)
	h.add(g, links.NVLinkBytes, &v.linkTX[i], "tx", "data", name)
	if g.has("nvlink5") {
		h.add(g, links.NVLinkErrors, &v.linkErrors[i], "rcv", name)
		h.add(g, links.NVLinkErrors, &v.linkErrors[i], "symbol", name)
		h.add(g, links.NVLinkRecoveries, &v.linkRecovered[i], "success", name)
		h.add(g, links.NVLinkRecoveries, &h.zero, "failed", name)
		return
	}
	h.add(g, links.NVLinkErrors, &v.linkErrors[i], "crc", name)
	h.add(g, links.NVLinkErrors, &v.linkRecovered[i], "recovery", name)
	h.add(g, links.NVLinkErrors, &h.zero, "replay", name)
}

func (h *healthyHost) ofMIG(g *healthyGPU) {
	if !h.mig {
		return
	}
	for i := range g.seen.migUsed {
		gi := strconv.Itoa(i + 1)
		h.add(g, device.MIGMemory, &g.seen.migUsed[i], gi, "used")
		h.add(g, device.MIGMemory, &g.seen.migFree[i], gi, "free")
	}
}

// ofHost lists the host's series, and those of GPUs that need no driver.
func (h *healthyHost) ofHost() {
	host := func(m *collectors.Metric, value *float64, labels ...string) {
		h.kernel = append(h.kernel, series{metric: m, labels: labels, value: value})
	}
	gpus := float64(len(h.gpus))
	host(collectors.DriverUp, &h.driverUp)
	host(collectors.DriverMismatch, &h.zero, "", "")
	host(collectors.Drained, &h.drainedNow)
	host(workloads.BrokerUp, &h.one)
	host(workloads.BrokerStarved, &h.zero)
	host(collectors.DevicesExpected, &gpus)
	host(links.PCIDevices, &gpus, "gpu")
	host(faults.DriverBlockedTasks, &h.blocked)
	for _, resource := range []string{"memory", "cpu", "goroutines", "events"} {
		host(Pressure, &h.pressure, resource)
	}
	for _, source := range []string{"kmsg", "journal", "disagreement"} {
		host(TelemetryLost, &h.zero, source)
	}
	for i := range h.ports {
		host(links.IBPortUp, &h.ports[i], "mlx5_"+strconv.Itoa(i)+"/1")
		host(links.IBPortDowned, &h.zero, "mlx5_"+strconv.Itoa(i)+"/1")
	}
	for _, g := range h.gpus {
		labels := []string{g.gpu, g.uuid}
		host(links.PCIDevicePresent, &h.one, append(labels[:2:2], "", "gpu")...)
		host(links.PCIeAERErrors, &g.seen.aer, append(labels[:2:2], "", "gpu", "correctable")...)
		host(links.PCIeAERErrors, &h.zero, append(labels[:2:2], "", "gpu", "nonfatal")...)
		host(links.PCIeAERErrors, &h.zero, append(labels[:2:2], "", "gpu", "fatal")...)
	}
}
