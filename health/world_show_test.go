package health

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
)

// A gauge is a series that the agent reads, with a pointer to its value.
type gauge struct {
	metric *collectors.Metric
	board  *board // nil for the host
	labels []string
	value  *float64
	when   *float64 // present when this is 1; nil: always
	pipes  bool     // a profiler takes it away
}

func (s *site) adds(b *board, m *collectors.Metric, value *float64, labels ...string) *gauge {
	s.gauges = append(s.gauges, gauge{metric: m, board: b, labels: append([]string{b.gpu, b.uuid}, labels...),
		value: value})
	return &s.gauges[len(s.gauges)-1]
}

// fixes adds a constant series.
func (s *site) fixes(b *board, m *collectors.Metric, value float64, labels ...string) {
	s.adds(b, m, &value, labels...)
}

// shown lists the boards' series.
func (s *site) shown() {
	for _, b := range s.boards {
		s.showsBoard(b)
		s.showsMemory(b)
		s.showsHeat(b)
		s.showsBus(b)
		if b.number("links") > 0 {
			s.showsLinks(b)
		}
		s.lacks(b)
	}
	slices.SortFunc(s.gauges, func(x, y gauge) int { // families come together
		return cmp.Or(strings.Compare(x.metric.Name, y.metric.Name), slices.Compare(x.labels, y.labels))
	})
}

// lacks adds the features that the driver reports as absent on a board.
func (s *site) lacks(b *board) {
	for _, m := range []*collectors.Metric{activity.GPMActivity, links.NVLinkUp, faults.RowRemapBanks,
		device.TemperatureMargin, device.FanSpeed, faults.RetiredPages} {
		if !slices.ContainsFunc(s.gauges, func(g gauge) bool { return g.board == b && g.metric == m }) {
			s.fixes(b, collectors.Unsupported, 1, m.Name)
		}
	}
}

func (s *site) showsBoard(b *board) {
	v := &b.v
	s.adds(b, device.Power, &v.instant, "instant", "gpu")
	if b.has("average") {
		s.adds(b, device.Power, &v.average, "average", "gpu")
	}
	s.adds(b, device.PowerLimit, &v.enforced, "enforced")
	s.adds(b, device.PowerLimit, &v.requested, "requested")
	for limit, column := range map[string]string{"default": "w_limit", "max": "w_limit", "min": "w_min"} {
		s.fixes(b, device.PowerLimit, b.number(column), limit)
	}
	s.adds(b, device.Energy, &v.energy, "gpu")
	s.adds(b, device.Clock, &v.clock, "sm")
	s.adds(b, device.Clock, &v.clock, "graphics")
	s.adds(b, device.Clock, &v.memoryClock, "memory")
	s.fixes(b, device.ClockMax, 1e6*b.number("mhz_max"), "sm")
	s.fixes(b, device.ClockMax, 1e6*b.number("mhz_max"), "graphics")
	s.fixes(b, device.ClockMax, 1e6*b.number("mhz_memory"), "memory")
	s.adds(b, device.PerformanceState, &v.pstate)
	s.fixes(b, faults.RecoveryAction, 0)
	s.adds(b, device.ComputeMode, &v.compute)
	s.adds(b, device.ModeEnabled, &v.persistence, "persistence")
	s.adds(b, device.ModeEnabled, &v.mig, "mig")
	s.adds(b, device.ModeEnabled, &v.mig, "mig_pending")
	for mode, on := range map[string]float64{"ecc": 1, "ecc_pending": 1, "accounting": 0, "display": 0} {
		s.fixes(b, device.ModeEnabled, on, mode)
	}
	s.adds(b, activity.Utilization, &v.utilization, "gpu").when = &v.noMIG // absent on a divided board
	s.adds(b, activity.Utilization, &v.memoryUtilization, "memory").when = &v.noMIG
	s.adds(b, activity.Utilization, &v.nothing, "encoder").when = &v.noMIG
	s.adds(b, activity.Utilization, &v.nothing, "decoder").when = &v.noMIG
	if b.has("gpm") {
		for pipe, value := range map[string]*float64{"sm": &v.sm, "tensor": &v.tensor, "dram": &v.dram,
			"graphics": &v.sm} {
			s.adds(b, activity.GPMActivity, value, pipe).pipes = true
		}
		s.adds(b, activity.GPMOccupancy, &v.occupancy).pipes = true
		s.adds(b, activity.PCIeBytes, &v.rx, "rx").pipes = true
		s.adds(b, activity.PCIeBytes, &v.tx, "tx").pipes = true
	}
	s.adds(b, workloads.Processes, &v.processes, "compute")
	s.fixes(b, workloads.Processes, 0, "graphics")
	s.fixes(b, workloads.Processes, 0, "mps")
	mode := "none"
	if b.has("coherent") {
		mode = "ats"
		s.fixes(b, links.C2CUp, 1, "0")
	}
	s.fixes(b, device.AddressingMode, 1, mode)
	for reason, value := range map[string]*float64{"gpu_idle": &v.idle, "app_clocks": &v.app, "sw_power_cap": &v.cap,
		"sw_thermal":  &v.swThermal,
		"hw_slowdown": &v.nothing, "hw_thermal": &v.nothing, "hw_power_brake": &v.nothing, "sync_boost": &v.nothing} {
		s.adds(b, device.ClockEventActive, value, reason)
	}
	for reason, value := range map[string]*float64{"sw_power_cap": &v.capFor, "sw_thermal": &v.swThermalFor,
		"hw_power_brake": &v.brakeFor, "hw_thermal": &v.nothing,
		"low_utilization": &v.lowFor, "base_clocks": &v.baseFor, "board_limit": &v.nothing, "reliability": &v.nothing,
		"sync_boost": &v.nothing} {
		s.adds(b, device.ClockEventSeconds, value, reason)
	}
}

func (s *site) showsMemory(b *board) {
	v := &b.v
	s.adds(b, device.MemoryBytes, &v.used, "used")
	s.adds(b, device.MemoryBytes, &v.free, "free")
	s.fixes(b, device.MemoryBytes, b.number("reserved"), "reserved")
	s.fixes(b, device.MemoryTotal, b.number("memory"))
	s.fixes(b, device.BAR1Bytes, 1.7e6, "used")
	s.adds(b, faults.ECCErrors, &v.corrected, "corrected", "volatile")
	s.adds(b, faults.ECCErrors, &v.aggregate, "corrected", "aggregate")
	s.fixes(b, faults.ECCErrors, 0, "uncorrected", "volatile")
	s.fixes(b, faults.ECCErrors, float64(s.r.IntN(5)/4), "uncorrected", "aggregate")
	old := float64(s.r.IntN(6) / 5) // a row that was replaced long ago
	for _, cause := range []string{"correctable", "uncorrectable"} {
		s.fixes(b, faults.RemappedRows, old*collectors.Bool(cause == "uncorrectable"), cause, "active")
		s.fixes(b, faults.RemappedRows, 0, cause, "inactive")
	}
	s.fixes(b, faults.RowRemapPending, 0)
	s.fixes(b, faults.RowRemapFailure, 0)
	s.fixes(b, faults.RowRemapBanks, b.number("banks")-old, "max")
	s.fixes(b, faults.RowRemapBanks, old, "high")
	for _, state := range []string{"partial", "low", "none"} {
		s.fixes(b, faults.RowRemapBanks, 0, state)
	}
	s.fixes(b, faults.SRAMThreshold, 0)
	s.fixes(b, faults.InforomValid, 1)
	if b.has("each") {
		s.fixes(b, faults.SRAMAddresses, float64(s.r.IntN(2)))
	}
}

func (s *site) showsHeat(b *board) {
	v := &b.v
	s.adds(b, device.Temperature, &v.core, "gpu")
	if b.number("c_hbm_full") > 0 {
		s.adds(b, device.Temperature, &v.hbm, "memory")
	}
	if b.has("margin") {
		s.adds(b, device.TemperatureMargin, &v.margin)
	}
	if b.has("tlimit") {
		for threshold, column := range map[string]string{"shutdown": "c_shutdown", "slowdown": "c_slowdown",
			"gpu_max": "c_max"} {
			s.fixes(b, device.TemperatureTLimit, b.number("c_max")-b.number(column), threshold)
		}
	}
	if b.has("thresholds") {
		for threshold, column := range map[string]string{"shutdown": "c_shutdown", "slowdown": "c_slowdown",
			"gpu_max": "c_max"} {
			s.fixes(b, device.TemperatureThreshold, b.number(column), threshold)
		}
		s.fixes(b, device.TemperatureThreshold, 95, "memory_max")
	}
	if b.has("fan") {
		s.adds(b, device.FanSpeed, &v.fan, "0")
		s.adds(b, device.FanTarget, &v.fan, "0")
		s.adds(b, device.FanRPM, &v.rpm, "0")
	}
}

func (s *site) showsBus(b *board) {
	v := &b.v
	s.adds(b, links.PCIeGeneration, &v.generation, "current")
	s.fixes(b, links.PCIeGeneration, b.number("pcie"), "max")
	s.fixes(b, links.PCIeWidth, b.number("lanes"), "current")
	s.fixes(b, links.PCIeWidth, b.number("lanes"), "max")
	s.adds(b, links.PCIeReplays, &v.replays)
	s.fixes(b, links.PCIeReplayRollovers, 0)
	s.adds(b, links.PCIeLinkRecoveries, &v.recoveries)
	s.adds(b, links.PCIeErrors, &v.correctable, "correctable")
	for _, kind := range []string{"non_fatal", "fatal", "bad_tlp", "bad_dllp", "nak_sent", "nak_received", "receiver",
		"unsupported_request"} {
		s.fixes(b, links.PCIeErrors, 0, kind)
	}
}

func (s *site) showsLinks(b *board) {
	v := &b.v
	s.adds(b, links.FabricState, &v.fabricDone, "completed")
	s.adds(b, links.FabricState, &v.fabricTrains, "in_progress")
	s.fixes(b, links.FabricState, 0, "not_started")
	s.fixes(b, links.FabricState, 0, "not_supported")
	for _, check := range []string{"registration", "degraded_bw", "route_recovery", "route_unhealthy",
		"access_timeout_recovery", "incorrect_configuration"} {
		s.fixes(b, links.FabricHealth, 0, check)
	}
	for i := range b.lines() {
		name := "all"
		if b.has("each") {
			name = strconv.Itoa(i)
			s.fixes(b, links.NVLinkInfo, 1, name, "4", "switch", "")
		}
		s.adds(b, links.NVLinkUp, &v.links[i], name)
		s.adds(b, links.NVLinkSpeed, &v.speed[i], name)
		s.adds(b, links.NVLinkBytes, &v.linkRX[i], "rx", "data", name)
		s.adds(b, links.NVLinkBytes, &v.linkTX[i], "tx", "data", name)
		if b.has("nvlink5") {
			s.adds(b, links.NVLinkErrors, &v.crc[i], "symbol", name)
			s.adds(b, links.NVLinkErrors, &v.nothing, "rcv", name)
			s.adds(b, links.NVLinkRecoveries, &v.linkRecoveries[i], "success", name)
			s.adds(b, links.NVLinkRecoveries, &v.nothing, "failed", name)
			if b.has("each") {
				s.fixes(b, links.NVLinkBER, math.Pow(10, -15-s.r.Float64()), "effective", name)
			}
			continue
		}
		s.adds(b, links.NVLinkErrors, &v.crc[i], "crc", name)
		s.adds(b, links.NVLinkErrors, &v.linkRecoveries[i], "recovery", name)
		s.adds(b, links.NVLinkErrors, &v.nothing, "replay", name)
	}
}

// show returns the agent's current samples.
func (s *site) show() []collectors.Sample {
	out := s.out[:0]
	put := func(m *collectors.Metric, v float64, labels ...string) {
		out = append(out, collectors.Sample{Metric: m, Labels: labels, Value: v})
	}
	if s.clock >= s.starved {
		s.showsHost(put)
	}
	put(collectors.DriverUp, collectors.Bool(s.driver))
	put(collectors.DriverMismatch, 0, "", "")
	put(collectors.Drained, collectors.Bool(s.drained))
	put(collectors.NVMLGeneration, s.generation)
	put(collectors.DevicesExpected, float64(len(s.boards)))
	if !s.drained {
		listed := 0.0
		for _, b := range s.boards {
			listed += collectors.Bool(s.driver && b.away == "")
			s.stands(b, put)
		}
		put(collectors.Devices, listed)
	}
	for i := range s.gauges {
		g := &s.gauges[i]
		if b := g.board; s.answers(b) && !b.missing[g.metric] && (g.when == nil || *g.when == 1) &&
			!(g.pipes && s.profiled) {
			out = append(out, collectors.Sample{Metric: g.metric, Labels: g.labels, Value: *g.value})
		}
	}
	if out = s.users(out); s.enforces && s.driver {
		out = s.enforced(out)
	}
	s.out = s.breaks(out)
	return s.out
}

// answers reports whether a board is read.
func (s *site) answers(b *board) bool { return s.driver && b.silent == "" && b.away == "" }

// stands adds the series of a board that do not depend on its answers.
func (s *site) stands(b *board, put func(*collectors.Metric, float64, ...string)) {
	up := s.answers(b)
	put(collectors.Up, collectors.Bool(up), b.gpu, b.uuid)
	age := 0.4
	if !up {
		age = (s.clock - b.read).Seconds()
	} else {
		b.read = s.clock
	}
	why := b.silent
	switch {
	case up:
		put(device.Info, 1, b.gpu, b.uuid, b.worldRow["name"], "Tesla", "Hopper", "9.0", b.pci+".0", b.gpu,
			"16500"+b.gpu, "692-2G520", b.vbios, "G520.0200.00.05", "580.95.05", "0", b.gpu)
	case !s.driver:
		why = gpu.ReturnName(nvml.ERROR_DRIVER_NOT_LOADED)
	case b.away != "":
		why = "not_listed"
	}
	put(collectors.SnapshotAge, age, b.gpu, b.uuid)
	if !up {
		put(collectors.WorkerStuck, 1, b.gpu, b.uuid, why)
	}
}

// showsHost adds the series that need no driver.
func (s *site) showsHost(put func(*collectors.Metric, float64, ...string)) {
	put(links.PCIDevices, float64(len(s.boards)), "gpu")
	put(device.NodeBoot, float64(sitesBegin.Add(s.booted+s.shift).Unix()))
	blocked := s.blocks
	if s.chance(0.3) { // for a moment that is normal
		blocked++
	}
	put(faults.DriverBlockedTasks, blocked)
	for _, b := range s.boards {
		driver := "nvidia"
		switch {
		case b.away != "":
			driver = b.away
		case !s.driver && !s.drained:
			driver = ""
		}
		put(links.PCIDevicePresent, 1, b.gpu, b.uuid, b.pci+".0", "gpu")
		put(links.PCIPort, 1, b.gpu, b.uuid, "0000:00:01.1") // of the socket
		put(links.PCIPort, 1, b.gpu, b.uuid, strings.Replace(b.pci, ":00", ":01", 1)+".0")
		put(links.PCIDeviceBound, collectors.Bool(driver != ""), b.gpu, b.uuid, b.pci+".0", "gpu", driver)
		put(links.PCIeAERErrors, b.v.aer, b.gpu, b.uuid, b.pci+".0", "gpu", "correctable")
		put(links.PCIeAERErrors, 0, b.gpu, b.uuid, b.pci+".0", "gpu", "nonfatal")
		put(links.PCIeAERErrors, 0, b.gpu, b.uuid, b.pci+".0", "gpu", "fatal")
	}
	for i, p := range s.ports {
		put(links.IBPortUp, p.up, "mlx5_"+strconv.Itoa(i)+"/1")
		put(links.IBPortDowned, p.downed, "mlx5_"+strconv.Itoa(i)+"/1")
	}
}

// users adds the users of the boards.
func (s *site) users(out []collectors.Sample) []collectors.Sample {
	type use struct {
		b      *board
		labels [2]string
	}
	memory, sm, order := map[use]float64{}, map[use]float64{}, []use(nil)
	for _, l := range s.slots {
		if l.task == nil {
			continue
		}
		for i, b := range l.boards {
			if !s.answers(b) || b.missing[workloads.WorkloadMemory] {
				continue
			}
			u := use{b, [2]string{l.task.workload, l.gi}}
			if _, ok := memory[u]; !ok {
				order = append(order, u)
			}
			memory[u] += l.task.held[i]
			sm[u] += l.task.use[i]
		}
	}
	for _, b := range s.boards {
		if b.mig == 1 && s.answers(b) {
			out = b.instances(out, func(gi string) (used float64) {
				for u, held := range memory {
					used += held * collectors.Bool(u.b == b && u.labels[1] == gi)
				}
				return used
			})
		}
	}
	for _, u := range order {
		out = append(out, collectors.Sample{Metric: workloads.WorkloadMemory, Labels: []string{u.b.gpu, u.b.uuid,
			u.labels[0], u.labels[1]}, Value: memory[u]})
	}
	for _, u := range order {
		out = append(out, collectors.Sample{Metric: workloads.WorkloadProcesses, Labels: []string{u.b.gpu, u.b.uuid,
			u.labels[0], "compute"}, Value: 1})
	}
	for _, u := range order {
		if u.b.mig == 0 {
			out = append(out, collectors.Sample{Metric: workloads.WorkloadUse, Labels: []string{u.b.gpu, u.b.uuid,
				u.labels[0], "sm"}, Value: clamp(sm[u])})
		}
	}
	return out
}

// instances adds the memory of a board's quarters.
func (b *board) instances(out []collectors.Sample, used func(gi string) float64) []collectors.Sample {
	for i := range 4 {
		gi, all := strconv.Itoa(i+1), (b.v.used+b.v.free)/4
		held := min(all, used(gi))
		out = append(out, collectors.Sample{Metric: device.MIGMemory, Labels: []string{b.gpu, b.uuid, gi,
			"used"}, Value: held},
			collectors.Sample{Metric: device.MIGMemory, Labels: []string{b.gpu, b.uuid, gi, "free"}, Value: all - held})
	}
	return out
}

// A breakage changes the readings of a board, or of the host.
type breakage struct {
	board       *board // nil for the host
	metric      *collectors.Metric
	where       []string                     // values of labels after gpu and uuid; "" is any
	change      func(v, age float64) float64 // by the value and the hours since the break; NaN: absent
	from, until time.Duration
	period, on  time.Duration // broken only for a part of each period
}

// breaks applies the breakages.
func (s *site) breaks(out []collectors.Sample) []collectors.Sample {
	s.broken = slices.DeleteFunc(s.broken, func(x *breakage) bool { return x.until > 0 && s.clock > x.until })
	for _, x := range s.broken {
		age := s.clock - x.from
		if age < 0 || x.period > 0 && age%x.period >= x.on {
			continue
		}
		kept := out[:0]
		for _, o := range out {
			if x.fits(o) {
				if o.Value = x.change(o.Value, age.Hours()); o.Value != o.Value {
					continue
				}
			}
			kept = append(kept, o)
		}
		out = kept
	}
	return out
}

func (x *breakage) fits(o collectors.Sample) bool {
	if o.Metric != x.metric {
		return false
	}
	labels := o.Labels
	if len(o.Metric.Labels) > 1 && o.Metric.Labels[0] == "gpu" {
		if x.board == nil || labels[1] != x.board.uuid {
			return false
		}
		labels = labels[2:]
	}
	return labelsFit(labels, x.where[:min(len(x.where), len(labels))])
}

// labelsFit reports whether labels match the wanted ones, if any are wanted.
func labelsFit(have, want []string) bool {
	for i, w := range want {
		if w != "" && have[i] != w {
			return false
		}
	}
	return true
}
