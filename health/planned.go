package health

import (
	"maps"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// Metrics that explain a change as planned, and not as a fault.
var (
	Away = collectors.Gauge("nvgpu_away",
		"1 for a GPU that is handed to a virtual machine: bound to vfio-pci or its like.")
	DevicesAway   = collectors.HostGauge("nvgpu_devices_away", "GPUs that are handed to virtual machines.")
	DevicesAbsent = collectors.HostGauge("nvgpu_devices_absent",
		"GPUs that seem to be missing: those on the PCI bus that the driver does not list and that are not withheld from "+
			"the agent, and, outside of virtual machines, empty places of a baseboard with NVSwitches, which has two, four, "+
			"eight or sixteen. Acknowledged ones do not count.")
	Settling = collectors.Gauge("nvgpu_settling",
		"1 for the first 5 minutes after the GPU was reset or its driver loaded anew, while its links train.")
	Booting = collectors.HostGauge("nvgpu_host_booting",
		"1 for the first 5 minutes after the host was booted, while its ports come up.")
	Reloading = collectors.HostGauge("nvgpu_driver_reloading",
		"1 while the driver may be reloading: for 10 minutes after it was unloaded, or for 3 after it ceased to "+
			"answer for GPUs that it drives or that had work a minute before.")
	HotAisle = collectors.HostGauge("nvgpu_hot_aisle",
		"1 while three quarters of the GPUs that answer, at least two, are within 5 degrees of their limit: the air "+
			"is too warm, and no single GPU is to blame.")
	ChassisBrake = collectors.HostGauge("nvgpu_chassis_power_brake_ratio",
		"Part of the last 5 minutes for which the power brake held down the clocks of half of the GPUs, at least two; 1 "+
			"while it does so. A new agent goes by the time since its start, at least a minute, and by what the last agent saw.")
	Starved = collectors.HostGauge("gpusteward_starved",
		"1 while the data of all GPUs, at least two, are old, and driver calls do not explain all of it: the agent "+
			"itself gets no processor time.")
)

// Longest durations of planned work.
const (
	settleFor = 5 * time.Minute  // for the links of eight GPUs and their switches to train
	reloadFor = 10 * time.Minute // to build a driver for this kernel, and to load it
	reopenFor = 3 * time.Minute  // for a loaded driver to initialise each GPU
	restFirst = time.Minute      // without work, before a long planned absence of the driver
	swapped   = 30 * time.Second // a restart of the agent takes less; a reload of the driver fits into a longer absence
)

// handing are the drivers that pass a device to a virtual machine.
var handing = []string{"vfio-pci", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci", "pci-stub", "pciback",
	"uio_pci_generic"}

// plans remember reloaded drivers and reset GPUs. GPUs that are there at the
// beginning are not new, unless the host was booted or the driver may have been
// reloaded while no agent ran.
type plans struct {
	begun bool
	here  map[incident.Entity]bool      // GPUs of the driver, whether or not they answer
	fresh map[incident.Entity]time.Time // time of the arrival or reset, of new GPUs
	open  time.Time                     // when the driver last answered; zero: never
	works time.Time                     // when a GPU last had work
	// when the agent was last drained, and until when; zero: never
	drainedFrom, drainedTo time.Time
}

// reset records the reset of a GPU.
func (p *plans) reset(gpu incident.Entity, now time.Time) {
	if p.fresh == nil {
		p.fresh = map[incident.Entity]time.Time{}
	}
	p.fresh[gpu] = now
}

// resume continues the plans of an agent that ended some time ago. The energy
// of a GPU tells whether it was reset meanwhile. A GPU without that counts as
// new after an absence in which the driver may have been reloaded.
func (p *plans) resume(fresh []savedFresh, signs map[string]resetSign, ago time.Duration,
	restored func(time.Time) time.Time) {
	for _, f := range fresh {
		p.reset(f.Entity, restored(f.Since))
	}
	if p.begun = ago >= swapped; p.begun {
		p.here = map[incident.Entity]bool{}
		for _, sign := range signs {
			p.here[sign.Entity] = sign.Joules > 0
		}
	}
}

// loaded records that the driver was loaded anew.
func (p *plans) loaded(s *derived.Snapshot, at time.Time) {
	for _, up := range s.Of(collectors.Up) {
		p.reset(incident.EntityOf(up, nil), at)
	}
}

// drains records whether the agent is drained.
func (p *plans) drains(s *derived.Snapshot, now time.Time) {
	for _, drained := range s.Of(collectors.Drained) {
		if drained.Value != 1 {
			return
		}
		if now.Sub(p.drainedTo) > drainTail {
			p.drainedFrom = now
		}
		p.drainedTo = now
	}
}

// drainTail is the time for which the ends of programs may be told after a drain,
// or between two drains that are one.
const drainTail = time.Minute

// drainedAt reports whether the agent was drained at a time, or until just before.
func (p *plans) drainedAt(t time.Time) bool {
	return !p.drainedTo.IsZero() && !t.Before(p.drainedFrom) && t.Sub(p.drainedTo) <= drainTail
}

// explain adds the planned states to s.
func (p *plans) explain(s *derived.Snapshot, now time.Time) {
	booting := false
	for _, boot := range s.Of(device.NodeBoot) {
		up := now.Sub(time.Unix(int64(boot.Value), 0))
		booting = up >= 0 && up < settleFor
	}
	s.Add(collectors.Sample{Metric: Booting, Value: collectors.Bool(booting)})
	reasons := map[incident.Entity]string{}
	for _, stuck := range s.Of(collectors.WorkerStuck) {
		reasons[incident.EntityOf(stuck, nil)] = stuck.Labels[2]
	}
	driven := hand(s)
	p.settle(s, reasons, now)
	if len(s.Of(workloads.WorkloadMemory)) > 0 {
		p.works = now
	}
	for _, up := range s.Of(collectors.DriverUp) {
		patience := reloadFor
		if up.Value == 1 {
			p.open = now
		}
		if driven > 0 || p.open.Sub(p.works) < restFirst {
			patience = reopenFor
		}
		reloading := up.Value == 0 && !p.open.IsZero() && now.Sub(p.open) <= patience
		s.Add(collectors.Sample{Metric: Reloading, Value: collectors.Bool(reloading)})
	}
	if len(s.Of(collectors.Up)) > 0 {
		s.Add(collectors.Sample{Metric: HotAisle, Value: collectors.Bool(hotAisle(s))},
			collectors.Sample{Metric: Starved, Value: collectors.Bool(starved(s, reasons))})
	}
}

// hand adds the GPUs that are passed on, and returns how many NVIDIA's driver
// has.
func hand(s *derived.Snapshot) (driven int) {
	away, n := map[incident.Entity]bool{}, 0
	for _, bound := range s.Of(links.PCIDeviceBound) {
		switch kind, driver := bound.Labels[3], bound.Labels[4]; {
		case kind != "gpu" || bound.Value == 0:
		case driver == "nvidia":
			driven++
		case slices.Contains(handing, driver):
			away[incident.EntityOf(bound, nil)] = true
			n++
		}
	}
	for _, up := range s.Of(collectors.Up) {
		s.Add(collectors.Sample{Metric: Away, Labels: up.Labels,
			Value: collectors.Bool(away[incident.EntityOf(up, nil)])})
	}
	s.Add(collectors.Sample{Metric: DevicesAway, Value: float64(n)})
	return driven
}

// settle adds the GPUs that arrived recently. A GPU with late data, or with a
// driver call that hangs, has not left.
func (p *plans) settle(s *derived.Snapshot, reasons map[incident.Entity]string, now time.Time) {
	here := map[incident.Entity]bool{}
	for _, up := range s.Of(collectors.Up) {
		gpu := incident.EntityOf(up, nil)
		if here[gpu] = up.Value == 1 || p.here[gpu] && held(reasons[gpu]); here[gpu] && p.begun && !p.here[gpu] {
			p.reset(gpu, now)
		}
	}
	p.here, p.begun = here, true
	maps.DeleteFunc(p.fresh, func(_ incident.Entity, since time.Time) bool { return now.Sub(since) >= settleFor })
	for _, up := range s.Of(collectors.Up) {
		if gpu := incident.EntityOf(up, nil); here[gpu] {
			s.Add(collectors.Sample{Metric: Settling, Labels: up.Labels,
				Value: collectors.Bool(!p.fresh[gpu].IsZero())})
		}
	}
}

// held reports whether a GPU that does not answer may do so once its reader
// continues.
func held(reason string) bool { return reason == "late" || strings.HasPrefix(reason, "nvml") }

// starved reports whether the agent gets no processor time: all of its data are
// late at once. A reader inside a driver call does not disprove that, because
// it may have been put to sleep there.
func starved(s *derived.Snapshot, reasons map[incident.Entity]string) bool {
	late, all := 0, 0
	for _, up := range s.Of(collectors.Up) {
		switch reason := reasons[incident.EntityOf(up, nil)]; {
		case up.Value == 1:
			return false
		case reason == "late":
			late++
			all++
		case held(reason):
			all++
		}
	}
	return late > 0 && all > 1
}

// nearLimit is the distance from the limit, in degrees, at which a GPU is hot.
const nearLimit = 5

// hotAisle reports whether nearly all GPUs are hot. A GPU without a reported
// margin is judged by its temperature and its limit.
func hotAisle(s *derived.Snapshot) bool {
	margins, limits := map[incident.Entity]float64{}, map[incident.Entity]float64{}
	for _, limit := range s.Of(device.TemperatureThreshold) {
		if limit.Labels[2] == "gpu_max" {
			limits[incident.EntityOf(limit, nil)] = limit.Value
		}
	}
	for _, t := range s.Of(device.Temperature) {
		if limit, known := limits[incident.EntityOf(t, nil)]; known && t.Labels[2] == "gpu" {
			margins[incident.EntityOf(t, nil)] = limit - t.Value
		}
	}
	for _, margin := range s.Of(device.TemperatureMargin) {
		margins[incident.EntityOf(margin, nil)] = margin.Value
	}
	hot := 0
	for _, margin := range margins {
		if margin <= nearLimit {
			hot++
		}
	}
	return hot > 1 && 4*hot >= 3*len(margins)
}
